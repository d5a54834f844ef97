"""Horovod's settings: what its loop makes of them, on cases small enough to follow by hand, and how they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osfmodel import Layer, PlanError, UsageError, Workload, load_cluster, load_workload, tune
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import horovod_settings, predict_timeline
from osfmodel.engine.horovod_loop import DEFAULT_CYCLE, DEFAULT_THRESHOLD, Loop, fuse
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.units import MIB
from osfmodel.solve import Case, Limits
from osfmodel.targets import horovod, runs_on
from tests.conftest import gradients, workload_of

FREE = Pricing.of(AffineCost(((0.0, 0.0),)), workers=2)
COST = Pricing.of(AffineCost(((1.0, 0.0),)))
UNIT = 512
"""Bytes to whose multiples the threshold is rounded."""


def form(workload, pricing=FREE, **knobs):
    plan = horovod.to_plan(Loop(**knobs), workload, pricing)
    return [([block.layer for block in bucket.blocks], bucket.release_time) for bucket in plan.buckets]


def test_a_cycle_takes_all_that_is_submitted_when_it_begins():
    workload = workload_of([0.5, 0.9, 1.0, 2.5], [UNIT] * 4)
    assert form(workload, cycle=1.0) == [(["t0", "t1", "t2"], 1.0), (["t3"], 3.0)]


def test_a_shorter_cycle_sends_sooner():
    workload = workload_of([0.5, 0.9, 1.0, 2.5], [UNIT] * 4)
    assert form(workload, cycle=0.5) == [(["t0"], 0.5), (["t1", "t2"], 1.0), (["t3"], 2.5)]


def test_the_clock_goes_on_from_one_iteration_to_the_next():
    """Cycles every 2 s: at 2 at first, which with the update makes 3 s; then at 1 and 3, which makes 4 ever after."""
    workload = workload_of([2.0], [UNIT])
    odd = Workload("odd", workload.layers, update_time=1.0)
    assert form(odd, cycle=2.0) == [(["t0"], 3.0)]
    assert form(workload, cycle=2.0) == [(["t0"], 2.0)]


def test_the_threshold_is_an_upper_bound_and_a_large_tensor_goes_alone():
    workload = workload_of([1.0] * 5, [2 * UNIT, 3 * UNIT, UNIT, 20 * UNIT, UNIT])
    batches = [["t0", "t1"], ["t2"], ["t3"], ["t4"]]
    assert form(workload, cycle=1.0, threshold=5 * UNIT) == [(names, 1.0) for names in batches]
    assert [names for names, _ in form(workload, cycle=1.0, threshold=0)] == [[f"t{i}"] for i in range(5)]


def test_fusion_may_pass_over_another_dtype_while_it_fits():
    found = gradients([1.0] * 4, [30, 30, 30, 30], ["f", "b", "f", "b"])
    assert list(fuse(range(4), found, 120)) == [[0, 2], [1, 3]]
    assert list(fuse(range(4), found, 50)) == [[0], [1], [2], [3]]


def test_no_hole_filling_past_a_tensor_that_does_not_fit():
    found = gradients([1.0] * 3, [60, 60, 20])
    assert list(fuse(range(3), found, 100)) == [[0], [1, 2]]


def test_a_host_that_runs_ahead_waits_for_the_last_of_a_batch():
    """All submitted at once at 1 s: one batch, which is launched then and waits for its last gradient at 9 s."""
    layers = (Layer("b", 0, 5.0, 10, enqueue_time=1.0), Layer("a", 0, 4.0, 10, enqueue_time=1.0))
    workload = Workload("w", layers)
    plan = horovod.to_plan(Loop(cycle=0.5), workload, COST)
    assert [(len(bucket.blocks), bucket.release_time) for bucket in plan.buckets] == [(2, 1.0)]
    assert predict_timeline(workload, plan, COST).iteration_time == 10.0


def test_groups_wait_until_they_are_whole():
    workload = workload_of([0.2, 0.4, 1.3], [10, 10, 10])
    knobs = {"groups": (("t0", "t2"), ("t1",)), "use_groups": True, "cycle": 0.5}
    assert form(workload, **knobs) == [(["t1"], 0.5), (["t0", "t2"], 1.5)]


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ((("t0", "gone"), ("t1",)), "'gone' is not one of its tensors"),
        ((("t0",),), "each tensor must be in exactly one group"),
        ((("t0", "t1"), ("t1",)), "each tensor must be in exactly one group"),
        ((("t0", "t1"), ()), "each tensor must be in exactly one group"),
    ],
)
def test_groups_of_other_tensors_are_refused(groups, reason):
    with pytest.raises(PlanError, match=reason):
        form(workload_of([1.0, 2.0], [10, 10]), groups=groups, use_groups=True)


def test_settings_agree_with_each_other():
    """Environment in bytes, flag and YAML in MiB: the same number."""
    knobs = Loop(threshold=48 * MIB, cycle=0.0025)
    text = horovod.render(knobs, workload_of([1.0], [10]))
    assert "HOROVOD_FUSION_THRESHOLD=50331648\nHOROVOD_CYCLE_TIME=2.5" in text
    assert "--fusion-threshold-mb 48 --cycle-time-ms 2.5" in text
    assert "fusion_threshold_mb: 48" in text
    assert horovod.config(knobs)["env"] == {"HOROVOD_FUSION_THRESHOLD": "50331648", "HOROVOD_CYCLE_TIME": "2.5"}


def test_whatever_is_not_the_default_is_in_the_environment():
    knobs = Loop(streams=2, cache_capacity=0, waits=True, hierarchical=True, use_groups=True, groups=(("t0",),))
    assert horovod_settings.environment(knobs) == {
        "HOROVOD_FUSION_THRESHOLD": "134217728",
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
        "HOROVOD_NUM_NCCL_STREAMS": "2",
        "HOROVOD_CACHE_CAPACITY": "0",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
    }


def test_no_digit_of_a_cycle_is_lost():
    loop = Loop(cycle=0.0012345678)
    assert horovod_settings.name_of(loop) == "128MiB,1.2345678ms"
    assert horovod_settings.environment(loop)["HOROVOD_CYCLE_TIME"] == "1.2345678"
    assert horovod_settings.name_of(Loop(0, 0)) == "0B,0ms"
    assert horovod_settings.name_of(Loop(cycle=1.0)) == "128MiB,1000ms"


def test_settings_by_name():
    assert horovod_settings.named("64MiB,5ms") == Loop(64 * MIB, 0.005)
    assert horovod_settings.named("0B") == Loop(0)
    for loop in (Loop(), Loop(0, 0.0), Loop(1_000_001, 0.0025), Loop(cycle=0.0012345678)):
        assert horovod_settings.named(horovod_settings.name_of(loop)) == loop
    with pytest.raises(
        UsageError,
        match=r"write THRESHOLD,CYCLE\[,streams=N\]\[,cache=N\]\[,waits\]\[,hierarchical\], such as 64MiB,5ms",
    ):
        horovod_settings.named("fast")


def test_groups_are_on_offer_where_settings_are_recommended():
    """One tensor: no grouping can help, so plain settings do."""
    workload = workload_of([1.0], [2**20])
    knobs = horovod.complete(horovod.best(workload, COST), workload, [COST])
    assert not knobs.use_groups
    assert knobs.groups == (("t0",),)
    assert "HOROVOD_DISABLE_GROUP_FUSION" not in horovod.config(knobs)["env"]


def test_the_search_never_does_worse_than_the_defaults():
    case = Case(WORKLOAD, COST, WORKLOAD.compute_time)
    found, remarks = horovod.search([case], Limits())
    assert remarks == ()
    default, best = (
        predict_timeline(WORKLOAD, horovod.to_plan(loop, WORKLOAD, COST), COST).iteration_time
        for loop in (Loop(DEFAULT_THRESHOLD, DEFAULT_CYCLE), found)
    )
    assert best <= default
    assert horovod.search([case], Limits(max_bucket_bytes=MIB))[0] is None


@pytest.mark.parametrize("cycle", [0.0, 1e-3, 0.7])
def test_nothing_is_sent_before_it_is_ready_or_a_whole_cycle_late(cycle):
    workload = workload_of([0.1, 0.35, 0.36, 2.2, 2.9], [10, 2000, 3, 400, 5])
    ready = dict(zip(workload.gradients.names, workload.gradients.ready_times, strict=True))
    for names, release in form(workload, cycle=cycle, threshold=1000):
        assert release >= max(ready[name] for name in names)
        assert release <= max(ready[name] for name in names) + cycle * (1 + 1e-9)


WORKLOAD = workload_of([0.5, 0.9, 1.0, 2.5], [10 * MIB] * 4)
GROUPS = (("t0", "t1"), ("t2",), ("t3",))


@pytest.mark.parametrize("knobs", [Loop(), Loop(20 * MIB, 0.1), Loop(0), Loop(groups=GROUPS, use_groups=True)])
def test_what_the_loop_forms_groups_can_form(knobs):
    """Whatever the clock made of the settings, as groups it is formed again."""
    plan = horovod.to_plan(knobs, WORKLOAD, COST)
    assert horovod.TARGET.convert.forms(plan, WORKLOAD)
    assert runs_on(plan, WORKLOAD) == ("horovod",)
    again = horovod.to_plan(horovod.from_plan(plan, WORKLOAD, COST), WORKLOAD, COST)
    assert [bucket.blocks for bucket in again.buckets] == [bucket.blocks for bucket in plan.buckets]


def test_a_plan_becomes_groups():
    plan = horovod.to_plan(Loop(groups=GROUPS, use_groups=True), WORKLOAD, COST)
    found = horovod.from_plan(plan, WORKLOAD, COST)
    assert (found.groups, found.use_groups) == (GROUPS, True)
    assert found.cycle in horovod.GROUP_CYCLES
    assert found.threshold >= 20 * MIB


def test_out_of_order_or_before_it_is_ready_nothing_is_formed():
    """A group is launched when it is whole: not backwards, and not at the start of the iteration."""
    plan = horovod.to_plan(Loop(20 * MIB, 0.1), WORKLOAD, FREE)
    assert len(plan.buckets) == 3
    prompt = Plan(plan.workload, tuple(Bucket(bucket.blocks) for bucket in plan.buckets))
    at_the_end = Plan(plan.workload, tuple(Bucket(bucket.blocks, 2.5) for bucket in plan.buckets[::-1]))
    for other in (prompt, at_the_end, Plan(plan.workload, plan.buckets[::-1])):
        assert not horovod.TARGET.convert.forms(other, WORKLOAD)
        assert "horovod" not in runs_on(other, WORKLOAD)
    assert runs_on(prompt, WORKLOAD) == ("ddp",)


def test_groups_of_one_time_are_formed_in_the_order_of_their_last_gradients():
    """Both are ready at once; the hook of t1 is called last."""
    workload = workload_of([1.0, 1.0], [MIB, MIB])
    plan = horovod.to_plan(Loop(threshold=0), workload, FREE)
    assert horovod.TARGET.convert.forms(plan, workload)
    assert not horovod.TARGET.convert.forms(Plan(plan.workload, plan.buckets[::-1]), workload)


def test_no_groups_by_names_that_are_made_up():
    """A trace without names calls gradients gradient0, gradient1 ...: no model has parameters of those names."""
    workload, cluster = load_workload("alexnet-pipedream"), load_cluster("v100-10gbe")
    known = tune(workload, cluster, 16, "horovod")
    assert known.knobs.groups
    assert "named_parameters=" in known.rendered
    nameless = tune(replace(workload, grain="gradient"), cluster, 16, "horovod")
    assert not nameless.knobs.groups
    assert "named_parameters=" not in nameless.rendered
    assert "HOROVOD_FUSION_THRESHOLD=" in nameless.rendered
    assert "which the trace does not have: osf profile records them" in nameless.rendered
