"""What changes with the number of workers and with the bucket size: curves, with the points that matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from osfmodel.cluster import Cluster
from osfmodel.cost import worker_counts
from osfmodel.engine import predict_timeline
from osfmodel.errors import OsfError
from osfmodel.predict import Comparison, predict
from osfmodel.pricing import Pricing, pricing_of
from osfmodel.solve.caps import best_cap
from osfmodel.targets import ddp
from osfmodel.workload import Workload

FURTHER = 4
"""A curve without counts of its own goes up to so many times the workers of the report."""
CAPS = 96
"""Bucket sizes in a sweep, evenly spread over the logarithm."""
SMALLEST_PART = 1 / 4096
"""The smallest of them, as a part of all gradients, where no tensor is larger."""


@dataclass(frozen=True, slots=True)
class Line:
    """The scaling factor of one plan at each worker count, and its iteration time in seconds."""

    name: str
    factors: tuple[float, ...]
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Workers against scaling factor (compute time / iteration time); times that is the speed-up.

    bounds: what no schedule can pass under the rules of the first plan, as scaling factors
    chosen: the worker count that the report is about
    """

    counts: tuple[int, ...]
    lines: tuple[Line, ...]
    bounds: tuple[float, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """One limit for all buckets (bytes) against iteration time (seconds), and what DDP does without being asked.

    best:    place in ``caps`` of the limit that is fastest, the largest where several are
    default: iteration time with DDP's default limits
    bound:   what no schedule can beat under DDP's rules
    """

    caps: tuple[int, ...]
    times: tuple[float, ...]
    buckets: tuple[int, ...]
    best: int
    default: float
    bound: float

    @property
    def best_cap(self) -> int:
        """Bytes."""
        return self.caps[self.best]

    @property
    def best_time(self) -> float:
        """Seconds."""
        return self.times[self.best]


def counts_around(cluster: Cluster, workers: int) -> tuple[int, ...]:
    """Worker counts for a curve: those that ``cluster`` was measured with, else doublings up to 4 times ``workers``.

    One worker alone is among them where there would be one point only.
    """
    found = {workers, *worker_counts(cluster)}
    if not worker_counts(cluster):
        found |= {2**power for power in range(1, (FURTHER * workers).bit_length())}
    return tuple(sorted(found if len(found) > 1 else {1, *found}))


def scaling(compared: Callable[[int], Comparison], counts: Sequence[int], chosen: int) -> Scaling:
    """The curves of what is ``compared`` at each count; those that cannot be priced are left out, but for ``chosen``.

    Raises OsfError for that.
    """
    rows = []
    for count in counts:
        try:
            rows.append(compared(count))
        except OsfError:
            if count == chosen:
                raise
    lines = [
        Line(one.name, tuple(row.predictions[place].scaling_factor for row in rows),
             tuple(row.predictions[place].iteration_time for row in rows))
        for place, one in enumerate(rows[0].predictions)
    ]  # fmt: skip
    bounds = tuple(row.predictions[0].alone / row.predictions[0].lower_bound for row in rows)
    return Scaling(tuple(row.workers for row in rows), tuple(lines), bounds, chosen)


def sweep(workload: Workload, cluster: Cluster, workers: int) -> Sweep | None:
    """DDP with one limit after the other, timed by the engine; None where there is nothing to send."""
    gradients = workload.gradients
    if not gradients or not workload.gradient_bytes:
        return None
    pricing = pricing_of(cluster, workers)
    caps = _caps(workload, best_cap(workload, pricing.cost()))
    timed = _Timed(workload, pricing)
    rows = [timed((cap,)) for cap in caps]
    times = tuple(time for time, _ in rows)
    best = max(place for place, time in enumerate(times) if time <= min(times) * (1 + 1e-12))
    default = predict(workload, cluster, "ddp", workers)
    return Sweep(caps, times, tuple(count for _, count in rows), best, default.iteration_time, default.lower_bound)


class _Timed:
    """(Iteration time, buckets) of limits; each plan is timed once, since many limits form the same."""

    def __init__(self, workload: Workload, pricing: Pricing) -> None:
        self.workload, self.pricing = workload, pricing
        self.known: dict[object, float] = {}

    def __call__(self, limits: tuple[int, ...]) -> tuple[float, int]:
        plan = ddp.realise(ddp.DdpKnobs(limits), self.workload)
        if plan not in self.known:
            self.known[plan] = predict_timeline(self.workload, plan, self.pricing).iteration_time
        return self.known[plan], len(plan.buckets)


def _caps(workload: Workload, also: int) -> tuple[int, ...]:
    """From the largest tensor or 1/4096 of all bytes, whichever is less, up to all bytes."""
    whole = workload.gradient_bytes
    least = max(min(max(workload.gradients.sizes), int(whole * SMALLEST_PART)), 1)
    steps = [least * (whole / least) ** (number / (CAPS - 1)) for number in range(CAPS)]
    return tuple(sorted({*(min(max(round(step), 1), whole) for step in steps), min(max(also, 1), whole)}))
