"""The steps of a trace that are used, and the usual ones, which represent its job in every command.

The latter are those in which the rank that sets the pace sent what it did in most, and of these the third in the middle
by time, in the mean over the ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import fmean

from osfmodel.entities.display import show_time
from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import NO_GPU, Source, imported
from osfmodel.entities.trace import Step, Trace

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
