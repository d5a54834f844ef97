"""The bound where computation is slowed beside collectives, and plans under effects that lengthen all computation."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.effects import Effects
from osfmodel.entities.plan import PLAIN, contiguous_plan
from osfmodel.entities.workload import Layer, Workload
from osfmodel.solve import SOLVERS
from osfmodel.solve.bounds import objective_bound
from osfmodel.solve.solution import Question
from tests.draws import seeds


def case(seed):
    random = Random(seed)
    count = random.randint(2, 6)
    layers = [Layer(f"l{number}", random.random(), random.random(), random.randint(1, 1000)) for number in range(count)]
    cost = AffineCost(((random.random() / 2, random.random() / 500),))
    effects = Effects(
        compute_slowdown=random.choice([0.1, 0.35, 1.0]), tensor_time=random.random() / 10, node_slowdown=0.2
    )
    return Workload("w", tuple(layers), update_time=random.random()), replace(
        Pricing.of(cost, effects, 8), per_host=random.choice([1, 8])
    )


def every_plan(workload):
    count = len(workload.gradients)
    for cuts in range(count):
        for ends in combinations(range(1, count), cuts):
            yield contiguous_plan(workload, [*ends, count])


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_no_plan_beats_the_bound(seed):
    workload, pricing = case(seed)
    best = min(predict_timeline(workload, plan, pricing).iteration_time for plan in every_plan(workload))
    assert objective_bound(workload, pricing, PLAIN) <= best * (1 + 1e-12)


def test_the_bound_is_reached_where_all_is_hidden_in_one_message():
    """1 s of backward after a gradient of 0.5 s: half of it beside the message, at 1 / 1.5 of its speed."""
    layers = (Layer("first", 0.0, 1.0, 0), Layer("last", 1.0, 0.0, 10))
    pricing = Pricing.of(AffineCost(((0.5, 0.0),)), Effects(compute_slowdown=0.5))
    workload = Workload("w", layers)
    plan = contiguous_plan(workload, [1])
    time = predict_timeline(workload, plan, pricing).iteration_time
    assert time == pytest.approx(2 + 0.5 * 0.5 / 1.5)
    assert objective_bound(workload, pricing, PLAIN) == pytest.approx(time)


@pytest.mark.parametrize("seed", seeds(13, 40))
def test_effects_that_lengthen_all_computation_leave_plans_proven(seed):
    workload, pricing = case(seed)
    pricing = replace(pricing, effects=replace(pricing.effects, compute_slowdown=0))
    best = min(predict_timeline(workload, plan, pricing).iteration_time for plan in every_plan(workload))
    question = Question(workload, pricing)
    assert question.undisturbed
    found = SOLVERS["optimal"].solve(question)
    assert predict_timeline(workload, found.plan, pricing).iteration_time == pytest.approx(best, rel=1e-12)
    assert question.lower_bound <= best * (1 + 1e-12)
