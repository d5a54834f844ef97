"""Curves over the number of workers and over bucket size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from osfmodel.cost import worker_counts
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import OsfError
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import within
from osfmodel.entities.workload import Workload
from osfmodel.planning.report import Scaling, ScalingLine, SizeCurve
from osfmodel.planning.results import Comparison
from osfmodel.solve.caps import in_elements
from osfmodel.targets import CONFIG_TARGETS, Target

FURTHER = 4
"""Largest worker count of a default curve, as a multiple of the report's."""
CAPS = 96
"""Number of bucket sizes of a curve, evenly spaced over the logarithm."""
CLOCKED_CAPS = 32
"""Number of bucket sizes for a framework with a clock, whose loop is simulated for each."""
SMALLEST_PART = 1 / 4096
"""Minimum bucket size of a curve, as a fraction of all gradients, unless the largest tensor is smaller still."""


def counts_around(cluster: Cluster, workers: int) -> tuple[int, ...]:
    """Worker counts for a curve: those that ``cluster`` was measured with, else powers of two up to 4 x ``workers``.

    One worker is included if there would be only one point.
    """
    found = {workers, *worker_counts(cluster)}
    if not worker_counts(cluster):
        found |= {2**power for power in range(1, (FURTHER * workers).bit_length())}
    return tuple(sorted(found if len(found) > 1 else {1, *found}))


def scaling(compared: Callable[[int], Comparison], counts: Sequence[int], chosen: int) -> Scaling:
    """Scaling curves from the comparison at each count; counts that cannot be priced are left out.

    Raises OsfError if ``chosen`` itself cannot be priced.
    """
    rows = []
    for count in counts:
        try:
            rows.append(compared(count))
        except OsfError:
            if count == chosen:
                raise
    lines = [
        ScalingLine(one.name, tuple(row.predictions[place].scaling_factor for row in rows),
             tuple(row.predictions[place].iteration_time for row in rows))
        for place, one in enumerate(rows[0].predictions)
    ]  # fmt: skip
    bounds = tuple(row.predictions[0].alone / row.predictions[0].lower_bound for row in rows)
    return Scaling(tuple(row.workers for row in rows), tuple(lines), bounds, chosen)


def size_curve(comparison: Comparison, target: str) -> SizeCurve | None:
    """Iteration time of a framework at each of many bucket size limits, with its default in ``comparison``.

    None if it has no such setting, or there is nothing to send.
    """
    framework, workload, default = CONFIG_TARGETS[target], comparison.workload, comparison.predictions[0]
    knob, gradients = framework.size, workload.gradients
    if knob is None or not gradients or not workload.gradient_bytes:
        return None
    pricing = pricing_of(comparison.cluster, comparison.workers, workload).for_rules(
        framework.objective, framework.executor
    )
    sizes = in_elements(gradients).sizes if knob.elements else gradients.held_sizes
    caps = _caps(sizes, CLOCKED_CAPS if framework.clock else CAPS, knob.best(workload, pricing.cost()))
    timed = _Timed(workload, pricing, framework)
    rows = [timed(knob.knobs(cap)) for cap in caps]
    times = tuple(time for time, _ in rows)
    best = max(place for place, time in enumerate(times) if time <= within(min(times)))
    counts = tuple(count for _, count in rows)
    bound = default.lower_bound
    return SizeCurve(target, knob.name, knob.elements, caps, times, counts, best, default.iteration_time, bound)


class _Timed:
    """Iteration time and number of buckets for knobs; each plan is timed once, since many limits form the same."""

    def __init__(self, workload: Workload, pricing: Pricing, target: Target) -> None:
        self.workload, self.pricing, self.target = workload, pricing, target
        self.known: dict[Plan, float] = {}

    def __call__(self, knobs: Any) -> tuple[float, int]:
        plan = self.target.convert.to_plan(knobs, self.workload, self.pricing)
        if plan not in self.known:
            self.known[plan] = predict_timeline(self.workload, plan, self.pricing).iteration_time
        return self.known[plan], len(plan.buckets)


def _caps(sizes: Sequence[int], count: int, also: int | None) -> tuple[int, ...]:
    """``count`` limits, from the largest tensor or 1/4096 of all gradients, whichever is less, up to all of them."""
    whole = sum(sizes)
    least = max(min(max(sizes), int(whole * SMALLEST_PART)), 1)
    steps = [least * (whole / least) ** (number / (count - 1)) for number in range(count)]
    found = [round(step) for step in steps] + ([] if also is None else [also])
    return tuple(sorted({min(max(cap, 1), whole) for cap in found}))
