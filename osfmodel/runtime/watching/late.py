"""The rank that others wait for, from the times of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

WORTH = 0.05
"""Fraction of a step by which a rank must be late to be named, as for the causes of ``osf explain``."""


class RankTimes(NamedTuple):
    """Consecutive steps of one rank: seconds of each, and those of its exposed communication (None: not known)."""

    times: list[float]
    exposed: list[float | None]


class Lateness(NamedTuple):
    """Seconds of one step that each rank waited for others, the late rank, and by how much its own work was longer."""

    waiting: tuple[float, ...]
    rank: int | None = None
    late_by: float | None = None


def lateness(ranks: Sequence[RankTimes]) -> list[Lateness]:
    """Waits for other ranks in each step that all ``ranks`` have; empty if a rank does not know its own.

    Ranks that communicate take equally long for a step. All of it but the exposed communication is a rank's own work,
    so the others wait for the rank with the most, by the difference, or as long as they wait at all if that is less.
    Clocks need not agree. A rank is late if its own work takes longer than the median of the others, in the median
    step by 5 % of the step or more.
    """
    steps = min(len(rank.times) for rank in ranks)
    if any(wait is None for rank in ranks for wait in rank.exposed[:steps]):
        return []
    own = [[time - (wait or 0.0) for time, wait in zip(*rank, strict=True)] for rank in ranks]
    behind = [[_behind(own, place, step) for step in range(steps)] for place in range(len(ranks))]
    usual = [median(seconds) if steps else 0.0 for seconds in behind]
    late = max(range(len(ranks)), key=usual.__getitem__)
    named = steps > 0 and usual[late] >= WORTH * median(time for rank in ranks for time in rank.times[:steps])
    found = []
    for step in range(steps):
        most = max(work[step] for work in own)
        waiting = tuple(
            min(most - work[step], rank.exposed[step] or 0.0) for work, rank in zip(own, ranks, strict=True)
        )
        found.append(Lateness(waiting, late, behind[late][step]) if named else Lateness(waiting))
    return found


def _behind(own: Sequence[Sequence[float]], place: int, step: int) -> float:
    """Seconds by which a rank's own work takes longer than the median of the others."""
    others = [work[step] for other, work in enumerate(own) if other != place]
    return own[place][step] - median(others) if others else 0.0
