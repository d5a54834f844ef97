"""``with osf.profile(model) as p:`` around a few steps of any training loop; then ``p.workload``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from types import TracebackType
from typing import Any

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.measurement import Source
from osfmodel.entities.workload import Workload
from osfmodel.runtime.profiler.allocations import Allocations
from osfmodel.runtime.profiler.conditions import Finding, Wanted, conditions, doubt, doubts, gpu_of
from osfmodel.runtime.profiler.recording import (
    HookedModules,
    IterationRecorder,
    blocks,
    clock_of,
    segments_of,
    settle,
    step_of,
)
from osfmodel.runtime.profiler.steps import IterationMemory, ProfiledIteration, Tensor, alike, layers_of, middle

WARM_UP = 5
"""Iterations that do not count: allocators, autotuners and caches settle in the first few."""


def profile(
    model: Any,
    *,
    name: str | None = None,
    batch_size: int | None = None,
    warm_up: int = WARM_UP,
    steps: int | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Profile:
    """A context in which the iterations of a training loop are measured; ``.workload`` is the result.

    Iterations end with the optimizer steps of ``model`` (any ``torch.optim`` one), or where the loop calls ``.step()``.
    The first ``warm_up`` are not counted; then one goes without hooks, the next with, in turn, until ``steps`` with
    hooks are measured (None: until the context ends). ``tensors`` are trainable tensors outside modules, by name;
    ``batch_size`` is read off the model's first input where it is not given.

    Raises UsageError for a model without trainable parameters, one that is compiled, or whose wrapper communicates.
    """
    return Profile(model, Wanted(name or "", batch_size, warm_up, steps), tensors)


def with_memory(workload: Workload, memory: IterationMemory) -> Workload:
    """The workload with the memory that does not belong to single layers."""
    segments = segments_of(workload.layers, memory.kept)
    return replace(
        workload,
        segments=segments,
        state_bytes=memory.state,
        update_bytes=memory.update,
        fixed_bytes=memory.fixed,
    )


class Profile:
    """Measured iterations of a model, and their workload."""

    def __init__(self, model: Any, wanted: Wanted, tensors: Mapping[str, Any] | None = None) -> None:
        self.model = _plain(model)
        self.wanted = _sound(wanted, self.model)
        subject, self.tensors = _subject(self.model, tensors or {})
        self.device = _device(subject.tensors)
        self.allocations = Allocations(self.model, subject.tensors, blocks(self.model))
        self.recorder = IterationRecorder(
            subject, clock_of(self.device), wanted.warm_up, wanted.steps, self.allocations
        )
        self.optimizers: set[str] = set()
        self.explicit = False
        self.leaving = ExitStack()

    def __enter__(self) -> Profile:
        self.leaving.callback(self.recorder.finish)
        self.leaving.enter_context(_watched_backward(self.recorder))
        self._watch_optimizers()
        for handle in (
            self.model.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
            self.model.register_forward_hook(lambda *_: self.recorder.forward_ended()),
        ):
            self.leaving.callback(handle.remove)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.leaving.close()

    def begin(self, batch: Any = None) -> None:
        """Mark the start of an iteration's forward, in loops that do not call the model itself but its parts."""
        self.explicit = True
        self._begin(batch)

    def step(self) -> None:
        """Mark the end of an iteration. Not needed if a ``torch.optim`` optimizer of the model makes a step."""
        self.recorder.step()

    @property
    def done(self) -> bool:
        """Whether all steps wanted were measured; no more are."""
        return self.recorder.done

    @property
    def steps(self) -> list[ProfiledIteration]:
        """The iterations noted after the warm-ups, with hooks and without."""
        settle(self.device)
        return [step_of(iteration) for iteration in self.recorder.kept]

    @property
    def workload(self) -> Workload:
        """Medians over the steps measured. Raises DataError if there were too few."""
        finding = self._finding()
        steps = finding.counted
        memory = self.allocations.memory
        peaks = memory.peaks if memory else None
        layers = layers_of(steps, self.tensors, self.recorder.activations, self.device.type == "cuda", peaks)
        update_time = middle([step.total for step in steps]) - middle([step.backward_end for step in steps])
        source = Source("measured by osf profile", conditions(self.wanted, finding), gpu=gpu_of(finding.device))
        found = Workload(self.wanted.name, layers, self.wanted.batch_size, update_time, source, doubt=doubt(finding))
        return with_memory(found, memory) if memory else found

    @property
    def warnings(self) -> list[str]:
        """A sentence if the layers do not add up to the step without hooks, or if steps do not repeat."""
        return doubts(self._finding())

    def _finding(self) -> Finding:
        steps = self.steps
        counted = alike(steps)
        if not counted:
            seen = self.recorder.seen
            need = self.wanted.warm_up + 2
            hint = "" if seen else "; iterations end with the step of a torch.optim optimizer, or call .step() on this"
            raise DataError(f"saw {seen} iterations with a backward: a profile needs {need} or more{hint}")
        return Finding(steps, counted, self.tensors, self.device, sorted(self.optimizers))

    def _begin(self, batch: Any) -> None:
        import torch

        if torch.is_grad_enabled():
            if self.wanted.batch_size is None:
                self.wanted = self.wanted._replace(batch_size=first_size(batch))
            self.recorder.begin()

    def _forward_begins(self, _: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self.explicit:
            self._begin((inputs, named))

    def _watch_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        ours = {id(tensor) for tensor in self.recorder.subject.tensors.values()}

        def updated(optimizer: Any, *_: Any) -> None:
            if any(id(tensor) in ours for group in optimizer.param_groups for tensor in group["params"][:1]):
                self.recorder.updated(optimizer)
                self.optimizers.add(type(optimizer).__name__)

        self.leaving.callback(register_optimizer_step_post_hook(updated).remove)


def _sound(wanted: Wanted, model: Any) -> Wanted:
    warm_up, steps = wanted.warm_up, wanted.steps
    if warm_up < 0 or (steps is not None and steps < 1):
        raise UsageError(f"cannot warm up {warm_up} times and measure {steps} steps: give 0 or more, and 1 or more")
    return wanted._replace(name=wanted.name or type(model).__name__.lower())


def first_size(batch: Any) -> int | None:
    """Samples in a batch: the first dimension of the first tensor in it; None if it has no tensor."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((size for part in parts if (size := first_size(part)) is not None), None)


WATCHING: list[IterationRecorder] = []
"""Recorders to tell of backward; while there are any, torch.autograd.backward is replaced."""


@contextmanager
def _watched_backward(recorder: IterationRecorder) -> Iterator[None]:
    """A context in which torch.autograd.backward, called by every ``loss.backward()``, marks its start and end.

    There is one patch however many profiles are under way, since they may end in any order.
    """
    import torch

    if not WATCHING:
        torch.autograd.backward = _marked(torch.autograd.backward)
    WATCHING.append(recorder)
    try:
        yield
    finally:
        WATCHING.remove(recorder)
        if not WATCHING:
            torch.autograd.backward = torch.autograd.backward.__wrapped__


def _marked(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def backward(*arguments: Any, **named: Any) -> Any:
        watching = tuple(WATCHING)
        for recorder in watching:
            recorder.backward_begins()
        try:
            return plain(*arguments, **named)
        finally:
            for recorder in watching:
                recorder.backward_ended()

    return backward


def _plain(model: Any) -> Any:
    """The module inside DataParallel's and DDP's wrappers. Raises UsageError if it cannot be profiled."""
    import torch

    kind = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"a {kind} cannot be profiled: give a torch.nn.Module")
    if kind == "OptimizedModule" or any(module._compiled_call_impl is not None for module in model.modules()):
        raise UsageError("a compiled model hides its layers: profile the model as it was before torch.compile")
    sharded = any(type(tensor).__name__ == "DTensor" for tensor in model.parameters())
    if "FSDP" in kind or "FullySharded" in kind or sharded:
        raise UsageError(f"{kind} communicates in forward and backward: profile the model before it is wrapped")
    if kind == "DistributedDataParallel":
        if model.process_group.size() > 1:
            raise UsageError(f"{kind} communicates in backward: profile the model before it is wrapped")
        return model.module
    return model


def _subject(model: Any, extra: Mapping[str, Any]) -> tuple[HookedModules, dict[str, Tensor]]:
    """The modules and tensors to hook, and data of each tensor. A shared tensor belongs to its first module."""
    found = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    known = {id(tensor) for tensor in found.values()}
    found |= {name: tensor for name, tensor in extra.items() if tensor.requires_grad and id(tensor) not in known}
    if not found:
        raise UsageError(f"{type(model).__name__} has no trainable parameters: there is nothing to communicate")
    owners = {name: name.rpartition(".")[0] for name in found if name not in extra}
    modules = {name: model.get_submodule(name) for name in dict.fromkeys(owners.values())}
    tensors = {
        name: Tensor(
            owners.get(name, "(outside)"), tensor.numel() * tensor.element_size(), _dtype(tensor), tuple(tensor.shape)
        )
        for name, tensor in found.items()
    }
    return HookedModules(modules, found), tensors


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _device(tensors: Mapping[str, Any]) -> Any:
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:
        raise UsageError(f"parameters are on {', '.join(sorted(map(str, devices)))}: one device can be profiled")
    return devices.pop()
