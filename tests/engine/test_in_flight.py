"""Collectives that the library itself keeps in flight: the engine, the bound and the planner see more channels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from osfmodel import Cluster, DataError, Layer, Link, Workload, predict
from osfmodel.cost import AffineCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline, simulate
from osfmodel.engine.recursion import predict_timeline as closed_form
from osfmodel.entities.plan import Objective, contiguous_plan
from osfmodel.planning.tuning import tune
from osfmodel.solve import SOLVERS, Limits, Question
from osfmodel.solve import blocks as search
from osfmodel.solve.bounds import objective_bound, windows_bound
from osfmodel.targets.named_plans import make_plan
from tests.conftest import workload_of
from tests.problems import COST_MAKERS, affine, random_problem
from tests.solve.test_bounds import any_schedule


def problem_of(rng):
    found = random_problem(rng)
    return workload_of([time + 0.01 for time in found.ready_times], [max(size, 1) for size in found.sizes])


@pytest.mark.parametrize("make_cost", COST_MAKERS)
def test_each_channel_of_a_plan_keeps_so_many_in_flight(make_cost):
    """One channel of two is two channels of one: the same spans, the same bound, under any rules."""
    rng = np.random.default_rng(21)
    for _ in range(30):
        workload, width, channels = problem_of(rng), int(rng.integers(1, 4)), int(rng.integers(1, 3))
        pricing = Pricing.of(make_cost(rng))
        pricing = replace(pricing, gain=float(rng.uniform(1, 2)))
        rules = Objective(channels, bool(rng.integers(2)), str(rng.choice(["replicated", "split"])))
        plan = any_schedule(rng, workload).under(rules)
        wide = replace(rules, channels=width * channels)
        found = predict_timeline(workload, plan, replace(pricing, in_flight=width))
        assert found.spans == predict_timeline(workload, plan.under(wide), pricing).spans
        assert objective_bound(workload, replace(pricing, in_flight=width), rules) == objective_bound(
            workload, pricing, wide
        )


@pytest.mark.parametrize("make_cost", COST_MAKERS)
def test_no_plan_beats_the_bound(make_cost):
    rng = np.random.default_rng(22)
    for _ in range(60):
        workload = problem_of(rng)
        pricing = replace(Pricing.of(make_cost(rng)), gain=float(rng.uniform(1, 2)), in_flight=int(rng.integers(2, 4)))
        plan = any_schedule(rng, workload)
        time = predict_timeline(workload, plan, pricing).iteration_time
        assert time >= objective_bound(workload, pricing, plan.objective) * (1 - 1e-12)


def test_the_bound_of_one_channel_would_be_too_high():
    """Why the bound must know: two at once hide a start-up that one channel cannot."""
    workload = workload_of([1.0, 1.1], [10, 10])
    pricing = replace(Pricing.of(AffineCost(((1.0, 0.01),))), in_flight=2)
    plan = contiguous_plan(workload, [1, 2])
    time = predict_timeline(workload, plan, pricing).iteration_time
    assert time < windows_bound(workload, replace(pricing, in_flight=1), Objective())
    assert time < closed_form(workload, plan, pricing.cost()).iteration_time
    assert time >= objective_bound(workload, pricing, Objective())


def test_one_in_flight_is_the_closed_form_and_several_are_simulated(small_workload):
    plan = contiguous_plan(small_workload, [1, 2, 3])
    pricing = Pricing.of(AffineCost(((0.5, 0.1),)))
    assert predict_timeline(small_workload, plan, pricing) == closed_form(small_workload, plan, pricing.cost())
    found = predict_timeline(small_workload, plan, replace(pricing, in_flight=2))
    assert found.engine == "simulator"
    assert found == simulate(small_workload, replace(plan, channels=2), pricing)
    assert {span.stream for span in found.communication} == {"channel 0", "channel 1"}


def test_a_cluster_hands_it_on(small_workload):
    cluster = Cluster("gloo", "ring", between_nodes=Link(0.5, 0.001), in_flight=2)
    assert (pricing_of(cluster, 4).in_flight, pricing_of(cluster, 1).in_flight) == (2, 1)
    two, one = (predict(small_workload, network, "wfbp", 4) for network in (cluster, replace(cluster, in_flight=1)))
    assert two.iteration_time < one.iteration_time
    assert two.lower_bound <= two.iteration_time
    assert "one channel" not in tune(small_workload, cluster, 4).verdict
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(DataError, match="in flight"):
            replace(cluster, in_flight=wrong)


def test_the_optimum_knows_it():
    """Never slower than one made for one channel, sometimes faster; with limits on buckets those are kept."""
    rng = np.random.default_rng(23)
    faster = 0
    for _ in range(20):
        workload = problem_of(rng)
        pricing = replace(Pricing.of(affine(rng)), in_flight=2)
        blind = make_plan("optimal", workload, replace(pricing, in_flight=1))
        times = [
            predict_timeline(workload, plan, pricing).iteration_time
            for plan in (make_plan("optimal", workload, pricing), blind)
        ]
        assert times[0] <= times[1]
        faster += times[0] < times[1] * (1 - 1e-9)
    assert faster > 0


def test_a_tuned_plan_keeps_its_limits_and_states_what_is_unproven(small_workload):
    cluster = Cluster("gloo", "ring", between_nodes=Link(0.5, 0.001), in_flight=2)
    assert len(tune(small_workload, cluster, 4, limits=Limits(max_buckets=1)).plan.buckets) == 1
    free = tune(small_workload, cluster, 4)
    assert free.outcomes[0].tuned_time >= free.outcomes[0].lower_bound
    assert any("2 collectives in flight at once" in note for note in free.notes)
    assert not any("in flight" in note for note in tune(small_workload, replace(cluster, in_flight=1), 4).notes)


def test_planners_use_it():
    """For equal tensors with long start-ups the planner sends several; what needs one channel says that it has not."""
    workload = Workload("w", tuple(Layer(f"l{i}", 0.1, 0.3, 50) for i in range(8)))
    pricing = replace(Pricing.of(AffineCost(((1.0, 0.001),))), in_flight=2)
    found = SOLVERS["planned"].solve(Question(workload, pricing))
    alone = SOLVERS["planned"].solve(Question(workload, replace(pricing, in_flight=1)))
    assert found.plan.channels == 1
    assert found.timeline.iteration_time < alone.timeline.iteration_time
    assert found.timeline.iteration_time >= found.lower_bound
    assert not search.linear(pricing, Objective())
    assert search.linear(replace(pricing, in_flight=1), Objective())
