"""MG-WFBP: the published algorithm, its false theorem, and the bound that does hold."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from osfmodel.cost import AffineCost, TableCost
from osfmodel.solve import exact as merge
from osfmodel.solve.published import mg_wfbp, regression
from osfmodel.solve.solution import finish, groups_of
from tests.conftest import gradients


def literal_algorithm_1(ready, sizes, a, b):
    """TPDS'21, Algorithm 1, line by line: recompute every start after each merge. O(L^2)."""
    count = len(sizes)
    pending, duration = list(sizes), [a + b * size for size in sizes]
    merged = [False] * count

    def starts():
        result = [ready[0]]
        for i in range(1, count):
            result.append(max(result[i - 1] + duration[i - 1], ready[i]))
        return result

    start = starts()
    for i in range(count - 1):
        if ready[i + 1] - start[i] < a:
            merged[i] = True
            duration[i] = 0
            pending[i + 1] += pending[i]
            duration[i + 1] = a + b * pending[i + 1]
            start = starts()
    return tuple(i + 1 for i in range(count) if not merged[i])


def test_counter_example_to_theorem_1():
    """r = (0, .9, 1.95), p = (.5, 0+, 0+), a = b = 1: MG-WFBP 3.40, optimum 2.95."""
    half, tiny = 5 * 10**11, 1
    scale = Fraction(1, 10**12)
    ready = [Fraction(0), Fraction("0.9"), Fraction("1.95")]
    sizes = [half, tiny, tiny]
    cost = AffineCost(((Fraction(1), scale),))
    greedy = mg_wfbp.merge(ready, sizes, ["f"] * 3, Fraction(1), scale)
    best = merge.optimal_ends(gradients(ready, sizes), cost)
    assert greedy == (2, 3)
    assert best == (1, 3)
    assert float(finish(groups_of(greedy), gradients(ready, sizes), cost)) == pytest.approx(3.40, abs=1e-9)
    assert float(finish(groups_of(best), gradients(ready, sizes), cost)) == pytest.approx(2.95, abs=1e-9)


def test_counter_example_with_empty_tensors():
    """The same with 0+ taken as exactly 0 bytes."""
    ready, sizes = [Fraction(0), Fraction("0.9"), Fraction("1.95")], [1, 0, 0]
    cost = AffineCost(((Fraction(1), Fraction(1, 2)),))
    greedy = mg_wfbp.merge(ready, sizes, ["f"] * 3, Fraction(1), Fraction(1, 2))
    best = merge.optimal_ends(gradients(ready, sizes), cost)
    assert finish(groups_of(greedy), gradients(ready, sizes), cost) == Fraction("3.4")
    assert finish(groups_of(best), gradients(ready, sizes), cost) == Fraction("2.95")


def test_one_pass_equals_the_published_loop():
    rng = np.random.default_rng(5)
    for _ in range(500):
        count = int(rng.integers(1, 30))
        ready = np.cumsum(rng.exponential(1, count)).tolist()
        sizes = (rng.pareto(1, count) * 10).astype(int).tolist()
        a, b = float(rng.exponential(1)), float(rng.exponential(0.1))
        assert mg_wfbp.merge(ready, sizes, ["f"] * count, a, b) == literal_algorithm_1(ready, sizes, a, b)


def test_between_the_optimum_and_one_message():
    """OPT <= MG-WFBP <= everything in one message < 2 OPT, and often strictly above OPT."""
    rng = np.random.default_rng(6)
    suboptimal = 0
    for _ in range(400):
        count = int(rng.integers(2, 12))
        ready = np.cumsum(rng.exponential(1, count)).tolist()
        sizes = (rng.pareto(1, count) * 10).astype(int).tolist()
        a, b = float(rng.exponential(1)), float(rng.exponential(0.1))
        cost = AffineCost(((a, b),))
        best = finish(groups_of(merge.optimal_ends(gradients(ready, sizes), cost)), gradients(ready, sizes), cost)
        greedy = finish(groups_of(mg_wfbp.merge(ready, sizes, ["f"] * count, a, b)), gradients(ready, sizes), cost)
        single = finish(groups_of((count,)), gradients(ready, sizes), cost)
        assert best <= greedy * (1 + 1e-12)
        assert greedy <= single * (1 + 1e-12)
        assert single < 2 * best
        suboptimal += greedy > best * 1.001
    assert suboptimal > 40


@pytest.mark.parametrize("k", [4, 64])
def test_the_bound_of_two_is_approached(k):
    """p = ((k-1) a/b, 0 ... 0), r_i = i (1 - eps) a: MG-WFBP / OPT -> 2k / (k+1)."""
    eps = Fraction(1, 10**6)
    ready = [i * (1 - eps) for i in range(k + 1)]
    sizes = [k - 1] + [0] * k
    cost = AffineCost(((Fraction(1), Fraction(1)),))
    greedy = finish(groups_of(mg_wfbp.merge(ready, sizes, ["f"] * (k + 1), 1, 1)), gradients(ready, sizes), cost)
    best = finish(groups_of(merge.optimal_ends(gradients(ready, sizes), cost)), gradients(ready, sizes), cost)
    assert float(greedy / best) == pytest.approx(2 * k / (k + 1), rel=1e-4)


def test_a_and_b_of_a_table_come_from_the_authors_regression():
    """On a line the regression over 32 KiB to 2 MiB finds the line."""
    a, b = regression.linear(AffineCost(((1e-3, 2e-9), (1.0, 0.0))))
    assert a == pytest.approx(1e-3, rel=1e-9)
    assert b == pytest.approx(2e-9, rel=1e-9)


def test_runs_below_the_least_size_take_the_next_gradient_in_any_case():
    """ddl-benchmarks' addition to the rule: nothing small is sent, however long the wait."""
    ready, sizes = [0.0, 10.0, 20.0, 30.0], [1, 100, 100, 1]
    assert mg_wfbp.merge(ready, sizes, ["f"] * 4, 1.0, 0.01) == (1, 2, 3, 4)
    assert mg_wfbp.merge(ready, sizes, ["f"] * 4, 1.0, 0.01, least=50) == (2, 3, 4)
    assert mg_wfbp.merge(ready, sizes, ["f", "g", "g", "g"], 1.0, 0.01, least=50) == (1, 2, 3, 4)


def test_a_line_through_rising_prices_has_no_start_up_below_zero():
    """A hundred times the time for twice the bytes: the regression's own start-up is negative."""
    startup, per_byte = regression.linear(TableCost((1024, 2**20, 2**21), (1e-6, 1e-5, 1e-3)))
    assert startup == 0
    assert per_byte > 0
