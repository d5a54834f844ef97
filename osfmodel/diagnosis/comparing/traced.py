"""Read a profiler's trace for a comparison: its steps, causes, collectives by process group, and modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean

from osfmodel.diagnosis.comparing.readings import CollectiveUse, Reading, Timed, bus_bandwidth, modules_of
from osfmodel.diagnosis.comparing.statistics import StepSeries
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.diagnosis.explanation import COMPUTE, Explanation
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import OsfError
from osfmodel.entities.intervals import common, length, without
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.trace import Collective, Step, Trace
from osfmodel.formats.traces.entities import workload_of
from osfmodel.formats.traces.usual import step_times, usual_steps, with_shared_steps

STEP = "step"
"""Name of the step of a job that has no other."""
UNEXPLAINED = "unexplained"
"""Name of the part of a step that the replay of a trace does not have."""


def trace_reading(trace: Trace, name: str) -> Reading:
    """The steps of a job, in the mean over its ranks; its causes and collectives are those of usual steps.

    Raises DataError as ``explain_trace``.
    """
    trace = with_shared_steps(trace)
    found = explain_trace(trace)
    times = step_times(trace)
    series = StepSeries(tuple(times[number] for number in sorted(times)))
    numbers = {step.number for step in usual_steps(trace)}
    return Reading(
        name,
        "trace",
        (Timed(STEP, (series,), parts=parts_of_step(found)),),
        collectives=tuple(_collectives(trace, numbers)),
        modules=_modules(trace),
        facts=_facts(trace, found),
    )


def parts_of_step(one: Explanation) -> dict[str, float]:
    """Seconds of a usual step by cause, computation that is left, and what the replay misses; they add up to it."""
    return {**one.gains, COMPUTE: one.left, UNEXPLAINED: one.missed}


def _collectives(trace: Trace, numbers: set[int]) -> Iterator[CollectiveUse]:
    """The collectives of each kind and process group in a usual step; times are means over the ranks in the group."""
    found: dict[tuple[str, str, int], list[list[Collective]]] = {}
    for rank in trace.ranks:
        for step in (step for step in rank.steps if step.number in numbers):
            for key, members in _by_group(step, trace.workers or 0):
                found.setdefault(key, []).append(members)
    for (kind, group, workers), steps in found.items():
        ones = [one for members in steps for one in members]
        sizes = [one.bytes for one in ones]
        size = None if None in sizes else sum(one or 0 for one in sizes) / len(steps)
        time = plain_sum(_seconds(one) for one in ones) / len(steps)
        bandwidth = bus_bandwidth(kind, workers, size, time)
        yield CollectiveUse(kind, group, workers, len(ones) / len(steps), size, time, bandwidth)


def _by_group(step: Step, workers: int) -> Iterable[tuple[tuple[str, str, int], list[Collective]]]:
    found: dict[tuple[str, str, int], list[Collective]] = {}
    for one in step.collectives:
        found.setdefault((one.kind, one.group, one.workers or workers), []).append(one)
    return found.items()


def _seconds(one: Collective) -> float:
    """Seconds in which all ranks were in it; all of it if the trace does not tell."""
    return one.end - one.start if one.transfer_time is None else one.transfer_time


def _modules(trace: Trace) -> dict[str, float]:
    """Seconds of computation by module; empty for a trace without named parameters or modules."""
    uses = _used(trace)
    if uses:
        return uses
    try:
        return modules_of(workload_of(trace))
    except OsfError:
        return {}


def _used(trace: Trace) -> dict[str, float]:
    """Seconds of computation in each group of sharded parameters, both passes: means over usual steps of one rank."""
    steps = usual_steps(trace)
    seconds: dict[str, float] = {}
    for step in steps:
        for module, time in computation_of_uses(step):
            seconds[module] = seconds.get(module, 0.0) + time / len(steps)
    return seconds


def computation_of_uses(step: Step) -> Iterator[tuple[str, float]]:
    """(module, seconds) of computation in each use of sharded parameters; inside several in that of the shortest."""
    left = step.compute
    for use in sorted(step.uses, key=lambda one: one.end - one.start):
        mine = ((use.start, use.end),)
        yield use.module or "root", length(common(left, mine))
        left = without(left, mine)


def _facts(trace: Trace, found: Explanation) -> Mapping[str, str]:
    sent = [row.bytes for row in found.buckets if row.gradients]
    sizes = [size for size in sent if size is not None]
    told = f", {show_bytes(sum(sizes))}, the largest {show_bytes(max(sizes))}" if sizes else ""
    pace = trace.pace
    return {
        "workers": str(found.workers),
        "ranks traced": str(len(trace.ranks)),
        "backend": pace.backend or "not stated",
        "device": pace.device or "not stated",
        "gradient buckets": f"{len(sent)}{told}",
        "micro-batches": f"{fmean(step.micro_batches for step in usual_steps(trace)):g}",
    }
