"""Read a profiler's trace for a comparison: its steps, causes, collectives by process group, and modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from osfmodel.diagnosis.comparing.readings import CollectiveUse, Reading, Timed, modules_of
from osfmodel.diagnosis.comparing.statistics import StepSeries
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.diagnosis.explanation import COMPUTE, UNEXPLAINED, Explanation
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import OsfError
from osfmodel.entities.intervals import common, length, without
from osfmodel.entities.trace import Step, Trace
from osfmodel.formats.traces.entities import workload_of
from osfmodel.formats.traces.usual import step_times, usual_steps, with_shared_steps

STEP = "step"
"""Name of the step of a job that has no other."""


def trace_reading(trace: Trace, name: str) -> Reading:
    """The steps of a job, in the mean over its ranks; its causes and collectives are those of usual steps.

    Raises DataError as ``explain_trace``.
    """
    trace = with_shared_steps(trace)
    found = explain_trace(trace)
    times = step_times(trace)
    series = StepSeries(tuple(times[number] for number in sorted(times)))
    return Reading(
        name,
        "trace",
        (Timed(STEP, (series,), parts=parts_of_step(found)),),
        collectives=tuple(_collectives(found)),
        modules=_modules(trace),
        facts=_facts(trace, found),
    )


def parts_of_step(one: Explanation) -> dict[str, float]:
    """Seconds of a usual step by cause, computation that is left, and what the replay misses; they add up to it."""
    return {**one.gains, COMPUTE: one.left, UNEXPLAINED: one.missed}


def _collectives(found: Explanation) -> Iterator[CollectiveUse]:
    """The collectives of each kind and process group in a usual step, as an explanation has them."""
    for row in found.collectives:
        kind = row.kind if row.backward is None else f"{row.kind}, {'backward' if row.backward else 'forward'}"
        yield CollectiveUse(kind, row.group, row.size or 0, row.count, row.bytes, row.transfer, row.bandwidth)


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
