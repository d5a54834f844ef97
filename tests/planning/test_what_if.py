"""Tests of what-ifs: closed forms, limits, and improvements that must not make things worse."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osfmodel import (
    Cluster,
    Layer,
    Link,
    Plan,
    Protocol,
    Table,
    UsageError,
    Workload,
    at_batch,
    compare,
    cost_of,
    load_cluster,
    load_workload,
    predict,
    tune,
)
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.faster_network import Change, Network, faster_network
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.batches import accumulating, time_ratio
from osfmodel.entities.compression import COMPRESSIONS, compressed
from osfmodel.entities.errors import DataError
from osfmodel.entities.plan import PLAIN, Objective, contiguous_plan
from osfmodel.planning.what_if import WhatIf, faster_device
from osfmodel.targets import ddp
from osfmodel.targets.named_plans import make_plan
from tests.problems import affine, tiny_workload

RING = Cluster("ring", "ring", between_nodes=Link(5e-5, 1e-9))
TABLE = Cluster("table", "tabulated", tables=(Table(4, (64, 1024, 4096), (3e-5, 2e-5, 6e-5)),))
OBJECTIVES = (PLAIN, Objective(channels=2), Objective(forward_overlap=True), Objective(strategy="split"))


def seconds(workload: Workload, pricing: Pricing, ends: list[int], objective: Objective = PLAIN) -> float:
    plan = contiguous_plan(workload, ends).under(objective)
    return predict_timeline(workload, plan, pricing).iteration_time


def problem(seed: int) -> tuple[Workload, Pricing, list[int]]:
    """A workload of whole numbers, any price, and any buckets."""
    rng = np.random.default_rng(seed)
    workload = tiny_workload(rng, 12)
    count = len(workload.gradients)
    ends = sorted({*rng.integers(1, count + 1, 3).tolist(), count})
    return workload, Pricing.of(affine(rng), workers=4), ends


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from(OBJECTIVES[:2]))
def test_accumulating_adds_micro_batches_without_communication(seed, micro_batches, objective):
    """T_k = (k - 1) (forward + backward) + T_1 behind a barrier, whatever the plan and the price."""
    workload, pricing, ends = problem(seed)
    several = accumulating(workload, micro_batches)
    before = (micro_batches - 1) * (workload.forward_time + workload.backward_time)
    time = seconds(several, pricing, ends, objective)
    assert time == pytest.approx(float(before + seconds(workload, pricing, ends, objective)), rel=1e-12)
    assert several.compute_time == before + workload.compute_time


@given(st.integers(0, 10**6), st.integers(2, 9), st.sampled_from(OBJECTIVES[2:]))
def test_accumulating_under_forward_overlap(seed, micro_batches, objective):
    """The first micro-batch waits for gradients as before, so the others may hide communication, never add to it."""
    workload, pricing, ends = problem(seed)
    before = (micro_batches - 1) * (workload.forward_time + workload.backward_time)
    time = float(seconds(accumulating(workload, micro_batches), pricing, ends, objective))
    alone = float(before + workload.compute_time)
    assert alone * (1 - 1e-12) <= time <= float(before + seconds(workload, pricing, ends, objective)) * (1 + 1e-12)


def test_accumulating_keeps_what_a_host_submits_and_counts_samples():
    """Exact: 3 micro-batches of 2 + 4 s and an update of 1 s; a host at half the pace of its last gradient."""
    layers = (Layer("a", 1, 1, 8, enqueue_time=Fraction(3)), Layer("accumulated", 1, 3, 8, enqueue_time=Fraction(2)))
    several = accumulating(Workload("w", layers, batch_size=16, update_time=1), 3)
    assert several.compute_time == 3 * 6 + 1
    assert several.batch_size == 48
    assert several.gradients.ready_times == (2 * 6 + 5, 2 * 6 + 6)
    assert several.gradients.enqueue_times == (2 * 3 + 2, 2 * 3 + 3)
    assert several.layers[-1].name == "accumulated1"  # a name that is not taken
    assert accumulating(several, 1) is several


@given(st.integers(0, 10**6), st.floats(1, 1e6), st.floats(0.01, 1), st.sampled_from((PLAIN, *OBJECTIVES[2:])))
def test_a_better_network_never_makes_a_plan_slower(seed, bandwidth, latency, objective):
    """One collective at a time; several at once share the network in another order then, which may have anomalies."""
    workload, _, ends = problem(seed)
    for cluster in (RING, TABLE):
        better = faster_network(cluster, Change(bandwidth), Change(latency))
        before = float(seconds(workload, pricing_of(cluster, 4), ends, objective))
        assert float(seconds(workload, pricing_of(better, 4), ends, objective)) <= before * (1 + 1e-12)


@given(st.integers(0, 10**6), st.fractions(1, 100), st.sampled_from((PLAIN, OBJECTIVES[2])))
def test_a_faster_device_never_makes_a_plan_slower(seed, factor, objective):
    workload, pricing, ends = problem(seed)
    before = float(seconds(workload, pricing, ends, objective))
    faster = faster_device(workload, factor)
    assert float(seconds(faster, pricing, ends, objective)) <= before * (1 + 1e-12)
    assert faster.compute_time * factor == pytest.approx(float(workload.compute_time), rel=1e-12)


def test_faster_is_never_slower_can_fail():
    """An oracle shown failing: a plan that is made anew may be slower on a faster device."""
    workload, cluster = load_workload("resnet50-v100"), Cluster("r", "ring", between_nodes=Link(1e-4, 8e-10))
    times = []
    for factor in np.linspace(1, 4, 31):
        faster = faster_device(workload, float(factor))
        times.append(predict(faster, cluster, "asc-wfbp", 16).iteration_time)
    assert max(after / before for before, after in pairwise(times)) > 1


def test_bandwidth_without_end_leaves_the_latencies():
    """On a ring in order: compute, and what is left of the latencies after backward."""
    workload = Workload("w", (Layer("a", 1.0, 1.0, 4 * 10**8), Layer("b", 1.0, 1.0, 4 * 10**8)), update_time=0.5)
    pricing = pricing_of(faster_network(Cluster("r", "ring", between_nodes=Link(0.1, 1e-9)), Change(1e30)), 4)
    rounds = 2 * 3 * 0.1
    assert seconds(workload, pricing, [1, 2]) == pytest.approx(4 + rounds + 0.5)
    assert seconds(workload, pricing, [2]) == pytest.approx(4 + rounds + 0.5)


def test_a_measured_table_with_another_network():
    """t -> latency a + (t - a) / bandwidth, with a the least time so far; measured start-ups go with latency."""
    (row,) = faster_network(TABLE, Change(2), Change(3)).tables
    assert row.times == pytest.approx((9e-5, 6e-5, 6e-5 + 2e-5))
    measured = Cluster("t", "tabulated", tables=(Table(4, (64, 1024), (3e-5, 6e-5), startups=(1e-5, 2e-5)),))
    (row,) = faster_network(measured, Change(4), Change(0.5)).tables
    assert row.times == pytest.approx((1.5e-5, 1.5e-5 + 0.75e-5))
    assert row.startups == pytest.approx((0.5e-5, 1e-5))
    endless = faster_network(load_cluster("emulated-4x1gbit"), Change(1e9))
    assert cost_of(endless, 4)(2**20) > 5e-4  # start-ups of large messages are 0 there, and latency is not


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=9), st.floats(1, 1e9))
def test_a_table_with_more_bandwidth_lies_between_its_start_up_and_itself(times, factor):
    sizes = tuple(4**k for k in range(1, len(times) + 1))
    cluster = Cluster("t", "tabulated", tables=(Table(2, sizes, tuple(times)),))
    (row,) = faster_network(cluster, Change(factor)).tables
    for number, (before, after) in enumerate(zip(times, row.times, strict=True)):
        assert min(times[: number + 1]) <= after * (1 + 1e-12)
        assert after <= before * (1 + 1e-12)


def test_a_number_is_a_factor_on_the_network():
    assert WhatIf(bandwidth=0.5, latency=2) == WhatIf(bandwidth=Change(0.5), latency=Change(2))
    with pytest.raises(UsageError, match="--bandwidth: it must be above 0"):
        WhatIf(bandwidth=0)


def test_only_the_network_between_nodes_changes():
    both = Cluster("h", "hierarchical", 4, between_nodes=Link(5e-5, 1e-9), in_node=Link(1e-6, 1e-11))
    better = faster_network(both, Change(2), Change(0.5))
    assert better.in_node == both.in_node
    assert better.between_nodes == Link(2.5e-5, 0.5e-9)
    assert cost_of(better, 4)(10**6) == cost_of(both, 4)(10**6)  # within one node
    one_node = Cluster("n", "ring", 4, nodes=1, in_node=Link(1e-6, 1e-11))
    assert faster_network(one_node, Change(2)).in_node == Link(1e-6, 0.5e-11)


def test_protocols_keep_their_launch_and_their_pass_over_memory():
    """By hand, 4 workers on 4 nodes: 2 log2(4) hops of 5 us and 1.5 bytes sent per byte beside what stays."""
    row = Protocol(1e-5, 2e-12, between_nodes=Link(5e-6, 4e-12))
    cluster = Cluster("p", "protocols", protocols=(row,))
    price = cost_of(faster_network(cluster, Change(2), Change(3)), 4)
    assert price(10**9) == pytest.approx(1e-5 + 3 * 4 * 5e-6 + (2e-12 + 1.5 * 4e-12 / 2) * 10**9)
    endless = cost_of(faster_network(cluster, Change(1e15)), 4)
    assert endless(2**36) - endless(0) == pytest.approx(2e-12 * 2**36)


def test_nccl_keeps_its_launch_and_the_ceilings_of_its_protocols():
    """Without end to the network large messages cost what Simple takes to start, small ones what LL takes, less."""
    cluster = load_cluster("nccl-h100-ndr")
    endless = cost_of(faster_network(cluster, Change(1e15)), 16)
    alone = replace(cluster, gpus_per_node=1)
    left = cost_of(faster_network(alone, Change(1e15)), 16)
    assert left(2**36) == pytest.approx(left(2**34), rel=1e-3)
    assert left(0) < 0.9 * left(2**36)
    assert endless(2**36) > 1.5 * endless(2**35)  # NVLink inside the nodes stays
    waits = [cost_of(faster_network(cluster, latency=Change(factor)), 16)(0) for factor in (1, 2, 3)]
    assert waits[2] - waits[1] == pytest.approx(waits[1] - waits[0], rel=1e-3)
    assert 2 * waits[0] > waits[1]


def test_strong_scaling_shares_the_batch():
    """16 workers of 512 samples have 32 each; scaling factors compare with one worker who has all."""
    workload = at_batch(load_workload("resnet50-v100"), 64)
    what_if = WhatIf(global_batch=512, accumulate=2)
    halves = [what_if.of_workload(workload, workers) for workers in (1, 2, 4)]
    assert [one.batch_size for one in halves] == [512, 256, 128]
    assert halves[0].forward_time == pytest.approx(time_ratio(4) / time_ratio(2) * halves[1].forward_time)
    assert what_if.alone(workload, 4) == pytest.approx(halves[0].compute_time / 4)
    assert WhatIf(accumulate=2).alone(workload, 4) == accumulating(workload, 2).compute_time


def test_strong_scaling_counts_updates_once():
    """With an update of 1 s: one worker takes 5.9 + 1, of four each 2 + 1: at best 2.3 times as fast."""
    workload = Workload("w", (Layer("a", 1.0, 1.0, 8),), batch_size=8, update_time=1.0)
    what_if = WhatIf(global_batch=32)
    alone = what_if.alone(workload, 4)
    assert alone / what_if.of_workload(workload, 4).compute_time == pytest.approx(6.9 / 4 / 3)


def test_compressions():
    """Bytes of a square of 1024 x 1024 float32 and a bias of 8: PowerSGD leaves what it would not halve."""
    workload = Workload("w", (Layer("m", 1, 1, 4 * 2**20), Layer("b", 1, 1, 32)))
    assert compressed(workload, "none") == workload
    for how, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        sent = [(one.gradient_bytes, one.dtype) for one in compressed(workload, how).layers]
        assert sent == [(2 * 2**20, dtype), (16, dtype)]
    assert [one.gradient_bytes for one in compressed(workload, "powersgd:4").layers] == [2048 * 4 * 4, 32]
    assert [one.gradient_bytes for one in compressed(workload, "powersgd:256").layers] == [4 * 2**20, 32]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 64))
def test_powersgd_sends_no_less_than_is_said(rows, columns, rank):
    """(n + m) r elements of any n x m matrix, or all of it where that is not half."""
    said = compressed(Workload("w", (Layer("m", 1, 1, 4 * rows * columns),)), f"powersgd:{rank}").gradient_bytes
    sent = (rows + columns) * rank if 2 * (rows + columns) * rank < rows * columns else rows * columns
    assert said <= 4 * sent


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_every_compression_sends_no_more_and_computes_the_same(name):
    workload = load_workload("resnet50-v100")
    how = f"{name}:8" if COMPRESSIONS[name].ranked else name
    smaller = compressed(workload, how)
    assert all(one <= two for one, two in zip(smaller.gradients.sizes, workload.gradients.sizes, strict=True))
    assert smaller.compute_time == workload.compute_time
    assert smaller.gradients.names == workload.gradients.names
    make_plan("ddp", smaller, pricing_of(RING, 4)).require_valid(smaller)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compute": 0.0}, "compute"),
        ({"compute": math.inf}, "compute"),
        ({"bandwidth": Change(-1.0)}, "bandwidth"),
        ({"latency": Change(value=0.0)}, "latency"),
        ({"accumulate": 0}, "from 1 to"),
        ({"accumulate": 10**7}, "from 1 to"),
        ({"compression": "powersgd"}, "powersgd:RANK"),
        ({"compression": "powersgd:0"}, "rank"),
        ({"compression": "fp16:2"}, "did you mean fp16"),
        ({"compression": "topk"}, "write one of"),
        ({"batch_size": 0}, "1 or more"),
        ({"global_batch": 0}, "1 or more"),
        ({"global_batch": 8, "batch_size": 8, "accumulate": 2}, "follows from them"),
    ],
)
def test_changes_that_cannot_be(changes, said):
    with pytest.raises(UsageError, match=said):
        WhatIf(**changes)


def test_a_global_batch_that_is_not_shared_evenly():
    with pytest.raises(
        UsageError, match="1000 is not shared evenly by 16 workers: give --global-batch 992 or --global-batch 1008"
    ):
        WhatIf(global_batch=1000).share(16)
    with pytest.raises(
        UsageError, match="3 is not shared evenly by 4 workers with 2 micro-batches: give --global-batch 8"
    ):
        WhatIf(global_batch=3, accumulate=2).share(4)


def test_nothing_changed_is_nothing_said():
    workload = load_workload("resnet50-v100")
    nothing = WhatIf()
    assert nothing.of_workload(workload, 16) == workload
    assert nothing.of_cluster(RING) is RING
    assert (nothing.words, nothing.document, nothing.caveats(workload, RING)) == ("", {}, ())
    assert nothing.alone(workload, 16) == workload.compute_time
    assert Network() == Network(Change(1.0), Change(1.0))


@pytest.mark.parametrize(("computing", "said"), [(0.17, "only 17% of"), (0.95, ""), (None, "")])
def test_a_faster_device_names_time_that_it_does_not_shorten(computing, said):
    workload = replace(load_workload("resnet50-v100"), computing=computing)
    faster = WhatIf(compute=2.0)
    notes = compare(faster.of_workload(workload, 16), RING, 16, ["ddp"]).under(faster, 1.0).predictions[0].notes
    assert [said in note for note in notes if "--compute scales the rest" in note] == [True] * bool(said)
    tuned = tune(faster.of_workload(workload, 16), RING, 16).under(faster)
    assert any("--compute scales the rest" in note for note in tuned.notes) == bool(said)
    assert not any("--compute" in note for note in WhatIf(accumulate=2).caveats(workload, RING))
    with pytest.raises(DataError, match="computing of workload"):
        replace(workload, computing=1.5)


def test_the_changes_in_words_and_as_data():
    what_if = WhatIf(Change(2.0), Change(value=1e-5), 1.5, "powersgd:4", 4, global_batch=1024)
    tiny = load_workload("resnet50-v100")
    words = "bandwidth x2, latency 10us, compute x1.5, compression powersgd:4, 4 micro-batches accumulated"
    assert what_if.words == f"{words}, global batch 1024"
    assert what_if.document == {
        "bandwidth_factor": 2.0,
        "latency_s": 1e-5,
        "compute_factor": 1.5,
        "compression": "powersgd:4",
        "accumulate": 4,
        "global_batch": 1024,
    }
    said = what_if.caveats(tiny, TABLE)
    assert [len([note for note in said if word in note]) for word in ("smallest messages", "shapes", "error band")] == [
        1,
        1,
        1,
    ]


@pytest.mark.parametrize("how", ["fp16", "bf16", "powersgd:4"])
def test_ddp_fills_buckets_with_gradients_as_they_are_held(how):
    """A hook is given what DDP has put into a bucket, so the tensors in it are those of a run without the hook."""
    workload = load_workload("alexnet-pipedream")
    smaller, pricing = compressed(workload, how), pricing_of(RING, 16)

    def tensors(plan: Plan) -> list[list[str]]:
        return [[block.layer for block in bucket.blocks] for bucket in plan.buckets]

    before, after = (make_plan("ddp", one, pricing) for one in (workload, smaller))
    assert tensors(after) == tensors(before)
    assert sum(bucket.size for bucket in after.buckets) == smaller.gradient_bytes < workload.gradient_bytes
    tuning = tune(smaller, RING, 16, "ddp")
    limits = [int(mib * 2**20) for mib in tuning.config["bucket_cap_mb_list"]]
    assert ddp.to_plan(ddp.DdpKnobs(tuple(limits)), smaller) == tuning.plan
    again = ddp.to_plan(ddp.DdpKnobs(tuple(limits)), workload)  # what DDP does with these limits
    assert tensors(again) == tensors(tuning.plan)
    assert "register_comm_hook" in tuning.rendered
    assert "register_comm_hook" not in tune(workload, RING, 16, "ddp").rendered


def test_horovod_fuses_by_compressed_sizes():
    """Horovod compresses tensors before it is given them: its threshold holds for halves."""
    workload = load_workload("resnet50-v100")
    half = compressed(workload, "fp16")
    assert half.gradients.held_sizes == workload.gradients.sizes
    plans = [make_plan("horovod:16MiB,5ms", one, pricing_of(RING, 16)) for one in (workload, half)]
    assert len(plans[1].buckets) < len(plans[0].buckets)
