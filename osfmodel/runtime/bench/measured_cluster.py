"""Measurements of collectives, and the Cluster that is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import median, quantiles

from osfmodel.cost.pricing import UNBOUNDED, fit_gain, together
from osfmodel.entities.cluster import REPEATED, Cluster, Contention, Table
from osfmodel.entities.display import show_bytes
from osfmodel.entities.effects import Effects
from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import NO_GPU, WIDE, Source
from osfmodel.runtime.bench.computation import Copies

TRANSFER = 0.5
"""Minimum fraction of a time that is transfer for fitting a gain: start-ups say nothing about the network."""
PHASES = 2
"""Minimum number of phases of a collective: an all-reduce scatters sums and gathers them; more ranks, more phases."""
OVERRULED = 0.75
"""Fraction of queues that must agree on a smaller number of collectives in flight to overrule the library's own."""


@dataclass(frozen=True, slots=True)
class TimedSize:
    """Median seconds of the slowest rank, the interquartile range as a fraction of it, and the number of repeats.

    ``slowest`` is the longest repeat in seconds.
    """

    time: float
    spread: float
    count: int
    slowest: float

    @staticmethod
    def of(times: Sequence[float]) -> TimedSize:
        """The statistics of single repeats."""
        middle = median(times)
        low, _, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else (middle,) * 3
        return TimedSize(middle, (high - low) / middle if middle else 0.0, len(times), max(times))


@dataclass(slots=True)
class Findings:
    """Results so far; filled while measuring, so that an interruption leaves them.

    tables:    collective -> bytes -> sample
    together:  bytes -> number of concurrent collectives, one per channel -> seconds until all have ended
    queues:    bytes -> seconds until each of several in one queue had ended
    threads:   collectives that a queue runs at once, as the library says; None if it does not
    slowdown:  fraction by which computation took longer while collectives ran; None if not measured
    copies:    of gradients into and out of buckets; None if not measured
    sparse:    effects of sparse buckets, by name
    hosted:    effects of the host's work for FSDP2, by name
    left_out:  sentences on missing measurements, with reasons
    trains:    collective -> bytes -> seconds of each of many messages back to back
    busy:      collective -> processor time of the ranks over that of the cores, while the largest messages went
    """

    tables: dict[str, dict[int, TimedSize]] = field(default_factory=dict)
    together: dict[int, dict[int, float]] = field(default_factory=dict)
    queues: dict[int, tuple[float, ...]] = field(default_factory=dict)
    threads: int | None = None
    slowdown: float | None = None
    slowed: str = "nothing"
    copies: Copies | None = None
    sparse: dict[str, float] = field(default_factory=dict)
    hosted: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    trains: dict[str, dict[int, float]] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether there is an all-reduce table, without which there is no cluster file."""
        return len(self.tables.get("all_reduce", {})) > 1

    @property
    def in_flight(self) -> int:
        """Number of collectives that one queue runs at once, as the library says unless measurements contradict it."""
        return in_flight(list(self.queues.values()), self.threads) if self.queues else self.threads or 1

    @property
    def gain(self) -> float | None:
        """The gain of several at once, which the network decides; None if no measured size shows it."""
        return gain(self.together)

    @property
    def effects(self) -> dict[str, float]:
        """The effects that were measured, by name."""
        slowdown = {} if self.slowdown is None else {"compute_slowdown": max(self.slowdown, 0.0)}
        copies = {} if self.copies is None else {"copy_in": self.copies.into, "copy_out": self.copies.out}
        return {**slowdown, **copies, **self.sparse, **self.hosted}

    @property
    def doubts(self) -> list[str]:
        """A sentence on times that do not repeat well enough to be trusted."""
        middle, worst, size = _spreads(self)
        if middle <= WIDE:
            return []
        return [
            f"times spread by {middle:.0%} (interquartile range over median; {worst:.0%} at {show_bytes(size)}): "
            "something else was running, so measure again"
        ]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Conditions of the measurement: ranks, ranks per host, backend and versions, network, and GPU."""

    workers: int
    per_host: int
    backend: str
    network: str
    versions: str
    gpu: str = NO_GPU


def in_flight(queues: Sequence[Sequence[float]], said: int | None = None) -> int:
    """Number of equal collectives that one queue runs at once, from the ends of each queue's collectives.

    The :func:`width` that most queues show, the smallest of those that as many do. The library's own figure
    (``said``) stands unless ``OVERRULED`` of the queues show the same smaller number. On a busy machine a queue shows
    any; a larger one only means that all had ended before we could look.
    """
    votes = Counter(map(width, queues))
    seen = min(votes, key=lambda number: (-votes[number], number))
    if said is None:
        return seen
    fewer = seen < min(said, *map(len, queues))
    return seen if fewer and votes[seen] >= OVERRULED * len(queues) else said


def width(queue: Sequence[float]) -> int:
    """Number of equal collectives in a queue that ran at once, from their ends: the best divisor of their number.

    With w at once they end in groups of w, each of which takes w/k of the whole. Within a group they end together where
    start-ups decide, or the network serves them evenly; where it serves phase after phase they end one after the other
    while the last phase of the group is sent. Anything in between is as good. The least squared distance decides,
    the smaller of two numbers that are equally good.
    """
    count, ends = len(queue), sorted(queue)

    def loss(width: int) -> float:
        found = 0.0
        for number, end in enumerate(ends):
            group, place = divmod(number, width)
            latest = (group + 1) * width / count
            earliest = latest - (width - 1 - place) / (PHASES * count)
            found += max(earliest - end / ends[-1], 0, end / ends[-1] - latest) ** 2
        return found

    return min((number for number in range(1, count + 1) if count % number == 0), key=loss)


def gain(together: Mapping[int, Mapping[int, float]]) -> float | None:
    """The median over sizes of the gains fitted to each size whose time is mostly transfer.

    None where there is no such size, or several at once take no longer than one at all of them.
    """
    alone = {size: times[1] for size, times in together.items() if len(times) > 1}
    if not alone:
        return None
    found = []
    for size, time in alone.items():
        startup = min(other for smaller, other in alone.items() if smaller <= size)
        if time - startup >= TRANSFER * time:
            found.append(fit_gain(together[size], startup))
    bounded = [gain for gain in found if gain < UNBOUNDED]
    return median(bounded) if bounded else None


def startup(alone: float, whole: float, count: int, speed: float) -> float:
    """Start-up of a collective of ``alone`` seconds for which the model gives ``count`` of them ``whole`` seconds.

    ``speed``: X(w) of the w that are in flight at once. All together take s + (T - s) count / X(w). So s = T where they
    take no longer than one, and 0 where they take as long as the network needs for all (or longer). All of T where the
    gain lets all transfers go as fast as one.
    """
    stretch = count / speed
    return min(max((stretch * alone - whole) / (stretch - 1), 0.0), alone) if stretch > 1 else alone


def train_time(ends: Sequence[Sequence[float]]) -> float:
    """Median seconds of a message in a train, from the ends of its messages in each repeat.

    The first half does not count: it starts up, and fills buffers.
    """
    half = len(ends[0]) // 2
    return median((row[-1] - row[half - 1]) / (len(row) - half) for row in ends)


def _startups(findings: Findings, sizes: Sequence[int], collective: str) -> tuple[float, ...]:
    """Start-ups of all-reduces at these sizes, if several were measured at all: in one queue that runs some at once
    (more of them, so noise weighs less), or else pairs on two channels."""
    if collective != "all_reduce":
        return ()
    alone, gain = findings.tables[collective], findings.gain or 1.0
    if findings.in_flight > 1 and all(size in findings.queues for size in sizes):
        queues = findings.queues
        speed = together(gain, findings.in_flight)
        return tuple(startup(alone[size].time, max(queues[size]), len(queues[size]), speed) for size in sizes)
    if all(2 in findings.together.get(size, {}) for size in sizes):
        speed = together(gain, 2)
        return tuple(startup(alone[size].time, findings.together[size][2], 2, speed) for size in sizes)
    return ()


def _table(findings: Findings, workers: int, collective: str) -> Table:
    rows = findings.tables[collective]
    sizes = tuple(sorted(rows))
    times = tuple(rows[size].time for size in sizes)
    trains = findings.trains.get(collective, {})
    measured = tuple(trains[size] for size in takewhile(trains.__contains__, sizes))
    startups, busy = _startups(findings, sizes, collective), findings.busy.get(collective)
    slowest = tuple(rows[size].slowest if rows[size].count >= REPEATED else rows[size].time for size in sizes)
    slowest = slowest if slowest != times else ()
    return Table(workers, sizes, times, collective, startups, measured, busy, slowest)


def cluster_of(findings: Findings, surroundings: Surroundings, name: str) -> Cluster:
    """The measured cluster, with tables of this worker count. Raises DataError if too little was measured."""
    if not findings.usable:
        raise DataError("nothing to write: an all-reduce at two sizes or more is needed")
    gain = findings.gain
    return Cluster(
        name,
        "tabulated",
        gpus_per_node=surroundings.per_host,
        nodes=-(-surroundings.workers // surroundings.per_host),
        tables=tuple(
            _table(findings, surroundings.workers, collective)
            for collective, rows in findings.tables.items()
            if len(rows) > 1
        ),
        contention=() if gain is None else (Contention(surroundings.workers, gain),),
        effects=Effects(**findings.effects),
        in_flight=findings.in_flight,
        library=surroundings.backend,
        source=Source("measured by osf bench", conditions(findings, surroundings), gpu=surroundings.gpu),
    )


def unfinished(findings: Findings, surroundings: Surroundings, name: str) -> Cluster:
    """The cluster of a stopped measurement, marked as such. Raises DataError as cluster_of does."""
    return cluster_of(replace(findings, left_out=[*findings.left_out, "stopped before the end"]), surroundings, name)


def conditions(findings: Findings, surroundings: Surroundings) -> str:
    """The conditions in words: place, extent and repeatability of the measurement."""
    counts = sorted({sample.count for rows in findings.tables.values() for sample in rows.values()})
    repeats = "..".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    spread, worst, _ = _spreads(findings)
    parts = [
        f"{surroundings.workers} ranks, {surroundings.per_host} on each host",
        f"backend {surroundings.backend} ({surroundings.versions}), network {surroundings.network}",
        f"medians of {repeats} repeats of the slowest rank, a barrier before each",
        f"interquartile range {spread:.1%} of the median (worst {worst:.1%})",
        _trains(findings),
        _simultaneity(findings),
        _slowing(findings),
        *findings.left_out,
    ]
    return "; ".join(part for part in parts if part)


def _spreads(findings: Findings) -> tuple[float, float, int]:
    """The median spread of all samples, the widest spread, and the bytes at which that was measured."""
    spreads = [(sample.spread, size) for rows in findings.tables.values() for size, sample in rows.items()]
    return median(spread for spread, _ in spreads), *max(spreads)


def _trains(findings: Findings) -> str:
    sizes = [size for trains in findings.trains.values() for size in trains]
    return f"messages back to back up to {show_bytes(max(sizes))}" if sizes else ""


def _simultaneity(findings: Findings) -> str:
    if not findings.queues:
        source = "not measured" if findings.threads is None else "as the library says"
        return f"{findings.in_flight} in flight in one queue, {source}"
    shown = sum(width(queue) == findings.in_flight for queue in findings.queues.values())
    said = "" if findings.threads is None else f" (the library says {findings.threads})"
    most = max(map(len, findings.together.values()))
    sizes = ", ".join(show_bytes(size) for size, times in findings.together.items() if len(times) == most)
    flights = sorted({count for times in findings.together.values() for count in times})
    no_gain = "no gain fitted: start-ups decide, or several take no longer than one"
    fitted = no_gain if findings.gain is None else "gain fitted to these"
    several = f"{', '.join(map(str, flights))} at once on as many channels at {sizes}, {fitted}"
    return (
        f"{findings.in_flight} in flight in one queue, as {shown} of {len(findings.queues)} sizes show{said}; {several}"
    )


def _slowing(findings: Findings) -> str:
    if findings.slowdown is None:
        return "compute_slowdown not measured"
    return f"compute_slowdown {findings.slowdown:+.1%} measured on {findings.slowed} beside continuous all-reduces"


def updated(known: Cluster, new: Cluster, effects: Mapping[str, float]) -> Cluster:
    """``known`` with its figures for the worker count of ``new`` replaced by those.

    ``in_flight`` and ``library`` are those of ``new``, and so are ``effects``, those that were measured with it. Raises
    DataError where they cannot be one cluster.
    """
    require_mergeable(known)
    if known.gpus_per_node != new.gpus_per_node and max(known.nodes or 2, new.nodes or 2) > 1:
        one = min((known, new), key=lambda cluster: cluster.nodes or 2)
        if one.nodes != 1 or one.gpus_per_node > max(known.gpus_per_node, new.gpus_per_node):
            raise DataError(
                f"{known.name!r} has {known.gpus_per_node} ranks on a host, this was measured with {new.gpus_per_node}"
            )
    if known.library not in ("", new.library):
        raise DataError(f"{known.name!r} was measured with {known.library}, this with {new.library}")
    taken = {(table.collective, table.workers) for table in new.tables}
    counts = {row.workers for row in new.contention}
    conditions = f"{known.source.conditions}; then {new.source.conditions}"
    return replace(
        known,
        gpus_per_node=max(known.gpus_per_node, new.gpus_per_node),
        nodes=None if known.nodes is None else max(known.nodes, new.nodes or 1),
        tables=tuple(t for t in known.tables if (t.collective, t.workers) not in taken) + new.tables,
        contention=tuple(row for row in known.contention if row.workers not in counts) + new.contention,
        effects=replace(known.effects, **effects),
        in_flight=new.in_flight,
        library=new.library,
        source=replace(known.source, conditions=conditions),
    )


def require_mergeable(known: Cluster) -> None:
    """Raise DataError for a cluster that does not consist of tables."""
    if known.cost_model != "tabulated":
        raise DataError(
            f"{known.name!r} is priced by {known.cost_model!r}: only tabulated clusters take further tables"
        )
