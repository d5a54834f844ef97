"""The memory that a step may take of each GPU: whether a plan fits, what is largest if not, and what would help."""

from __future__ import annotations

from osfmodel.engine.levels import Footprint
from osfmodel.engine.memory import peak_as_known, reserved_as_known
from osfmodel.engine.strategies.holdings import ACTIVATIONS, BUCKETS, GRADIENTS, STATE, UPDATE, WEIGHTS
from osfmodel.engine.strategies.issued import GATHERED, REDUCED, WHOLE
from osfmodel.entities.display import show_bytes
from osfmodel.entities.executors import DDP, RUNTIME
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import MemoryLimit


def peak_within(room: MemoryLimit, workload: Workload, plan: Plan, timeline: Timeline, workers: int) -> Footprint:
    """The highest level of a step with the optimizer and the communicators of a limit; see :func:`peak_of`."""
    return peak_of(workload, plan, timeline, workers, room.optimizer, room.communicator)


def peak_of(
    workload: Workload,
    plan: Plan,
    timeline: Timeline,
    workers: int,
    optimizer: str | None = None,
    communicator: int = 0,
) -> Footprint:
    """The highest level of a step, without activations if the workload does not say what it keeps.

    Raises DataError where neither the workload nor ``optimizer`` says what the optimizer keeps.
    """
    keeper = DDP if DDP.carries(plan.plain) else RUNTIME
    return peak_as_known(workload, plan, timeline, workers, keeper.name, optimizer, communicator)


def reserved_for(workload: Workload, plan: Plan, timeline: Timeline, workers: int) -> int:
    """Bytes that PyTorch's caching allocator reserves in the steps of :func:`peak_of`."""
    keeper = DDP if DDP.carries(plan.plain) else RUNTIME
    return reserved_as_known(workload, plan, timeline, workers, keeper.name)


def largest_part(level: Footprint) -> str:
    """The owner that holds most at a level."""
    return max(level.held, key=lambda owner: level.held[owner])


def need(level: Footprint, limit: int, reserved: int | None = None) -> str:
    """The need of a plan against the limit, and its largest part; no sentence's end.

    reserved: what PyTorch takes for it, which is said where the rest would fit
    """
    part = largest_part(level)
    more = "" if reserved is None or level.bytes > limit else f", for which PyTorch reserves {show_bytes(reserved)},"
    said = f"needs {show_bytes(level.bytes)}{more} of {show_bytes(limit)}"
    return f"{said}; the largest part is {part}, {show_bytes(level.held[part])}"


def shortfall(
    level: Footprint,
    plan: Plan,
    limit: int,
    repeated: bool = False,
    reserved: int | None = None,
    batch: int | None = None,
) -> str:
    """The need of a plan against the limit, its largest part, and the setting that helps; no sentence's end.

    repeated: whether all blocks are repeated in backward already
    batch:    samples of a micro-batch, if known
    """
    return f"{need(level, limit, reserved)}: {remedy(largest_part(level), plan, repeated, batch)}"


def remedy(part: str, plan: Plan, repeated: bool = False, batch: int | None = None) -> str:
    """The setting that makes a part of memory smaller, in words."""
    rules = plan.sharding
    if part == ACTIVATIONS:
        ways = ["a smaller batch"] * (batch != 1) + ["activation checkpointing"] * (not repeated)
        return ", or ".join(ways) or "tensor or context parallelism, or activations offloaded to the host"
    if rules is None and part in REPLICATED_REMEDIES:
        return REPLICATED_REMEDIES[part]
    if part == WHOLE and rules and any(group.modules and group.reshard is not True for group in rules.groups):
        return "reshard_after_forward=True frees kept groups after forward"
    if part in (WEIGHTS, STATE) and rules is not None and rules.replicas > 1:
        return "shard between more GPUs: fewer replicas, or fsdp2"
    return REMEDIES.get(part, "give more memory")


REPLICATED_REMEDIES = {
    WEIGHTS: "fsdp2 or hsdp shard them",
    STATE: "zero-1, fsdp2 or hsdp shard it",
    GRADIENTS: "zero-2, fsdp2 or hsdp shard them",
    BUCKETS: "gradient_as_bucket_view=True lets gradients live in them",
}
"""Remedies for plans whose ranks hold all parameters."""
REMEDIES = {
    WEIGHTS: "shard between more GPUs",
    STATE: "shard between more GPUs, or take an optimizer with less state",
    GRADIENTS: "smaller groups, or more GPUs",
    GATHERED: "smaller groups, or one group gathered ahead",
    WHOLE: "smaller groups",
    REDUCED: "smaller groups, one reduce-scatter input, or a smaller reduce_dtype",
    UPDATE: "foreach=False of the optimizer",
}
"""Remedies by part, for sharded plans and for all."""
