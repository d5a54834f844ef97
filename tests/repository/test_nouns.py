"""The nouns refuse what cannot be, and derive what they say."""

from __future__ import annotations

import importlib
import math
from dataclasses import FrozenInstanceError, is_dataclass, replace

import pytest

import osfmodel as osf
from osfmodel import (
    AlphaBeta,
    Cluster,
    DataError,
    Layer,
    Link,
    Measurement,
    NcclShape,
    Plan,
    PlanError,
    Table,
    Workload,
)
from osfmodel.entities.cluster import FittedRange
from osfmodel.entities.plan import Block, Bucket, contiguous_plan
from osfmodel.entities.timeline import require_interval
from osfmodel.planning.tuning.settling import contiguous_ends


def test_gradients_stand_in_ready_order(small_workload):
    gradients = small_workload.gradients
    assert gradients.names == ("c", "b", "a")
    assert gradients.ready_times == (6.0, 8.0, 11.0)
    assert gradients.sizes == (100, 200, 400)
    assert small_workload.compute_time == 11.5
    assert small_workload.gradient_bytes == 700


def test_layers_without_parameters_take_time_but_send_nothing():
    workload = Workload("w", (Layer("conv", 1, 1, 8), Layer("relu", 1, 2, 0), Layer("fc", 1, 1, 8)))
    assert workload.gradients.names == ("fc", "conv")
    assert workload.gradients.ready_times == (4, 7)


@pytest.mark.parametrize("module", ["cluster", "workload", "plan", "measurement", "timeline"])
def test_whatever_a_noun_is_made_of_is_exported(module):
    """Every dataclass beside a noun; only the gradients of a workload, which nobody makes by hand, are not."""
    found = vars(importlib.import_module(f"osfmodel.entities.{module}"))
    made = {
        name
        for name, value in found.items()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == f"osfmodel.entities.{module}"
    }
    assert made - {"Gradients"} <= set(osf.__all__)
    assert all(getattr(osf, name) is found[name] for name in made - {"Gradients"})


def test_nouns_are_values(small_workload):
    assert small_workload == Workload("small", small_workload.layers, 8, 0.5)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        small_workload.name = "other"
    assert not hasattr(small_workload, "__dict__")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "1", None, True])
@pytest.mark.parametrize("field", ["forward_time", "backward_time"])
def test_impossible_times(field, value):
    times = {"forward_time": 1.0, "backward_time": 1.0, field: value}
    with pytest.raises(DataError, match="finite number, zero or more"):
        Layer("a", gradient_bytes=4, **times)


@pytest.mark.parametrize("size", [-1, 1.5, "4", True, None])
def test_impossible_sizes(size):
    with pytest.raises(DataError, match="whole number"):
        Layer("a", 1.0, 1.0, size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload("w", ()), "no layers"),
        (lambda: Workload("w", (Layer("a", 1, 1, 4), Layer("a", 1, 1, 4))), "two layers named 'a'"),
        (lambda: Workload("w", (Layer("a", 0, 0, 4),)), "no time at all"),
        (lambda: Workload("", (Layer("a", 1, 1, 4),)), "printable"),
        (lambda: Workload("w", (Layer("a", 1, 1, 4),), batch_size=0), "batch size"),
        (lambda: Workload("w", (Layer("a", 1, 1, 4),), update_time=math.nan), "update time"),
        (lambda: Layer("", 1, 1, 4), "printable"),
        (lambda: Layer("a", 1, 1, 4, dtype=""), "dtype"),
        (lambda: Layer("a", 1, 1, 4, activation_bytes=-1), "activation"),
        (lambda: Layer("a", 1, 1, 4, enqueue_time=-1.0), "enqueue"),
        (lambda: Cluster("c", "ring", gpus_per_node=0, in_node=Link(1, 1)), "GPUs per node"),
        (lambda: Cluster("c", "ring", nodes=0, in_node=Link(1, 1)), "nodes"),
        (lambda: Cluster("c", "hockney", fits=(AlphaBeta(2, 1, 1), AlphaBeta(2, 1, 2))), "two fits"),
        (lambda: Link(-1, 1), "latency"),
        (lambda: NcclShape("pascal", "nvlink-mesh", 1e9), "unknown GPU generation 'pascal'"),
        (lambda: NcclShape("volta", "ring", 1e9), "unknown fabric 'ring'"),
        (lambda: NcclShape("volta", "nvlink-mesh", 0), "bandwidth of a GPU"),
        (lambda: NcclShape("volta", "nvlink-mesh", 1e9, math.inf), "network bandwidth"),
        (lambda: NcclShape("ampere", "nvswitch", 1e9, nvls=True), "NVLS needs"),
        (lambda: NcclShape("hopper", "pcie", 1e9, nvls=True), "NVLS needs"),
        (lambda: NcclShape("volta", "nvlink-mesh", 1e9, latency_scale=-1), "latency scale"),
        (lambda: AlphaBeta(1, 1, 1), "workers"),
        (lambda: AlphaBeta(2, 1, 1, "broadcast"), "unknown collective"),
        (lambda: Table(2, (1, 2), (1.0,)), "2 sizes and 1 times"),
        (lambda: Table(2, (2, 1), (1.0, 1.0)), "sizes must increase"),
        (lambda: Table(2, (1, 2), (1.0, math.inf)), "finite"),
        (lambda: Plan("w", (), channels=0), "channels"),
        (lambda: Bucket((), release_time=-1), "release time"),
        (lambda: Layer("a\nimport os", 1, 1, 4), "printable"),
        (lambda: Layer("a", 1e300, 1, 4), "below"),
        (lambda: Layer("a", 1, 1, 10**30), "2\\^53"),
        (lambda: Workload("w", tuple(Layer(f"l{i}", 1, 1, 2**52) for i in range(3))), "in all"),
        (lambda: Cluster("c", "ring", nics_per_node=0, in_node=Link(1, 1)), "NICs"),
    ],
)
def test_impossible_nouns_are_refused_with_the_reason(make, message):
    with pytest.raises((DataError, PlanError), match=message):
        make()


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ([[("a", 0, 400)], [("b", 0, 200)]], "0 bytes of 'c'"),
        ([[("a", 0, 400), ("b", 0, 200), ("c", 0, 100), ("c", 0, 100)]], "sent twice"),
        ([[("a", 0, 400), ("b", 0, 200), ("c", 10, 100)]], "not at all"),
        ([[("a", 0, 400), ("b", 0, 200), ("c", 0, 101)]], "101 bytes of 'c'"),
        ([[("a", 0, 400), ("b", 0, 200), ("d", 0, 100)]], "'d', which has no gradient"),
        ([[("a", 0, 400), ("b", 0, 200), ("c", 0, 100)], []], "bucket 1 of the plan is empty"),
        ([[("a", 0, 500), ("b", 0, 200), ("c", 0, 100)]], "500 bytes of 'a'"),
    ],
)
def test_a_plan_sends_every_byte_once(small_workload, buckets, message):
    plan = Plan("small", tuple(Bucket(tuple(Block(*block) for block in blocks)) for blocks in buckets))
    with pytest.raises(PlanError, match=message):
        plan.require_valid(small_workload)


def test_a_plan_belongs_to_its_workload(small_workload):
    plan = Plan("large", contiguous_plan(small_workload, [3]).buckets)
    with pytest.raises(PlanError, match="'large', not for 'small'"):
        plan.require_valid(small_workload)


def test_a_plan_that_fits_one_workload_is_looked_at_again_for_another(small_workload):
    plan = contiguous_plan(small_workload, range(1, len(small_workload.gradients) + 1))
    plan.require_valid(small_workload)
    plan.require_valid(small_workload)
    layers = tuple(replace(layer, gradient_bytes=2 * layer.gradient_bytes) for layer in small_workload.layers)
    with pytest.raises(PlanError, match="whose gradient has"):
        plan.require_valid(replace(small_workload, layers=layers))


def test_contiguous_plans_and_their_ends(small_workload):
    plan = contiguous_plan(small_workload, [1, 3])
    assert [bucket.size for bucket in plan.buckets] == [100, 600]
    assert contiguous_ends(plan, small_workload) == (1, 3)
    backwards = Plan("small", tuple(reversed(plan.buckets)))
    backwards.require_valid(small_workload)
    assert contiguous_ends(backwards, small_workload) is None


def test_a_bucket_holds_one_dtype():
    workload = Workload("w", (Layer("a", 1, 1, 4, "float32"), Layer("b", 1, 1, 4, "bfloat16")))
    plan = Plan("w", (Bucket((Block("b", 0, 4), Block("a", 0, 4))),))
    with pytest.raises(PlanError, match="mixes bfloat16 and float32"):
        plan.require_valid(workload)


def run(**changes):
    values = {"workload": "w", "cluster": "c", "plan": "ddp", "workers": 4, "samples": (3.0, 1.0, 2.0), "warm_ups": 5}
    return Measurement(**{**values, **changes})


def test_a_measurement_is_its_median_and_spread():
    assert run().iteration_time == 2.0
    assert run().spread == (1.0, 3.0)
    assert run().pooled(run(samples=(9.0,))).samples == (3.0, 1.0, 2.0, 9.0)


@pytest.mark.parametrize("changes", [{"workers": 8}, {"plan": "wfbp"}, {"conditions": (("torch", "2.13"),)}])
def test_unlike_runs_are_not_pooled(changes):
    with pytest.raises(DataError, match=f"differ in {next(iter(changes))}"):
        run().pooled(run(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": ()}, "has no samples"),
        ({"samples": (math.nan,)}, "a sample of .* is nan"),
        ({"workers": 0}, "workers of a measurement is 0"),
        ({"plan": ""}, "the plan of a measurement is ''"),
    ],
)
def test_impossible_measurements(changes, said):
    with pytest.raises(DataError, match=said):
        run(**changes)


def test_a_scaled_workload_takes_so_many_times_as_long(small_workload):
    layers = (*small_workload.layers, osf.Layer("d", 1, 1, 4, enqueue_time=5.0))
    twice = replace(small_workload, layers=layers).scaled(2)
    assert twice.compute_time == 2 * (small_workload.compute_time + 2)
    assert twice.gradients.ready_times == tuple(2 * time for time in (6, 8, 10, 13))
    assert twice.gradients.enqueue_times[0] == 10
    assert twice.gradient_bytes == small_workload.gradient_bytes + 4
    with pytest.raises(DataError, match="factor on the times of workload 'small'"):
        small_workload.scaled(0)


def test_plans_of_one_limit(small_workload, small_cluster):
    """cap:SIZE is DDP's rule with one limit; cap:best the best of these, over all that differ."""
    plan = osf.predict(small_workload, small_cluster, "cap:250B", 2).plan
    assert [bucket.size for bucket in plan.buckets] == [300, 400]
    times = [osf.predict(small_workload, small_cluster, f"cap:{cap}B", 2).iteration_time for cap in (1, 250, 301, 700)]
    assert osf.predict(small_workload, small_cluster, "cap:best", 2).iteration_time == min(times)
    with pytest.raises(osf.UsageError, match="a limit is 1 byte or more"):
        osf.predict(small_workload, small_cluster, "cap:0B", 2)


def test_steady_bytes_are_a_part_of_the_peak():
    assert Layer("a", 1.0, 1.0, 4, peak_bytes=8, steady_bytes=8).steady_bytes == 8
    with pytest.raises(DataError, match="layer 'a' has more steady bytes than peak bytes"):
        Layer("a", 1.0, 1.0, 4, peak_bytes=8, steady_bytes=9)
    with pytest.raises(DataError, match="more steady bytes than peak bytes"):
        Layer("a", 1.0, 1.0, 4, steady_bytes=1)


def test_intervals_may_be_empty_and_do_not_run_backward():
    require_interval((1.0, 1.0), "a step")
    with pytest.raises(DataError, match="a step ends before it begins"):
        require_interval((2.0, 1.0), "a step")


def test_a_fit_is_of_two_workers_or_more():
    assert FittedRange(1, 2, (2, 4)).workers == (2, 4)
    with pytest.raises(DataError, match="workers of a fit"):
        FittedRange(1, 2, (1, 4))
