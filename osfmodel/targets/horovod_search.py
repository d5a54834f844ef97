"""The best fusion threshold and cycle time of Horovod's loop.

While the loop is followed it is noted which larger threshold would first have let it fuse anything more. Below that one
nothing changes, so that walking from one to the next tries every grouping that there is for a cycle time; where there
are too many, those that are close together are passed over, which the result says. The cycle time is searched on a
grid, and around its best by golden section: what it decides has no such steps. Several cases at once (worker counts, or
how far the host runs ahead) are judged by the worst of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from osfmodel.engine.horovod_loop import DEFAULT_CYCLE, DEFAULT_THRESHOLD, Loop, LoopIteration, steady_iteration
from osfmodel.entities.units import MIB
from osfmodel.solve.solution import Case, Limits

CYCLES = (0.0005, DEFAULT_CYCLE, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The grid, seconds: half the default up to the 100 ms at which Horovod's own tuner stops."""
NARROWINGS = 6
"""Steps of the golden section around the best of the grid."""
WALKED = 400
"""Thresholds that are walked over, about, with one case, and fewer with several: where there are more, those that are
close together are passed over."""
LEAST_WALKED = 60
FOLLOWED = 8
"""Iterations that are followed for each."""
ROUNDING = 1e-9
"""Relative difference below which two values are the same."""
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class BestSettings:
    """The best found. ``value``: its worst slow-down against the best of a case, as a factor.

    ``exhaustive``: whether all thresholds were tried at a cycle time.
    """

    loop: Loop
    value: float
    exhaustive: bool


def best_settings(cases: Sequence[Case], limits: Limits = Limits(), start: Loop = Loop()) -> BestSettings | None:
    """The threshold and cycle whose worst case is best; all else as in ``start``. None where none keeps the limits."""
    search = _Grid(cases, limits, start)
    total = max(case.workload.gradient_bytes for case in cases)
    grid = [(search(threshold, cycle), threshold, cycle) for cycle in CYCLES for threshold in _coarse(total)]
    value, threshold, cycle = min(grid, key=lambda row: row[0])
    cycle = search.around(threshold, cycle)
    walked, exhaustive = search.walk(cycle, total)
    # Where some were passed over, the best of the grid may be among them.
    threshold = min(walked, threshold, key=lambda each: search(each, cycle))
    cycle = search.around(threshold, cycle)
    value = search(threshold, cycle)
    if value == inf:
        return None
    return BestSettings(replace(start, threshold=threshold, cycle=cycle), value, exhaustive)


def _coarse(total: int) -> list[int]:
    """Thresholds to begin with: nothing fused, powers of two, all fused."""
    return [0, *(1 << k for k in range(18, 30) if 1 << k < total), DEFAULT_THRESHOLD]


class _Grid:
    """Values by (threshold, cycle), each found once."""

    def __init__(self, cases: Sequence[Case], limits: Limits, start: Loop) -> None:
        self.cases, self.limits, self.start = list(cases), limits, start
        self.best = inf
        self.known: dict[tuple[int, float], tuple[float, int | None]] = {}

    def __call__(self, threshold: int, cycle: float) -> float:
        return self._found(threshold, cycle)[0]

    def _found(self, threshold: int, cycle: float) -> tuple[float, int | None]:
        """The value, and the next threshold at which it may change.

        Cases are left out once one is worse than the best value known: no threshold below the next of that one helps.
        """
        key = threshold, cycle
        if key not in self.known:
            loop = replace(self.start, threshold=threshold, cycle=cycle)
            value = 0.0
            steps: list[int] = []
            for place, case in enumerate(self.cases):
                found = steady_iteration(loop, case.workload, case.pricing, FOLLOWED)
                value = max(value, self._value(case, found))
                steps = [step for step in (*steps, found.next_threshold) if step is not None]
                if value > self.best:
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

    def walk(self, cycle: float, total: int) -> tuple[int, bool]:
        """The best threshold at this cycle time, a round number where one does the same; whether all were tried."""
        most = max(LEAST_WALKED, WALKED // len(self.cases))
        best, threshold, exhaustive, least = (inf, 0, 0), 0, True, total // most
        start = len(self.known)
        while True:
            value, following = self._found(threshold, cycle)
            if value < best[0] * (1 - ROUNDING):
                best = value, threshold, total + 1 if following is None else following
            if following is None:
                return _round(best[1], best[2]), exhaustive
            exhaustive = exhaustive and len(self.known) - start < most
            threshold = following if exhaustive else max(following, threshold + least)

    def around(self, threshold: int, cycle: float) -> float:
        """The best cycle time between the neighbours of ``cycle`` on the grid."""
        below = max((c for c in CYCLES if c < cycle), default=cycle)
        above = min((c for c in CYCLES if c > cycle), default=cycle)
        found = golden(lambda seconds: self(threshold, round(seconds, 6)), below, above)
        tries = [cycle, round(found, 6)]
        return min(tries, key=lambda seconds: self(threshold, seconds))


def golden(value: Callable[[float], float], low: float, high: float) -> float:
    """The best of the points that a golden section between ``low`` and ``high`` looks at."""
    points = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    values = [value(point) for point in points]
    seen = dict(zip(points, values, strict=True))
    for _ in range(NARROWINGS):
        if values[0] <= values[1]:
            high, points[1], values[1] = points[1], points[0], values[0]
            points[0] = high - GOLDEN * (high - low)
            values[0] = seen[points[0]] = value(points[0])
        else:
            low, points[0], values[0] = points[0], points[1], values[1]
            points[1] = low + GOLDEN * (high - low)
            values[1] = seen[points[1]] = value(points[1])
    return min(seen, key=seen.__getitem__)


def _round(low: int, above: int) -> int:
    """The roundest threshold that does what ``low`` does: whole MiB, whole KiB, or as it is."""
    for unit in (MIB, 1024):
        rounded = -(-low // unit) * unit
        if low <= rounded < above:
            return rounded
    return low
