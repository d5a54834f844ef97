"""A timeline: spans of computation and communication in one iteration; and unions of intervals of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from osfmodel.entities.display import brief, how_many, show_time
from osfmodel.entities.errors import DataError, require_time
from osfmodel.entities.rounding import plain_sum


@dataclass(frozen=True, slots=True)
class Span:
    """An interval in which a stream is busy, ``start`` to ``end`` (seconds after the start of the iteration).

    kind:   on the compute stream ``forward``, ``backward``, ``copy`` (out of a bucket that has arrived), ``spread``
            (means of the entries of a sparse bucket that has arrived) or ``update``; on a channel ``all_reduce``, or
            ``reduce_scatter`` and ``all_gather`` of a plan that splits it, or ``all_gather`` of a sparse bucket
    stream: ``compute`` or ``channel 0``, ``channel 1`` ...
    layers: the layers concerned; empty for one update of all, as after a barrier
    bucket: number of the plan's bucket that it carries or belongs to; -1 for none, or if that is not known
    """

    kind: str
    stream: str
    layers: tuple[str, ...]
    start: float
    end: float
    bucket: int = field(default=-1, compare=False, repr=False)

    def __repr__(self) -> str:
        layers = self.layers[0] if len(self.layers) == 1 else how_many(len(self.layers), "layer")
        of = f" of {layers}" if self.layers else ""
        return brief(self, f"{self.kind}{of} on {self.stream}, {show_time(self.start)} to {show_time(self.end)}")

    @property
    def duration(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start


class LateSpans(Sequence[Span]):
    """Spans that are made when they are first read: many questions are about the iteration time alone.

    Equal to a tuple of the same spans, which is also what is pickled.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], tuple[Span, ...]]) -> None:
        self._make: Callable[[], tuple[Span, ...]] | None = make
        self._made: tuple[Span, ...] = ()

    @property
    def made(self) -> tuple[Span, ...]:
        """The spans."""
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made

    @overload
    def __getitem__(self, place: int) -> Span: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Span]: ...
    def __getitem__(self, place: int | slice) -> Span | Sequence[Span]:
        return self.made[place]

    def __len__(self) -> int:
        return len(self.made)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.made)

    def __eq__(self, other: object) -> bool:
        return self.made == (other.made if isinstance(other, LateSpans) else other)

    def __hash__(self) -> int:
        return hash(self.made)

    def __repr__(self) -> str:
        return repr(self.made)

    def __reduce__(self) -> tuple[type, tuple[tuple[Span, ...]]]:
        return tuple, (self.made,)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One iteration: its spans; ``compute_time`` of a single GPU, and ``iteration_time``.

    ``engine`` is the name of the engine that computed it; ``run``: its own record, with which it answers further
    questions about the same step.
    """

    spans: Sequence[Span]
    compute_time: float
    iteration_time: float
    engine: str = "recursion"
    run: object = field(default=None, compare=False)

    def __repr__(self) -> str:
        times = f"{show_time(self.iteration_time)}, {show_time(self.compute_time)} of them computation"
        return brief(self, f"{times}, {how_many(len(self.communication), 'collective')}, by the {self.engine}")

    @property
    def communication(self) -> tuple[Span, ...]:
        """The spans on other streams than compute but the host's work, in the order in which they start."""
        return tuple(span for span in self.spans if span.stream != "compute" and span.kind != "host")

    @property
    def communication_time(self) -> float:
        """Seconds spent in collectives, added up."""
        return plain_sum(span.duration for span in self.communication)

    @property
    def exposed_communication(self) -> float:
        """Seconds by which communication lengthens the iteration: iteration_time - compute_time."""
        return self.iteration_time - self.compute_time

    @property
    def scaling_factor(self) -> float:
        """compute_time / iteration_time, the papers' SF: 1 is perfect scaling."""
        return self.compute_time / self.iteration_time

    @property
    def overlap_ratio(self) -> float:
        """The fraction of communication that is hidden behind computation, 0 to 1; 1 without communication."""
        total = self.communication_time
        return max(0.0, 1 - self.exposed_communication / total) if total else 1.0

    @property
    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans, first to last, in which each starts when its predecessor ends and the last ends last.

        It does not reach back to time 0 if something other than a span held a collective back (a release time).
        """
        path: list[Span] = []
        span: Span | None = max(self.spans, key=lambda span: span.end, default=None)
        by_end: dict[float, list[Span]] = {}
        for candidate in self.spans:
            by_end.setdefault(candidate.end, []).append(candidate)
        while span is not None:
            path.append(span)
            stream = span.stream
            before = [other for other in by_end.get(span.start, ()) if other.start < span.start]
            # Where both end just then, the stream's own predecessor comes first.
            span = next((other for other in before if other.stream == stream), before[0] if before else None)
        return tuple(reversed(path))


Interval = tuple[float, float]
"""(start, end) in seconds since the job's trace began, on a clock that the ranks share as well as their hosts do."""


def union(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The union of the intervals, as separate ones in ascending order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return tuple(found)


def common(one: Iterable[Interval], other: Iterable[Interval]) -> tuple[Interval, ...]:
    """The intersection of two unions."""
    mine, theirs = union(one), union(other)
    found: list[Interval] = []
    i = j = 0
    while i < len(mine) and j < len(theirs):
        start, end = max(mine[i][0], theirs[j][0]), min(mine[i][1], theirs[j][1])
        if start < end:
            found.append((start, end))
        if mine[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def length(intervals: Iterable[Interval]) -> float:
    """Seconds in their union."""
    return plain_sum(end - start for start, end in union(intervals))


def without(one: Iterable[Interval], other: Iterable[Interval]) -> tuple[Interval, ...]:
    """The union of ``one`` without the union of ``other``."""
    found: list[Interval] = []
    holes = union(other)
    place = 0
    for start, end in union(one):
        while place < len(holes) and holes[place][1] <= start:
            place += 1
        begin, hole = start, place
        while hole < len(holes) and holes[hole][0] < end:
            if holes[hole][0] > begin:
                found.append((begin, holes[hole][0]))
            begin = max(begin, holes[hole][1])
            hole += 1
        if begin < end:
            found.append((begin, end))
    return tuple(found)


def outside(start: float, end: float, busy: Sequence[Interval]) -> tuple[Interval, ...]:
    """The parts of an interval that ``busy`` (ascending, separate) leaves free."""
    found, at = [], start
    first = max(bisect_right(busy, (start, start)) - 1, 0)
    for begin, finish in busy[first:]:
        if begin >= end:
            break
        if begin > at:
            found.append((at, begin))
        at = max(at, finish)
    if at < end:
        found.append((at, end))
    return tuple(found)


def require_interval(interval: Interval, what: str) -> None:
    """Raise DataError unless it is an interval of times."""
    start, end = interval
    require_time(start, f"the start of {what}")
    require_time(end, f"the end of {what}")
    if end < start:
        raise DataError(f"{what} ends before it begins")
