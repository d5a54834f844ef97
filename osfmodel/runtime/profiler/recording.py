"""Hooks on a model, and their notes by iteration; its blocks, which can be recomputed in backward, as modules nest.

Marks in time are CUDA events on a GPU and the monotonic clock on a CPU. Making one never waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from osfmodel.entities.errors import UsageError
from osfmodel.entities.savings import Segment
from osfmodel.entities.workload import Layer
from osfmodel.runtime.profiler.allocations import Allocations
from osfmodel.runtime.profiler.steps import LOSS, ProfiledIteration, Ready


class Mark(NamedTuple):
    """A moment on the host's clock, in seconds, and the event that the device passes then, if it has its own time."""

    host: float
    event: Any = None


def clock_of(device: Any) -> Callable[[], Mark]:
    """A function that makes marks for work on ``device``. Raises UsageError for devices without a readable clock."""
    if device.type == "cpu":
        return lambda: Mark(time.perf_counter())
    if device.type != "cuda":
        raise UsageError(f"cannot profile on {device.type!r}: osfmodel reads the clocks of cpu and cuda")
    import torch

    def mark() -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return Mark(time.perf_counter(), event)

    return mark


def settle(device: Any) -> None:
    """Wait until every event has passed; nothing to do on a CPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def seconds(start: Mark, end: Mark) -> float:
    """Seconds between two marks, on the device's own clock if it has one; events must have passed."""
    if start.event is None or end.event is None:
        return end.host - start.host
    return float(start.event.elapsed_time(end.event)) / 1e3


PAIR = 2
"""Modules with tensors, such as a convolution and its norm, that form no block if the model has larger ones."""


def blocks(model: Any) -> dict[str, Any]:
    """The outermost modules, by name, that contain two or more modules with tensors but no list of blocks.

    Examples are the layers of a transformer and the bottlenecks of a ResNet. A list of blocks, or a module with one, is
    not a block itself, but its blocks are.
    """
    return dict(_blocks(model, ""))


def _blocks(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        if _lists(child):
            yield from _blocks(child, f"{prefix}{name}.")
        elif _owners(child) >= PAIR:
            yield f"{prefix}{name}", child


def _owners(module: Any) -> int:
    """Number of modules in it, with itself, that own tensors."""
    return sum(any(True for _ in inner.parameters(recurse=False)) for inner in module.modules())


def _lists(module: Any) -> bool:
    """Whether it contains two blocks in a row."""
    from torch.nn import ModuleDict, ModuleList, Sequential

    rows = [inner for inner in module.modules() if isinstance(inner, ModuleDict | ModuleList | Sequential)]
    return any(sum(_owners(child) > PAIR for child in row.children()) > 1 for row in rows)


def segments_of(layers: Sequence[Layer], kept: Mapping[str, int]) -> tuple[Segment, ...]:
    """The blocks whose layers are consecutive, in the order of the layers. ``kept``: bytes by block."""
    found = []
    for block, size in kept.items():
        places = [place for place, layer in enumerate(layers) if layer.name.startswith(f"{block}.")]
        if places and places[-1] - places[0] == len(places) - 1:
            found.append((places[0], Segment(block, layers[places[0]].name, layers[places[-1]].name, size)))
    return tuple(segment for _, segment in sorted(found, key=lambda pair: pair[0]))


MEMORY = 1
"""Number, from 0, of the iteration whose memory is recorded: in the first, optimizers have no state yet."""


class HookedModules(NamedTuple):
    """Targets of hooks: modules that own tensors, by name, and the trainable tensors, by name."""

    modules: Mapping[str, Any]
    tensors: Mapping[str, Any]


@dataclass(slots=True)
class Iteration:
    """Marks of the iteration under way; those of an earlier micro-batch are dropped when the next one begins."""

    hooked: bool
    start: Mark
    ends: list[tuple[str, Mark]] = field(default_factory=list)
    ready: list[tuple[str, Mark]] = field(default_factory=list)
    forward_end: Mark | None = None
    backward_start: Mark | None = None
    backward_end: Mark | None = None
    end: Mark | None = None
    micro_batches: int = 1


class IterationRecorder:
    """A recorder of iterations: after ``warm_up`` of them, by turns without and with hooks, until ``steps`` had hooks.

    ``steps`` None goes on until ``finish``. If there are two warm-ups or more, one is watched by
    ``allocations``.
    """

    def __init__(
        self,
        subject: HookedModules,
        clock: Callable[[], Mark],
        warm_up: int,
        steps: int | None,
        allocations: Allocations,
    ) -> None:
        self.subject, self.clock, self.allocations = subject, clock, allocations
        self.warm_up, self.wanted = warm_up, steps
        self.seen = self.depth = self.hooked_steps = self.batch = self.saved = 0
        self.current: Iteration | None = None
        self.kept: list[Iteration] = []
        self.activations: dict[str, int] | None = None
        self.handles: list[Any] = []
        self.optimizers: dict[int, Any] = {}
        self.watching = ExitStack()

    @property
    def done(self) -> bool:
        """Whether as many steps as wanted were recorded."""
        return self.wanted is not None and self.hooked_steps >= self.wanted

    def begin(self) -> None:
        """Begin a forward: of a new iteration if the last had its update, of its next micro-batch, or of a part."""
        if self.current is not None and self.current.end is not None:
            self.close()
        if self.done:
            return
        if self.current is None:
            self._watch_memory()
            self.current = self._attached()
        elif self.current.backward_end is not None or self.current.ready:
            self._watch_memory()
            micro_batches = self.current.micro_batches + 1
            self.current = Iteration(self.current.hooked, self.clock(), micro_batches=micro_batches)

    def _attached(self) -> Iteration:
        """Attach or remove hooks, then start the clock."""
        number = self.seen - self.warm_up
        hooked = number % 2 == 1 or (self.seen == 0 and self.warm_up > 0)  # the very first counts activations
        if hooked != bool(self.handles):
            self._detach()
            if hooked:
                self._attach()
        if self.seen == 0 and self.warm_up:
            self._watch_activations()
        return Iteration(hooked, self.clock())

    def _watch_memory(self) -> None:
        if self.seen == MEMORY < self.warm_up:
            self.allocations.begin(list(self.optimizers.values()))

    def _attach(self) -> None:
        for name, module in self.subject.modules.items():
            self.handles.append(module.register_forward_hook(partial(self._module_ended, name)))
        for name, tensor in self.subject.tensors.items():
            if tensor.requires_grad:  # it may have been frozen since
                self.handles.append(tensor.register_post_accumulate_grad_hook(partial(self._gradient_ready, name)))

    def _detach(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _module_ended(self, name: str, *_: Any) -> None:
        now = self.current
        if now is None or now.backward_start is not None:
            return  # recomputed by activation checkpointing: part of backward
        now.ends.append((name, self.clock()))
        self._keep_saved(name)

    def _gradient_ready(self, name: str, _: Any) -> None:
        if self.current is not None:
            self.current.ready.append((name, self.clock()))

    def forward_ended(self) -> None:
        """Note that the model returned."""
        if self.current is not None and self.current.backward_start is None:
            self.current.forward_end = self.clock()
        self._keep_saved(LOSS)
        self.watching.close()

    def backward_begins(self) -> None:
        """Record the start of the outermost call of backward."""
        self.depth += 1
        if self.current is not None and self.depth == 1 and self.current.backward_start is None:
            self._keep_saved(LOSS)
            self.watching.close()
            self.allocations.backward_begins()
            self.current.backward_start = self.clock()

    def backward_ended(self) -> None:
        """Note that the outermost call of backward returned."""
        self.depth -= 1
        if self.current is not None and self.depth == 0:
            self.current.backward_end = self.clock()
            self.allocations.backward_ended()

    def updated(self, optimizer: Any) -> None:
        """Note that an optimizer made its step."""
        now = self.current
        if now is not None and (now.backward_end is not None or now.ready):
            now.end = self.clock()
            self.allocations.updated()
        if self.seen < MEMORY:
            self.optimizers[id(optimizer)] = optimizer

    def step(self) -> None:
        """End the iteration, with or without an update."""
        now = self.current
        if now is not None and (now.end or now.backward_end or now.ready):
            now.end = now.end or now.backward_end or now.ready[-1][1]
            self.close()

    def close(self) -> None:
        """File the iteration under way."""
        now, self.current = self.current, None
        if now is None:
            return
        self.allocations.end()
        self.seen += 1
        if self.seen > self.warm_up and (now.ready or not now.hooked):
            self.kept.append(now)
            self.hooked_steps += now.hooked
        if self.done:
            self._detach()

    def finish(self) -> None:
        """Remove all hooks."""
        if self.current is not None and self.current.end is not None:
            self.close()
        self.allocations.end()
        self.watching.close()
        self._detach()

    def _watch_activations(self) -> None:
        """Count the bytes that autograd keeps during this one warm-up forward: each storage once, no parameters."""
        import torch

        known = {tensor.untyped_storage().data_ptr() for tensor in self.subject.tensors.values()}
        self.activations = {}

        def pack(tensor: Any) -> Any:
            if tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in known:
                    known.add(storage.data_ptr())
                    self.saved += storage.nbytes()
            return tensor

        self.watching.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))

    def _keep_saved(self, module: str) -> None:
        if self.saved and self.activations is not None:
            self.activations[module] = self.activations.get(module, 0) + self.saved
            self.saved = 0


def step_of(iteration: Iteration) -> ProfiledIteration:
    """The marks as seconds after the forward began. On a GPU all events must have passed."""
    start = iteration.start
    ready = dict(iteration.ready)  # a gradient that came twice is ready the second time
    in_order = sorted(ready.items(), key=lambda item: item[1].host)
    last = in_order[-1][1] if in_order else start
    backward_end = iteration.backward_end or last
    forward_end = iteration.backward_start or iteration.forward_end or start
    return ProfiledIteration(
        iteration.hooked,
        tuple((name, seconds(start, mark)) for name, mark in iteration.ends),
        tuple(Ready(name, seconds(start, mark), mark.host - start.host) for name, mark in in_order),
        seconds(start, forward_end),
        seconds(start, backward_end),
        seconds(start, iteration.end or backward_end),
        iteration.micro_batches,
    )
