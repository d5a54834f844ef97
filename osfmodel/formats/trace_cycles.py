"""Several traces of one rank: the cycles of a profiler's schedule, which are further steps of the same job.

``schedule(repeat=N)`` writes a file for each cycle. Those of a rank are of one process and follow each other in time
and in the numbers of their steps; two runs in one folder do not, since each counts its steps from 0. The cycles of all
ranks are matched by order. Between them clocks of hosts drift, so that each cycle is brought to one clock by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from osfmodel.errors import DataError
from osfmodel.trace.record import RankTrace, Step

REMEDY = "give the files of one run by their names, of each rank as many: a folder may hold several jobs"


def cycles_of(files: Sequence[RankTrace], processes: Sequence[str]) -> list[list[int]]:
    """By cycle in order of time, the places of its files, ranks ascending; one cycle where each rank has one file.

    ``processes`` name what wrote each file, on its host. Raises DataError, naming both files, where two of a rank
    are not cycles of one run, and where the ranks do not have the same cycles.
    """
    by_rank: dict[int, list[int]] = {}
    for place in sorted(range(len(files)), key=lambda place: (files[place].rank, files[place].steps[0].start)):
        by_rank.setdefault(files[place].rank, []).append(place)
    for places in by_rank.values():
        for before, after in pairwise(places):
            _require_following(files[before], files[after], processes[before] == processes[after])
    mine, *others = by_rank.values()
    for theirs in others:
        _require_matching([files[place] for place in mine], [files[place] for place in theirs])
    return [list(cycle) for cycle in zip(*by_rank.values(), strict=True)]


def _require_following(before: RankTrace, after: RankTrace, one_process: bool) -> None:
    first, last = after.steps[0], before.steps[-1]
    if not one_process or first.number <= last.number or first.start < last.start:  # a last kernel may end later
        raise DataError(
            f"{before.file} and {after.file} are both of rank {after.rank}, and not cycles of one "
            f"schedule(repeat=...): {REMEDY}"
        )


def _require_matching(mine: Sequence[RankTrace], theirs: Sequence[RankTrace]) -> None:
    if len(mine) != len(theirs):
        counts = " and ".join(f"rank {one[0].rank} has {len(one)}" for one in (mine, theirs))
        raise DataError(f"cycles of schedule(repeat=...) cannot be matched: {counts}: {REMEDY}")
    for one, other in zip(mine, theirs, strict=True) if len(mine) > 1 else ():
        if not _numbers(one.steps) & _numbers(other.steps):
            raise DataError(
                f"cycles of schedule(repeat=...) cannot be matched: {one.file} has the steps {_span(one.steps)}, "
                f"{other.file} {_span(other.steps)}: {REMEDY}"
            )


def _numbers(steps: Sequence[Step]) -> set[int]:
    return {step.number for step in steps}


def _span(steps: Sequence[Step]) -> str:
    return f"{steps[0].number}..{steps[-1].number}"


def continued(cycles: Sequence[Sequence[RankTrace]]) -> tuple[tuple[RankTrace, ...], list[str]]:
    """Each rank with the steps of all its cycles, and what there is to say of it."""
    ranks = tuple(
        replace(parts[0], steps=tuple(s for part in parts for s in part.steps)) for parts in zip(*cycles, strict=True)
    )
    if len(cycles) == 1:
        return ranks, []
    spans = ", ".join(_span(cycle[0].steps) for cycle in cycles)
    return ranks, [f"{len(cycles)} cycles of the profiler's schedule are read as one trace, steps {spans}"]
