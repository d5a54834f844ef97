"""A profiler's trace of a training job: the steps of each rank, its computation and its collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from osfmodel.entities.dtypes import element_bytes, holds_gradients
from osfmodel.entities.errors import DataError, require_count, require_name
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import Interval, length, require_interval, union

Key = tuple[Hashable, ...]
"""Identity of a collective, the same on all ranks of a job."""
ROOTS = ("", "unit0")
"""Names of the outermost group of sharded parameters, which are gathered before those of the first block."""
POINT_TO_POINT = ("send", "recv", "send_recv")
"""Kinds of point-to-point messages between two ranks."""


def places(keys: Iterable[Hashable]) -> list[int]:
    """Number of equal keys before each key, such as the index of a collective within its group."""
    seen: Counter[Hashable] = Counter()
    found = []
    for key in keys:
        found.append(seen[key])
        seen[key] += 1
    return found


@dataclass(frozen=True, slots=True)
class ShardedUse:
    """The use of a group of sharded parameters in one pass, from its first to its last work on the device.

    module:   as the framework names it, ``""`` for the root; ``unit0``, ``unit1`` ... in the order of forward where it
              names none (FSDP1)
    backward: whether the pass is backward
    """

    module: str
    backward: bool
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Sharded:
    """The group of sharded parameters that a collective is about.

    module:   as in :class:`ShardedUse`
    backward: whether the collective was issued in backward
    by:       module in whose hook it was issued: another than ``module`` if it was prefetched
    last:     whether it was issued when backward was over
    shapes:   of the parameters, as far as the trace says
    padded:   elements of each parameter on each rank, as they are gathered, likewise
    flat:     whether the parameters are one flat tensor (FSDP1)
    """

    module: str
    backward: bool
    by: str = ""
    last: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    padded: tuple[int, ...] = ()
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it.

    kind:       ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``all_to_all`` ...
    start, end: when it was on the device (or on the library's thread), waits for other ranks included
    issued:     when the host submitted it; None if the trace does not say
    elements:   input of each rank; None if the trace does not say
    dtype:      of the elements, as in workloads (``float32``)
    sized_by:   the source of the size: ``kernel``, ``host`` (record_param_comms), ``dims``, ``ddp-logging`` or
                ``model``
    group:      the process group, as named in the trace
    sequence:   the library's number of it in its group, the same on all ranks; None if any of the job has none
    workers:    ranks in the group
    arrival:    when the last rank of the group joined it: until then this rank only waited; None without the traces
                of the others
    shard:      the parameters that it gathers, or whose gradients it reduces, if these are sharded
    received:   elements that this rank gets in an all-to-all, which may be more than others get; None if the trace
                does not say
    """

    kind: str
    start: float
    end: float
    issued: float | None = None
    elements: int | None = None
    dtype: str | None = None
    sized_by: str = ""
    group: str = ""
    sequence: int | None = None
    workers: int | None = None
    arrival: float | None = None
    shard: Sharded | None = None
    received: int | None = None

    def __post_init__(self) -> None:
        require_name(self.kind, "the kind of a collective")
        require_interval((self.start, self.end), f"a collective ({self.kind})")
        if self.elements is not None:
            require_count(self.elements, f"elements of a collective ({self.kind})")

    @property
    def bytes(self) -> int | None:
        """Input bytes of each rank; None if elements or dtype are not known."""
        if self.elements is None or self.dtype is None:
            return None
        return self.elements * element_bytes(self.dtype)

    @property
    def interval(self) -> Interval:
        """Start and end on the device."""
        return self.start, self.end

    @property
    def waiting(self) -> float | None:
        """Seconds of waiting for the last rank; None without the traces of the others."""
        return None if self.arrival is None else min(max(0.0, self.arrival - self.start), self.end - self.start)

    @property
    def moved_from(self) -> float:
        """Time at which all ranks had joined; the start without the traces of the others."""
        return self.start if self.arrival is None else min(max(self.start, self.arrival), self.end)

    @property
    def may_be_gradients(self) -> bool:
        """Whether it is an all-reduce whose dtype gradients can have, unlike DDP's map of used parameters.

        All-reduces of shards are not among them: they follow a reduce-scatter of the same gradients.
        """
        return self.kind == "all_reduce" and self.shard is None and holds_gradients(self.dtype)


@dataclass(frozen=True, slots=True)
class GradientReady:
    """A gradient and when it was ready on the device; ``name`` and ``elements`` if the trace has them.

    ``accumulated`` is when the host had submitted it, like ``issued`` of a collective: one issued before
    does not carry it.
    """

    ready: float
    name: str | None = None
    elements: int | None = None
    dtype: str | None = None
    accumulated: float | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes of the gradient; None if elements or dtype are not known."""
        if self.elements is None or self.dtype is None:
            return None
        return self.elements * element_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank.

    compute:    intervals of computation on the device, ascending and separate, without collectives and copies
    copies:     intervals of copies between host and device and of memsets
    inputs:     intervals in which the host waited for its data loader
    forward, backward, update: from the first to the last of their kernels, with gradient accumulation of the last
                micro-batch; None if the trace does not tell them apart
    ddp:        whether the trace shows PyTorch's DDP, which then sends the gradients
    uses:       of groups of sharded parameters, in the order in which they begin
    """

    number: int
    start: float
    end: float
    compute: tuple[Interval, ...]
    collectives: tuple[Collective, ...] = ()
    gradients: tuple[GradientReady, ...] = ()
    copies: tuple[Interval, ...] = ()
    inputs: tuple[Interval, ...] = ()
    forward: Interval | None = None
    backward: Interval | None = None
    update: Interval | None = None
    micro_batches: int = 1
    ddp: bool = False
    uses: tuple[ShardedUse, ...] = ()

    def __post_init__(self) -> None:
        require_interval((self.start, self.end), f"step {self.number}")
        for what, intervals in (("compute", self.compute), ("copies", self.copies), ("inputs", self.inputs)):
            if union(intervals) != intervals:
                raise DataError(f"step {self.number}: {what} overlaps itself or is out of order")

    @property
    def time(self) -> float:
        """Seconds from the start to the end of the step."""
        return self.end - self.start

    @property
    def communication(self) -> tuple[Interval, ...]:
        """Intervals in which any collective was on the device."""
        return union(one.interval for one in self.collectives)

    @property
    def sharded(self) -> tuple[Collective, ...]:
        """The collectives of sharded parameters, in the order in which they were submitted."""
        return tuple(one for one in self.collectives if one.shard is not None)

    @property
    def reductions(self) -> tuple[Collective, ...]:
        """The all-reduces of gradients, in the order in which they were submitted.

        They begin between the last backward's start and the update's end and have dtypes that gradients can have;
        all all-reduces if the trace does not tell backward from the rest.
        """
        after = self.backward[0] if self.backward else self.start
        before = self.update[1] if self.update else self.end
        return tuple(one for one in self.collectives if one.may_be_gradients and after <= one.start < before)

    @property
    def compute_time(self) -> float:
        """Seconds in which the device computed."""
        return length(self.compute)


def keys_of(step: Step) -> list[Key]:
    """Identities of the step's collectives, the same on all ranks.

    They are the group, the library's number, which is separate for point-to-point messages, and the place among
    those of one number; without a number the step, group and kind, and the place among those.
    """
    known: list[Key] = [
        (step.number, one.group, one.kind)
        if one.sequence is None
        else (one.group, one.kind in POINT_TO_POINT, one.sequence)
        for one in step.collectives
    ]
    return [(*key, place) for key, place in zip(known, places(known), strict=True)]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group: its name in the trace, its description (``mesh_tp``), its number of ranks, and which.

    ``size`` is None, and ``ranks`` empty, where the trace does not say.
    """

    name: str
    description: str = ""
    size: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The steps of one rank. ``backend`` is ``nccl``, ``gloo``, ``rccl`` ...; "" if the trace does not say.

    ``file`` is the file that was read, ``checksum`` distinguishes it from others of its name.
    ``host`` is the host's name and ``gpu`` the number of the GPU used there, "" if the trace does not say.
    ``host_computes``: whether the host itself computes, so that no device runs behind it.
    ``groups``: the process groups that the trace lists; none if it lists none.
    """

    rank: int
    steps: tuple[Step, ...]
    workers: int | None = None
    device: str = ""
    backend: str = ""
    file: str = ""
    checksum: str = ""
    host: str = ""
    gpu: str = ""
    host_computes: bool = False
    groups: tuple[ProcessGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A job: one rank or all of them. ``remarks`` name the gaps of the trace, one sentence each.

    ``recorded_host``: whether the host's operators are in it, and show all work: those that it lacks did not run.
    """

    name: str
    ranks: tuple[RankTrace, ...]
    remarks: tuple[str, ...] = ()
    recorded_host: bool = False

    def __post_init__(self) -> None:
        require_name(self.name, "the name of a trace")
        if not self.ranks:
            raise DataError(f"the trace {self.name!r} has no ranks")
        seen = [rank.rank for rank in self.ranks]
        if len(set(seen)) < len(seen):
            raise DataError(f"the trace {self.name!r} has two files of one rank: give one file a rank")

    @property
    def inference(self) -> bool:
        """Whether the host, which is on the record, ran no backward, optimizer or collective of DDP's gradients."""
        steps = [step for rank in self.ranks for step in rank.steps]
        parts = (step.backward or step.gradients or step.update or (step.ddp and step.reductions) for step in steps)
        return self.recorded_host and not any(parts)

    def require_training(self) -> None:
        """Raise DataError for a trace of inference."""
        if self.inference:
            lacks = "no backward, optimizer step or collective of gradients"
            remedy = "record steps that call loss.backward()"
            raise DataError(f"the trace {self.name!r} is of inference ({lacks}), not of training: {remedy}")

    @property
    def pace(self) -> RankTrace:
        """The rank that waited least for others, whose steps represent the job's; the first if waits are not known."""
        return min(
            self.ranks, key=lambda rank: plain_sum(one.waiting or 0 for step in rank.steps for one in step.collectives)
        )

    @property
    def workers(self) -> int | None:
        """Number of ranks: as the traces state, or present, or in the largest group; None if none is known."""
        told = [rank.workers or 0 for rank in self.ranks]
        groups = [one.workers or 0 for rank in self.ranks for step in rank.steps for one in step.collectives]
        there = len(self.ranks) if len(self.ranks) > 1 else 0
        return max([*told, *groups, there]) or None
