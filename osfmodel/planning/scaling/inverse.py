"""The search for answers to inverse questions: which number of GPUs, network, batch or machine meets a goal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osfmodel.cost.clusters import strided
from osfmodel.cost.faster_network import SAME, Change, faster_network
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import OsfError, UsageError
from osfmodel.entities.workload import Workload
from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint
from osfmodel.planning.scaling.goals import (
    ENDS,
    MOST_MICRO_BATCHES,
    UNPRICED,
    Answer,
    Cheapest,
    Goal,
    Goals,
    Machine,
    training_cost,
)
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask, scale
from osfmodel.planning.scaling.strategies import StrategyRow, possible
from osfmodel.solve.verdicts import NO

WIDEST = 1024.0
"""Largest factor, either way, by which the network's bandwidth is changed."""
NARROW = 1.02
"""Ratio of two bandwidths that are not told apart."""
STEADY = 16
"""Micro-batches from which on each further one is taken to add as much time as those before it, on average of half of
them; all steps of fewer are predicted."""
MOST_SAMPLES = 4096
"""Largest micro-batch that is tried."""


def answers(curve: ScaleCurve, options: ScaleOptions, goals: Goals) -> list[Answer]:
    """The answers to all goals on the points of ``curve``, which was made with ``options``.

    Numbers of workers are those of the curve. Bandwidth, accumulation and the batch are searched for at the largest of
    them, each alone; the batch where it is known how times grow with it. Raises UsageError for a goal that needs a
    figure that is not known.
    """
    found = []
    options = replace(options, anchor=None)
    for goal in goals.each():
        told = curve if goal.doubt or not curve.workload.doubt else _undoubted(curve, options)
        values = {end: _workers(told, goal, end) for end in ENDS}
        found.append(Answer(goal.words, "workers", None, values, _banded(told.points)))
        at = _At(told, options, goal)
        found.append(at.answer("bandwidth", at.bandwidth))
        if options.what_if.global_batch is None and goal.larger:
            found.append(at.answer("accumulate", at.accumulated))
            if curve.workload.fixed_share is not None:
                found.append(at.answer("batch", at.batch))
    return found


def cheapest(curves: Sequence[ScaleCurve], goals: Goals) -> list[Cheapest]:
    """The cheapest point of all curves that meets each goal. Raises UsageError without a price for each."""
    if any(point.cost_per_hour is None for curve in curves for point in curve.points):
        raise UsageError(UNPRICED)
    hourly = any(point.cost is None for curve in curves for point in curve.points)
    points = [(curve.cluster.name, point) for curve in curves for point in curve.points]
    found = []
    for goal in goals.each():
        values: dict[str, Machine | None] = {}
        for end in ENDS:
            meeting = [
                Machine(name, one.workers, _price(one, end, hourly)) for name, one in points if _meets(one, goal, end)
            ]
            values[end] = min(meeting, key=lambda one: one.price, default=None)
        found.append(Cheapest(goal.words, values, hourly, _banded(one for _, one in points)))
    return found


def _price(point: ScalePoint, end: str, hourly: bool) -> float:
    """The price of a point's GPUs for an hour, or of the training with steps at an end of the band."""
    step = _step(point, end)
    if hourly or step is None:
        return point.cost_per_hour or 0.0
    return training_cost(point, step)


def _undoubted(curve: ScaleCurve, options: ScaleOptions) -> ScaleCurve:
    """The same curve with exact times of computation."""
    workload = replace(curve.workload, doubt=0)
    return scale(workload, curve.cluster, [point.workers for point in curve.points], options)


def _meets(point: ScalePoint, goal: Goal, end: str) -> bool:
    """Whether a point meets a goal at an end of its band."""
    step = _step(point, end)
    return step is not None and goal.met(point, step)


def _step(point: ScalePoint, end: str) -> float | None:
    """Seconds of a point's step, or at an end of its band; None if nothing fits, or without a band for an end."""
    if point.fits == NO or end == "predicted":
        return None if point.fits == NO else point.time
    band = point.band
    return None if band is None else point.time * (1 + (band.below if end == "fast" else band.above))


def _workers(curve: ScaleCurve, goal: Goal, end: str) -> int | None:
    """The largest, or the smallest, of the curve's numbers of workers that meets a goal."""
    meeting = [point.workers for point in curve.points if _meets(point, goal, end)]
    if not meeting:
        return None
    return max(meeting) if goal.most else min(meeting)


@dataclass(frozen=True, slots=True)
class _At:
    """A goal at the largest number of workers of a curve."""

    curve: ScaleCurve
    options: ScaleOptions
    goal: Goal
    known: dict[tuple[float, str, int], ScalePoint] = field(default_factory=dict)
    room: dict[bool, tuple[str, ...]] = field(default_factory=dict)

    def answer(self, asks: str, search: Callable[[str], float | None]) -> Answer:
        """The answer to what ``asks`` says. Without any band there is none for its ends."""
        last = self.curve.points[-1]
        values = {end: search(end) if end == "predicted" or last.band is not None else None for end in ENDS}
        shape = self.curve.cluster.nccl
        present = None if shape is None or asks != "bandwidth" else shape.nic_bandwidth
        return Answer(self.goal.words, asks, last.workers, values, last.fits == NO or last.band is not None, present)

    def point(self, factor: float = 1, change: str = "", value: int = 0) -> ScalePoint:
        """The point there with a network ``factor`` times as fast, or with a field of the what-if changed."""
        if (factor, change, value) not in self.known:
            self.known[factor, change, value] = self._made(factor, {change: value} if change else {})
        return self.known[factor, change, value]

    def _made(self, factor: float, changes: Mapping[str, Any]) -> ScalePoint:
        cluster = self.curve.cluster if factor == 1 else faster_network(self.curve.cluster, Change(factor), SAME)
        what_if = replace(self.options.what_if, **changes)
        options = replace(self.options, what_if=what_if)
        fitting = self.fitting(changes.get("accumulate", self.options.what_if.accumulate))
        if (
            fitting and "batch_size" not in changes
        ):  # a network changes no memory, and micro-batches from two on neither
            options = replace(options, plans=fitting, sized=False)
        return self._point(self.workload(cluster), cluster, options)

    def _point(self, workload: Workload, cluster: Cluster, options: ScaleOptions) -> ScalePoint:
        """The point of ``scale``, without the notes on a curve."""
        return ScaleTask.of(workload, cluster, options).point(workload, self.curve.points[-1].workers)

    def workload(self, cluster: Cluster) -> Workload:
        """The workload there: the prices of groups that span nodes change with the network."""
        before, groups = self.curve.workload, self.curve.groups
        inside = all(strided(cluster, *lie).gpus_per_node >= lie[1] for lie in groups.spread.values())
        if inside or cluster is self.curve.cluster:
            return before
        made = replica_workload(before.name, cluster, groups).scaled(self.curve.anchored or 1)
        return replace(made, doubt=min(made.doubt, before.doubt))

    def fitting(self, accumulate: int) -> tuple[str, ...]:
        """The plans that fit with so many micro-batches."""
        what_if = replace(self.options.what_if, accumulate=min(2, accumulate))
        if what_if == self.options.what_if:
            return tuple(row.name for row in possible(self.curve.points[-1].rows))
        if (accumulate > 1) not in self.room:
            options = replace(self.options, what_if=what_if)
            point = self._point(self.curve.workload, self.curve.cluster, options)
            self.room[accumulate > 1] = tuple(row.name for row in possible(point.rows))
        return self.room[accumulate > 1]

    def bandwidth(self, end: str) -> float | None:
        """The least factor on the network's bandwidth that meets the goal, within NARROW; None if WIDEST does not.

        0 if a network WIDEST times as slow does too, and None where no network is known.
        """

        def met(factor: float) -> bool:
            return _meets(self.point(factor), self.goal, end)

        try:
            if not met(WIDEST):
                return None
            if met(1 / WIDEST):
                return 0.0
        except OsfError:
            return None
        low, high = 1 / WIDEST, WIDEST
        while high / low > NARROW:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if met(middle) else (middle, high)
        return high

    def accumulated(self, end: str) -> int | None:
        """The least number of micro-batches that meets the goal; None if MOST_MICRO_BATCHES do not."""

        def met(count: int) -> bool:
            if count <= STEADY:
                return _meets(self.point(1, "accumulate", count), self.goal, end)
            half, whole = (self.point(1, "accumulate", number) for number in (STEADY // 2, STEADY))
            return any(self._longer(half, whole, row, count, end) for row in whole.rows if row.fits != NO)

        if not met(MOST_MICRO_BATCHES):
            return None
        return _least(met, MOST_MICRO_BATCHES)

    def _longer(self, half: ScalePoint, whole: ScalePoint, row: StrategyRow, count: int, end: str) -> bool:
        """Whether a strategy meets the goal with ``count`` micro-batches, more than the STEADY of ``whole``."""
        shorter = [one for one in half.rows if one.name == row.name]
        if not shorter or whole.samples is None:
            return False
        before, last = _step(replace(half, best=shorter[0]), end), _step(replace(whole, best=row), end)
        if before is None or last is None:
            return False
        step = last + (last - before) * (count - STEADY) / (STEADY - STEADY // 2)
        longer = replace(whole, best=row, accumulated=count, samples=whole.samples * count // STEADY)
        return self.goal.met(longer, step)

    def batch(self, end: str) -> int | None:
        """The least micro-batch that meets the goal; None if none that fits does, up to MOST_SAMPLES."""

        def met(count: int) -> bool:
            return _meets(self.point(1, "batch_size", count), self.goal, end)

        def fits(count: int) -> bool:
            return self.point(1, "batch_size", count).fits != NO

        largest = MOST_SAMPLES if fits(MOST_SAMPLES) else _least(lambda count: not fits(count), MOST_SAMPLES) - 1
        if not largest or not met(largest):
            return None
        return _least(met, largest)


def _least(met: Callable[[int], bool], most: int) -> int:
    """The least number that meets a condition, which ``most`` and all from the least on do."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


def _banded(points: Iterable[ScalePoint]) -> bool:
    """Whether every step has an error band."""
    return all(point.band is not None for point in points if point.fits != NO)
