"""State of ranks: initial parameters and buffers, and the unsent parts of sparse buckets for a checkpoint.

The initial ones are rank 0's on every rank, of any type and layout in memory; a checkpoint is of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.executor.error_feedback import Mirror
from osfmodel.runtime.executor.messages import Gradient


def require_initial(model: Any) -> None:
    """Raise UsageError, by name, for a parameter or buffer that cannot be sent or trained."""
    import torch

    for what, name, tensor in _named(model):
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise UsageError(f"the {what} {name!r} has no shape yet: run one forward on every rank before execute()")
        if tensor.is_meta:
            raise UsageError(f"the {what} {name!r} has no values (device meta): initialise it before execute()")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            raise UsageError(f"the {what} {name!r} is sparse, quantised or nested: keep it as dense tensors")
        if tensor.requires_grad and _shares(tensor):
            raise UsageError(
                f"elements of the {what} {name!r} share memory (it is expanded or unfolded), so that none can be "
                "updated by itself: make a copy the parameter, nn.Parameter(tensor.clone()), or what it is a view of"
            )


def rows_of(model: Any) -> list[str]:
    """Shapes and types that ranks must share to begin alike, a line for each parameter and buffer."""
    rows = []
    for what, name, tensor in _named(model):
        trained = f" with strides {tuple(tensor.stride())}, trained" if tensor.requires_grad else ""
        rows.append(f"the {what} {name!r}, {str(tensor.dtype)[6:]} of {tuple(tensor.shape)}{trained}")
    return rows


def send_initial(model: Any) -> None:
    """Send rank 0's parameters and buffers to all ranks, each as contiguous bytes."""
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        for _, _, tensor in _named(model):
            sent = tensor.detach().resolve_conj().resolve_neg().contiguous()
            if tensor.numel():
                dist.broadcast(sent.view(-1).view(torch.uint8), 0)
            if sent.data_ptr() != tensor.data_ptr():
                _once(tensor.detach()).copy_(_once(sent, tensor))


def _named(model: Any) -> list[tuple[str, str, Any]]:
    """Kind, name and tensor of each parameter and buffer, once."""
    found = [("parameter", *pair) for pair in model.named_parameters()]
    return found + [("buffer", *pair) for pair in model.named_buffers()]


def _shares(tensor: Any) -> bool:
    """Whether elements share memory by a stride of 0, or because they are more than the memory cells that they span."""
    places = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(tensor.numel() > min(places, _once(tensor).numel()) and tensor.numel())


def _once(tensor: Any, like: Any = None) -> Any:
    """The tensor with one element in place of those that share memory by a stride of 0, of its own or of ``like``."""
    for dimension, stride in enumerate((tensor if like is None else like).stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def state_of(gradients: Sequence[Gradient], rank: int, world: int) -> dict[str, Any]:
    """Owner and {parameter: tensor}, with the tensors in use, not copies; {} without sparse buckets."""
    kept = {gradient.name: gradient.unsent for gradient in gradients if gradient.unsent is not None}
    if not kept:
        return {}
    for unsent in kept.values():
        unsent.join()
    rates = {name: unsent.rate for name, unsent in kept.items() if isinstance(unsent, Mirror)}
    tensors = {name: unsent.kept for name, unsent in kept.items()}
    return {"form": "mirror" if rates else "residual", "rank": rank, "world": world, "unsent": tensors, "rates": rates}


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


def _shown(tensor: Any) -> str:
    return f"{str(tensor.dtype)[6:]} of {tuple(tensor.shape)}"
