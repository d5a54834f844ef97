"""Memory of optimizers beside weights and gradients, and their use with mirror weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.lookup import require
from osfmodel.entities.workload import Workload

OPTIMIZERS: Mapping[str, float] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Copies of the weights that an optimizer's state holds."""
MIRRORED = ("sgd", "momentum")
"""Optimizers with which sparse buckets may keep mirror weights."""


def require_mirrorable(mirror: bool, optimizer: str | None) -> None:
    """Raise UsageError for mirror weights with an optimizer that does not support them."""
    if mirror and optimizer is not None and optimizer not in MIRRORED:
        raise UsageError(f"mirror weights need SGD, and the optimizer is {optimizer}: leave mirror out")


def state_bytes(workload: Workload, optimizer: str | None = None) -> int:
    """Bytes of the optimizer's state. Raises UsageError for an unknown optimizer, DataError if none is known."""
    if optimizer is not None:
        copies = require(optimizer, OPTIMIZERS, "optimizer") + (workload.weight_bytes is not None)
        return round(copies * workload.gradient_bytes)
    if workload.state_bytes is None:
        known = ", ".join(OPTIMIZERS)
        raise DataError(
            f"workload {workload.name!r} does not say what the optimizer keeps: give --optimizer adamw (known: {known})"
        )
    return workload.state_bytes


def moments_bytes(workload: Workload, optimizer: str | None = None) -> int:
    """The same without the float32 copy of the weights, for shards that are that copy. Raises as state_bytes."""
    whole, copy = state_bytes(workload, optimizer), workload.gradient_bytes if workload.weight_bytes is not None else 0
    if whole < copy:
        raise DataError(
            f"workload {workload.name!r} has weight_bytes, so its state_bytes must hold their float32 copy of {copy} "
            f"bytes, and are {whole}"
        )
    return whole - copy


def update_scratch(workload: Workload, sizes: Sequence[int] | None = None) -> int:
    """Bytes of scratch while tensors of these sizes are updated, as profiled; without sizes, while all are updated.

    An optimizer that goes tensor by tensor has scratch of the size of a tensor, one that goes through all at once
    (``foreach``) of all: what was profiled tells which.
    """
    whole, largest = workload.update_bytes or 0, max(workload.gradients.sizes, default=0)
    if sizes is None or not whole or not largest:
        return whole
    if whole > 2 * largest:
        return round(whole * sum(sizes) / workload.gradient_bytes)
    return round(whole * max(sizes) / largest)
