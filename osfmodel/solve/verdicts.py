"""Whether a step fits into the memory of a GPU, what is largest if not, and what would help.

Whether it fits is said as a chance, from how far published peaks lay from predicted ones.

``profiles/peaks.json`` has the quantiles of log(measured / predicted) of each kind of set-up, of all sources and
without each of them; each source weighs the same. ``profiles/make_peaks.py`` makes it.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from math import exp, log

from osfmodel.engine.levels import Footprint
from osfmodel.engine.memory import peak_as_known, reserved_as_known
from osfmodel.engine.strategies.holdings import ACTIVATIONS, BUCKETS, GRADIENTS, STATE, UPDATE, WEIGHTS
from osfmodel.engine.strategies.issued import GATHERED, REDUCED, WHOLE
from osfmodel.entities.display import show_bytes
from osfmodel.entities.executors import DDP, RUNTIME
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.modules import ZERO, ZERO_3
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import MemoryLimit

YES, TIGHT, NO = "yes", "tight", "no"
"""Verdicts: a chance of SURE or more, between, and below 1 - SURE."""
SURE = 0.95
TAIL = 0.05
"""Error over which the chance of a larger one falls by e, beyond the quantiles that are kept: assumed."""
RETRY_SLOWDOWN = 5.2
"""Times as long as predicted that a step takes where PyTorch's allocator has to free its cache and ask again: the
median of the nine runs of nanotron that reserved more than 71 of 80 GiB (``benchmarks/layouts.py`` prints it)."""
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
"""Parts of runs for which quantiles are kept."""
PROFILED, DATA, TENSOR, PIPELINE = "profiled", "data parallel", "tensor or context parallel", "pipeline"
"""Kinds of set-up: with measured layers; counted, by what divides a replica."""
UNSEEN = (ZERO[1], ZERO_3)
"""Strategies of which no source publishes a peak: as doubtful as the next kind of set-up, which has wider errors."""


class PeakCell(documents.Strict):
    """Runs of a kind of set-up: quantiles of log(measured / predicted) at each level, without a source or of all."""

    setup: str
    errors: list[float]
    runs: int
    sources: list[str]
    without: str = ""


class PeaksFile(documents.Strict):
    """The content of ``profiles/peaks.json``.

    reserved: bytes that PyTorch's allocator reserves for each byte that a step is predicted to hold, by kind of set-up
    """

    schema_version: int
    kind: str
    levels: list[float]
    reserved: dict[str, float]
    cells: list[PeakCell]


def setup_of(profiled: bool, groups: tuple[int, int, int] = (1, 1, 1), strategy: str = "") -> str:
    """The kind of a set-up; ``groups``: of tensor, context and pipeline parallelism. UNSEEN ones are like TENSOR."""
    tensor, context, pipeline = groups
    divided = tensor * context > 1 or strategy in UNSEEN
    return PROFILED if profiled else PIPELINE if pipeline > 1 else TENSOR if divided else DATA


def reserved_of(size: int, setup: str) -> int:
    """Bytes that PyTorch's caching allocator usually reserves in a step that holds ``size`` bytes at its peak."""
    return round(size * bundled_peaks().reserved[setup])


def chance_to_fit(reserved: int, room: int, setup: str, without: str = "") -> float:
    """The chance that a step that reserves so many bytes by prediction finds ``room`` bytes enough.

    Between quantiles it is linear in the logarithm of the error; what is beyond them falls by e for each TAIL of it.
    """
    if reserved <= 0:
        return 1.0
    return _part_below(log(room / reserved), cell_of(setup, without).errors)


def verdict_of(chance: float) -> str:
    """YES, TIGHT or NO."""
    return YES if chance >= SURE else TIGHT if chance > 1 - SURE else NO


def slowed(chance: float) -> float:
    """The factor on a step's time to expect where memory is TIGHT: of those without room, RETRY_SLOWDOWN; else 1."""
    return 1 + (1 - chance) * (RETRY_SLOWDOWN - 1) if verdict_of(chance) == TIGHT else 1.0


def safe_bytes(room: int, setup: str) -> int:
    """The most that a step may hold by prediction to fit surely into ``room`` bytes."""
    return int(room * exp(-cell_of(setup).errors[LEVELS.index(SURE)] - TAIL / 1e3) / bundled_peaks().reserved[setup])


def cell_of(setup: str, without: str = "") -> PeakCell:
    """The errors of a kind of set-up, without a source where it had a part in them."""
    found = {one.without: one for one in bundled_peaks().cells if one.setup == setup}
    return found.get(without, found[""])


def _part_below(value: float, errors: list[float]) -> float:
    """The part of runs with an error up to ``value``."""
    if value < errors[0]:
        return LEVELS[0] * exp((value - errors[0]) / TAIL)
    if value >= errors[-1]:
        return 1 - (1 - LEVELS[-1]) * exp((errors[-1] - value) / TAIL)
    place = min(max(bisect_right(errors, value), 1), len(errors) - 1)
    low, high = errors[place - 1 : place + 1]
    part = 0.0 if high <= low else (value - low) / (high - low)
    return LEVELS[place - 1] + (LEVELS[place] - LEVELS[place - 1]) * part


def decode_peaks(text: bytes) -> PeaksFile:
    """The content of ``profiles/peaks.json``. Raises DataError."""
    return documents.decode(text, "peaks", PeaksFile)


@lru_cache(maxsize=1)
def bundled_peaks() -> PeaksFile:
    """The errors that come with osfmodel. Raises DataError."""
    return profiles.read(profiles.bundled_file("peaks.json"), decode_peaks)


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
