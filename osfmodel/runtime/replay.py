"""A model that behaves like a workload: computation stands in, everything that communicates is real.

Each layer is one node of a real autograd chain with one real parameter of the right size, so gradients, hooks, buckets
and collectives are those of any model and come in the workload's order. On a CPU a layer computes by sleeping (and
spinning for the last moment), until its time since the start of the iteration has come: what the host does in hooks
meanwhile is not added to the computation, as it is not where the host runs ahead of a device. On a GPU it spins a
kernel, one layer after the other. Nothing here was run on a GPU.

Where the executor lets the next forward overlap communication there is no point at which all ranks wait, so times go on
from one iteration to the next, and each layer takes its share of the update, by bytes, before its forward. A layer that
has to wait for its gradient moves all that follows it, as it moves what a device does. Where a plan releases gradients
they take it in backward. To choose what a sparse bucket sends is computation, which is done for real in hooks: under a
plan with such buckets what hooks take is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from osfmodel.errors import DataError, UsageError
from osfmodel.workload import Layer, Workload

SPIN = 50e-6
"""Seconds before a deadline at which sleeping turns into spinning: what Linux oversleeps by default (timer slack)."""
STALL = 200e-6
"""Seconds between a layer's turn and its update from which it waited for its gradient: hooks alone take less."""
CALIBRATION = 10**8
"""Clock cycles spun to find out how fast a GPU's clock goes."""


def wait_until(deadline: float) -> None:
    """Return at ``deadline`` on the monotonic clock (``time.perf_counter``), or at once where it has passed."""
    left = deadline - time.perf_counter()
    if left > SPIN:
        time.sleep(left - SPIN)
    while time.perf_counter() < deadline:
        pass


class SleepingPace:
    """Computation on a CPU: every wait ends where all computation so far should, counted from :meth:`start`.

    counts: whether what hooks do in backward is added
    """

    def __init__(self) -> None:
        self.deadline = self.turn = 0.0
        self.counts = False

    def start(self) -> None:
        """Begin to count at the present moment: an iteration begins, or its update does."""
        self.deadline = time.perf_counter()

    def compute(self, seconds: float) -> None:
        """Stand in for so many seconds of computation."""
        self.deadline += seconds
        wait_until(self.deadline)

    def reach(self) -> None:
        """A layer's turn has come: from here it may wait for its gradient."""
        self.turn = time.perf_counter()

    def go_on(self) -> None:
        """The backward of a layer begins, in which nothing is waited for."""
        self.turn = inf
        if self.counts:
            self.deadline = max(self.deadline, time.perf_counter())

    def arrive(self) -> None:
        """Its gradient is there: where it waited for that, what follows is counted from the present moment."""
        now = time.perf_counter()
        if now - self.turn > STALL:
            self.deadline = max(self.deadline, now)


class SpinningPace:
    """Computation on a GPU: a kernel that spins for so long on the current stream. The host does not wait."""

    counts = False

    def __init__(self) -> None:
        self.cycles_per_second = _gpu_clock()

    def start(self) -> None:
        """The stream itself keeps the order."""

    def compute(self, seconds: float) -> None:
        """Stand in for so many seconds of computation."""
        import torch

        cycles = round(seconds * self.cycles_per_second)
        if cycles:
            torch.cuda._sleep(cycles)

    def reach(self) -> None:
        """The stream itself waits."""

    def go_on(self) -> None:
        """The stream itself keeps the order."""

    def arrive(self) -> None:
        """The stream itself has waited."""


def _gpu_clock() -> float:
    """Cycles per second of the spinning kernel, the fastest of three tries."""
    import torch

    found: list[float] = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.cuda._sleep(CALIBRATION)
        end.record()
        torch.cuda.synchronize()
        found.append(CALIBRATION / (float(begin.elapsed_time(end)) / 1e3))
    return max(found)


def pace_of(device: str) -> SleepingPace | SpinningPace:
    """How computation is stood in for on ``device``."""
    return SleepingPace() if device == "cpu" else SpinningPace()


def dtype_of(layer: Layer) -> Any:
    """The torch dtype of a layer. Raises UsageError for one whose gradients cannot be all-reduced as they are."""
    import torch

    dtype = getattr(torch, layer.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"layer {layer.name!r} is {layer.dtype!r}, which torch has no gradients of: give float32 etc.")
    return dtype


def replay_model(workload: Workload, device: str = "cpu") -> tuple[Any, SleepingPace | SpinningPace]:
    """(model, pace): a torch module that replays ``workload``, called with one number, and what keeps its time.

    ``pace.start()`` is to be called when an iteration starts. Raises UsageError for a dtype that torch does not know,
    DataError for a gradient that is not a whole number of elements.
    """
    import torch

    pace = pace_of(device)
    node = _node(pace)

    class Replayed(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, layer: Layer) -> None:
            super().__init__()
            self.layer, self.tensor = layer, _parameter(layer, device)

        def forward(self, carried: Any) -> Any:
            first = self.layer is workload.layers[0]
            return node.apply(carried, self.tensor, self.layer.forward_time, self.layer.backward_time, first)

    class Replay(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(map(Replayed, workload.layers))

        def forward(self, carried: Any) -> Any:
            for layer in self.layers:
                pace.reach()
                carried = layer(carried)
            return carried

    return Replay(), pace


def _parameter(layer: Layer, device: str) -> Any:
    """The parameter of a layer; None for a layer without any."""
    import torch

    if not layer.gradient_bytes:
        return None
    dtype = dtype_of(layer)
    count, rest = divmod(layer.gradient_bytes, torch.empty((), dtype=dtype).element_size())
    if rest:
        raise DataError(f"layer {layer.name!r} has {layer.gradient_bytes} bytes: no whole number of {layer.dtype}")
    return torch.nn.Parameter(torch.zeros(count, dtype=dtype, device=device))


def _node(pace: SleepingPace | SpinningPace) -> Any:
    """The autograd function of one layer: it takes its time in forward, and in backward until its gradient is there."""
    import torch

    class Node(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, carried: Any, tensor: Any, forward_time: float, backward_time: float, first: bool) -> Any:
            ctx.tensor, ctx.backward_time, ctx.first = tensor, backward_time, first
            pace.compute(forward_time)
            return carried.clone()

        @staticmethod
        def backward(ctx: Any, carried: Any) -> Any:
            tensor = ctx.tensor
            # One element in the shape of all: what computes a gradient is stood in for, so it must cost nothing itself.
            gradient = None if tensor is None else tensor.new_ones(()).expand(tensor.shape)
            pace.go_on()
            pace.compute(ctx.backward_time)
            if ctx.first:
                pace.reach()  # the end of backward, where what has not arrived is waited for
            return carried, gradient, None, None, None

    return Node


def replay_optimizer(model: Any, workload: Workload, pace: SleepingPace | SpinningPace) -> Any:
    """What takes the time of the workload's update, each parameter with a gradient its share by bytes."""
    import torch

    per_byte = workload.update_time / max(workload.gradient_bytes, 1)

    class Update(torch.optim.Optimizer):  # type: ignore[misc]
        separate = True  # for the executor, which puts updates off

        def step(self) -> None:
            found = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            if found:  # none where the executor has put all of it off
                pace.arrive()
                pace.compute(per_byte * sum(tensor.numel() * tensor.element_size() for tensor in found))

    return Update(model.parameters(), {})


def overlapping_step(pace: SleepingPace | SpinningPace, optimizer: Any, device: str) -> Callable[[Any], Any]:
    """(model) -> loss: one iteration under an executor that puts the updates off into the next forward."""
    import torch

    start = torch.zeros((), device=device, requires_grad=True)
    # Gradients add up in memory that stays, as they do under DDP: no model accounts for what allocating it takes.
    kept = [(tensor, torch.zeros_like(tensor)) for group in optimizer.param_groups for tensor in group["params"]]
    pace.start()

    def step(model: Any) -> Any:
        loss = model(start)
        loss.backward()
        optimizer.step()
        for tensor, memory in kept:
            tensor.grad = memory
        return loss.detach()

    return step


def releasing_step(pace: SleepingPace | SpinningPace, optimizer: Any, device: str) -> Callable[[Any], Any]:
    """(model) -> loss: one iteration under an executor that makes the updates in backward."""
    import torch

    start = torch.zeros((), device=device, requires_grad=True)

    def step(model: Any) -> Any:
        pace.start()
        loss = model(start)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def replay_step(
    workload: Workload, pace: SleepingPace | SpinningPace, device: str, optimizer: Any = None
) -> Callable[[Any], Any]:
    """(model) -> loss: one iteration of a replay, wrapped by DDP or not, with the workload's update at its end.

    ``optimizer``: Horovod's, whose all-reduces have to be awaited before the update.
    """
    import torch

    start = torch.zeros((), device=device, requires_grad=True)

    def step(model: Any) -> Any:
        pace.start()
        loss = model(start)
        loss.backward()
        if optimizer is not None:
            await_handles([handle for handle, _ in optimizer._handles.values()])
            optimizer.synchronize()
        pace.start()
        pace.compute(workload.update_time)
        return loss.detach()

    return step


def await_handles(handles: Iterable[Any]) -> None:
    """Until Horovod has done all of them: asleep, since its own wait spins and keeps the cores from its loop."""
    import horovod.torch as hvd

    for handle in handles:
        while not hvd.poll(handle):
            time.sleep(SPIN)


def replay_layers(workload: Workload) -> list[str]:
    """The layer behind each parameter of a replay, in the order of ``model.parameters()``."""
    return [layer.name for layer in workload.layers if layer.gradient_bytes]
