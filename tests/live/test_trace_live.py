"""Traces of real DDP runs over gloo: what is read of them is what DDP says of itself."""

from __future__ import annotations

import json
import os
from functools import cache
from shutil import which

import pytest

from osfmodel import predict
from osfmodel.formats import Hints, load_trace
from osfmodel.formats.source_text import Text
from osfmodel.formats.traces import cluster_of, measurement_of, plan_of, workload_of
from tests.live.launching import found

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from tests.live import tracing

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
WAYS = {"shapes": 2, "bare": 2, "compiled": 2, "accumulated": 4, "cycles": 2}
"""Ranks of each."""
BY_INDUCTOR = ["inductor", "coalesced", "concatenated"] if which(os.environ.get("CXX", "g++")) else []
"""Ways that need a compiler of C++."""
SIZES = [parameter.numel() for parameter in reversed(list(tracing.model().parameters()))]
"""Elements of the gradients in ready order."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """For a number of ranks, the folder of the traces of its ways and what DDP logged of each."""

    @cache
    def run(world):
        folder = tmp_path_factory.mktemp("traces")
        ways = [way for way, ranks in WAYS.items() if ranks == world]
        return folder, found("tests.live.tracing", [str(folder), *ways], world)[0]

    return run


@pytest.fixture(scope="module")
def logged(ran):
    """The buckets in elements, as DDP logged them."""

    def of(way):
        sizes = ran(WAYS[way])[1][way]["rebuilt_bucket_sizes"].split(",")
        return [int(size) // 4 for size in sizes]

    return of


def traced(ran, way, **hints):
    folder, _ = ran(WAYS[way])
    return load_trace([folder / way], Hints(way, **hints))


@pytest.mark.parametrize("way", ["shapes", "compiled", "accumulated", "cycles"])
def test_buckets_and_gradients_are_those_of_ddp(ran, logged, way):
    """With shapes recorded: every step of every rank, also of a compiled model, accumulated gradients and cycles."""
    trace = traced(ran, way)
    assert [rank.rank for rank in trace.ranks] == list(range(WAYS[way]))
    assert {(rank.device, rank.backend, rank.workers) for rank in trace.ranks} == {("cpu", "gloo", WAYS[way])}
    for rank in trace.ranks:
        assert len(rank.steps) == tracing.ACTIVE * (2 if way == "cycles" else 1)
        for step in rank.steps:
            assert [one.elements for one in step.reductions] == logged(way)
            assert [one.elements for one in step.gradients] == SIZES
            assert step.micro_batches == (tracing.MICRO_BATCHES if way == "accumulated" else 1)
            assert step.inputs, "the data loader is on the record"
            assert all(one.waiting is not None for one in step.reductions)
    workload = workload_of(trace)
    assert list(workload.gradients.sizes) == [4 * size for size in SIZES]
    assert [bucket.size for bucket in plan_of(trace, workload).buckets] == [4 * size for size in logged(way)]


def test_sizes_from_ddps_log(ran, logged):
    """Without shapes the trace has no size; DDP's own log of the run gives them."""
    bare = traced(ran, "bare")
    assert {one.elements for rank in bare.ranks for step in rank.steps for one in step.reductions} == {None}
    sizes = ", ".join(str(4 * size) for size in logged("bare"))
    log = Text("log.json", json.dumps({"rebuilt_bucket_sizes": sizes}))
    trace = traced(ran, "bare", ddp_logging=log)
    assert [one.elements for one in trace.ranks[0].steps[0].reductions] == logged("bare")


def test_the_step_that_was_recorded_follows_from_its_parts(ran):
    """Self-consistency of a real run, with a fifth for a machine that other processes share; recorded runs keep 5 %."""
    trace = traced(ran, "shapes")
    workload = workload_of(trace)
    predicted = predict(workload, cluster_of(trace), plan_of(trace, workload), 2)
    fastest, slowest = measurement_of(trace).spread
    assert workload.compute_time <= slowest
    assert 0.8 * fastest < predicted.iteration_time < 1.2 * slowest


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The folder of the traces of what Inductor compiled, and what DDP logged of each way."""
    if not BY_INDUCTOR:
        pytest.skip("Inductor compiles C++: install g++")
    folder = tmp_path_factory.mktemp("compiled")
    logged = {}
    for way in BY_INDUCTOR:
        logged |= found("tests.live.tracing", [str(folder), way], 2)[0]
    return folder, logged


@pytest.mark.long
def test_a_model_compiled_by_inductor_keeps_ddps_buckets(compiled):
    """DDPOptimizer cuts the graph where buckets end, and DDP's own reducer sends them."""
    folder, logged = compiled
    sizes = [int(size) // 4 for size in logged["inductor"]["rebuilt_bucket_sizes"].split(",")]
    trace = load_trace([folder / "inductor"])
    for step in (step for rank in trace.ranks for step in rank.steps):
        assert [one.elements for one in step.reductions] == sizes
        assert sorted(one.elements for one in step.gradients) == sorted(SIZES)
    workload = workload_of(trace)
    assert [bucket.size for bucket in plan_of(trace, workload).buckets] == [4 * size for size in sizes]


def fused_by_inductor():
    """Elements of its messages: gradients as the graph of backward has them, in messages of at least the cap."""
    layers = [part for part in tracing.model() if isinstance(part, torch.nn.Linear)]
    messages, now = [], 0
    for size in (one.numel() for layer in reversed(layers) for one in (layer.weight, layer.bias)):
        now += size
        if 4 * now >= tracing.CAP_MB * 2**20:
            messages, now = [*messages, now], 0
    return [*messages, now] if now else messages


@pytest.mark.long
@pytest.mark.parametrize("way", list(tracing.FUSED))
def test_messages_that_inductor_fuses_are_read_whole(compiled, way):
    """A coalesced all-reduce has many tensors; a compiled backward has no gradients on the record."""
    trace = load_trace([compiled[0] / way])
    assert any("the model is compiled" in remark for remark in trace.remarks)
    for step in (step for rank in trace.ranks for step in rank.steps):
        assert [one.elements for one in step.reductions] == fused_by_inductor()
        assert step.backward is not None
        assert all(one.waiting is not None for one in step.reductions)
    workload = workload_of(trace)
    assert workload.gradient_bytes == 4 * sum(SIZES)
    assert "a layer per bucket" in workload.source.conditions
    assert [bucket.size for bucket in plan_of(trace, workload).buckets] == [4 * size for size in fused_by_inductor()]
