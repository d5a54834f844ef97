"""Modules whose activations are not kept: backward computes them again, and nothing but memory and time changes.

A module's forward is put under torch's checkpoint, which keeps the states of random numbers and of autocast. What a
second forward would change besides is each rank's buffers: the running statistics of normalisation stay as they are
then, and other buffers that forward changes are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from osfmodel.entities.errors import PlanError, UsageError


def require_recomputable(model: Any, names: Sequence[str]) -> None:
    """Raise PlanError where these are not modules of ``model``, each outside the others."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if not name or name not in modules:
            raise PlanError(f"the plan recomputes {name!r}, which is no module inside the model")
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
            module.forward = _checkpointed(name, module, module.forward)

    def undo(self) -> None:
        """The forwards that were found."""
        for module, before in zip(self._modules, self._before, strict=True):
            del module.forward
            if before is not None:
                module.forward = before
        self._modules, self._before = [], []


def _checkpointed(name: str, module: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    import torch
    from torch.utils.checkpoint import checkpoint

    def contexts() -> tuple[Any, Any]:
        return _watched(name, module), _without_statistics(module)

    def checkpointed(*given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*given, **named)
        own = [list(one) if isinstance(one, list) else one for one in given]  # DenseNet's list grows afterwards
        return checkpoint(forward, *own, use_reentrant=False, context_fn=contexts, **named)

    return checkpointed


@contextmanager
def _watched(name: str, module: Any) -> Iterator[None]:
    """The first forward. Raises UsageError where it changes buffers that a second one would change again."""
    normalising = {id(buffer) for one in _normalising(module) for buffer in one.buffers(recurse=False)}
    others = [(f"{name}.{key}", one) for key, one in module.named_buffers() if id(one) not in normalising]
    before = [one._version for _, one in others]
    yield
    for (key, one), version in zip(others, before, strict=True):
        if one._version != version:
            raise UsageError(f"forward changes the buffer {key!r}, which it would do twice: do not recompute {name!r}")


@contextmanager
def _without_statistics(module: Any) -> Iterator[None]:
    """The second forward, on copies of the statistics: it is to save as many tensors as the first did."""
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
