"""The memory model against levels counted by hand, and against a count of what is alive, event by event."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import (
    Block,
    Bucket,
    DataError,
    Layer,
    Plan,
    Segment,
    UsageError,
    Workload,
    load_cluster,
    load_workload,
    predict,
)
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_as_known, memory_of, peak_as_known
from osfmodel.engine.optimizers import state_bytes
from osfmodel.engine.sparse import Sparsity, sparsely
from osfmodel.engine.strategies.holdings import (
    ACTIVATIONS,
    BUCKETS,
    GATHERED,
    GRADIENTS,
    STATE,
    UPDATE,
    activation_levels,
)
from osfmodel.entities.executors import DDP, RUNTIME
from osfmodel.entities.plan import contiguous_plan, grouped_plan
from tests.draws import examples

LINE = AffineCost(((0.5, 0.01),))
LAYERS = (
    Layer("a", 1, 2, 100, activation_bytes=1000, peak_bytes=1500),
    Layer("b", 1, 2, 200, activation_bytes=2000, peak_bytes=3600),
    Layer("c", 1, 2, 400, activation_bytes=3000, peak_bytes=6500),
)
STEP = Workload(
    "step", LAYERS, 8, 1, segments=(Segment("ab", "a", "b", 2500),), state_bytes=700, update_bytes=50, fixed_bytes=7
)


def memory(workload=STEP, plan=None, keeper="runtime", optimizer=None, workers=4):
    plan = plan or contiguous_plan(workload, (1, 3))
    return memory_of(workload, plan, predict_timeline(workload, plan, Pricing.of(LINE)), workers, keeper, optimizer)


def levels(found, owner):
    return {level.during: level.held.get(owner, 0) for level in found.levels}


def test_one_worker_alone_holds_what_was_ready_before():
    found = memory(keeper="local")
    assert levels(found, GRADIENTS) | {"": 0} == {
        "forward a": 0, "forward b": 0, "forward c": 0,
        "backward c": 0, "backward b": 400, "backward a": 600, "update": 700, "": 0,
    }  # fmt: skip
    assert levels(found, ACTIVATIONS)["backward c"] == 6500
    assert found.peak.during == "backward c"
    assert found.peak.bytes == 6500 + 700 + 700 + 7
    assert levels(found, UPDATE)["update"] == 50


@pytest.mark.parametrize(
    ("keeper", "gradients", "buckets"),
    [("local", 600, 0), ("ddp", 600, 700), ("ddp-view", 0, 700), ("runtime", 0, 700)],
)
def test_storage_of_gradients_by_executor(keeper, gradients, buckets):
    found = memory(keeper=keeper)
    assert levels(found, GRADIENTS)["backward a"] == gradients
    assert levels(found, BUCKETS)["backward a"] == buckets


def test_released_buckets_come_and_go():
    """c is ready at 5 and sent at once, so that it arrives at 5 + 0.5 + 4 = 9.5: after backward, which ends at 9."""
    plan = replace(contiguous_plan(STEP, (1, 3)), release=True)
    found = memory(plan=plan)
    assert levels(found, BUCKETS) == {
        "forward a": 0, "forward b": 0, "forward c": 0, "backward c": 0, "hook c": 400, "backward b": 400,
        "hook b": 700, "backward a": 700, "hook a": 700, "update": 700, "update c": 700, "update b": 300,
    }  # fmt: skip


def test_scratch_of_a_release_stands_beside_what_backward_still_needs():
    """c is ready at 5 and costs nothing to send, so that the next hook updates it, while the output of a is kept."""
    plan = replace(grouped_plan(STEP, [[0], [1], [2]]), release=True)
    timeline = predict_timeline(STEP, plan, Pricing.of(FREE))
    found = memory_of(STEP, plan, timeline, 4)
    assert levels(found, ACTIVATIONS)["update c"] == 1000
    assert levels(found, UPDATE)["update c"] == 50
    assert levels(found, ACTIVATIONS)["update a"] == 0


def test_entries_that_have_arrived_stay_until_means_are_made_of_them():
    """Eight bytes for each of 25, 50 and 100 elements, of this worker and of four: 5 x 8 x 175 after backward."""
    plan = grouped_plan(STEP, [[0], [1, 2]])
    plan = replace(plan, buckets=tuple(replace(bucket, density=1) for bucket in plan.buckets))
    found = memory_of(STEP, plan, predict_timeline(STEP, plan, Pricing.of(FREE, workers=4)), 4)
    assert levels(found, GATHERED)["hook a"] == 7000
    assert levels(found, GATHERED)["means c"] == 7000
    assert levels(found, GATHERED)["means b"] == 3000
    assert levels(found, GRADIENTS)["means c"] == 400
    assert levels(found, GRADIENTS)["means b"] == levels(found, GRADIENTS)["update"] == 700
    assert levels(found, GATHERED)["update"] == 0


def test_means_of_a_released_sparse_bucket_are_made_beside_what_has_arrived():
    """The bucket of b and a: 300 bytes of means, of 8 x 75 bytes of this worker and of all four."""
    plan = grouped_plan(STEP, [[0], [1, 2]])
    plan = replace(plan, release=True, buckets=tuple(replace(bucket, density=1) for bucket in plan.buckets))
    found = memory_of(STEP, plan, predict_timeline(STEP, plan, Pricing.of(FREE, workers=4)), 4)
    assert levels(found, GRADIENTS)["update c"] == 400
    assert levels(found, GRADIENTS)["update b"] == 300
    assert levels(found, GATHERED)["update b"] == 5 * 8 * 75
    assert levels(found, GRADIENTS)["backward a"] == 0


def test_cut_tensors_have_a_home_and_splits_a_shard():
    cut = Plan(
        "step", (Bucket((Block("c", 0, 200),)), Bucket((Block("c", 200, 200), Block("b", 0, 200), Block("a", 0, 100))))
    )
    assert levels(memory(plan=cut), BUCKETS)["update"] == 400 + 500  # the first piece is sent out of its tensor
    split = replace(contiguous_plan(STEP, (1, 3)), strategy="split")
    assert levels(memory(plan=split), BUCKETS)["update"] == 700 + 100 + 75


@pytest.mark.parametrize(("channels", "workers", "kept"), [(1, 4, 100), (3, 4, 300), (3, 1, None)])
def test_every_channel_has_a_communicator_between_workers(channels, workers, kept):
    plan = replace(contiguous_plan(STEP, (1, 3)), channels=channels)
    found = memory_of(STEP, plan, predict_timeline(STEP, plan, Pricing.of(LINE)), workers, communicator=100)
    assert found.peak.held.get("communicators") == kept


def test_levels_are_in_the_order_of_time():
    plan = replace(contiguous_plan(STEP, (1, 3)), forward_overlap=True)
    starts = [level.start for level in memory(plan=plan).levels]
    assert starts == sorted(starts)
    with pytest.raises(UsageError, match=r"only osf\.execute can"):
        memory(plan=plan, keeper="ddp")


def test_a_recomputed_segment_is_not_there_before_its_own_backward():
    assert activation_levels(STEP, ()) == [1500, 3600, 6500]
    assert activation_levels(STEP, ("ab",)) == [1500, 3600, 4000]
    found = memory(plan=replace(contiguous_plan(STEP, (1, 3)), recompute=("ab",)))
    assert levels(found, ACTIVATIONS)["backward c"] == 4000
    assert levels(found, ACTIVATIONS)["backward b"] == 3600
    assert levels(found, ACTIVATIONS)["forward c"] == (1000 + 2000 - 2500) + 3000  # the output of the segment, and c


@pytest.mark.parametrize(("optimizer", "size"), [(None, 700), ("sgd", 0), ("momentum", 700), ("adam", 1400)])
def test_the_state_of_the_optimizer(optimizer, size):
    assert levels(memory(optimizer=optimizer), STATE)["update"] == size


def test_scratch_of_the_update_goes_by_tensor_or_by_bucket():
    alone = replace(grouped_plan(STEP, [[0], [1], [2]]), release=True)
    by_tensor = replace(STEP, update_bytes=400)
    each = [f"update {name}" for name in "cba"]
    assert [levels(memory(by_tensor, alone), UPDATE)[name] for name in each] == [400, 200, 100]
    at_once = replace(STEP, update_bytes=1400)
    assert [levels(memory(at_once, alone), UPDATE)[name] for name in each] == [800, 400, 200]  # 400 of 700 and so on
    assert levels(memory(at_once), UPDATE)["update"] == 1400


def test_missing_sizes_and_unknown_names_are_refused():
    with pytest.raises(DataError, match="does not say what its layers keep"):
        memory(replace(STEP, layers=tuple(replace(layer, peak_bytes=None) for layer in LAYERS)))
    with pytest.raises(DataError, match=r"give --optimizer adamw \(known: sgd, momentum, adam, adamw\)"):
        state_bytes(replace(STEP, state_bytes=None))
    with pytest.raises(UsageError, match="known are sgd, momentum, adam"):
        memory(optimizer="lion")
    with pytest.raises(UsageError, match="mirror weights need SGD, and the optimizer is adam"):
        memory(plan=replace(sparsely(contiguous_plan(STEP, (1, 3)), 0.5), mirror=True), optimizer="adam")
    with pytest.raises(UsageError, match="unknown keeper"):
        memory(keeper="nobody")
    with pytest.raises(UsageError, match=r"only osf\.execute can"):
        memory(plan=replace(contiguous_plan(STEP, (3,)), release=True), keeper="ddp")


# ------------------------------------------------------------------------------------------------------- by counting


@st.composite
def steps(draw):
    """Chains of layers, each of which keeps its output for its own backward and needs one more while that goes on."""
    count = draw(st.integers(1, 6))
    outputs = [draw(st.integers(1, 50)) for _ in range(count)]
    bounds = sorted(draw(st.sets(st.integers(0, count), max_size=4)) | {0, count})
    layers = tuple(
        Layer(
            f"l{i}", 1, 1, draw(st.integers(1, 20)), activation_bytes=outputs[i], peak_bytes=sum(outputs[: i + 1]) + 5
        )
        for i in range(count)
    )
    segments = tuple(Segment(f"s{i}", f"l{i}", f"l{j - 1}", sum(outputs[i : j - 1])) for i, j in pairwise(bounds))
    chosen = tuple(segment.name for segment in segments if draw(st.booleans()))
    return Workload("w", layers, 1, segments=segments, state_bytes=0), chosen, outputs


def counted(workload, chosen, outputs):
    """Layer by layer what is alive: outputs that forward kept, those computed again, and the scratch of 5."""
    spans = {name: workload.span(name) for name in chosen}
    dropped = {i for span in spans.values() for i in range(span.start, span.stop - 1)}
    alive = {i for i in range(len(outputs)) if i not in dropped}
    found = {}
    for i in reversed(range(len(outputs))):
        for span in spans.values():
            if span.start <= i < span.stop:
                alive |= set(range(span.start, i))
        found[i] = sum(outputs[j] for j in alive if j <= i) + 5
        alive -= {i}
    return [found[i] for i in range(len(outputs))]


@settings(max_examples=examples(30))
@given(steps())
def test_levels_are_those_of_a_count(step):
    workload, chosen, outputs = step
    assert activation_levels(workload, chosen) == counted(workload, chosen, outputs)


def test_the_count_can_fail():
    segment = replace(STEP.segments[0], kept_bytes=2400)
    wrong = replace(STEP, segments=(segment,))
    assert activation_levels(wrong, ("ab",)) != activation_levels(STEP, ("ab",))


def test_sparse_buckets_have_memory_to_arrive_in_as_soon_as_backward_has_ended():
    """All are submitted by then, also those that a slow network has not begun to send when the first means are made."""
    plan = sparsely(contiguous_plan(STEP, (1, 2, 3)), 0.1)
    pricing = Pricing(dict.fromkeys(("all_reduce", "all_gather"), AffineCost(((50, 1),))), 4)
    levels = memory_of(STEP, plan, predict_timeline(STEP, plan, pricing), 4).levels
    sparsity = Sparsity(STEP, workers=4)
    each = [sparsity.sent_bytes(bucket) + sparsity.gathered_bytes(bucket) for bucket in plan.buckets]
    means = [level.held[GATHERED] for level in levels if level.during.startswith("means")]
    assert means == [sum(each), sum(each[1:]), each[2]]


@pytest.mark.parametrize("name", ["fsdp2", "hsdp", "fsdp1", "zero-1", "zero-2", "zero-3", "megatron", "ddp"])
def test_peaks_that_steps_share_are_those_of_their_own_curves(name):
    steps = [
        (cluster, f"gpt2:{gpu},seq128,batch{batch},bf16", workers)
        for cluster, gpu, workers in (("nccl:h100x8,400Gbps,ib", "h100", 16), ("nccl:a100x8,200Gbps,ib", "a100", 16))
        for batch in (1, 4)
    ]
    steps += [("nccl:h100x8,400Gbps,ib", "gpt2:h100,seq128,batch1,bf16", workers) for workers in (1, 24, 64)]
    peaks = []
    for cluster, words, workers in steps:
        found = predict(load_workload(words), load_cluster(cluster), name, workers)
        question, keeper = found.bound.question, DDP if DDP.carries(found.plan.plain) else RUNTIME
        asked = (question.workload, found.plan, found.timeline, workers, keeper.name, "adamw")
        peak, level = peak_as_known(*asked), memory_as_known(*asked).peak
        assert (peak.during, list(peak.held.items())) == (level.during, list(level.held.items()))
        fresh = predict_timeline(question.workload, found.plan, question.pricing)
        assert found.iteration_time == pytest.approx(fresh.iteration_time, rel=1e-12)
        peaks.append(peak.bytes)
    assert peaks[0] == peaks[2] < peaks[1]
