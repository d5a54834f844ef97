"""What ``osf tune --memory`` is asked for, and what it finds: see :mod:`osfmodel.planning.memory.search`."""

from __future__ import annotations

from dataclasses import dataclass, field

from osfmodel.engine.memory import Memory, caveat
from osfmodel.engine.optimizers import require_mirrorable
from osfmodel.entities.checks import require_count
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.plan import Plan, require_density
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

WORTHWHILE = 0.005
"""Gains below half a percent are within what repeated runs differ by."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a plan is to keep within, and what it may do.

    limit:      bytes that a step may keep
    optimizer:  a key of ``OPTIMIZERS``, in place of the one that was profiled
    density:    the least part of a layer's elements that may be sent; None to send all, so that training computes what
                it always did
    batch_size: None for the one that trains fastest
    release:    whether layers may be updated as soon as their gradients have arrived: clipping and whatever else looks
                at all gradients before the update has to do without
    mirror:     whether sparse buckets keep what was not sent in a mirror of the weights, instead of a residual
    communicator: bytes that the library keeps for each communicator; these plans have one channel, and so one of them
    """

    limit: int
    optimizer: str | None = None
    density: float | None = None
    batch_size: int | None = None
    release: bool = True
    mirror: bool = False
    communicator: int = 0

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"a memory limit of {self.limit} bytes: give 1 or more, such as 16GiB")
        if self.density is not None:
            require_density(self.density)
            require_mirrorable(self.mirror, self.optimizer)
        elif self.mirror:
            raise UsageError("mirror weights are for what is sent sparsely: state a density, or leave mirror out")
        require_count(self.communicator, "bytes of a communicator")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan for one batch size, what it takes, and what it keeps.

    bound: seconds that no schedule on one channel with a barrier beats at this batch size within the limit, whatever it
           recomputes, releases and, where permitted, sends sparsely; None where that was not asked
    """

    workload: Workload = field(repr=False)
    plan: Plan = field(repr=False)
    timeline: Timeline = field(repr=False)
    memory: Memory = field(repr=False)
    workers: int
    bound: float | None = None

    @property
    def batch_size(self) -> int:
        """Samples per worker."""
        return self.workload.batch_size or 0

    @property
    def iteration_time(self) -> float:
        """Seconds."""
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
        """The layers that are sent sparsely, in the order of the buckets."""
        return tuple(b.layer for bucket in self.plan.buckets if bucket.density is not None for b in bucket.blocks)


@dataclass(frozen=True, slots=True)
class MemoryTuning:
    """What :func:`tune_memory` found.

    before: DDP with its defaults, its largest batch that fits, None where none does; after: the best that was found
    largest: the largest batch that fits with everything that saves memory
    tried:  every batch size's best
    """

    workload: Workload = field(repr=False)
    cluster: Cluster = field(repr=False)
    workers: int
    demand: Demand
    before: Candidate | None
    after: Candidate
    largest: int
    tried: tuple[Candidate, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a prediction takes for granted."""
        notes = [caveat(self.demand.communicator)]
        if self.after.plan.release:
            notes.append("released gradients cannot be clipped; --no-release keeps them")
        if self.after.batch_size != self.workload.batch_size and self.demand.batch_size is None:
            notes.append("another batch size changes what training computes: the learning rate goes with it")
        if self.after.plan.sparse:
            notes.append("sparse sending changes what training computes: watch the loss")
            effects = self.cluster.effects
            if not (effects.select or effects.select_time):
                notes.append("choosing entries is taken to cost nothing here, so the gain is more than you will see")
        return tuple(notes)

    @property
    def improvement(self) -> bool:
        """Whether it brings so much more throughput that it is worth having."""
        return self.gain is None or self.gain >= WORTHWHILE

    @property
    def gain(self) -> float | None:
        """Relative throughput gain over DDP's defaults; None if those do not fit."""
        return None if self.before is None else self.after.throughput / self.before.throughput - 1
