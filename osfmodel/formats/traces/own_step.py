"""Whether what a trace holds gives its own step: workload, buckets and costs of the trace, put together again."""

from __future__ import annotations

from osfmodel.engine import predict_timeline
from osfmodel.errors import OsfError
from osfmodel.pricing import pricing_of
from osfmodel.trace.buckets import exposed_others
from osfmodel.trace.nouns import cluster_of, measurement_of, plan_of, workload_of
from osfmodel.trace.record import Trace
from osfmodel.trace.usual import unsteady, usual_step
from osfmodel.units import show_time

OFF = 0.05
"""A step that is put together again is said to be off where it differs by a larger part."""
OTHERS = 0.01
"""Part of a step from which on collectives that a workload has as computation are told."""


def own_step(trace: Trace) -> float | None:
    """Seconds of an iteration of the parts of ``trace``; None where one of them is missing."""
    try:
        workload = workload_of(trace)
        pricing = pricing_of(cluster_of(trace), trace.workers or 1)
        return predict_timeline(workload, plan_of(trace, workload), pricing).iteration_time
    except OsfError:
        return None  # what is missing is said where that part is asked for


def cautions(trace: Trace) -> tuple[str, ...]:
    """A sentence on each reason to take what is made of ``trace`` with care, beside what it lacks (its remarks)."""
    return *unsteady(trace), *doubts(trace), *_others(trace)


def doubts(trace: Trace) -> tuple[str, ...]:
    """A sentence where the parts give another step than was measured (the median), else none."""
    again = own_step(trace)
    measured = 0.0 if again is None else measurement_of(trace).iteration_time
    if again is None or not measured or abs(again / measured - 1) <= OFF:
        return ()
    return (
        f"put together again, the step is off by {again / measured - 1:+.0%}: take predictions from it as rough; "
        "osf explain says where its time went",
    )


def _others(trace: Trace) -> tuple[str, ...]:
    """A sentence where collectives of which a workload knows nothing keep the device waiting, else none."""
    step = usual_step(trace)
    other = exposed_others(step)
    if other < OTHERS * step.time:
        return ()
    return (
        f"{show_time(other)} of a step are spent in collectives that are no all-reduces of gradients, beside no "
        "computation: the workload has them as such, whatever the network and the number of workers",
    )
