"""The unsent parts of sparse buckets, for a checkpoint of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.executor.error_feedback import Mirror
from osfmodel.runtime.executor.messages import Gradient


def state_of(gradients: Sequence[Gradient], rank: int, world: int) -> dict[str, Any]:
    """Owner and {parameter: tensor}, with the tensors in use, not copies; {} without sparse buckets."""
    kept = {gradient.name: gradient.unsent for gradient in gradients if gradient.unsent is not None}
    if not kept:
        return {}
    for unsent in kept.values():
        unsent.join()
    rates = {name: unsent.rate for name, unsent in kept.items() if isinstance(unsent, Mirror)}
    tensors = {name: unsent.kept for name, unsent in kept.items()}
    return {"form": _form(rates), "rank": rank, "world": world, "unsent": tensors, "rates": rates}


def load_state(state: Mapping[str, Any], gradients: Sequence[Gradient], rank: int, world: int) -> None:
    """Restore the result of :func:`state_of`. Raises UsageError, and changes nothing, if it is of another run."""
    own = state_of(gradients, rank, world)
    for key in ("form", "rank", "world"):
        if state.get(key) != own.get(key):
            raise UsageError(
                f"the executor's state has {key} {state.get(key)!r} where this one has {own.get(key)!r}: each rank "
                "loads what it saved itself, under the same plan"
            )
    found, wanted = state.get("unsent", {}), own.get("unsent", {})
    if set(found) != set(wanted):
        name = min(set(found) ^ set(wanted))
        one, other = ("its state", "the executor") if name in found else ("the executor", "its state")
        raise UsageError(f"{name!r} is sparse in {one} and not in {other}: load what was saved under the same plan")
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise UsageError(
                f"{name!r} is {_shown(found[name])} in the executor's state and {_shown(tensor)} in this one"
            )
    for gradient in gradients:
        if isinstance(gradient.unsent, Mirror):
            gradient.unsent.load(found[gradient.name], state["rates"][gradient.name])
        elif gradient.unsent is not None:
            gradient.unsent.kept.copy_(found[gradient.name])


def _form(rates: Mapping[str, float]) -> str:
    return "mirror" if rates else "residual"


def _shown(tensor: Any) -> str:
    return f"{str(tensor.dtype)[6:]} of {tuple(tensor.shape)}"
