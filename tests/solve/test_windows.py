"""The exact optimum over all schedules of one channel, against all schedules of small instances, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective
from osfmodel.solve.bounds import bound_under, objective_bound
from osfmodel.solve.scheduling import Jobs, blocks_plan, plan_of
from osfmodel.solve.windows import CostLine, below, chunks_of, minorants, optimum
from tests.draws import examples
from tests.problems import COST_MAKERS, tiny_workload

OVERLAP = Objective(forward_overlap=True)


def line_of(rng: np.random.Generator) -> AffineCost:
    return AffineCost(((Fraction(int(rng.integers(0, 5))), Fraction(1)),))


def least_time(jobs: Jobs, startup: Fraction, per_byte: Fraction) -> Fraction:
    """Over every sequence of messages, each with any number of bytes of each gradient."""

    @cache
    def rest(left: tuple[int, ...], now: Fraction) -> Fraction:
        if not any(left):
            return Fraction(0)
        return min(
            max(end + jobs.tails[kind], rest(tuple(a - b for a, b in zip(left, sent, strict=True)), end))
            for sent in product(*(range(size + 1) for size in left))
            if any(sent)
            for kind in [max(i for i, part in enumerate(sent) if part)]
            for end in [max(now, jobs.ready[kind]) + startup + per_byte * sum(sent)]
        )

    return max(jobs.least, rest(tuple(jobs.sizes), Fraction(0)))


@pytest.mark.parametrize("objective", [OVERLAP, Objective()])
def test_equals_every_schedule_tried_exactly(objective):
    rng = np.random.default_rng(31)
    cut = 0
    for _ in range(examples(25)):
        workload, cost = tiny_workload(rng), line_of(rng)
        jobs, (startup, per_byte) = Jobs.of(workload, objective), cost.pieces[0]
        best = least_time(jobs, startup, per_byte)
        line = CostLine(startup, per_byte, startup)
        found = optimum(jobs, line)
        assert max(jobs.least, found.time) == best
        if objective.forward_overlap:
            assert objective_bound(workload, Pricing.of(cost), objective) == best
        plan = plan_of(workload, chunks_of(jobs, found, line), objective)
        assert predict_timeline(workload, plan, Pricing.of(cost)).iteration_time == best
        cut += sum(len(bucket.blocks) for bucket in plan.buckets) > len(jobs.sizes)
    assert cut > 3  # the instances are such that cutting pays


def test_a_test_below_the_optimum_fails():
    """An oracle shown failing: no choice is below the optimum, and one is above."""
    rng = np.random.default_rng(32)
    jobs = Jobs.of(tiny_workload(rng), OVERLAP)
    line = CostLine(Fraction(1), Fraction(1), Fraction(1))
    best = optimum(jobs, line).time
    assert below(jobs, line, max(best, jobs.least)) is None or best < jobs.least
    assert below(jobs, line, best + 1) is not None


def schedules(rng: np.random.Generator, workload: Workload) -> Iterator[object]:
    """Random plans: bytes of each gradient spread over random buckets in random order."""
    sizes = workload.gradients.sizes
    for _ in range(examples(8)):
        count = int(rng.integers(1, 5))
        parts: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
        for item, size in enumerate(sizes):
            cuts = sorted({0, size, *rng.integers(0, size + 1, int(rng.integers(0, 3))).tolist()})
            for low, high in pairwise(cuts):
                parts[int(rng.integers(0, count))].append((item, low, high - low))
        yield blocks_plan(workload, parts)


@pytest.mark.parametrize("make_cost", COST_MAKERS)
@pytest.mark.parametrize("strategy", ["replicated", "split"])
def test_no_plan_of_any_kind_beats_the_bound(make_cost, strategy):
    rng = np.random.default_rng(33)
    for _ in range(examples(8)):
        workload, pricing = tiny_workload(rng, 12), Pricing.of(make_cost(rng))
        for objective in (Objective(1, True, strategy), Objective(1, False, strategy)):
            bound = objective_bound(workload, pricing, objective)
            for plan in schedules(rng, workload):
                assert predict_timeline(workload, plan.under(objective), pricing).iteration_time >= bound * (1 - 1e-9)


def test_the_bound_of_the_split_is_attained_where_one_message_is_best():
    workload = Workload("one", (Layer("a", Fraction(1), Fraction(2), 10),))
    pricing = Pricing.of(AffineCost(((Fraction(4), Fraction(1)),)))
    pricing = Pricing({kind: AffineCost(((Fraction(2), Fraction(1, 2)),)) for kind in pricing.costs})
    objective = Objective(1, True, "split")
    plan = blocks_plan(workload, [[(0, 0, 10)]]).under(objective)
    bound = bound_under(workload, pricing, objective)
    assert predict_timeline(workload, plan, pricing).iteration_time == bound == 2 + 14 + 1


@pytest.mark.parametrize("make_cost", COST_MAKERS)
def test_minorants_are_nowhere_above_the_price(make_cost):
    rng = np.random.default_rng(34)
    for _ in range(20):
        cost, largest = make_cost(rng), int(rng.integers(1, 3000))
        lines = minorants(cost, largest)
        assert lines
        for size in np.unique(rng.integers(1, largest + 1, 60)).tolist():
            most = max(startup + per_byte * size for startup, per_byte in lines)
            assert most <= cost(size) * (1 + 1e-9)
            assert min(min(line) for line in lines) >= 0
