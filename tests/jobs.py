"""Jobs made up as traces: ranks that compute, send buckets in order over one link, and wait before the update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from osfmodel.entities.trace import Collective, GradientReady, RankTrace, Step, Trace
from tests.sharded_jobs import PLANTED_SHARDED, ShardedJob
from tests.sharded_jobs import trace_of as sharded_trace

MILLI = 1e-3


@dataclass(frozen=True)
class Job:
    """A model, what runs it, and what is wrong with it. Seconds and bytes.

    gradients: bytes of each gradient in the order in which they become ready, each after ``backward`` seconds
    buckets:   the gradients of each, in the order in which they are sent
    slowness:  by rank, what computation takes, as a multiple
    stalls:    by rank, seconds of waiting for the data loader at the beginning of a step
    stuck:     by place in the order of sending, seconds that a message takes longer than its like
    hold:      seconds for which every bucket is held back while the network is idle
    used_map:  whether a map of used parameters is sent at the end of backward
    idle:      seconds after the update in which nothing happens
    ddp:       whether the trace shows DDP
    micro_batches: forward and backward passes of a step; ``each``: whether gradients are sent after every one
    exchanges: bytes that each rank gets in each all-to-all before forward, one after the other
    lead:      how many times as fast as the device the host submits what that does; 1 for a host that computes itself
    """

    gradients: tuple[int, ...] = (4_000_000,) * 10
    buckets: tuple[tuple[int, ...], ...] = tuple((i,) for i in range(10))
    forward: float = 30 * MILLI
    backward: float = 6 * MILLI
    update: float = 4 * MILLI
    slowness: tuple[float, ...] = (1.0, 1.0)
    stalls: tuple[float, ...] = (0.0, 0.0)
    latency: float = 0.1 * MILLI
    per_byte: float = 1e-9
    stuck: Mapping[int, float] = field(default_factory=dict)
    hold: float = 0.0
    idle: float = 0.0
    used_map: bool = False
    micro_batches: int = 1
    each: bool = False
    exchanges: tuple[tuple[int, ...], ...] = ()
    beside: float = 0.0
    own_network: bool = False
    steps: int = 3
    backend: str = "gloo"
    lead: float = 1.0
    ddp: bool = True
    traced: tuple[int, ...] = field(default=())


@dataclass
class _Rank:
    """A rank at work: what happened so far, and when it is."""

    start: float
    now: float
    compute: list
    inputs: list
    gradients: list
    collectives: list

    def submitted(self, time, job):
        """Time at which the host had submitted the device's work of ``time``."""
        return self.start + (time - self.start) / job.lead

    def work(self, seconds):
        """Compute without a pause."""
        if seconds:
            self.compute.append((self.now, self.now + seconds))
            self.now += seconds


def trace_of(job: Job | ShardedJob) -> Trace:
    """The trace of all ranks, or of those in ``traced``; arrivals are known where two or more are."""
    if isinstance(job, ShardedJob):
        return sharded_trace(job)
    starts = [0.0] * len(job.slowness)
    steps = [[] for _ in starts]
    for number in range(job.steps):
        for rank, step in enumerate(_step(job, number, starts)):
            steps[rank].append(step)
            starts[rank] = step.end
    known = job.traced or tuple(range(len(starts)))
    if len(known) == 1:
        steps = [[_alone(step) for step in row] for row in steps]
    ranks = tuple(
        RankTrace(rank, tuple(steps[rank]), len(starts), "cpu", job.backend, host_computes=job.backend == "gloo")
        for rank in known
    )
    return Trace("made-up", ranks)


def _alone(step: Step) -> Step:
    return replace(step, collectives=tuple(replace(one, arrival=None) for one in step.collectives))


def _step(job: Job, number: int, starts: list[float]) -> list[Step]:
    ranks = [_Rank(start, start, [], [], [], []) for start in starts]
    last = 0.0
    for place, sizes in enumerate(job.exchanges):
        _exchanged(job, ranks, number * len(job.exchanges) + place, sizes)
    for micro_batch in range(job.micro_batches):
        for rank in ranks:
            rank.now, rank.gradients = max(rank.now, last), []
        marks = [_backward(job, rank, place, first=not micro_batch) for place, rank in enumerate(ranks)]
        if job.each or micro_batch == job.micro_batches - 1:
            begins = [middle for _, middle, _ in marks]
            last = _sent(job, ranks, number * job.micro_batches + micro_batch, last, begins)
    return [_end(job, rank, mark, place, (starts[place], number, last)) for place, (rank, mark) in
            enumerate(zip(ranks, marks, strict=True))]  # fmt: skip


def _exchanged(job: Job, ranks: list[_Rank], number: int, sizes: tuple[int, ...]) -> None:
    """An all-to-all: each rank goes on once it has its own bytes."""
    begin = max(rank.now for rank in ranks)
    for rank, size in zip(ranks, sizes, strict=True):
        end = begin + job.latency + job.per_byte * size
        rank.collectives.append(
            Collective("all_to_all", rank.now, end, rank.submitted(rank.now, job),
                       sum(sizes) // len(sizes) // 4, "float32", "dims", "1",
                       number, len(ranks), begin)
        )  # fmt: skip
        rank.now = end


def _sent(job: Job, ranks: list[_Rank], number: int, free: float, begun: list[float]) -> float:
    """Send the gradients of a backward over a network that is free from ``free`` on; when the last message ends.

    ``begun``: when backward began on each rank.
    """
    other = _Beside(max(begun), job.beside, job.own_network)
    messages = [sum(job.gradients[i] for i in bucket) for bucket in job.buckets]
    messages += [4 * len(job.gradients)] if job.used_map else []
    ready = [0.0] * len(ranks)
    for place, size in enumerate(messages):
        there = [_there(job, rank, place) for rank in ranks]
        ready = [max(earlier, late) for earlier, late in zip(ready, there, strict=True)]  # sent in order
        begins = [max(free, time + job.hold) for time in ready]
        free = other.together(max(begins), job.latency + job.per_byte * size + job.stuck.get(place, 0.0))
        for rank, begin, time in zip(ranks, begins, ready, strict=True):
            kind = "int32" if place == len(job.buckets) else "float32"
            rank.collectives.append(
                Collective("all_reduce", begin, free, rank.submitted(time, job), size // 4, kind, "dims", "0",
                           number * len(messages) + place, len(ranks), max(begins))
            )  # fmt: skip
    other.alone(inf)
    for rank, time in zip(ranks, begun, strict=True) if job.beside else ():
        rank.collectives.append(
            Collective("all_gather", time, other.now, rank.submitted(time, job), 1000, "float32", "dims", "1",
                       number, len(ranks), max(begun))
        )  # fmt: skip
        rank.collectives.sort(key=lambda one: one.start)
    return max(free, other.now)


@dataclass
class _Beside:
    """A message from ``now`` on with ``left`` seconds to go, were it alone."""

    now: float
    left: float
    own_network: bool

    def alone(self, until: float) -> None:
        """Go on up to ``until``, or to the end."""
        end = min(max(until, self.now), self.now + self.left)
        self.now, self.left = end, self.left - (end - self.now)

    def together(self, begin: float, seconds: float) -> float:
        """When another message of ``seconds`` ends that begins at ``begin``: each gets half of the network."""
        self.alone(begin)
        if self.own_network or not self.left:
            return begin + seconds
        both = min(seconds, self.left)
        self.now, self.left = begin + 2 * both, self.left - both
        return begin + seconds + both


def _backward(job, rank, place, first):
    if job.stalls[place] and first:
        rank.inputs.append((rank.now, rank.now + job.stalls[place]))
        rank.now += job.stalls[place]
    begin = rank.now
    rank.work(job.forward * job.slowness[place])
    middle = rank.now
    for number, size in enumerate(job.gradients):
        rank.work(job.backward * job.slowness[place])
        rank.gradients.append(
            GradientReady(rank.now, f"g{number}", size // 4, "float32", rank.submitted(rank.now, job))
        )
    return begin, middle, rank.now


def _there(job, rank, place):
    if place == len(job.buckets):
        return rank.now
    return max(rank.gradients[i].ready for i in job.buckets[place])


def _end(job, rank, mark, place, told):
    start, number, last = told
    begin, middle, end = mark
    rank.now = updating = max(rank.now, last)
    rank.work(job.update * job.slowness[place])
    updated = rank.now
    rank.now += job.idle
    merged = []
    for one in rank.compute:
        if merged and one[0] <= merged[-1][1]:
            merged[-1] = (merged[-1][0], one[1])
        else:
            merged.append(one)
    return Step(
        number, start, rank.now, tuple(merged), tuple(rank.collectives), tuple(rank.gradients), (), tuple(rank.inputs),
        (begin, middle), (middle, end), (updating, updated), job.micro_batches, job.ddp,
    )  # fmt: skip


HEALTHY = Job()
TINY = replace(
    HEALTHY, gradients=(2000, 4000) * 20, buckets=tuple((i,) for i in range(40)), backward=0.3 * MILLI,
    latency=0.5 * MILLI,
)  # fmt: skip
GIANT = replace(HEALTHY, buckets=(tuple(range(10)),))
BACKWARDS = replace(HEALTHY, buckets=tuple((9 - i,) for i in range(10)), used_map=True)
UNEVEN = replace(
    HEALTHY, slowness=(1.0,) * 4, stalls=(0.0,) * 4, exchanges=((4_000_000, 4_000_000, 84_000_000, 4_000_000),) * 3
)
BESIDE = replace(HEALTHY, per_byte=1.4e-9, beside=40 * MILLI)
EACH = replace(HEALTHY, micro_batches=3, each=True, gradients=(4_000_000,) * 9 + (40_000_000,))
PLANTED = {
    "compute": HEALTHY,
    "bandwidth": replace(HEALTHY, per_byte=1e-8),
    "imbalance": replace(HEALTHY, slowness=(1.0, 1.6)),
    "latency": TINY,
    "late-bucket": GIANT,
    "input": replace(HEALTHY, stalls=(0.05, 0.05)),
    "shared-network": BESIDE,
    "find-unused": BACKWARDS,
    "negotiation": replace(HEALTHY, hold=0.02),
    "host": replace(HEALTHY, idle=0.03),
    "every-micro-batch": EACH,
    "uneven-exchange": UNEVEN,
    **PLANTED_SHARDED,
}
"""By the cause that limits it, a job."""
