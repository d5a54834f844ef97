"""The best fusion threshold and cycle time of Horovod's loop.

Each simulation of the loop notes the next larger threshold that would have let it fuse more. Below that one
nothing changes, so that walking from one to the next tries every grouping that there is for a cycle time; if there
are too many, those that are close together are skipped, which the result says. The cycle time is searched on a
grid, and around its best by golden section: its effect has no such steps. Several cases at once (worker counts, or
how far the host runs ahead) are judged by the worst of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter

from osfmodel.cost.shapes import serial
from osfmodel.engine.horovod_loop import (
    ATOMIC_UNIT,
    DEFAULT_CYCLE,
    DEFAULT_THRESHOLD,
    SAME,
    Loop,
    LoopIteration,
    channels,
    padded,
    steady_iteration,
)
from osfmodel.entities.rounding import just_below, least, within
from osfmodel.entities.units import MIB
from osfmodel.solve.solution import Case, Limits

CYCLES = (0.0005, DEFAULT_CYCLE, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Cycle times of the grid, in seconds: half the default up to the 100 ms at which Horovod's own tuner stops."""
NARROWINGS = 6
"""Steps of golden section around the best of the grid."""
WALKED = 400
"""Maximum number of thresholds to try, roughly, with one case; fewer with several. If there are more, those that are
close together are skipped."""
LEAST_WALKED = 60
SIMULATED = 8
"""Simulated iterations for each threshold."""
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class BestSettings:
    """The best settings found. ``value``: their worst slow-down against the best of a case, as a factor.

    ``exhaustive``: whether all thresholds were tried at a cycle time.
    """

    loop: Loop
    value: float
    exhaustive: bool


def best_settings(cases: Sequence[Case], limits: Limits = Limits()) -> BestSettings | None:
    """The threshold and cycle whose worst case is best; all else by default. None if none keeps the limits."""
    search = _Grid(cases, limits)
    total = max(case.workload.gradient_bytes for case in cases)
    for threshold in reversed(_coarse(total)):  # large ones take less time, and rule out small ones by their messages
        for cycle in CYCLES:
            search(threshold, cycle)
    grid = [(search(threshold, cycle), threshold, cycle) for cycle in CYCLES for threshold in _coarse(total)]
    value, threshold, cycle = least(grid, itemgetter(0), tie=SAME)
    cycle = search.around(threshold, cycle)
    walked, exhaustive = search.walk(cycle, total)
    # Where some were passed over, the best of the grid may be among them.
    threshold = least((walked, threshold), lambda each: search(each, cycle), tie=SAME)
    cycle = search.around(threshold, cycle)
    value = search(threshold, cycle)
    if value == inf:
        return None
    return BestSettings(Loop(threshold, cycle), value, exhaustive)


def _coarse(total: int) -> list[int]:
    """Thresholds to start with: nothing fused, powers of two, all fused."""
    return [0, *(1 << k for k in range(18, 30) if 1 << k < total), DEFAULT_THRESHOLD]


class _Grid:
    """Values by (threshold, cycle), each computed once."""

    def __init__(self, cases: Sequence[Case], limits: Limits) -> None:
        self.cases, self.limits = list(cases), limits
        self.best = inf
        self.floors: dict[int, float] = {}
        self.known: dict[tuple[int, float], tuple[float, int | None]] = {}

    def __call__(self, threshold: int, cycle: float) -> float:
        return self._found(threshold, cycle)[0]

    def _found(self, threshold: int, cycle: float) -> tuple[float, int | None]:
        """The value, and the next threshold at which it may change.

        Cases are skipped once one is worse than the best value known: no threshold below the next of that one helps.
        """
        key = threshold, cycle
        if key not in self.known and self._floor(threshold) > within(self.best, SAME):
            return inf, None
        if key not in self.known:
            loop = Loop(threshold, cycle)
            value = 0.0
            steps: list[int] = []
            for place, case in enumerate(self.cases):
                found = steady_iteration(loop, case.workload, case.pricing, SIMULATED)
                value = max(value, self._value(case, found))
                steps = [step for step in (*steps, found.next_threshold) if step is not None]
                if value > within(self.best, SAME):
                    steps = [] if found.next_threshold is None else [found.next_threshold]
                    self.cases.insert(0, self.cases.pop(place))  # it is likely to be the worst again
                    break
            self.best = min(self.best, value)
            self.known[key] = value, min(steps, default=None)
        return self.known[key]

    def _value(self, case: Case, found: LoopIteration) -> float:
        return found.iteration_time / case.best if self._within(case, found) else inf

    def _within(self, case: Case, found: LoopIteration) -> bool:
        most, most_bytes = self.limits.max_buckets, self.limits.max_bucket_bytes
        sizes = case.workload.gradients.sizes
        few = most is None or len(found.batches) <= most
        return few and (
            most_bytes is None or all(sum(sizes[i] for i in batch) <= most_bytes for batch in found.batches)
        )

    def hopeful(self, threshold: int) -> int:
        """The least threshold from ``threshold`` on whose batches alone do not take longer than the best value known.

        Larger batches bring it down: a batch holds no more than the threshold, or is a tensor.
        """
        low, high = threshold, max(threshold, *(case.workload.gradient_bytes for case in self.cases))
        if self._floor(low) <= within(self.best, SAME):
            return low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._floor(middle) <= within(self.best, SAME) else (middle, high)
        return high

    def _floor(self, threshold: int) -> float:
        """A lower bound of the value at a threshold, whatever the cycle time."""
        if threshold not in self.floors:
            self.floors[threshold] = max(self._alone(case, threshold) / case.best for case in self.cases)
        return self.floors[threshold]

    def _alone(self, case: Case, threshold: int) -> float:
        """Seconds until a case's batches at a threshold have been sent one after the other, and the update."""
        workload, pricing = case.pricing.loaded(case.workload)
        gradients = workload.gradients
        if not gradients or channels(Loop(), pricing) > 1:
            return 0
        most = max(padded(threshold, ATOMIC_UNIT * pricing.per_host), *gradients.sizes)
        sent = serial(pricing.cost(), most)(sum(gradients.sizes))
        return gradients.ready_times[0] + sent + workload.update_time

    def walk(self, cycle: float, total: int) -> tuple[int, bool]:
        """The best threshold at this cycle time, rounded if that changes nothing; and whether all were tried."""
        most = max(LEAST_WALKED, WALKED // len(self.cases))
        best, threshold, exhaustive, step = (inf, 0, 0), 0, True, total // most
        start = len(self.known)
        while True:
            threshold = self.hopeful(threshold)
            value, following = self._found(threshold, cycle)
            if value < just_below(best[0], SAME):
                best = value, threshold, total + 1 if following is None else following
            if following is None:
                return _round(best[1], best[2]), exhaustive
            exhaustive = exhaustive and len(self.known) - start < most
            threshold = following if exhaustive else max(following, threshold + step)

    def around(self, threshold: int, cycle: float) -> float:
        """The best cycle time between the neighbours of ``cycle`` on the grid."""
        below = max((c for c in CYCLES if c < cycle), default=cycle)
        above = min((c for c in CYCLES if c > cycle), default=cycle)
        found = golden(lambda seconds: self(threshold, round(seconds, 6)), below, above)
        tries = [cycle, round(found, 6)]
        return least(tries, lambda seconds: self(threshold, seconds), tie=SAME)


def golden(value: Callable[[float], float], low: float, high: float) -> float:
    """The best of the points that golden section between ``low`` and ``high`` tries."""
    points = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    values = [value(point) for point in points]
    seen = dict(zip(points, values, strict=True))
    for _ in range(NARROWINGS):
        if values[0] <= within(values[1], SAME):
            high, points[1], values[1] = points[1], points[0], values[0]
            points[0] = high - GOLDEN * (high - low)
            values[0] = seen[points[0]] = value(points[0])
        else:
            low, points[0], values[0] = points[0], points[1], values[1]
            points[1] = low + GOLDEN * (high - low)
            values[1] = seen[points[1]] = value(points[1])
    return least(seen, seen.__getitem__, tie=SAME)


def _round(low: int, above: int) -> int:
    """The roundest threshold with the same effect as ``low``: whole MiB, whole KiB, or ``low`` itself."""
    for unit in (MIB, 1024):
        rounded = -(-low // unit) * unit
        if low <= rounded < above:
            return rounded
    return low
