"""Plans for the executor: what they pay, and that tuning gives none that it cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osfmodel import load_cluster, load_workload, predict, tune
from osfmodel.cost.clusters import pricing_of
from osfmodel.entities.plan import Objective
from osfmodel.targets.named_plans import make_plan


@pytest.fixture(scope="module")
def workload():
    return load_workload("resnet50-v100")


@pytest.fixture(scope="module")
def convolutions():
    """The first layers of AlexNet."""
    whole = load_workload("alexnet-pipedream")
    return replace(whole, layers=whole.layers[:10])


@pytest.mark.parametrize(
    "rules", [Objective(strategy="split"), Objective(2, strategy="split"), Objective(1, True, "split")], ids=str
)
def test_tuning_gives_what_the_executor_carries_out(convolutions, rules):
    """Also where the best plan that was found has priorities, as for these layers."""
    found = tune(convolutions, load_cluster("v100-10gbe"), 64, "runtime", objective=rules)
    assert found.plan.credit is None
    assert not any(bucket.release_time for bucket in found.plan.buckets)


def test_so_many_in_flight_as_a_plan_has_channels_whatever_the_library_does(workload):
    """gloo runs two all-reduces of DDP's at once, and of the executor's as many as the plan says."""
    cluster = load_cluster("emulated-4x2500mbit")
    assert cluster.in_flight == 2
    for rules in (Objective(2), Objective(1, forward_overlap=True), Objective(4, forward_overlap=True)):
        plan = make_plan("wfbp", workload, pricing_of(cluster, 4)).under(rules)
        alone = replace(cluster, in_flight=1)
        assert predict(workload, cluster, plan, 4).iteration_time == predict(workload, alone, plan, 4).iteration_time


def test_what_the_executor_gains_is_gained_over_ddp(convolutions):
    """The default is what DDP does, with two in flight; the tuned plan is the executor's."""
    workload = convolutions
    cluster = load_cluster("emulated-4x2500mbit")
    (stock,) = tune(workload, cluster, 4).outcomes
    found = tune(workload, cluster, 4, "runtime", objective=Objective(1, forward_overlap=True))
    (outcome,) = found.outcomes
    assert outcome.default_time == stock.default_time == predict(workload, cluster, "ddp", 4).iteration_time
    assert outcome.tuned_time == predict(workload, cluster, found.plan, 4).iteration_time
