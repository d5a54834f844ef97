"""A model that behaves like a workload: computation is simulated, everything that communicates is real.

Each layer is one node of a real autograd chain with one real parameter of the right size, so gradients, hooks, buckets
and collectives are those of any model and come in the workload's order. On a CPU a layer computes by sleeping (and
spinning for the last moment), until its time since the start of the iteration has come: the host's work in
hooks meanwhile is not added to the computation, as with a host that runs ahead of a device. On a GPU it spins a
kernel, one layer after the other. Nothing here was run on a GPU.

If the executor lets the next forward overlap communication, there is no point at which all ranks wait, so times go on
from one iteration to the next, and each layer takes its share of the update, by bytes, before its forward. A layer that
has to wait for its gradient moves all that follows it, as it moves what a device does. If a plan releases gradients
they take it in backward.

Choosing the entries of a sparse bucket is real computation in hooks. Under a plan with such buckets
the time from the first hook of a parameter to the next layer is added. The gradients are random numbers then,
different in each iteration and on each rank, since the time to choose the largest depends on them.

There are no activations here: a layer before which a plan computes a segment again takes that much longer in backward.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.training.pace import SPIN, SleepingPace, SpinningPace, pace_of

NOISE_PLACES, NOISE_STEP = 1 << 16, 7919
"""Number of starts of slices of random numbers, and the distance between them."""


def hooks_count(plan: Plan) -> bool:
    """Whether computation in hooks is part of the iteration under a plan."""
    return plan.sparse


def dtype_of(layer: Layer) -> Any:
    """The torch dtype of a layer. Raises UsageError if its gradients cannot be all-reduced as they are."""
    import torch

    dtype = getattr(torch, layer.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"layer {layer.name!r} is {layer.dtype!r}, which torch has no gradients of: give float32 etc.")
    return dtype


def replay_model(workload: Workload, device: str = "cpu") -> tuple[Any, SleepingPace | SpinningPace]:
    """(model, pace): a torch module that replays ``workload``, called with one number, and its stand-in for time.

    ``pace.start()`` is to be called when an iteration starts, and ``model.recompute(segments)`` where a plan computes
    some again. Raises UsageError for a dtype that torch does not know,
    DataError for a gradient that is not a whole number of elements.
    """
    import torch

    pace = pace_of(device)
    node = layer_node(pace, Noise())

    class Replayed(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, layer: Layer) -> None:
            super().__init__()
            self.layer, self.tensor, self.backward_time = layer, layer_parameter(layer, device), layer.backward_time
            if self.tensor is not None:  # before any other hook of it
                self.tensor.register_post_accumulate_grad_hook(lambda _: pace.hooked())

        def forward(self, carried: Any) -> Any:
            first = self.layer is workload.layers[0]
            return node.apply(carried, self.tensor, self.layer.forward_time, self.backward_time, first)

    class Replay(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(map(Replayed, workload.layers))

        def forward(self, carried: Any) -> Any:
            for layer in self.layers:
                pace.reach()
                carried = layer(carried)
            return carried

        def recompute(self, segments: Sequence[str]) -> None:
            """Recompute these segments of the workload in backward from now on, and no others."""
            for module, layer in zip(self.layers, workload.recomputing(segments).layers, strict=True):
                module.backward_time = layer.backward_time

    return Replay(), pace


def layer_parameter(layer: Layer, device: str) -> Any:
    """The parameter of a layer, in its shape if that is known; None for a layer without any."""
    import torch

    if not layer.gradient_bytes:
        return None
    dtype = dtype_of(layer)
    count, rest = divmod(layer.gradient_bytes, torch.empty((), dtype=dtype).element_size())
    if rest:
        raise DataError(
            f"layer {layer.name!r} has {layer.gradient_bytes} gradient bytes, which is not a multiple of "
            f"{layer.dtype}'s size: correct gradient_bytes or dtype in the profile"
        )
    shape = layer.shape if layer.shape and layer.held_bytes is None else (count,)
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))


class Noise:
    """Random gradients, each a slice of the same numbers with another start."""

    def __init__(self) -> None:
        self._numbers: Any = None
        self._taken = 0

    def like(self, tensor: Any) -> Any:
        """A random gradient for this parameter."""
        import torch

        if (
            self._numbers is None
            or self._numbers.numel() < tensor.numel() + NOISE_PLACES
            or (self._numbers.dtype != tensor.dtype)
        ):
            generator = torch.Generator(tensor.device).manual_seed(1 + int(os.environ.get("RANK", "0")))
            self._numbers = torch.randn(tensor.numel() + NOISE_PLACES, generator=generator, device=tensor.device).to(
                tensor.dtype
            )
        self._taken = (self._taken + NOISE_STEP) % NOISE_PLACES
        return self._numbers[self._taken : self._taken + tensor.numel()].view(tensor.shape)


def layer_node(pace: SleepingPace | SpinningPace, noise: Noise) -> Any:
    """The autograd function of one layer: it takes the layer's time in forward, and in backward until its gradient."""
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
            # One element in the shape of all: waiting replaces computation, so the gradient itself must cost nothing.
            gradient = None if tensor is None else tensor.new_ones(()).expand(tensor.shape)
            if pace.counts and tensor is not None:
                gradient = noise.like(tensor)
            pace.go_on()
            pace.compute(ctx.backward_time)
            if ctx.first:
                pace.reach()  # the end of backward, where what has not arrived is waited for
            return carried, gradient, None, None, None

    return Node


def replay_optimizer(model: Any, workload: Workload, pace: SleepingPace | SpinningPace) -> Any:
    """An optimizer that takes the time of the workload's update, each parameter its share by bytes."""
    import torch

    per_byte = workload.update_time / max(workload.gradient_bytes, 1)

    class Update(torch.optim.Optimizer):  # type: ignore[misc]
        separate = mirrored = True  # for the executor, which makes updates one by one, and follows them

        def step(self) -> None:
            found = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            if found:  # none where the executor has put all of it off
                pace.arrive()
                pace.compute(per_byte * sum(tensor.numel() * tensor.element_size() for tensor in found))

    return Update(model.parameters(), {"lr": 1.0})


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


def executed_step(pace: SleepingPace | SpinningPace, optimizer: Any, device: str) -> Callable[[Any], Any]:
    """(model) -> loss: one iteration under an executor that makes updates in backward, or follows them by hooks."""
    import torch

    start = torch.zeros((), device=device, requires_grad=True)

    def step(model: Any) -> Any:
        pace.start()
        loss = model(start)
        loss.backward()
        pace.start()
        optimizer.step()
        optimizer.zero_grad()
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
    """Wait until Horovod has done all of them: asleep, since its own wait spins and takes cores from its loop."""
    import horovod.torch as hvd

    for handle in handles:
        while not hvd.poll(handle):
            time.sleep(SPIN)


def replay_layers(workload: Workload) -> list[str]:
    """The layer behind each parameter of a replay, in the order of ``model.parameters()``."""
    return [layer.name for layer in workload.layers if layer.gradient_bytes]
