"""Modules whose activations are not kept: backward recomputes them, which changes only memory and time.

A module's forward is put under torch's checkpoint, which keeps the states of random numbers and of autocast. A
second forward would also change each rank's buffers: the running statistics of normalisation stay as they are
then, and other buffers that forward changes are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from osfmodel.entities.errors import PlanError, UsageError


def require_recomputable(model: Any, names: Sequence[str]) -> None:
    """Raise PlanError if these are not modules of ``model``, each outside the others."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if not name or name not in modules:
            raise PlanError(
                f"the plan recomputes {name!r}, which is not a module inside the model: name it as "
                "model.named_modules() does"
            )
    for number, name in enumerate(names):
        inside = set(modules[name].modules())
        for other in (*names[:number], *names[number + 1 :]):
            if modules[other] in inside:
                raise PlanError(f"the plan recomputes {name!r} and in it {other!r}: name the outer or the inner ones")


class Recomputation:
    """Forwards of modules under checkpoints, until :meth:`undo`."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        self._modules = [modules[name] for name in names]
        self._before = [module.__dict__.get("forward") for module in self._modules]
        for name, module in zip(names, self._modules, strict=True):
            module.forward = Checkpointed(name, module)

    def undo(self) -> None:
        """Restore the original forwards."""
        for module, before in zip(self._modules, self._before, strict=True):
            del module.forward
            if before is not None:
                module.forward = before
        self._modules, self._before = [], []


class Checkpointed:
    """The forward of a module, under a checkpoint. A copy of the module, deep or pickled, has the one without."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module, self.forward = name, module, module.forward
        self.own = "forward" in module.__dict__

    def __call__(self, *given: Any, **named: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return self.forward(*given, **named)
        own = [list(one) if isinstance(one, list) else one for one in given]  # DenseNet's list grows afterwards
        return checkpoint(self.forward, *own, use_reentrant=False, context_fn=self._contexts, **named)

    def _contexts(self) -> tuple[Any, Any]:
        return _watched(self.name, self.module), _without_statistics(self.module)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (SimpleNamespace(forward=self.forward) if self.own else self.module, "forward")


@contextmanager
def _watched(name: str, module: Any) -> Iterator[None]:
    """A context for the first forward. Raises UsageError if it changes buffers that a second one would change again."""
    normalising = {id(buffer) for one in _normalising(module) for buffer in one.buffers(recurse=False)}
    others = [(f"{name}.{key}", one) for key, one in module.named_buffers() if id(one) not in normalising]
    before = [one._version for _, one in others]
    yield
    for (key, one), version in zip(others, before, strict=True):
        if one._version != version:
            raise UsageError(f"forward changes the buffer {key!r}, which it would do twice: do not recompute {name!r}")


@contextmanager
def _without_statistics(module: Any) -> Iterator[None]:
    """A context for the second forward, on copies of the statistics: it saves as many tensors as the first."""
    kept = [(one, dict(one.named_buffers(recurse=False))) for one in _normalising(module)]
    for one, buffers in kept:
        for name, buffer in buffers.items():
            setattr(one, name, buffer.clone())
    try:
        yield
    finally:
        for one, buffers in kept:
            for name, buffer in buffers.items():
                setattr(one, name, buffer)


def _normalising(module: Any) -> list[Any]:
    """The modules in it that have running statistics."""
    from torch.nn.modules.batchnorm import _NormBase

    return [one for one in module.modules() if isinstance(one, _NormBase)]
