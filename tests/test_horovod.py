"""Horovod's loop on cases small enough to follow by hand."""

from __future__ import annotations

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.plan import Bucket, Plan
from osfmodel.recursion import predict_timeline
from osfmodel.targets import horovod, runs_on
from osfmodel.targets.horovod import HorovodKnobs
from tests.conftest import gradients, workload_of

COST = AffineCost(((1.0, 0.0),))


def form(workload, **knobs):
    plan = horovod.realise(HorovodKnobs(**knobs), workload)
    return [([block.layer for block in bucket.blocks], bucket.release_time) for bucket in plan.buckets]


def test_a_cycle_takes_all_that_is_ready_at_its_tick():
    workload = workload_of([0.5, 0.9, 1.0, 2.5], [10, 10, 10, 10])
    assert form(workload, cycle=1.0, threshold=100) == [(["t0", "t1", "t2"], 1.0), (["t3"], 3.0)]


def test_a_shorter_cycle_sends_sooner():
    workload = workload_of([0.5, 0.9, 1.0, 2.5], [10, 10, 10, 10])
    assert form(workload, cycle=0.5, threshold=100) == [(["t0"], 0.5), (["t1", "t2"], 1.0), (["t3"], 2.5)]


def test_the_threshold_is_an_upper_bound_and_a_large_tensor_goes_alone():
    workload = workload_of([1.0] * 5, [40, 60, 30, 500, 10])
    assert form(workload, cycle=1.0, threshold=100) == [
        (["t0", "t1"], 1.0),
        (["t2"], 1.0),
        (["t3"], 1.0),
        (["t4"], 1.0),
    ]
    assert [names for names, _ in form(workload, cycle=1.0, threshold=0)] == [[f"t{i}"] for i in range(5)]


def test_fusion_may_pass_over_another_dtype_while_it_fits():
    found = gradients([1.0] * 4, [30, 30, 30, 30], ["f", "b", "f", "b"])
    assert list(horovod.fuse(range(4), found, 120)) == [[0, 2], [1, 3]]
    assert list(horovod.fuse(range(4), found, 50)) == [[0], [1], [2], [3]]


def test_no_hole_filling_past_a_tensor_that_does_not_fit():
    found = gradients([1.0] * 3, [60, 60, 20])
    assert list(horovod.fuse(range(3), found, 100)) == [[0], [1, 2]]


def test_a_host_that_runs_ahead_waits_for_the_last_of_a_batch():
    """All submitted at once at 1 s: one batch, which must wait for its last gradient at 9 s."""
    layers = (Layer("b", 0, 5.0, 10, enqueue_time=1.0), Layer("a", 0, 4.0, 10, enqueue_time=1.0))
    workload = Workload("w", layers)
    plan = horovod.realise(HorovodKnobs(threshold=100, cycle=0.5), workload)
    assert [(len(bucket.blocks), bucket.release_time) for bucket in plan.buckets] == [(2, 9.0)]
    assert predict_timeline(workload, plan, COST).iteration_time == 10.0


def test_groups_wait_until_they_are_whole():
    workload = workload_of([0.2, 0.4, 1.3], [10, 10, 10])
    knobs = {"groups": (("t0", "t2"), ("t1",)), "use_groups": True, "cycle": 0.5}
    assert form(workload, **knobs) == [(["t1"], 0.5), (["t0", "t2"], 1.5)]


def test_settings_agree_with_each_other():
    """Environment in bytes, flag and YAML in MiB: the same number."""
    knobs = HorovodKnobs(threshold=48 * 2**20, cycle=0.0025)
    text = horovod.render(knobs, workload_of([1.0], [10]))
    assert "HOROVOD_FUSION_THRESHOLD=50331648\nHOROVOD_CYCLE_TIME=2.5" in text
    assert "--fusion-threshold-mb 48 --cycle-time-ms 2.5" in text
    assert "fusion_threshold_mb: 48" in text
    assert horovod.config(knobs)["env"] == {"HOROVOD_FUSION_THRESHOLD": "50331648", "HOROVOD_CYCLE_TIME": "2.5"}


def test_groups_are_recommended_only_where_they_win():
    """One tensor: no grouping can help, so plain settings are given, and the groups are on offer."""
    workload = workload_of([1.0], [2**20])
    plan = horovod.realise(HorovodKnobs(), workload)
    knobs = horovod.project(plan, workload, COST)
    assert not knobs.use_groups
    assert knobs.groups == (("t0",),)
    assert "HOROVOD_DISABLE_GROUP_FUSION" not in horovod.config(knobs)["env"]


@pytest.mark.parametrize("cycle", [0.0, 1e-3, 0.7])
def test_nothing_is_sent_before_it_is_ready_or_off_the_tick(cycle):
    workload = workload_of([0.1, 0.35, 0.36, 2.2, 2.9], [10, 200, 3, 40, 5])
    ready = dict(zip(workload.gradients.names, workload.gradients.ready_times, strict=True))
    for names, release in form(workload, cycle=cycle, threshold=100):
        assert release >= max(ready[name] for name in names)
        assert release <= max(ready[name] for name in names) + cycle * (1 + 1e-9)


WORKLOAD = workload_of([0.5, 0.9, 1.0, 2.5], [10 * 2**20] * 4)


def test_plans_of_its_own_loop_are_formed():
    for knobs in (HorovodKnobs(), HorovodKnobs(threshold=20 * 2**20, cycle=0.1), HorovodKnobs(threshold=0)):
        plan = horovod.realise(knobs, WORKLOAD)
        assert horovod.TARGET.forms(plan, WORKLOAD)
        found = horovod.project(plan, WORKLOAD, COST)
        assert horovod.realise(found, WORKLOAD) == plan
        assert runs_on(plan, WORKLOAD) == ("horovod",)


def test_groups_are_formed_at_the_ticks_that_find_them_whole():
    groups = (("t0", "t1"), ("t2",), ("t3",))
    plan = horovod.realise(HorovodKnobs(cycle=0.001, groups=groups, use_groups=True), WORKLOAD)
    assert horovod.TARGET.forms(plan, WORKLOAD)
    found = horovod.project(plan, WORKLOAD, COST)
    assert (found.groups, found.use_groups) == (groups, True)
    assert horovod.realise(found, WORKLOAD) == plan


def test_off_the_ticks_or_out_of_order_nothing_is_formed():
    """Released as soon as ready, half a second late, or backwards: no setting of Horovod's clock does that."""
    plan = horovod.realise(HorovodKnobs(threshold=20 * 2**20, cycle=0.1), WORKLOAD)
    assert len(plan.buckets) == 3
    late, prompt = (
        Plan(plan.workload, tuple(Bucket(bucket.blocks, release(bucket)) for bucket in plan.buckets))
        for release in (lambda bucket: bucket.release_time + 0.5, lambda bucket: 0.0)
    )
    at_the_end = Plan(plan.workload, tuple(Bucket(bucket.blocks, 2.5) for bucket in plan.buckets[::-1]))
    for other in (late, prompt, at_the_end, Plan(plan.workload, plan.buckets[::-1])):
        assert not horovod.TARGET.forms(other, WORKLOAD)
        assert "horovod" not in runs_on(other, WORKLOAD)
    assert runs_on(prompt, WORKLOAD) == ("ddp",)
