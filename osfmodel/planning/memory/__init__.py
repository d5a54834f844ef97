"""Plans that fit into a memory budget: the request and the result of ``osf tune --memory``. ``search`` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from osfmodel.engine.memory import Memory, caveat
from osfmodel.engine.optimizers import require_mirrorable
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.compression import INSTEAD, SPARSE, require_density
from osfmodel.entities.display import brief, how_many, show_bytes, show_time
from osfmodel.entities.errors import UsageError, require_count
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

WORTHWHILE = 0.005
"""Smallest gain worth having: repeated runs differ by as much."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory limit of a plan, and the means that it may use.

    limit:      bytes that a step may keep
    optimizer:  a key of ``OPTIMIZERS``, instead of the profiled one
    density:    the smallest fraction of a layer's elements to send; None to send all, which leaves the results of
                training unchanged
    batch_size: None for the fastest
    release:    whether layers may be updated as soon as their gradients have arrived, which rules out clipping and
                whatever else needs all gradients before the update
    mirror:     whether sparse buckets keep unsent updates in a mirror of the weights, instead of a residual
    communicator: bytes that the library keeps for each communicator; these plans use a single one
    """

    limit: int
    optimizer: str | None = None
    density: float | None = None
    batch_size: int | None = None
    release: bool = True
    mirror: bool = False
    communicator: int = 0
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"a memory limit of {self.limit} bytes: give 1 or more, such as --memory 16GiB")
        if self.density is not None:
            require_density(self.density)
            require_mirrorable(self.mirror, self.optimizer)
        elif self.mirror:
            raise UsageError("mirror weights are for what is sent sparsely: state a density, or leave mirror out")
        require_count(self.communicator, "bytes of a communicator")


Demand = MemoryBudget
"""The former name of MemoryBudget."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan for one batch size, with its iteration time and its memory.

    bound: seconds that no schedule on one channel with a barrier beats at this batch size within the limit, even with
           recomputing, releasing and, if permitted, sparse sending; None if not computed
    """

    workload: Workload
    plan: Plan
    timeline: Timeline
    memory: Memory
    workers: int
    bound: float | None = None

    def __repr__(self) -> str:
        peak = f"peak {show_bytes(self.memory.peak.bytes)}"
        return brief(self, f"batch {self.batch_size}: {show_time(self.iteration_time)}, {peak}")

    @property
    def batch_size(self) -> int:
        """Samples per worker."""
        return self.workload.batch_size or 0

    @property
    def iteration_time(self) -> float:
        """Seconds for one iteration."""
        return self.timeline.iteration_time

    @property
    def throughput(self) -> float:
        """Samples per second of all workers together."""
        return self.workers * self.batch_size / self.iteration_time

    @property
    def gap(self) -> float | None:
        """iteration_time / bound - 1."""
        return None if self.bound is None else max(0.0, self.iteration_time / self.bound - 1)

    @property
    def sparse(self) -> tuple[str, ...]:
        """Layers that are sent sparsely, in the order of the buckets."""
        return tuple(b.layer for bucket in self.plan.buckets if bucket.density is not None for b in bucket.blocks)


@dataclass(frozen=True, slots=True)
class MemoryTuning:
    """The result of :func:`tune_memory`.

    before: DDP's defaults at the largest batch that fits, None if none does; after: the best plan that was found
    largest: the largest batch that fits with every means to save memory
    tried:  the best plan of every batch size that was tried
    """

    workload: Workload
    cluster: Cluster
    workers: int
    demand: MemoryBudget
    before: Candidate | None
    after: Candidate
    largest: int
    tried: tuple[Candidate, ...]
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        run = f"{self.workload.name} on {self.cluster.name}, {how_many(self.workers, 'worker')}"
        fits = f"batch {self.after.batch_size} in {show_bytes(self.demand.limit)}"
        return brief(self, f"{run}: {fits}, {self.after.throughput:.4g} samples/s")

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the prediction and side effects of the plan."""
        notes = [caveat(self.demand.communicator)]
        if self.after.plan.release:
            notes.append("released gradients cannot be clipped; --no-release keeps them")
        if self.after.batch_size != self.workload.batch_size and self.demand.batch_size is None:
            notes.append("another batch size changes what training computes: the learning rate goes with it")
        if self.after.plan.sparse:
            notes.append(f"{SPARSE}: {INSTEAD}")
            effects = self.cluster.effects
            if not (effects.select or effects.select_time):
                notes.append("choosing entries is taken to cost nothing here, so the gain is more than you will see")
        return tuple(notes)

    @property
    def improvement(self) -> bool:
        """Whether the gain in throughput is large enough to be worth having."""
        return self.gain is None or self.gain >= WORTHWHILE

    @property
    def gain(self) -> float | None:
        """Relative throughput gain over DDP's defaults; None if those do not fit."""
        return None if self.before is None else self.after.throughput / self.before.throughput - 1
