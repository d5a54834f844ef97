"""Several channels, first in, first out: equal to all runs in ready order, tried one by one, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from osfmodel import Limits
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective, contiguous_plan
from osfmodel.solve import exact as merge
from osfmodel.solve.exact import MergeProblem, pareto
from tests.conftest import gradients, workload_of
from tests.exhaustive import all_ends
from tests.problems import random_problem


def made(rng: np.random.Generator, count: int):
    ready = np.cumsum(rng.integers(0, 5, count)).tolist()
    return gradients([Fraction(time) for time in ready], rng.integers(1, 9, count).tolist())


def pricing_of(rng: np.random.Generator) -> Pricing:
    pairs = rng.integers(1, 7, (int(rng.integers(1, 3)), 2)).tolist()
    return Pricing.of(AffineCost(tuple((Fraction(a), Fraction(b, 4)) for a, b in pairs)))


def finish(problem: MergeProblem, pricing: Pricing, channels: int, ends: tuple[int, ...]):
    """Straight from the definition."""
    before = [Fraction(0)] * channels
    for start, end in pairwise([0, *ends]):
        startup, transfer = pricing.split("all_reduce", problem.prefix[end] - problem.prefix[start])
        begun = max(problem.ready[end - 1], before[-channels]) + startup
        before.append(max(begun, before[-1]) + transfer)
    return before[-1]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_equals_all_runs(channels):
    rng = np.random.default_rng(51)
    for _ in range(25):
        problem, pricing = MergeProblem.of(made(rng, int(rng.integers(1, 9))), Limits()), pricing_of(rng)
        found = pareto.runs(problem, pricing, channels)
        count = len(problem.prefix) - 1
        assert found.exact
        assert found.finish == finish(problem, pricing, channels, found.ends)
        assert found.finish == min(finish(problem, pricing, channels, ends) for ends in all_ends(count))


def test_one_channel_is_merging():
    rng = np.random.default_rng(52)
    for _ in range(25):
        problem, pricing = MergeProblem.of(made(rng, 8), Limits()), pricing_of(rng)
        assert pareto.runs(problem, pricing, 1).finish == merge.sweep(problem, pricing.cost()).finish[-1]


def test_many_channels_that_one_flow_fills_need_no_merging():
    """Start-ups run side by side, so f = max(f, r + a) + b s, and its value is the bound."""
    rng = np.random.default_rng(53)
    for _ in range(10):
        problem = MergeProblem.of(made(rng, 7), Limits())
        pricing = Pricing.of(AffineCost(((Fraction(3), Fraction(1, 2)),)))
        end = Fraction(0)
        for i, ready in enumerate(problem.ready):
            end = max(end, ready + 3) + Fraction(problem.prefix[i + 1] - problem.prefix[i], 2)
        assert pareto.runs(problem, pricing, 7).finish == end


def test_the_simulator_agrees_where_transfers_do_not_meet():
    """One bucket per start-up time or slower: service in turn and sharing are the same."""
    made_gradients = gradients([Fraction(0), Fraction(20), Fraction(40)], [4, 4, 4])
    problem = MergeProblem.of(made_gradients, Limits())
    pricing = Pricing.of(AffineCost(((Fraction(2), Fraction(1)),)))
    found = pareto.runs(problem, pricing, 2)
    workload = workload_of(list(made_gradients.ready_times), made_gradients.sizes)
    plan = contiguous_plan(workload, found.ends).under(Objective(channels=2))
    assert predict_timeline(workload, plan, pricing).iteration_time == found.finish == 46


def test_dtypes_and_many_gradients():
    rng = np.random.default_rng(54)
    for _ in range(10):
        problem = MergeProblem.of(random_problem(rng), Limits())
        for start, end in pairwise([0, *pareto.runs(problem, pricing_of(rng), 2).ends]):
            assert problem.earliest[end] <= start
    long = MergeProblem.of(gradients([float(i) for i in range(300)], [1 + i % 7 for i in range(300)]), Limits())
    pricing = Pricing.of(AffineCost(((2.0, 0.5),)))
    found = pareto.runs(long, pricing, 2)
    assert not found.exact
    assert found.finish == pytest.approx(finish(long, pricing, 2, found.ends))


def test_a_first_tensor_with_most_bytes_may_travel_alone():
    """Of more tensors than are tried as ends: one ends wherever its share of the bytes is full, so behind the first."""
    many = gradients([float(number) for number in range(200)], [1000, *[1] * 199])
    marks = pareto._marks(MergeProblem.of(many, Limits()))
    assert (marks[0], marks[-1]) == (1, 200)
    assert len(marks) <= pareto.MOST
