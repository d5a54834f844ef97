"""Inverse questions on a scaling curve: which number of GPUs, network or accumulation meets a goal.

Each answer holds for the predicted step, and for both ends of its error band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from osfmodel.cost.faster_network import SAME, Change, faster_network
from osfmodel.entities.display import brief, show_predicted_time
from osfmodel.entities.errors import OsfError, UsageError
from osfmodel.planning.scale import ScaleOptions, scale
from osfmodel.planning.scale_curve import ScaleCurve, ScalePoint
from osfmodel.planning.strategies import StrategyRow

WIDEST = 1024.0
"""Largest factor, either way, by which the network's bandwidth is changed."""
NARROW = 1.02
"""Ratio of two bandwidths that are not told apart."""
MOST_MICRO_BATCHES = 256
STEADY = 16
"""Micro-batches from which on each further one is taken to add as much time as those before it, on average of half of
them; all steps of fewer are predicted."""
MOST_SAMPLES = 4096
"""Largest micro-batch that is tried."""
CHANGED = {
    "bandwidth": "bandwidth of the network",
    "accumulate": "micro-batches of a step",
    "batch": "samples of a micro-batch",
}
"""Words for what an answer changes."""
ENDS = ("fast", "predicted", "slow")
"""The ends of an error band, and the prediction between them."""


class Goal(NamedTuple):
    """A goal.

    words:  in the words of an option
    met:    whether a point meets it if its step takes so many seconds
    most:   whether the largest number of GPUs is asked for, or the smallest
    doubt:  whether it hangs on how far the times of computation may be off; a scaling factor does not
    """

    words: str
    met: Callable[[ScalePoint, float], bool]
    most: bool
    doubt: bool = True


@dataclass(frozen=True, slots=True)
class Goals:
    """Wanted: a scaling factor, seconds of a step, tokens per second, a cost of the training; None for what is not."""

    scaling: float | None = None
    time: float | None = None
    tokens_per_s: float | None = None
    budget: float | None = None
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.scaling is not None and not 0 < self.scaling < 1:
            raise UsageError(f"--target-scaling {self.scaling:g}: it must be between 0 and 1, such as 0.9")
        for name in ("time", "tokens_per_s", "budget"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e30:
                raise UsageError(f"the goal {name.replace('_', ' ')} is {value:g}: it must be above 0")

    def each(self) -> Iterator[Goal]:
        """The goals that are wanted."""
        scaling, time, rate, budget = self.scaling, self.time, self.tokens_per_s, self.budget
        if scaling is not None:
            wanted = scaling
            words = f"a scaling factor of {wanted:g}"
            yield Goal(words, lambda point, step: (point.alone or 0) >= wanted * step, True, doubt=False)
        if time is not None:
            longest = time
            yield Goal(f"a step of {show_predicted_time(longest)}", lambda point, step: step <= longest, False)
        if rate is not None:
            least = rate
            yield Goal(f"{least:,.0f} tokens/s", lambda point, step: _tokens(point) >= least * step, False)
        if budget is not None:
            most = budget
            yield Goal(f"a training for {most:,.0f}", lambda point, step: _cost(point, step) <= most, True)


def _tokens(point: ScalePoint) -> float:
    if point.workload.sample_tokens is None or point.samples is None:
        raise UsageError("--target-tokens-per-s: the workload does not say how many tokens a step has")
    return point.workload.sample_tokens * point.samples


def _cost(point: ScalePoint, step: float) -> float:
    if point.cost is None or point.time is None:
        raise UsageError("--budget: give --price, and --tokens or --samples")
    return point.cost * step / point.time


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an inverse question.

    goal:   in words
    asks:   what is changed: "workers", "bandwidth" (a factor), "accumulate" or "batch"
    at:     number of workers for which it is changed; None where that is the answer
    values: of ENDS -> the answer if the step takes that long; None where nothing meets the goal
    """

    goal: str
    asks: str
    at: int | None
    values: Mapping[str, float | None]

    def __repr__(self) -> str:
        return brief(self, self.words)

    @property
    def words(self) -> str:
        """The answer as a sentence, with those for both ends of the error band where they differ."""
        fast, predicted, slow = (self._said(self.values[end]) for end in ENDS)
        ends = f"; {fast} at the fast end of the error band, {slow} at the slow end"
        band = "" if fast == predicted == slow else ends
        return f"{self._begun}: {predicted}{band}."

    @property
    def _begun(self) -> str:
        if self.asks == "workers":
            return f"For {self.goal}"
        return f"For {self.goal} with {self.at} workers, {CHANGED[self.asks]}"

    def _said(self, value: float | None) -> str:
        if self.asks == "workers":
            return "none of these numbers of workers" if value is None else f"{value:g} workers"
        if self.asks == "accumulate":
            return f"more than {MOST_MICRO_BATCHES}" if value is None else f"{value:g}"
        if self.asks == "batch":
            return "none that fits" if value is None else f"{value:g}"
        if value is None:
            return "none would do"
        return "any would do" if value == 0 else f"{value:.2g} times the present"


def answers(curve: ScaleCurve, options: ScaleOptions, goals: Goals) -> list[Answer]:
    """The answers to all goals on the points of ``curve``, which was made with ``options``.

    Numbers of workers are those of the curve. Bandwidth, accumulation and the batch are searched for at the largest of
    them, each alone; the batch where it is known how times grow with it. Raises UsageError for a goal that needs a
    figure that is not known.
    """
    found = []
    last, options = curve.points[-1], replace(options, anchor=None)
    for goal in goals.each():
        told = curve if goal.doubt or not curve.workload.doubt else _undoubted(curve, options)
        found.append(Answer(goal.words, "workers", None, {end: _workers(told, goal, end) for end in ENDS}))
        at = _At(told, options, goal)
        found.append(Answer(goal.words, "bandwidth", last.workers, {end: at.bandwidth(end) for end in ENDS}))
        if options.what_if.global_batch is None and goals.time is None:
            found.append(Answer(goal.words, "accumulate", last.workers, {end: at.accumulated(end) for end in ENDS}))
            if curve.workload.fixed_share is not None:
                found.append(Answer(goal.words, "batch", last.workers, {end: at.batch(end) for end in ENDS}))
    return found


class Machine(NamedTuple):
    """A number of GPUs of a cluster, and their price: of the training if its length is known, else of an hour."""

    cluster: str
    workers: int
    price: float


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The cheapest machine that meets a goal.

    goal:   in words
    values: of ENDS -> the machine if steps take that long; None where none meets the goal
    hourly: whether prices are of an hour
    """

    goal: str
    values: Mapping[str, Machine | None]
    hourly: bool

    def __repr__(self) -> str:
        return brief(self, self.words)

    @property
    def words(self) -> str:
        """The answer as a sentence, with those for both ends of the error band where they differ."""
        fast, predicted, slow = (self._said(self.values[end]) for end in ENDS)
        ends = f"; {fast} at the fast end of the error band, {slow} at the slow end"
        return f"For {self.goal}, cheapest: {predicted}{'' if fast == predicted == slow else ends}."

    def _said(self, one: Machine | None) -> str:
        if one is None:
            return "none of these"
        return f"{one.workers} workers of {one.cluster} for {one.price:,.0f}{' an hour' if self.hourly else ''}"


def cheapest(curves: Sequence[ScaleCurve], goals: Goals) -> list[Cheapest]:
    """The cheapest point of all curves that meets each goal. Raises UsageError without a price for each."""
    if any(point.cost_per_hour is None for curve in curves for point in curve.points):
        raise UsageError("several --cluster with a goal: give --price, once or for each of them in their order")
    hourly = any(point.cost is None for curve in curves for point in curve.points if point.time is not None)
    points = [(curve.cluster.name, point) for curve in curves for point in curve.points]
    found = []
    for goal in goals.each():
        values: dict[str, Machine | None] = {}
        for end in ENDS:
            meeting = [
                Machine(name, one.workers, _price(one, end, hourly)) for name, one in points if _meets(one, goal, end)
            ]
            values[end] = min(meeting, key=lambda one: one.price, default=None)
        found.append(Cheapest(goal.words, values, hourly))
    return found


def _price(point: ScalePoint, end: str, hourly: bool) -> float:
    """The price of a point's GPUs for an hour, or of the training with steps at an end of the band."""
    step = _step(point, end)
    if hourly or step is None:
        return point.cost_per_hour or 0.0
    return _cost(point, step)


def _undoubted(curve: ScaleCurve, options: ScaleOptions) -> ScaleCurve:
    """The same curve with bands for times of computation that are as stated."""
    workload = replace(curve.workload, doubt=0)
    return scale(workload, curve.cluster, [point.workers for point in curve.points], options)


def _meets(point: ScalePoint, goal: Goal, end: str) -> bool:
    """Whether a point meets a goal at an end of its band."""
    step = _step(point, end)
    return step is not None and goal.met(point, step)


def _step(point: ScalePoint, end: str) -> float | None:
    """Seconds of a point's step at an end of its band, or as predicted without one; None if nothing fits."""
    band = point.band if end != "predicted" else None
    if point.time is None or band is None:
        return point.time
    return point.time * (1 + (band.below if end == "fast" else band.above))


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

    def point(self, factor: float = 1, change: str = "", value: int = 0) -> ScalePoint:
        """The point there with a network ``factor`` times as fast, or with a field of the what-if changed."""
        if (factor, change, value) not in self.known:
            self.known[factor, change, value] = self._made(factor, {change: value} if change else {})
        return self.known[factor, change, value]

    def _made(self, factor: float, changes: Mapping[str, Any]) -> ScalePoint:
        cluster = self.curve.cluster if factor == 1 else faster_network(self.curve.cluster, Change(factor), SAME)
        what_if = replace(self.options.what_if, **changes)
        options = replace(self.options, what_if=what_if)
        fitting = tuple(row.name for row in self.curve.points[-1].rows if row.fits is not False)
        if fitting and "batch_size" not in changes:  # what else changes hardly moves memory
            options = replace(options, plans=fitting, sized=False)
        return scale(self.curve.workload, cluster, [self.curve.points[-1].workers], options).points[0]

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
            return any(self._longer(half, whole, row, count, end) for row in whole.rows if row.fits is not False)

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
            return self.point(1, "batch_size", count).time is not None

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
