"""Several traces of one rank: the cycles of a profiler's schedule, which are further steps of the same job.

``schedule(repeat=N)`` writes a file for each cycle. A rank's files are of one process and follow each other in time
and in the numbers of their steps; two runs in one folder do not, since each counts its steps from 0. The cycles of all
ranks are matched by order. Between them clocks of hosts drift, so that each cycle is brought to one clock by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from osfmodel.entities.errors import DataError
from osfmodel.entities.records import dataclass, replace
from osfmodel.entities.trace import RankTrace, Step

REMEDY = "name the files of one run, the same number for each rank: a folder may hold several jobs"


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that wrote a file.

    process:   its number and its host's name, as far as the file says; "" if it has no number
    annotated: whether it numbered the steps itself
    """

    process: str
    annotated: bool


def places_of(files: Sequence[RankTrace], writers: Sequence[Writer]) -> list[int]:
    """The index of the process that wrote each file, in the order of the files.

    Files of one process do not overlap in time. Processes of one name may be several: in containers all are number 1.
    """
    named: dict[str, list[int]] = {}
    for place in sorted(range(len(files)), key=lambda place: files[place].steps[0].start):
        named.setdefault(writers[place].process, []).append(place)
    several = {
        name for name, places in named.items() if not all(_later(files[a], files[b]) for a, b in pairwise(places))
    }
    keys = [
        place if writer.process in several or not writer.process else writer.process
        for place, writer in enumerate(writers)
    ]
    known = list(dict.fromkeys(keys))
    return [known.index(key) for key in keys]


def require_different(files: Sequence[RankTrace]) -> None:
    """Raise DataError, naming both, if two files are the same trace, such as packed and unpacked."""
    seen: dict[tuple[tuple[int, float, float], ...], list[RankTrace]] = {}
    for file in files:
        alike = seen.setdefault(tuple((step.number, step.start, step.end) for step in file.steps), [])
        for other in alike:
            if other.steps == file.steps and (other.rank == file.rank or other.checksum == file.checksum):
                raise DataError(f"{other.file} and {file.file} are the same trace twice: leave one out")
        alike.append(file)


def cycles_of(files: Sequence[RankTrace], writers: Sequence[Writer]) -> list[list[int]]:
    """Indices of the files of each cycle in order of time, ranks ascending; one cycle if each rank has one file.

    Raises DataError, naming both files, where two of a rank are not cycles of one run, and where the ranks do not have
    the same cycles.
    """
    by_rank: dict[int, list[int]] = {}
    for place in sorted(range(len(files)), key=lambda place: (files[place].rank, files[place].steps[0].start)):
        by_rank.setdefault(files[place].rank, []).append(place)
    for places in by_rank.values():
        for before, after in pairwise(places):
            _require_following(files[before], files[after], writers[before], writers[after])
    mine, *others = by_rank.values()
    for theirs in others:
        _require_matching([files[place] for place in mine], [files[place] for place in theirs])
    return [list(cycle) for cycle in zip(*by_rank.values(), strict=True)]


def _require_following(before: RankTrace, after: RankTrace, first: Writer, second: Writer) -> None:
    both = f"{before.file} and {after.file} are both of rank {after.rank}, and"
    one_process = first.process == second.process
    if one_process and not (first.annotated and second.annotated):
        bare = before.file if not first.annotated else after.file
        raise DataError(
            f"{both} {bare} has no annotated steps (ProfilerStep#N), which tell cycles of one schedule(repeat=...) "
            "from several runs: call the profiler's step() after each step, or give one file of each rank"
        )
    if not one_process or after.steps[0].number <= before.steps[-1].number or not _later(before, after):
        raise DataError(f"{both} not cycles of one schedule(repeat=...): {REMEDY}")


def _later(before: RankTrace, after: RankTrace) -> bool:
    """Whether the second was recorded after the first, whose last kernels may still have run at its start."""
    last = before.steps[-1]
    return after.steps[0].start >= (last.start + last.end) / 2


def _require_matching(mine: Sequence[RankTrace], theirs: Sequence[RankTrace]) -> None:
    if len(mine) != len(theirs):
        counts = " and ".join(f"rank {one[0].rank} has {len(one)}" for one in (mine, theirs))
        raise DataError(f"cycles of schedule(repeat=...) cannot be matched: {counts}: {REMEDY}")
    for one, other in zip(mine, theirs, strict=True) if len(mine) > 1 else ():  # of one cycle usual.py says it
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
    """Each rank with the steps of all its cycles, and remarks on them."""
    ranks = tuple(
        replace(parts[0], steps=tuple(s for part in parts for s in part.steps)) for parts in zip(*cycles, strict=True)
    )
    if len(cycles) == 1:
        return ranks, []
    spans = ", ".join(_span(cycle[0].steps) for cycle in cycles)
    return ranks, [f"{len(cycles)} cycles of the profiler's schedule are read as one trace, steps {spans}"]
