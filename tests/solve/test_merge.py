"""The exact solver against exhaustive search, and the properties that its proof rests on."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import Objective, UsageError
from osfmodel.cost import AffineCost, Cost, TableCost
from osfmodel.entities.workload import Gradients
from osfmodel.solve import Limits, Status
from osfmodel.solve import exact as merge
from osfmodel.solve.exact import optimal
from osfmodel.solve.solution import allowed, alternate, finish, groups_of
from tests import exhaustive
from tests.conftest import gradients, workload_of
from tests.draws import examples, many
from tests.problems import COST_MAKERS, affine, asked, jumping, min_of_affine, random_problem


def oracle(problem: Gradients, cost: Cost, limits: Limits = Limits()) -> float:
    """The smallest end of communication over all plans; infinite where none is within the limits."""
    plans = [groups for groups in exhaustive.all_groups(problem) if allowed(groups, problem, limits)]
    return min((finish(groups, problem, cost) for groups in plans), default=float("inf"))


def solved(problem: Gradients, cost: Cost, limits: Limits = Limits()) -> float:
    """The end of communication of the solver's plan, priced by the same code as the oracle's."""
    if alternate(problem.dtypes):
        chains = [
            [i for i, kind in enumerate(problem.dtypes) if kind == dtype] for dtype in dict.fromkeys(problem.dtypes)
        ]
        groups = optimal.two_chains(problem, chains, cost, limits)
    else:
        ends = merge.optimal_ends(problem, cost, limits)
        groups = None if ends is None else groups_of(ends)
    if groups is None:
        return float("inf")
    assert allowed(groups, problem, limits)
    return finish(groups, problem, cost)


@pytest.mark.parametrize("narrow", [merge.NARROW, 0])
@pytest.mark.parametrize("make_cost", COST_MAKERS)
@many(30, 600)
def test_equals_exhaustive_search(make_cost, narrow, monkeypatch, many):
    """Random instances of each kind of cost, with choices ruled out only in long problems, and always."""
    monkeypatch.setattr(merge, "NARROW", narrow)
    rng = np.random.default_rng(20_210_707)
    for _ in range(many):
        problem, cost = random_problem(rng), make_cost(rng)
        assert solved(problem, cost) == pytest.approx(oracle(problem, cost), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("narrow", [merge.NARROW, 0])
@pytest.mark.parametrize("make_cost", [affine, min_of_affine, jumping])
@many(40, 300)
def test_equals_exhaustive_search_within_limits(make_cost, narrow, monkeypatch, many):
    """Largest bucket and number of buckets, alone and together, also where they allow no plan."""
    monkeypatch.setattr(merge, "NARROW", narrow)
    rng = np.random.default_rng(7)
    infeasible = 0
    for _ in range(many):
        problem, cost = random_problem(rng), make_cost(rng)
        size = int(rng.integers(20, 300)) if rng.random() < 0.6 else None
        # How many buckets there may be is a limit of the method for one dtype at a time.
        count = int(rng.integers(1, 5)) if rng.random() < 0.6 and not alternate(problem.dtypes) else None
        limits = Limits(size, count)
        best = oracle(problem, cost, limits)
        infeasible += best == float("inf")
        assert solved(problem, cost, limits) == pytest.approx(best, rel=1e-12, abs=1e-12)
    assert infeasible > 5


@settings(max_examples=examples(30))
@given(
    st.lists(st.tuples(st.fractions(0, 3), st.integers(0, 50)), min_size=1, max_size=7),
    st.lists(st.tuples(st.fractions(0, 2), st.fractions(0, 1)), min_size=1, max_size=3),
)
def test_is_exact_in_rational_arithmetic(tensors, pieces):
    """With fractions, the solver's optimum equals the oracle's exactly."""
    ready, clock = [], Fraction(0)
    for step, _ in tensors:
        clock += step
        ready.append(clock)
    problem, cost = gradients(ready, [size for _, size in tensors]), AffineCost(tuple(pieces))
    assert solved(problem, cost) == oracle(problem, cost)


def test_the_oracle_can_tell_a_worse_plan():
    """An oracle that never disagrees proves nothing: merging everything and merging nothing both lose here."""
    problem = gradients([0.0, 0.9, 1.95], [500, 1, 1])
    cost = AffineCost(((1.0, 0.001),))
    best = oracle(problem, cost)
    for ends in [(3,), (1, 2, 3), (2, 3)]:
        assert finish(groups_of(ends), problem, cost) > best + 0.1
    assert finish(groups_of((1, 3)), problem, cost) == best


def test_both_methods_agree_on_a_long_problem():
    """The queue method and the row method on the same affine cost, once as a formula and once as a table."""
    rng = np.random.default_rng(3)
    ready = np.cumsum(rng.exponential(1e-4, 400)).tolist()
    sizes = (rng.pareto(1.2, 400) * 20_000).astype(int).tolist()
    problem = gradients(ready, sizes)
    formula = AffineCost(((2e-4, 1e-9),))
    points = (1, 10**9)
    table = TableCost(points, tuple(formula(size) for size in points))
    assert solved(problem, table) == pytest.approx(solved(problem, formula), rel=1e-9)


@pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
def test_equals_the_plain_recursion_on_long_problems(load):
    """400 tensors under a table that jumps, from light traffic to deep backlog, against F(i) as it is written."""
    rng = np.random.default_rng(9)
    ready = np.cumsum(rng.exponential(1.0, 400)).tolist()
    problem = gradients(ready, rng.integers(1, 100, 400).tolist())
    sizes = np.unique(rng.integers(1, 30_000, 60))
    times = load * (3.0 + sizes / 50) * rng.uniform(0.6, 1.4, len(sizes))
    cost = TableCost(tuple(sizes.tolist()), tuple(times.tolist()))
    prefix = [0, *np.cumsum(problem.sizes).tolist()]
    plain = [0.0]
    for i in range(1, 401):
        plain.append(min(max(plain[j], ready[i - 1]) + cost(prefix[i] - prefix[j]) for j in range(i)))
    assert solved(problem, cost) == pytest.approx(plain[-1], rel=1e-9)


def test_few_and_early_buckets_among_the_optimal():
    """Eight tiny tensors that hide behind computation in any grouping, and a last one that decides the finish."""
    ready = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 10.0]
    ends = merge.optimal_ends(gradients(ready, [10] * 9), AffineCost(((0.01, 0.001),)))
    assert ends == (8, 9)


def test_dtypes_are_never_mixed():
    problem = gradients([0, 0, 0, 0], [1, 1, 1, 1], ["a", "a", "b", "b"])
    assert merge.optimal_ends(problem, AffineCost(((1.0, 0.0),))) == (2, 4)


def test_limits_that_allow_no_plan_are_a_status_with_a_remedy():
    workload = workload_of([1.0, 2.0], [100, 300])
    solution = merge.solve(asked(workload, AffineCost(((1.0, 0.1),)), Limits(max_bucket_bytes=200)))
    assert solution.status is Status.INFEASIBLE
    assert solution.plan is None
    assert "raise the limit" in solution.status.value


def test_nothing_to_send_is_an_empty_plan():
    workload = workload_of([1.0], [0])
    solution = merge.solve(asked(workload, AffineCost(((1.0, 0.1),))))
    assert solution.plan is not None
    assert solution.plan.buckets == ()
    assert solution.timeline.iteration_time == workload.compute_time


def test_alternating_dtypes_are_merged_across_each_other():
    """Sixteen tensors, types in turn: one message per type, though no two neighbours may share one."""
    problem = gradients([0.0] * 16, [10] * 16, ["float32", "bfloat16"] * 8)
    workload = workload_of([1.0] * 16, [10] * 16, ["float32", "bfloat16"] * 8)
    cost = AffineCost(((1.0, 0.001),))
    solution = optimal.solve(asked(workload, cost))
    assert solution.status is Status.OPTIMAL
    assert [len(bucket.blocks) for bucket in solution.plan.buckets] == [8, 8]
    assert solved(problem, cost) == pytest.approx(2 * 1.08)


def test_many_dtypes_or_states_are_a_heuristic_that_says_so(monkeypatch):
    rng = np.random.default_rng(17)
    for kinds in (["a", "b", "c"], ["a", "b"]):
        monkeypatch.setattr(optimal, "MOST_STATES", 10)
        count = 9
        dtypes = [kinds[i % len(kinds)] for i in range(count)]
        workload = workload_of([float(i + 1) for i in range(count)], rng.integers(1, 100, count).tolist(), dtypes)
        cost = affine(rng)
        solution = optimal.solve(asked(workload, cost))
        assert solution.status is Status.HEURISTIC
        best = exhaustive.solve(asked(workload, cost)).timeline.iteration_time
        assert best <= solution.timeline.iteration_time <= 1.3 * best


def test_exhaustive_search_refuses_rules_that_it_does_not_search():
    question = asked(workload_of([1.0], [1]), affine(np.random.default_rng(1)))
    with pytest.raises(UsageError, match="trying all plans"):
        exhaustive.solve(replace(question, objective=Objective(channels=2)))
