"""The explanation of a traced job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, harmonic_mean
from typing import Any

from osfmodel.diagnosis.replay import SeenStep
from osfmodel.diagnosis.waits import LocalClock, Parts, Sent
from osfmodel.entities.display import brief, how_many, show_time
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.trace import Collective

COMPUTE = "compute"
"""Key of computation, the limit of a job once all causes are removed."""
COMPUTE_SUMMARY = "what is left: the device computes or copies"
"""The summary of COMPUTE, as causes have theirs."""


@dataclass(frozen=True, slots=True)
class Gains:
    """Seconds saved by removing each cause from one step; ``replayed``: seconds of the replay with all causes.

    ``networks``: seconds saved by networks as many times as fast, with all causes; ``alone``: by removing only this
    cause, of those that hide each other.
    """

    replayed: float
    seconds: Mapping[str, float]
    networks: Mapping[int, float]
    alone: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A possible change, and its gain.

    step_time:  seconds of a step with it; None if it cannot be priced
    throughput: samples per second with it, as a multiple of now; None likewise
    by:         basis of the figures: ``model``, or ``replay`` of the trace
    note:       what the figure leaves out, and whether it is extrapolated; if there is none, the reason
    """

    name: str
    what: str
    step_time: float | None
    throughput: float | None
    by: str
    note: str = ""

    def __repr__(self) -> str:
        time = "no price" if self.step_time is None else f"{show_time(self.step_time)} per step, by the {self.by}"
        return brief(self, f"{self.name}: {time}")


@dataclass(frozen=True, slots=True)
class StepParts:
    """A step: its number, its seconds, its parts in the mean over the ranks, and the cost of each cause."""

    number: int
    time: float
    parts: Parts
    gains: Gains = field(repr=False)


@dataclass(frozen=True, slots=True)
class RankParts:
    """A rank: its parts and its own work in a usual step, and the number of steps in which its work was the longest.

    ``work`` is seconds of the step without those in which it waited for collectives or its data loader.
    """

    rank: int
    parts: Parts
    work: float
    slowest: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of a job's step time. Times in seconds.

    cluster:   the name of the one that the trace was compared with
    step_time: a usual step: the mean over the ranks and over the middle third of the steps by duration, the median of
               three
    parts:     where it went; they add up to it
    gains:     seconds that each cause costs of a usual step; :data:`osfmodel.diagnosis.causes.CAUSES` has the state
               without it
    networks:  seconds of a usual step that networks save that are as many times as fast
    alone:     seconds of a usual step that removing one cause saves while the others stay, where causes hide each other
    replayed:  the usual step in the replay; its difference from ``step_time`` is the error of gains and networks,
               which are scaled down to the step where the replay takes longer
    cause:     the costliest; COMPUTE if none costs 5 % of the step
    straggler: the rank that is most often the slowest, if a cause of one rank costs 5 %; else None, as with one rank
    network:   the costliest cause of communication, if it costs 5 %; else None
    verdict:   a sentence on ``cause``, and one on the straggler or the network, if that is the other
    sender:    the rank whose messages ``buckets`` lists: the median by its own work
    remarks:   what the trace does not tell, one sentence each
    remedies:  the most helpful first
    """

    name: str
    workers: int
    cluster: str | None
    ranks: tuple[RankParts, ...]
    steps: tuple[StepParts, ...]
    step_time: float
    parts: Parts
    gains: Mapping[str, float]
    replayed: float
    cause: str
    straggler: int | None
    network: str | None
    verdict: str
    buckets: tuple[BucketRow, ...]
    sender: int = 0
    remarks: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    networks: Mapping[int, float] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        job = f"{self.name}, {how_many(self.workers, 'worker')}"
        return brief(self, f"{job}: {show_time(self.step_time)} per step, limited by {self.cause}")

    @property
    def left(self) -> float:
        """Seconds of computation and copies that remain when all causes are removed."""
        return max(0.0, min(self.replayed, self.step_time) - plain_sum(self.gains.values()))

    @property
    def missed(self) -> float:
        """Seconds of the step that the replay does not have; 0 if it takes longer than the step."""
        return max(0.0, self.step_time - self.replayed)

    @property
    def sharded(self) -> bool:
        """Whether the job shards its parameters."""
        return any(row.module is not None for row in self.buckets)

    @property
    def kinds(self) -> tuple[KindParts, ...]:
        """The collectives of sharded parameters by kind, in the order in which they come first; none without such."""
        found: dict[tuple[str, bool], list[BucketRow]] = {}
        for row in self.buckets:
            if row.module is not None:
                found.setdefault((row.kind, row.backward), []).append(row)
        return tuple(KindParts.of(rows) for rows in found.values())

    def saved(self, cause: str) -> float:
        """Seconds that removing a cause saves: more than it costs where another cause hides it."""
        return min(max(self.gains[cause], self.alone.get(cause, 0.0)), self.step_time)

    def part(self, cause: str) -> float:
        """Cost of a cause as a fraction of the step."""
        return self.gains[cause] / self.step_time if self.step_time else 0.0


Price = Callable[[int], float]
"""Seconds of an all-reduce by its bytes."""


TIMES = ("ready", "issued", "start", "end", "waiting", "transfer", "wire", "hidden", "exposed")
"""Fields of a row that are in seconds."""


@dataclass(frozen=True, slots=True)
class BucketRow:
    """A collective of the step; times in seconds from the start of the step, means over the usual steps.

    bytes:      input of each rank; None if the trace does not say
    ready:      when its gradients were ready; issued: when the host submitted it, None if the trace does not say
    waiting:    seconds of waiting for other ranks; None with one rank traced
    transfer:   seconds in which all ranks were in it; with one rank traced, all seconds from start to end
    wire:       seconds of network time: the transfer, shared evenly with others in flight
    bandwidth:  bus bandwidth in bytes/s, bytes * bus factor / wire; None if the size is not known
    possible:   the cluster's bus bandwidth for this size; without a cluster the best of gradients' messages, or of
                sharded parameters' of its kind, as the speed of the network; None if it is the only one
    exposed:    seconds of the transfer in which this rank waited for a collective, as in its parts; counted
                for each of several in flight
    hidden:     the other seconds of the transfer: it computed, or had nothing to do for another reason
    gradients:  whether it carries gradients
    module:     the group of sharded parameters that it gathers or reduces, "" for the root; None if there is none
    backward:   whether such a collective was issued in backward
    """

    number: int
    kind: str
    dtype: str | None
    bytes: int | None
    ready: float
    issued: float | None
    start: float
    end: float
    waiting: float | None
    transfer: float
    wire: float
    bandwidth: float | None
    possible: float | None
    hidden: float
    exposed: float
    gradients: bool
    module: str | None = None
    backward: bool = False


@dataclass(frozen=True, slots=True)
class KindParts:
    """The collectives of sharded parameters of one kind in a step: their number, bytes, and seconds.

    kind:   ``all_gather``, ``reduce_scatter`` or ``all_reduce``; ``backward``: whether they were issued in backward
    bytes:  input of each rank, of all of them; None if the trace does not say
    waiting, transfer, hidden, exposed: as in :class:`BucketRow`, of all of them
    """

    kind: str
    backward: bool
    count: int
    bytes: int | None
    waiting: float | None
    transfer: float
    hidden: float
    exposed: float

    @classmethod
    def of(cls, rows: Sequence[BucketRow]) -> KindParts:
        """The sums over messages of one kind."""
        transfer, hidden, exposed = (
            plain_sum(getattr(row, name) for row in rows) for name in ("transfer", "hidden", "exposed")
        )
        sizes, waits = [row.bytes for row in rows], [row.waiting for row in rows]
        size = None if None in sizes else sum(one or 0 for one in sizes)
        waiting = None if None in waits else plain_sum(one or 0.0 for one in waits)
        return cls(rows[0].kind, rows[0].backward, len(rows), size, waiting, transfer, hidden, exposed)


def bus_factor(kind: str, workers: int) -> float:
    """Bytes that each link carries per byte that each rank puts in, as nccl-tests defines bus bandwidth."""
    spread = (workers - 1) / workers
    factors = {"all_reduce": 2 * spread, "reduce_scatter": spread, "all_to_all": spread, "all_gather": workers - 1.0}
    return factors.get(kind, 1.0)


def bucket_rows(steps: Sequence[SeenStep], workers: int, price: Price | None) -> tuple[BucketRow, ...]:
    """The rows of the messages of one rank; means over the steps with the same messages as the median step."""
    typical = sorted(steps, key=lambda one: one.step.time)[(len(steps) - 1) // 2]
    alike = [one for one in steps if _shape(one) == _shape(typical)]
    per_step = [_rows(one, workers) for one in alike]
    rows = [_mean(rows) for rows in zip(*per_step, strict=True)]
    return tuple(_compared(row, workers, price, rows) for row in rows)


def _shape(one: SeenStep) -> list[tuple[str, int | None]]:
    return [(sent.collective.kind, sent.collective.bytes) for sent in one.sent]


def _rows(rank: SeenStep, workers: int) -> list[BucketRow]:
    own = rank.clock(())
    return [_row(number, sent, own, workers) for number, sent in enumerate(rank.sent)]


def _row(number: int, sent: Sent, own: LocalClock, workers: int) -> BucketRow:
    one, begin = sent.collective, own.start
    moving = (one.moved_from, one.end)
    transfer = moving[1] - moving[0]
    hidden = min(transfer, own.at(moving[1]) - own.at(moving[0]))
    return BucketRow(
        number, one.kind, one.dtype, one.bytes, sent.formed - begin, None if one.issued is None else one.issued - begin,
        one.start - begin, one.end - begin, one.waiting, transfer, sent.wire, _bandwidth(one, sent.wire, workers), None,
        hidden, transfer - hidden, sent.gradient, *((one.shard.module, one.shard.backward) if one.shard else ()),
    )  # fmt: skip


def _bandwidth(one: Collective, wire: float, workers: int) -> float | None:
    if one.bytes is None or wire <= 0:
        return None
    return one.bytes * bus_factor(one.kind, one.workers or workers) / wire


def _mean(rows: Sequence[BucketRow]) -> BucketRow:
    """The mean of each time, so that they add up as in a step; None if any row lacks it."""
    times: dict[str, Any] = {}
    for name in TIMES:
        values = [getattr(row, name) for row in rows]
        times[name] = None if None in values else fmean(values)
    speeds = [row.bandwidth for row in rows if row.bandwidth is not None]
    # The harmonic mean of speeds is the speed at the mean time, as the bytes are the same.
    return replace(rows[0], **times, bandwidth=harmonic_mean(speeds) if len(speeds) == len(rows) else None)


def _compared(row: BucketRow, workers: int, price: Price | None, rows: Sequence[BucketRow]) -> BucketRow:
    if row.bytes and row.kind == "all_reduce" and price is not None:
        seconds = price(row.bytes)
        return replace(row, possible=row.bytes * bus_factor(row.kind, workers) / seconds if seconds else None)
    if not (row.bytes and row.bandwidth and (row.gradients or row.module is not None)):
        return row
    like = [
        one
        for one in rows
        if (one.gradients if row.module is None else one.module is not None and one.kind == row.kind)
    ]
    found = [one.bandwidth for one in like if one.bandwidth]
    return replace(row, possible=max(found)) if len(found) > 1 else row
