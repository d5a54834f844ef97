"""Record the memory of one iteration: every storage that PyTorch makes and drops, as it happens."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from osfmodel.runtime.profiler.steps import INPUT, LOSS, IterationMemory, Peak

GRAIN = 512
"""Bytes to a multiple of which PyTorch rounds allocations on a GPU."""
BEFORE, UPDATE = "(before)", "(update)"
"""Intervals outside layers: the time before one begins, and from the end of backward on."""


class Held(NamedTuple):
    """A storage that is alive. ``number`` identifies it; ``apart`` ones are not activations."""

    number: int
    size: int
    apart: bool
    watcher: Any


class Storages:
    """The storages alive, each once, and the bytes of those that are not parameters, gradients, buffers or state.

    Storages seen first where an operator reads them were there before: they count from the beginning on (``before``).

    level:  bytes alive now, less ``before``
    log:    what came and went, as (number of the storage, bytes)
    steady: numbers of storages that are not larger with more samples: those made of parameters alone, such as their
            casts, those that became gradients, and the parts of these
    sums:   (number of the storage, those of the storages that it is the sum of), of tensors of one shape
    """

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.held: dict[int, Held] = {}
        self.log: list[tuple[int, int]] = []
        self.steady: set[int] = set()
        self.sums: list[tuple[int, list[int]]] = []
        self.level = self.before = self.numbers = 0

    def keep_apart(self, tensors: Iterable[Any]) -> int:
        """Stop counting these tensors as activations; return the bytes of their storages."""
        held = [one for tensor in tensors if (one := self.of(tensor, apart=True))]
        self.steady.update(one.number for one in held)
        return sum({one.number: one.size for one in held}.values())

    def of(self, tensor: Any, apart: bool = False, made: bool = False) -> Held | None:
        """The storage of a tensor; None if it has none that is seen. ``made``: it is new if not seen before."""
        try:
            storage = tensor.untyped_storage()
            size = -(-storage.nbytes() // GRAIN) * GRAIN if self.cuda else storage.nbytes()
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors
            return None
        key = id(storage)
        held = self.held.get(key)
        if held is None:
            self.numbers += 1
            held = Held(self.numbers, size, apart, weakref.ref(storage, partial(self._dropped, key)))
            self.held[key] = held
            if made and not apart:
                self._change(held, size)
            elif not apart:
                self.before += size
        elif apart and not held.apart:
            self._change(held, -held.size)
            held = self.held[key] = held._replace(apart=True)
        elif size != held.size:
            self._change(held, size - held.size)
            held = self.held[key] = held._replace(size=size)
        return held

    def _dropped(self, key: int, _: Any) -> None:
        held = self.held.pop(key)
        self._change(held, -held.size)

    def _change(self, held: Held, size: int) -> None:
        if not held.apart:
            self.log.append((held.number, size))
            self.level += size

    def read(self, tensors: Sequence[Any]) -> float:
        """Elements in the storages that an operator reads, 0 unless all are steady."""
        held = [(one, tensor) for tensor in tensors if (one := self.of(tensor))]
        steady = all(one.number in self.steady for one, _ in held)
        return sum(one.size / tensor.element_size() for one, tensor in held) if steady else 0

    def make(self, tensors: Iterable[Any], read: float) -> None:
        """Note tensors that an operator made or changed; they are steady if they have no more elements than it read."""
        for tensor in tensors:
            before = self.numbers
            held = self.of(tensor, made=True)
            if held and held.number > before and held.size / tensor.element_size() <= read:
                self.steady.add(held.number)

    def add(self, parts: Sequence[Any], sums: Sequence[Any]) -> None:
        """Note a sum of tensors: the gradients of a tensor that is used twice are added up."""
        if len({part.shape for part in parts}) == 1:
            numbers = [held.number for part in parts if (held := self.of(part))]
            self.sums += [(held.number, numbers) for one in sums if (held := self.of(one))]

    def spike(self, size: int) -> None:
        """Note scratch inside one operator."""
        self.log += ((0, size), (0, -size))

    def peaks(self, marks: Sequence[tuple[str, int]]) -> dict[str, Peak]:
        """The highest level by interval. ``marks``: names of intervals, and the length of the log at their ends."""
        for number, parts in reversed(self.sums):
            self.steady.update(parts if number in self.steady else ())
        found: dict[str, Peak] = {}
        level = growing = start = 0
        for name, end in marks:
            highest, most = level, growing
            for number, size in self.log[start:end]:
                level += size
                growing += 0 if number in self.steady else size
                highest, most = max(highest, level), max(most, growing)
            start = end
            found[name] = Peak(highest + self.before, highest - most)
        return found


class Allocations:
    """A record of one iteration of a model, from ``begin`` to ``end``; ``memory`` is the result.

    ``tensors`` are those that are trained, ``blocks`` the modules that could be computed again, both by name.
    """

    def __init__(self, model: Any, tensors: Mapping[str, Any], blocks: Mapping[str, Any]) -> None:
        self.model, self.tensors, self.blocks = model, tensors, blocks
        self.storages = Storages(next(iter(tensors.values())).is_cuda)
        self.memory: IterationMemory | None = None
        self.mode: Any = None
        self.handles: list[Any] = []
        self.marks: list[tuple[str, int]] = []
        self.kept: dict[str, list[int]] = {}
        self.entered: dict[str, tuple[int, int]] = {}
        self.state: int | None = None
        self.in_backward = False
        self.staying = self.level = 0

    def begin(self, optimizers: Sequence[Any]) -> None:
        """Begin an iteration, or its next micro-batch. Nothing is recorded if a foreign mode sees the operators."""
        from torch.utils._python_dispatch import _len_torch_dispatch_stack

        if self.mode is None:
            if _len_torch_dispatch_stack():
                return
            self._know(optimizers)
            self._attach()
            self.mode = _watching(self.storages)
            self.mode.__enter__()
        self.marks, self.kept, self.in_backward = [], {}, False
        self._mark(BEFORE)

    def _mark(self, name: str) -> None:
        """End an interval."""
        self.marks.append((name, len(self.storages.log)))

    def _know(self, optimizers: Sequence[Any]) -> None:
        """Register the storages that exist before and stay."""
        trained = list(self.tensors.values())
        self.storages.keep_apart(tensor.grad for tensor in trained if tensor.grad is not None)
        self.staying = self.storages.keep_apart([*self.model.parameters(), *self.model.buffers(), *trained])
        states = [value for one in optimizers for entry in one.state.values() for value in entry.values()]
        if optimizers:
            self.state = self.storages.keep_apart(value for value in states if hasattr(value, "untyped_storage"))

    def _attach(self) -> None:
        for name, tensor in self.tensors.items():
            if tensor.requires_grad:  # it may have been frozen since
                self.handles.append(tensor.register_post_accumulate_grad_hook(partial(self._ready, name)))
        for name, module in self.blocks.items():
            self.handles.append(module.register_forward_pre_hook(partial(self._entered, name)))
            self.handles.append(module.register_forward_hook(partial(self._left, name)))

    def _entered(self, name: str, *_: Any) -> None:
        self.entered[name] = self.storages.level, self.storages.numbers

    def _left(self, name: str, _: Any, __: Any, output: Any) -> None:
        if self.in_backward:
            return  # computed again by activation checkpointing
        level, numbers = self.entered[name]
        held = [self.storages.of(tensor) for tensor in _tensors(output)]
        made = {one.number: one.size for one in held if one and one.number > numbers}
        self.kept.setdefault(name, []).append(self.storages.level - level - sum(made.values()))

    def _ready(self, name: str, tensor: Any) -> None:
        """Handle a gradient: its storage was scratch so far, or was added to an older one."""
        if self.mode is not None:
            self._mark(name)
            if tensor.grad is not None:
                self.storages.keep_apart([tensor.grad])
                self._mark(BEFORE)

    def backward_begins(self) -> None:
        """Mark the end of forward."""
        if self.mode is not None and not self.in_backward:
            self._mark(LOSS)
            self.in_backward = True

    def backward_ended(self) -> None:
        """Mark the beginning of the update."""
        if self.mode is not None:
            self._mark(INPUT)
            self.level = self.storages.level

    def updated(self) -> None:
        """Note that an optimizer made its step."""
        if self.mode is not None:
            self._mark(UPDATE)

    def end(self) -> None:
        """End the iteration, or give it up."""
        if self.mode is None:
            return
        self.mode.__exit__(None, None, None)
        self.mode = None
        for handle in self.handles:
            handle.remove()
        peaks = self.storages.peaks(self.marks)
        if INPUT in peaks:
            trained = sum(t.numel() * t.element_size() for name, t in self.tensors.items() if name in peaks)
            update = peaks.get(UPDATE)
            self.memory = IterationMemory(
                peaks=peaks,
                kept={name: max(0, calls[0]) for name, calls in self.kept.items() if len(calls) == 1},
                state=self.state,
                update=update and max(0, update.bytes - self.storages.before - self.level),
                fixed=max(0, self.staying - trained),
            )
        self.storages = Storages(self.storages.cuda)


def _tensors(value: Any) -> list[Any]:
    """The tensors in a module's result."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if hasattr(leaf, "untyped_storage")]


def _watching(storages: Storages) -> Any:
    """A torch dispatch mode that tells ``storages`` what operators read and make."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    sums = (torch.ops.aten.add, torch.ops.aten.add_)

    class Watching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, types: Any, inputs: Any = (), named: Any = None) -> Any:
            given = _tensors((inputs, named))
            read = storages.read(given)
            if not storages.cuda:
                result = operator(*inputs, **(named or {}))
            else:
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                result = operator(*inputs, **(named or {}))
                inside = torch.cuda.max_memory_allocated() - max(before, torch.cuda.memory_allocated())
            made = _tensors(result)
            storages.make(made, read)
            if operator.overloadpacket in sums:
                storages.add(given, made)
            if storages.cuda:
                storages.spike(inside)
            return result

    return Watching()
