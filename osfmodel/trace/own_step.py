"""Whether what a trace holds gives its own step: workload, buckets and costs of the trace, put together again."""

from __future__ import annotations

from osfmodel.engine import predict_timeline
from osfmodel.errors import OsfError
from osfmodel.pricing import pricing_of
from osfmodel.trace.nouns import cluster_of, measurement_of, plan_of, workload_of
from osfmodel.trace.record import Trace

OFF = 0.05
"""A step that is put together again is said to be off where it differs by a larger part."""


def own_step(trace: Trace) -> float | None:
    """Seconds of an iteration of the parts of ``trace``; None where one of them is missing."""
    try:
        workload = workload_of(trace)
        pricing = pricing_of(cluster_of(trace), trace.workers or 1)
        return predict_timeline(workload, plan_of(trace, workload), pricing).iteration_time
    except OsfError:
        return None  # what is missing is said where that part is asked for


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
