"""The steps of a trace that are used, and the usual ones, which represent its job in every command.

The latter are those in which the rank that sets the pace sent what it did in most, and of these the third in the middle
by time, in the mean over the ranks.

Several traces of one rank are the cycles of a profiler's schedule, further steps of the same job:
``schedule(repeat=N)`` writes a file for each. A rank's files are of one process and follow each other in time and in
the numbers of their steps; two runs in one folder do not, since each counts its steps from 0. The cycles of all ranks
are matched by order. Between them clocks of hosts drift, so that each cycle is brought to one clock by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from osfmodel.entities.display import show_time
from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import NO_GPU, Source, imported
from osfmodel.entities.trace import RankTrace, Step, Trace

UNSTEADY = 0.1
"""Relative difference of mean step times from which steps are reported as unsteady."""


def alike_steps(trace: Trace) -> list[Step]:
    """The steps of the rank that sets the pace with the same messages as most. Raises DataError if it has none."""
    steps = trace.pace.steps
    if not steps:
        raise DataError(f"rank {trace.pace.rank} of the trace {trace.name!r} has no complete step")
    shapes = [_shape(step) for step in steps]
    usual = Counter(shapes).most_common(1)[0][0]
    return [step for step, shape in zip(steps, shapes, strict=True) if shape == usual]


def with_steps(trace: Trace, wanted: Collection[int]) -> Trace:
    """``trace`` with only the steps of these numbers. Raises DataError if a rank has none of them."""
    known = wanted if isinstance(wanted, range) else frozenset(wanted)
    ranks = []
    for rank in trace.ranks:
        mine = tuple(step for step in rank.steps if step.number in known)
        if not mine:
            there = _numbers([step.number for step in rank.steps])
            asked = _from_to(wanted[0], wanted[-1]) if isinstance(wanted, range) else _numbers(sorted(wanted))
            raise DataError(f"the trace {trace.name!r}: rank {rank.rank} has no steps {asked}: it has {there}")
        ranks.append(replace(rank, steps=mine))
    return replace(trace, ranks=tuple(ranks))


def with_shared_steps(trace: Trace) -> Trace:
    """``trace`` with only the steps that all ranks have. Raises DataError if there are none."""
    shared = frozenset.intersection(*(frozenset(step.number for step in rank.steps) for rank in trace.ranks))
    if shared:
        return with_steps(trace, shared)
    has = ", ".join(f"rank {rank.rank} has {_numbers([step.number for step in rank.steps])}" for rank in trace.ranks)
    raise DataError(
        f"the trace {trace.name!r}: no step is on the record of all ranks: {has}: give the traces of one run, of the "
        "same steps"
    )


def _numbers(steps: Sequence[int]) -> str:
    """Step numbers in words: ``5..7`` if they are consecutive, else each."""
    if len(steps) > 1 and steps[-1] - steps[0] + 1 == len(steps):
        return _from_to(steps[0], steps[-1])
    return ", ".join(map(str, steps)) or "none"


def _from_to(first: int, last: int) -> str:
    return f"{first}..{last}" if last > first else str(first)


def usual_steps(trace: Trace) -> list[Step]:
    """The middle third by time of the alike steps, in order: their parts add up, and none is an outlier."""
    times = step_times(trace)
    alike = alike_steps(trace)
    cut = len(alike) // 3
    ordered = sorted(range(len(alike)), key=lambda place: times[alike[place].number])
    return [alike[place] for place in sorted(ordered[cut : len(alike) - cut])]


def step_times(trace: Trace) -> dict[int, float]:
    """Seconds of each step of the job, by number: the mean over the ranks that have it."""
    times: dict[int, list[float]] = {}
    for step in (step for rank in trace.ranks for step in rank.steps):
        times.setdefault(step.number, []).append(step.time)
    return {number: fmean(seconds) for number, seconds in times.items()}


def usual_step(trace: Trace) -> Step:
    """The usual step of median length, the first of equals."""
    times = step_times(trace)
    steps = sorted(usual_steps(trace), key=lambda step: (times[step.number], step.number))
    return steps[(len(steps) - 1) // 2]


def _shape(step: Step) -> tuple[object, ...]:
    gradients = tuple((one.elements, one.dtype) for one in step.gradients)
    return step.micro_batches, gradients, tuple((one.elements, one.dtype) for one in step.reductions)


def unsteady(trace: Trace) -> tuple[str, ...]:
    """A sentence if the usual steps do not represent all, or differ from each other; else none."""
    times = step_times(trace)
    time, average, least, most = _pace(trace)
    if abs(average - time) > UNSTEADY * time:
        worst = max(trace.pace.steps, key=lambda step: abs(times[step.number] - time)).number
        said = f"a usual one takes {show_time(time)}, the mean {show_time(average)}, step {worst} "
        return (f"steps differ: {said}{show_time(times[worst])}; --steps looks at some",)
    if most - least > UNSTEADY * time:
        said = f"those in the middle take from {show_time(least)} to {show_time(most)}"
        return (f"steps differ: {said}, so no single step time represents them; --steps chooses some",)
    return ()


def doubt(trace: Trace) -> float:
    """The part of a step by which its time is doubtful: how far unsteady steps lie apart, either way; else 0."""
    if not unsteady(trace):
        return 0.0
    time, average, least, most = _pace(trace)
    return round(max(abs(average - time), (most - least) / 2) / time, 3)


def _pace(trace: Trace) -> tuple[float, float, float, float]:
    """Seconds of a usual step and of the mean of all, and of the shortest and the longest of the usual ones."""
    times = step_times(trace)
    every = [times[step.number] for step in trace.pace.steps]
    usual = [times[step.number] for step in usual_steps(trace)]
    return fmean(usual), fmean(every), min(usual), max(usual)


def source_of(trace: Trace, said: str) -> Source:
    """The source of a noun of the trace; ``said`` is about that noun alone."""
    rank = trace.pace
    steps = usual_steps(trace)
    device = rank.device or "device not stated"
    who = f"rank {rank.rank}, {len(steps)} of {len(rank.steps)} steps" + (
        f", {steps[0].micro_batches} micro-batches" if steps[0].micro_batches > 1 else ""
    )
    backend = rank.backend or "no collectives"
    conditions = f"{device}, {backend}, {trace.workers or 1} workers; {who}, under the profiler; {said}"
    first = trace.ranks[0]
    source = imported(printable(first.file.rpartition("/")[2]), printable(conditions), first.checksum)
    return replace(source, gpu=NO_GPU if rank.device == "cpu" else printable(rank.device or source.gpu))


def printable(text: str) -> str:
    """The text with a question mark for each sign that cannot be printed."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


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
    for one, other in zip(mine, theirs, strict=True) if len(mine) > 1 else ():  # one cycle: with_shared_steps tells
        if not _step_numbers(one.steps) & _step_numbers(other.steps):
            raise DataError(
                f"cycles of schedule(repeat=...) cannot be matched: {one.file} has the steps {_span(one.steps)}, "
                f"{other.file} {_span(other.steps)}: {REMEDY}"
            )


def _step_numbers(steps: Sequence[Step]) -> set[int]:
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
