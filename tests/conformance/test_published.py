"""Published rules that plan for several channels or forward overlap, under every set of rules."""

from __future__ import annotations

import numpy as np
import pytest

from osfmodel import SOLVERS, Layer, Status, Workload
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective
from osfmodel.solve import Question
from osfmodel.solve.bounds import objective_bound
from tests.conftest import workload_of
from tests.problems import COST_MAKERS, affine, random_problem

PUBLISHED = ("asc-wfbp", "byte-scheduler", "us-byte")
RULES = [
    Objective(),
    Objective(2),
    Objective(3, True),
    Objective(1, True),
    Objective(2, True, "split"),
    Objective(1, False, "split"),
]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("make_cost", COST_MAKERS)
def test_plans_are_valid_timed_by_the_engine_and_above_the_bound(name, make_cost):
    rng = np.random.default_rng(41)
    for number in range(48):
        found, cost = random_problem(rng), make_cost(rng)
        forward = rng.exponential(1.0, len(found)).tolist()
        steps = [0.01 + time for time in np.diff([0, *found.ready_times]).tolist()]
        rows = zip(forward, steps, found.sizes, found.dtypes, strict=True)
        layers = [Layer(f"t{i}", ahead, back, size, kind) for i, (ahead, back, size, kind) in enumerate(rows)]
        workload = Workload("random", tuple(reversed(layers)), update_time=0.25 if sum(found.sizes) else 0)
        costs = dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), cost)
        pricing, objective = Pricing(costs, gain=1.5), RULES[number % len(RULES)]
        solution = SOLVERS[name].solve(Question(workload, pricing, objective))
        plan, timeline = solution.require()
        plan.require_valid(workload)
        assert plan.objective == objective
        assert timeline == predict_timeline(workload, plan, pricing)
        assert solution.lower_bound == objective_bound(workload, pricing, objective)
        assert solution.lower_bound <= timeline.iteration_time * (1 + 1e-9)
        assert solution.status is Status.HEURISTIC


@pytest.mark.parametrize("name", PUBLISHED)
def test_nothing_to_send_takes_the_time_of_computation(name):
    empty = workload_of([1.0], [0])
    pricing = Pricing.of(affine(np.random.default_rng(1)))
    assert SOLVERS[name].solve(Question(empty, pricing, SOLVERS[name].objective)).timeline.iteration_time == 1.0
