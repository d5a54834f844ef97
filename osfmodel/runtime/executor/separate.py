"""Update some parameters and not others with the user's own optimizer, which must treat each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from osfmodel.entities.errors import UsageError

SEPARATE = ("SGD", "Adam", "AdamW")
"""Optimizers of torch.optim that treat each parameter by itself, tested here. A class may set ``separate = True``."""

GROUPLESS = (
    "{} is in none of the optimizer's groups: give execute() the optimizer that updates it, and close() and call it "
    "again where groups change"
)


def require_separate(optimizer: Any, parameters: Iterable[Any], what: str) -> None:
    """Raise UsageError, naming ``what`` needs it, unless just these parameters are updated, each by itself."""
    import torch

    kind = type(optimizer)
    if kind not in [getattr(torch.optim, name) for name in SEPARATE] and not getattr(kind, "separate", False):
        raise UsageError(f"{what} needs {', '.join(SEPARATE)} of torch.optim, not {kind.__name__}")
    updated = {id(tensor) for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad}
    if updated != {id(tensor) for tensor in parameters}:
        raise UsageError(f"{what} needs one optimizer with all trainable parameters of the model, and no others")


def update(optimizer: Any, groups: Sequence[dict[str, Any]]) -> None:
    """Make the step of ``optimizer`` as if it had these groups, without its hooks."""
    import torch

    kept = optimizer.param_groups
    optimizer.param_groups = groups
    try:
        # Not in the inference mode of an evaluation, which the optimizer's state would not survive.
        with torch.inference_mode(False), torch.no_grad():
            type(optimizer).step.__wrapped__(optimizer)
    finally:
        optimizer.param_groups = kept


class Groups:
    """The group of each parameter, as the optimizer has them at the start of a backward."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._known: dict[int, dict[str, Any]] = {}

    def look(self) -> None:
        """Read the groups at the start of a backward: schedulers change them, and loading a state replaces them."""
        self._known = {id(tensor): group for group in self.optimizer.param_groups for tensor in group["params"]}

    def of(self, name: str, parameter: Any) -> dict[str, Any]:
        """The group of a parameter. Raises UsageError if it is in none."""
        group = self._known.get(id(parameter))
        if group is None:
            raise UsageError(GROUPLESS.format(repr(name)))
        return group


def veil_type(said: str) -> Any:
    """The type of a gradient that must not be used: any use from Python is an error."""
    import torch

    class Veil(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise UsageError(said)

    return Veil


def veiled(tensor: Any, kind: Any) -> Any:
    """``tensor`` as one of ``kind``, a type of :func:`veil_type`, in the same memory."""
    return tensor.as_subclass(kind)


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options as they are now: schedulers change them before the update is made."""
    return {key: value.clone() if hasattr(value, "clone") else value for key, value in group.items() if key != "params"}
