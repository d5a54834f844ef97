"""The two shapes that a price can have: seconds of a collective as a function of the bytes in it.

Every cost model gives one of them, and the solvers know no others:

* :class:`AffineCost`, the minimum of K lines a_k + b_k m: Hockney, every textbook algorithm, NCCL's choice
  among algorithms and protocols. Nondecreasing, which the fast solver uses, and never steeper for larger messages.
* :class:`TableCost`, straight lines between points, measured or of a formula. It may jump up and down.

Both take a number and give a number, or take an array and give an array. Exact (rational) parameters give exact
times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from osfmodel.entities.errors import LONGEST_TIME, CostError, require_count, require_time
from osfmodel.entities.records import dataclass, field, replace

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class AffineCost:
    """min over k of latency_k + seconds_per_byte_k * bytes; ``pieces`` holds the pairs, all non-negative.

    ``measured_range`` of a fit is the smallest and the largest size fitted; None if a formula holds everywhere.
    """

    pieces: tuple[tuple[float, float], ...]
    measured_range: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.pieces:
            raise CostError("a cost needs one (latency, seconds per byte) pair or more")
        if all(type(one) is float and 0 <= one <= LONGEST_TIME for piece in self.pieces for one in piece):
            return
        for latency, seconds_per_byte in self.pieces:
            require_time(latency, "the latency of a cost")
            require_time(seconds_per_byte, "the seconds per byte of a cost")

    @overload
    def __call__(self, size: Array) -> Array: ...
    @overload
    def __call__(self, size: float) -> float: ...
    def __call__(self, size: float | Array) -> float | Array:
        """Seconds for a message of ``size`` bytes."""
        times: list[Any] = [latency + seconds_per_byte * size for latency, seconds_per_byte in self.pieces]
        shortest: float | Array = np.minimum.reduce(times) if isinstance(size, np.ndarray) else min(times)
        return shortest

    def slower(self, factor: float) -> AffineCost:
        """The cost on a network that takes ``factor`` times as long."""
        return replace(self, pieces=tuple((latency * factor, per_byte * factor) for latency, per_byte in self.pieces))

    def plus(self, seconds: float) -> AffineCost:
        """The cost with ``seconds`` more for every message."""
        return replace(self, pieces=tuple((latency + seconds, per_byte) for latency, per_byte in self.pieces))

    @property
    def breakpoints(self) -> tuple[int, ...]:
        """Sizes at which seconds per byte may reach a minimum: none, since larger is always better per byte."""
        return ()

    @property
    def floor(self) -> AffineCost:
        """The cheapest price of any message of at least that size: the cost itself, since it never decreases."""
        return self


@dataclass(frozen=True, slots=True)
class TableCost:
    """Straight lines through the points (``sizes[k]``, ``times[k]``), with jumps up and down kept.

    Beyond the largest size it goes on with ``asymptote`` seconds per byte; left out, this is the slope from the last
    point at or below a quarter of the largest size to the largest. Below the smallest it stays at the smallest size's
    time, since latency does not vanish.

    ``measured_range`` is the smallest and the largest size measured or fitted, a price outside being extrapolated; None
    if a formula holds everywhere. ``sustained`` is the seconds per byte of transfer of large messages, which limits
    start-ups of others (``Pricing.split``); 0 if not known.
    """

    sizes: tuple[int, ...]
    times: tuple[float, ...]
    asymptote: float = -1
    measured_range: tuple[int, int] | None = None
    sustained: float = 0
    _knots: Array = field(init=False, repr=False, compare=False)
    _values: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or len(self.sizes) != len(self.times):
            raise CostError("a cost table needs two points or more, and as many times as sizes")
        if any(before >= after for before, after in pairwise(self.sizes)):
            raise CostError("the sizes of a cost table must increase")
        require_count(self.sizes[0], "the smallest size of a cost table")
        for time in self.times:
            require_time(time, "a time of a cost table")
        if self.asymptote < 0:
            object.__setattr__(self, "asymptote", last_slope(self.sizes, self.times))
        far = self.sizes[-1] + 2**60
        object.__setattr__(self, "_knots", np.array([*self.sizes, far], dtype=float))
        object.__setattr__(self, "_values", np.array([*self.times, self._beyond(far)], dtype=float))

    @overload
    def __call__(self, size: Array) -> Array: ...
    @overload
    def __call__(self, size: float) -> float: ...
    def __call__(self, size: float | Array) -> float | Array:
        """Seconds for a message of ``size`` bytes."""
        if isinstance(size, np.ndarray):
            return np.interp(size, self._knots, self._values)
        right = bisect_right(self.sizes, size)
        if right == 0:
            return self.times[0]
        if right == len(self.sizes):
            return self._beyond(size)
        left_size, left_time = self.sizes[right - 1], self.times[right - 1]
        slope = (self.times[right] - left_time) / (self.sizes[right] - left_size)
        return left_time + slope * (size - left_size)

    def _beyond(self, size: float) -> float:
        return self.times[-1] + self.asymptote * (size - self.sizes[-1])

    def slower(self, factor: float) -> TableCost:
        """The cost on a network that takes ``factor`` times as long."""
        return replace(
            self,
            times=tuple(time * factor for time in self.times),
            asymptote=self.asymptote * factor,
            sustained=self.sustained * factor,
        )

    def plus(self, seconds: float) -> TableCost:
        """The cost with ``seconds`` more for every message."""
        return replace(self, times=tuple(time + seconds for time in self.times))

    @property
    def breakpoints(self) -> tuple[int, ...]:
        """Sizes at which seconds per byte may reach a minimum: those of the points."""
        return self.sizes

    @property
    def floor(self) -> TableCost:
        """A lower bound of the price of any message of at least that size; it never decreases.

        It runs through the minimum of the points' times from the right, which lies on or below the exact
        envelope (on a rising stretch the envelope bends above the chord).
        """
        lowest, times = self.times[-1], []
        for time in reversed(self.times):
            lowest = min(lowest, time)
            times.append(lowest)
        return replace(self, times=tuple(reversed(times)))


def last_slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Seconds per byte from the last size at or below a quarter of the largest to the largest; 0 if times fall."""
    anchor = max(bisect_right(sizes, sizes[-1] / 4) - 1, 0)
    return max(times[-1] - times[anchor], 0) / (sizes[-1] - sizes[anchor])


Cost: TypeAlias = AffineCost | TableCost

FREE = AffineCost(((0.0, 0.0),))
"""The cost of communication for a single worker: zero seconds."""


def serial(cost: Cost, most: int | None = None) -> Callable[[int], float]:
    """A function from bytes to the least time to send them one message after the other; ``most``: bytes of a message.

    A message of m bytes takes floor(m) or more, so S bytes take at least S min floor(m) / m over what m may be.
    """
    floor, knots = cost.floor, cost.breakpoints
    rates = list(accumulate((floor(knot) / knot for knot in knots), min))

    def least(size: int) -> float:
        largest = size if most is None else min(size, most)
        if most is not None and not size:
            return 0.0
        knot = bisect_right(knots, largest)
        whole: float = floor(largest) if largest == size else floor(largest) * size / largest
        return min(whole, rates[knot - 1] * size) if knot else whole

    return least


def transfer(cost: Cost) -> Callable[[int], float]:
    """A function from bytes to the least transfer time of messages sent alone: the slope of the cheapest line for all.

    Larger messages take lines of larger start-up and smaller slope. A table says nothing here: its smallest messages
    are all start-up.
    """
    if not isinstance(cost, AffineCost):
        return lambda size: 0
    pieces = cost.pieces
    return lambda size: size * min(pieces, key=lambda piece: piece[0] + piece[1] * size)[1]
