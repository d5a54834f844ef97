"""Inverse questions on a scaling curve, and their answers.

Each answer holds for the predicted step, and for both ends of its error band.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from osfmodel.entities.display import brief, show_predicted_time
from osfmodel.entities.errors import UsageError
from osfmodel.entities.records import dataclass
from osfmodel.entities.units import show_rate
from osfmodel.planning.scaling.curve import ScalePoint

MOST_MICRO_BATCHES = 256
"""Largest number of micro-batches that is tried."""
CHANGED = {
    "bandwidth": "bandwidth of the network",
    "accumulate": "micro-batches of a step",
    "batch": "samples of a micro-batch",
}
"""Words for what an answer changes."""
ENDS = ("fast", "predicted", "slow")
"""The ends of an error band, and the prediction between them."""


Value = TypeVar("Value")


def _with_ends(values: Mapping[str, Value], said: Callable[[Value], str], banded: bool) -> str:
    """The predicted answer, and those at both ends of the error band where they differ."""
    fast, predicted, slow = (said(values[end]) for end in ENDS)
    if not banded and values["fast"] is None:
        return f"{predicted} (no error band)"
    where = "" if banded else ", where there is one"
    return predicted if fast == predicted == slow else (
        f"{predicted}; {fast} at the fast end of the error band, {slow} at the slow end{where}"
    )  # fmt: skip


class Goal(NamedTuple):
    """A goal.

    words:  in the words of an option
    met:    whether a point meets it if its step takes so many seconds
    most:   whether the largest number of GPUs is asked for, or the smallest
    doubt:  whether it depends on how far the times of computation may be off; a scaling factor does not
    larger: whether more samples in a step can help to meet it
    """

    words: str
    met: Callable[[ScalePoint, float], bool]
    most: bool
    doubt: bool = True
    larger: bool = True


@dataclass(frozen=True, slots=True)
class Goals:
    """Wanted: a scaling factor, seconds of a step, tokens per second, cost and hours of the training; None if not."""

    scaling: float | None = None
    time: float | None = None
    tokens_per_s: float | None = None
    budget: float | None = None
    hours: float | None = None
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.scaling is not None and not 0 < self.scaling < 1:
            raise UsageError(f"--target-scaling {self.scaling:g}: it must be between 0 and 1, such as 0.9")
        for name in ("time", "tokens_per_s", "budget", "hours"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e30:
                raise UsageError(f"the goal {name.replace('_', ' ')} is {value:g}: it must be above 0")

    def each(self) -> Iterator[Goal]:
        """The goals that are wanted."""
        scaling, time, rate, budget = self.scaling, self.time, self.tokens_per_s, self.budget
        if scaling is not None:
            wanted = scaling
            words = f"a scaling factor of {wanted:g}"
            yield Goal(words, lambda point, step: point.alone >= wanted * step, True, doubt=False)
        if time is not None:
            longest = time
            words = f"a step of {show_predicted_time(longest)}"
            yield Goal(words, lambda point, step: step <= longest, False, larger=False)
        if rate is not None:
            least = rate
            yield Goal(f"{least:,.0f} tokens/s", lambda point, step: _tokens(point) >= least * step, False)
        if budget is not None:
            most = budget
            yield Goal(f"a training for {most:,.0f}", lambda point, step: training_cost(point, step) <= most, True)
        if self.hours is not None:
            length = self.hours
            words = f"a training of {length:,.4g} hours"
            yield Goal(words, lambda point, step: (point.hours or math.inf) * step <= length * point.time, False)


def _tokens(point: ScalePoint) -> float:
    if point.workload.sample_tokens is None or point.samples is None:
        raise UsageError("--target-tokens-per-s: the workload does not say how many tokens a step has: leave it out")
    return point.workload.sample_tokens * point.samples


def training_cost(point: ScalePoint, step: float) -> float:
    """Cost of the training with steps of so many seconds. Raises UsageError without a price, or a length."""
    if point.cost is None:
        raise UsageError("--budget: give --price, and --tokens or --samples")
    return point.cost * step / point.time


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an inverse question.

    goal:   in words
    asks:   what is changed: "workers", "bandwidth" (a factor), "accumulate" or "batch"
    at:     number of workers for which it is changed; None where that is the answer
    values: of ENDS -> the answer if the step takes that long; None where nothing meets the goal
    banded: whether every step that was looked at has an error band; one without counts for neither end
    present: bytes per second of network of a GPU, if known
    """

    goal: str
    asks: str
    at: int | None
    values: Mapping[str, float | None]
    banded: bool = True
    present: float | None = None

    def __repr__(self) -> str:
        return brief(self, self.words)

    @property
    def words(self) -> str:
        """The answer as a sentence, with those for both ends of the error band where they differ."""
        return f"{self._begun}: {_with_ends(self.values, self._said, self.banded)}."

    @property
    def _begun(self) -> str:
        if self.asks == "workers":
            return f"For {self.goal}"
        return f"For {self.goal} on {self.at} GPUs, {CHANGED[self.asks]}"

    def _said(self, value: float | None) -> str:
        if self.asks == "workers":
            return "none of these numbers of GPUs" if value is None else f"{value:g} GPUs"
        if self.asks == "accumulate":
            return f"more than {MOST_MICRO_BATCHES}" if value is None else f"{value:g}"
        if self.asks == "batch":
            return "none that fits would do" if value is None else f"{value:g}"
        if value is None:
            return "none would do"
        if value == 0:
            return "any would do"
        times = f"{value:.2g} times the present"
        if self.present is None:
            return times
        bits = float(f"{8 * self.present * value:.2g}")
        return f"{show_rate(bits / 8)} per GPU ({times})"


UNPRICED = "the cheapest of several --cluster needs --price, once or for each of them in their order"
"""Words for a missing price."""


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
    banded: whether every point has an error band; one without counts for neither end
    """

    goal: str
    values: Mapping[str, Machine | None]
    hourly: bool
    banded: bool = True

    def __repr__(self) -> str:
        return brief(self, self.words)

    @property
    def words(self) -> str:
        """The answer as a sentence, with those for both ends of the error band where they differ."""
        return f"For {self.goal}, cheapest: {_with_ends(self.values, self._said, self.banded)}."

    def _said(self, one: Machine | None) -> str:
        if one is None:
            return "none of these"
        return f"{one.workers} GPUs of {one.cluster} for {one.price:,.0f}{' an hour' if self.hourly else ''}"
