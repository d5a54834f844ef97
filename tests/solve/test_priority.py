"""In order, then by priority: equal to all plans of its family, tried one by one, in exact arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from osfmodel import Workload
from osfmodel.cost import AffineCost, TableCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective, grouped_plan
from osfmodel.solve.scheduling import Jobs
from osfmodel.solve.search import priority
from osfmodel.solve.solution import groups_of
from tests.exhaustive import all_ends
from tests.problems import COST_MAKERS, tiny_workload

OVERLAP = Objective(forward_overlap=True)


def family(workload: Workload):
    """A prefix in runs in ready order, the rest in runs from the last gradient down."""
    count = len(workload.gradients)
    for k in range(count + 1):
        for first in all_ends(k):
            for rest in all_ends(count - k):
                groups = groups_of(first) + [[k + i for i in group] for group in reversed(groups_of(rest))]
                if all(len({workload.gradients.dtypes[i] for i in group}) == 1 for group in groups):
                    yield grouped_plan(workload, groups).under(OVERLAP)


def least(workload: Workload, pricing: Pricing):
    return min(predict_timeline(workload, plan, pricing).iteration_time for plan in family(workload))


def solved(workload: Workload, pricing: Pricing):
    plan = priority.plan(workload, Jobs.of(workload, OVERLAP), pricing).under(OVERLAP)
    return predict_timeline(workload, plan, pricing).iteration_time


def lines(rng: np.random.Generator) -> AffineCost:
    """Rational, so that equality can be demanded."""
    pairs = rng.integers(0, 9, (int(rng.integers(1, 4)), 2)).tolist()
    return AffineCost(tuple((Fraction(a), Fraction(b, 3)) for a, b in pairs))


@pytest.mark.parametrize("make_cost", [lines, *COST_MAKERS])
def test_equals_its_family(make_cost):
    rng = np.random.default_rng(41)
    for _ in range(25):
        workload, pricing = tiny_workload(rng, 40), Pricing.of(make_cost(rng))
        assert solved(workload, pricing) == pytest.approx(least(workload, pricing), rel=1e-12, abs=0)
        if make_cost is lines:
            assert solved(workload, pricing) == least(workload, pricing)


def test_dtypes_are_kept_apart():
    rng = np.random.default_rng(42)
    for _ in range(25):
        plain = tiny_workload(rng, 40)
        layers = [replace(layer, dtype=str(rng.choice(["a", "b"]))) for layer in plain.layers]
        workload, pricing = Workload("mixed", tuple(layers)), Pricing.of(lines(rng))
        assert solved(workload, pricing) == least(workload, pricing)


def test_fusion_across_tensors_after_backward():
    """Ten small tensors, backward in no time: one start-up, where a send of each would pay ten."""
    rng = np.random.default_rng(43)
    sizes = [2] * 10
    workload = Workload(
        "many", tuple(replace(tiny_workload(rng, 3).layers[0], name=f"l{i}", gradient_bytes=size, backward_time=0,
                              forward_time=Fraction(1)) for i, size in enumerate(sizes))
    )  # fmt: skip
    pricing = Pricing.of(AffineCost(((Fraction(50), Fraction(1)),)))
    assert solved(workload, pricing) == 50 + 20 + 10


def test_a_launch_is_paid_for():
    """With a launch of each message, fewer are sent."""
    from osfmodel.entities.effects import Effects

    workload = tiny_workload(np.random.default_rng(44), 40)
    cheap = Pricing({"all_reduce": TableCost((1, 100), (Fraction(0), Fraction(99)))})
    dear = replace(cheap, effects=Effects(launch_latency=Fraction(1000)))
    assert len(priority.plan(workload, Jobs.of(workload, OVERLAP), dear).buckets) == 1
