"""Intervals of time and their unions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from osfmodel.entities.errors import DataError, require_time
from osfmodel.entities.rounding import plain_sum

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
