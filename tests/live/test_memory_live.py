"""Memory in a profile: against closed forms, and against torch's own tracker, byte by byte."""

from __future__ import annotations

import os

import pytest

import osfmodel as osf
from osfmodel.entities.batches import at_batch
from osfmodel.entities.executors import KEEPERS
from osfmodel.runtime.profiler.recording import blocks
from osfmodel.runtime.profiler.steps import INPUT, LOSS
from tests.commands import invoke

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from tests.live.test_profile_live import Convolutions, hooks_of

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
nn, dist = torch.nn, torch.distributed


class Line(nn.Module):
    """Two products without biases: what each step of its training keeps can be written down."""

    def __init__(self, frozen=False):
        super().__init__()
        self.first = nn.Linear(30, 20, bias=False)
        self.second = nn.Linear(20, 10, bias=False)
        self.first.weight.requires_grad_(not frozen)

    def forward(self, inputs):
        return self.second(self.first(inputs))


class Block(nn.Module):
    """A residual block: its three modules with tensors make it one."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, inputs):
        return inputs + self.down(torch.relu(self.up(self.norm(inputs))))


class Tower(nn.Module):
    """Blocks in rows of rows, as a ResNet has them, between two products; one weight is in use at both ends."""

    def __init__(self, tied=True):
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.stages = nn.ModuleList(nn.Sequential(Block(16), Block(16)) for _ in range(2))
        self.pair = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
        self.head = nn.Linear(16, 16, bias=False)
        if tied:
            self.head.weight = self.stem.weight

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for stage in self.stages:
            hidden = stage(hidden)
        return self.head(self.pair(hidden))


class Twice(Tower):
    """Its first stage is run twice."""

    def forward(self, inputs):
        return super().forward(self.stages[0](inputs))


def momentum(tensors):
    return torch.optim.SGD(tensors, lr=1e-3, momentum=0.9)


def adam(tensors):
    return torch.optim.Adam(tensors, lr=1e-3)


def loop(model, optimizer, inputs, targets, steps, accumulate=1, to_none=True):
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        for _ in range(accumulate):
            (model(inputs).sum() if targets is None else nn.functional.mse_loss(model(inputs), targets)).backward()
        optimizer.step()


def profiled(model, inputs, targets, make=momentum, warm_up=2, **options):
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    with osf.profile(model, warm_up=warm_up, steps=1) as watched:
        loop(model, make(trained), inputs, targets, warm_up + 2, **options)
    return watched.workload


def test_a_line_keeps_what_can_be_written_down():
    """Floats: 240 of 8 inputs, 160 hidden, 80 of outputs, a loss, where its gradient starts, weights of 600 and 200."""
    workload = profiled(Line(), torch.randn(8, 30), None)
    assert (workload.state_bytes, workload.fixed_bytes, workload.update_bytes) == (4 * 800, 0, 0)
    assert {layer.name: layer.peak_bytes / 4 for layer in workload.layers} == {
        LOSS: 240 + 160 + 80 + 1,
        "second.weight": 240
        + 160
        + 2
        + 160
        + 200,  # the outputs are gone; gradients of what was hidden and of the weight
        "first.weight": 240 + 2 + 160 + 600,
        INPUT: 240 + 2,
    }
    steady = {layer.name: layer.steady_bytes / 4 for layer in workload.layers}
    assert steady == {LOSS: 0, "second.weight": 200, "first.weight": 600, INPUT: 0}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parts_of_a_gradient_are_steady(accumulate):
    """The rest of the peaks grows with the batch, also if one weight is used twice."""
    small, large = (
        profiled(Tower(), torch.randn(size, 16), torch.randn(size, 16), accumulate=accumulate) for size in (2, 40)
    )
    for layer, other in zip(at_batch(small, 40).layers, large.layers, strict=True):
        assert other.peak_bytes == pytest.approx(layer.peak_bytes, rel=0.1)
    assert max(layer.steady_bytes for layer in small.layers) >= 4 * 16 * 16


class Casting(nn.Linear):
    """Computes with a copy of its weight, as autocast does, and adds a row for every sample that no sample is in."""

    def forward(self, inputs):
        rows = self.bias.expand(len(inputs), -1).contiguous()
        return nn.functional.linear(inputs, self.weight.double().float()) + rows


def test_tensors_made_of_weights_alone_are_steady_unless_larger():
    """Floats: 240 inputs, 160 in rows, a weight of 600 in float64 and back; later two times 160 more."""
    workload = profiled(Casting(30, 20), torch.randn(8, 30), None)
    loss = workload.layers[-1]
    assert (loss.peak_bytes / 4, loss.steady_bytes / 4) == (240 + 160 + 1200 + 600, 1800 - 2 * 160)


@pytest.mark.parametrize("make", [momentum, adam])
@pytest.mark.parametrize(("accumulate", "to_none"), [(1, True), (1, False), (2, True)])
@pytest.mark.parametrize("model", [Convolutions, Tower, Twice, Line], ids=lambda model: model.__name__)
def test_the_peak_is_that_of_torchs_own_tracker(model, make, accumulate, to_none):
    torch.manual_seed(2)
    subject = model()
    shape = {Convolutions: (16, 3, 24, 24), Line: (64, 30)}.get(model, (64, 16))
    inputs = torch.randn(shape)
    targets = torch.randn_like(subject(inputs).detach())
    workload = profiled(subject, inputs, targets, make, accumulate=accumulate, to_none=to_none)
    measured = tracked(subject, make(subject.parameters()), inputs, targets, accumulate, to_none)
    assert plain_peak(workload, kept=accumulate > 1 or not to_none) == measured


def tracked(model, optimizer, inputs, targets, accumulate, to_none):
    """The highest total of MemTracker from the second iteration on."""
    from torch.distributed._tools.mem_tracker import MemTracker

    loop(model, optimizer, inputs, targets, 1, accumulate, to_none)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, inputs, targets)
    tracker.track_external(*(tensor.grad for tensor in model.parameters() if tensor.grad is not None))
    with tracker:
        optimizer.zero_grad(set_to_none=to_none)
        for _ in range(accumulate):
            tracker.reset_mod_stats()
            nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def plain_peak(workload, kept):
    """Gradients that are ``kept`` from iteration to iteration, or come one after the other."""
    ready, highest = 0, 0
    for layer in reversed(workload.layers):
        highest = max(highest, (workload.gradient_bytes if kept else ready) + layer.peak_bytes)
        ready += layer.gradient_bytes
    update = workload.gradient_bytes + workload.update_bytes + workload.layers[0].peak_bytes
    return workload.gradient_bytes + workload.state_bytes + workload.fixed_bytes + max(highest, update)


def test_frozen_and_unused_tensors_and_buffers_are_fixed():
    workload = profiled(Line(frozen=True), torch.randn(8, 30), torch.randn(8, 10))
    assert workload.fixed_bytes == 4 * 600
    assert workload.state_bytes == workload.gradient_bytes == 4 * 200
    norm = nn.BatchNorm1d(6)
    norm.unused = nn.Parameter(torch.zeros(3))
    assert profiled(norm, torch.randn(4, 6), torch.randn(4, 6)).fixed_bytes == 2 * 6 * 4 + 8 + 3 * 4


def test_blocks_are_found_in_rows_of_rows():
    assert list(blocks(Tower())) == ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1", "pair"]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
    assert list(blocks(nn.Sequential(nn.Embedding(5, 8), encoder))) == ["1.layers.0", "1.layers.1"]
    assert list(blocks(Line())) == []


def test_a_segment_keeps_what_is_computed_between_its_input_and_its_output():
    """Floats of 8 samples of a block: the norm's output, mean and deviation, what goes into ReLU's and comes out."""
    workload = profiled(Tower(), torch.randn(8, 16), torch.randn(8, 16))
    kept = {segment.name: segment.kept_bytes for segment in workload.segments}
    assert list(kept) == ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1", "pair"]
    assert {kept[name] for name in list(kept)[:4]} == {4 * 8 * (16 + 2 + 32)}
    spans = [workload.span(name) for name in kept]
    assert [span.stop - span.start for span in spans] == [6, 6, 6, 6, 4]


def test_a_module_called_twice_is_no_segment():
    workload = profiled(Twice(tied=False), torch.randn(8, 16), torch.randn(8, 16))
    assert [segment.name for segment in workload.segments] == ["stages.1.0", "stages.1.1", "pair"]


@pytest.mark.parametrize("warm_up", [0, 1])
def test_without_warm_ups_enough_nothing_is_said(warm_up):
    workload = profiled(Line(), torch.randn(8, 30), torch.randn(8, 10), warm_up=warm_up)
    assert workload.state_bytes is workload.update_bytes is workload.fixed_bytes is None
    assert workload.segments == ()
    assert all(layer.peak_bytes is None for layer in workload.layers)


def test_a_loop_without_an_optimizer_says_nothing_of_its_state():
    model, inputs = Line(), torch.randn(8, 30)
    with osf.profile(model, warm_up=2, steps=1) as watched:
        for _ in range(4):
            model.zero_grad()
            model(inputs).sum().backward()
            watched.step()
    workload = watched.workload
    assert workload.state_bytes is workload.update_bytes is None
    assert all(layer.peak_bytes for layer in workload.layers)


def test_only_one_warm_up_is_watched_and_nothing_stays_behind():
    from torch.utils._python_dispatch import _len_torch_dispatch_stack

    model, inputs, targets = Tower(), torch.randn(8, 16), torch.randn(8, 16)
    before, seen = hooks_of(model), []
    model.register_forward_hook(lambda *_: seen.append(_len_torch_dispatch_stack()))
    profiled(model, inputs, targets, warm_up=4)
    assert seen == [0, 1, 0, 0, 0, 0]
    assert hooks_of(model) == before + 1


def test_a_mode_of_others_is_left_alone():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        workload = profiled(Line(), torch.randn(8, 30), torch.randn(8, 10))
    assert workload.fixed_bytes is None


def test_osf_profile_prints_the_peak(tmp_path, monkeypatch):
    (tmp_path / "lines_of_memory.py").write_text(
        "from torch import nn, randn\n\ndef make():\n"
        "    return nn.Linear(256, 256, bias=False), (randn(64, 256), randn(64, 256)), nn.functional.mse_loss\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = invoke(["profile", "lines_of_memory:make", "--steps", "1", "--warm-up", "2"])
    assert result.exit_code == 0, result.output
    assert "memory: 1.000 MiB" in result.stdout
    assert "weights 256.0 KiB" in result.stdout


@pytest.mark.parametrize("view", [False, True])
def test_ddp_keeps_gradients_and_buckets_as_its_keepers_say(view):
    """In the last iteration, by owner of the memory: buckets beside gradients, or around them."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view, bucket_cap_mb=0.02)
        buffers = []

        def hook(_, bucket):
            buffers.append(bucket.buffer())
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        wrapped.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            buffers.clear()
            optimizer.zero_grad(set_to_none=not view)
            wrapped(torch.randn(4, 64)).sum().backward()
            optimizer.step()
        kept = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in buffers}
        assert len(kept) > 1
        kept |= {
            one.grad.untyped_storage().data_ptr(): one.grad.untyped_storage().nbytes() for one in model.parameters()
        }
        whole = sum(4 * one.numel() for one in model.parameters())
        keeper = KEEPERS["ddp-view" if view else "ddp"]
        assert sum(kept.values()) == whole * (keeper.gradients + keeper.buckets)
    finally:
        dist.destroy_process_group()
