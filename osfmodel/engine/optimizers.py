"""Memory of optimizers beside weights and gradients, and their use with mirror weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.lookup import require
from osfmodel.entities.savings import OPTIMIZER
from osfmodel.entities.sharding import uneven
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
    """Bytes of the optimizer's state on a GPU. Raises UsageError for an unknown one, DataError if none is known."""
    if optimizer is not None:
        copies = require(optimizer, OPTIMIZERS, "optimizer") + (workload.weight_bytes is not None)
        return 0 if offloaded(workload) else round(copies * workload.gradient_bytes)
    if workload.state_bytes is None:
        known = ", ".join(OPTIMIZERS)
        raise DataError(
            f"workload {workload.name!r} does not say what the optimizer keeps: give --optimizer adamw (known: {known})"
        )
    return workload.state_bytes


def moments_bytes(workload: Workload, optimizer: str | None = None) -> int:
    """The same without the float32 copy of the weights, for shards that are that copy. Raises as state_bytes."""
    kept = workload.weight_bytes is not None and not offloaded(workload)
    whole, copy = state_bytes(workload, optimizer), workload.gradient_bytes if kept else 0
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


def offloaded(workload: Workload) -> bool:
    """Whether the host has the optimizer's state, and updates."""
    return workload.offload is not None and OPTIMIZER in workload.offload.kinds


def shard_update_time(workload: Workload, ranks: int, left: int = 1, beside: bool = False, fetched: int = 0) -> float:
    """Seconds of the update of one of ``ranks`` shards; where the host updates, with what is not hidden of the moves.

    left:    times that gradients go to the host in a step; ``beside``: each beside a micro-batch's backward
    fetched: times that all-gathers copy parameters back, beside a forward and a backward each; 0: after the update
    """
    whole, offload = workload.update_time / ranks, workload.offload
    if offload is None or not offloaded(workload):
        return whole
    leaving, entering = whole * offload.leaving, whole * offload.entering
    out = left * max(0.0, leaving - beside * workload.backward_time)
    back = entering
    if fetched:
        shards = entering * (uneven(workload, ranks) + (workload.fixed_bytes or 0) / max(1, workload.gradient_bytes))
        times = (workload.forward_time, workload.backward_time)
        back = fetched * sum(max(0.0, shards - time) for time in times)
    return whole - leaving - entering + out + back
