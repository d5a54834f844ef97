"""The explanation of a traced job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from osfmodel.diagnosis.waits import Parts
from osfmodel.entities.display import VIEWED, brief, how_many, show_time
from osfmodel.entities.rounding import plain_sum

COMPUTE = "compute"
"""Key of computation, the limit of a job once all causes are removed."""
COMPUTE_SUMMARY = "what is left: the device computes or copies"
"""The summary of COMPUTE, as causes have theirs."""
UNEXPLAINED = "unexplained"
"""Name of the part of a step that its replay does not have."""


@dataclass(frozen=True, slots=True)
class Gains:
    """Seconds saved by removing each cause from one step; ``replayed``: seconds of the replay with all causes.

    ``networks``: seconds saved by a network N times as fast, with all causes, by N; ``alone``: by removing only this
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
    networks:  seconds of a usual step saved by a network N times as fast, by N
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
    collectives: of every process group by kind, in the order in which they come first
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
    collectives: tuple[GroupParts, ...] = ()
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

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

    def saved(self, cause: str) -> float:
        """Seconds that removing a cause saves: more than it costs where another cause hides it."""
        return min(max(self.gains[cause], self.alone.get(cause, 0.0)), self.step_time)

    def part(self, cause: str) -> float:
        """Cost of a cause as a fraction of the step."""
        return self.gains[cause] / self.step_time if self.step_time else 0.0


@dataclass(frozen=True, slots=True)
class BucketRow:
    """A collective of the step; times in seconds from the start of the step, means over the usual steps.

    bytes:      input of each rank; None if the trace does not say
    ready:      when its gradients were ready; issued: when the host submitted it, None if the trace does not say
    waiting:    seconds of waiting for other ranks; None with one rank traced
    transfer:   seconds in which all ranks were in it; with one rank traced, all seconds from start to end
    wire:       seconds of network time: the transfer, shared evenly with others in flight
    bandwidth:  bus bandwidth in bytes/s, bytes * bus factor / wire; None if the size is not known
    possible:   the cluster's bus bandwidth for this size, None without a price; without a cluster the best of
                gradients' messages, or of sharded parameters' of its kind, as the speed of the network; None if it is
                the only one
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
class GroupParts:
    """The collectives of one kind in the process groups of one description, a step; means over steps and ranks.

    group:     description of the groups, or their name; "" if the trace has neither
    groups:    their number; size: ranks in each, None if not known
    members:   the ranks, if it is one group and they are known
    kind:      as of a collective; backward: of all-gathers of sharded parameters whether they were issued in backward,
               else None
    count:     collectives that a rank joins in a step; bytes: their input of a rank, None if the trace does not say
    waiting:   seconds for which a rank waited in them for others to join; None if not known
    transfer:  seconds in which all had joined
    bandwidth: bus bandwidth of all of them, in bytes/s of network time, of each the mean over the ranks; None if
               sizes are not known
    best:      that of the fastest one
    possible:  the cluster's for these sizes and ranks; None without a cluster, or without a price
    hidden:    seconds of the transfer in which the rank did not wait; hidden_by: the pass that computed most meanwhile
    exposed:   the other seconds of the transfer
    skew:      mean seconds between the first and the last rank's start of one; None if not known
    late:      the rank that causes most of the skew, and late_share of it; None if no rank causes half, or if ranks
               wait less than 1 % of the step
    """

    group: str
    groups: int
    size: int | None
    members: tuple[int, ...]
    kind: str
    backward: bool | None
    count: float
    bytes: float | None
    waiting: float | None
    transfer: float
    bandwidth: float | None
    best: float | None
    possible: float | None
    hidden: float
    hidden_by: str
    exposed: float
    skew: float | None
    late: int | None
    late_share: float

    def __repr__(self) -> str:
        return brief(self, f"{self.group} {self.kind}: {show_time(self.transfer)}, {show_time(self.exposed)} exposed")


def bus_factor(kind: str, workers: int) -> float:
    """Bytes that each link carries per byte that each rank puts in, as nccl-tests defines bus bandwidth."""
    spread = (workers - 1) / workers
    factors = {"all_reduce": 2 * spread, "reduce_scatter": spread, "all_to_all": spread, "all_gather": workers - 1.0}
    return factors.get(kind, 1.0)
