"""The least time to send bytes in messages one after the other, or their transfers alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from osfmodel.cost.shapes import AffineCost, Cost


def serial(cost: Cost, most: int | None = None) -> Callable[[int], float]:
    """A function from bytes to the least time to send them one message after the other; ``most``: bytes of a message.

    A message of m bytes takes floor(m) or more, so S bytes take at least S min floor(m) / m over what m may be.
    """
    floor, knots = cost.floor, cost.breakpoints
    rates = list(accumulate((floor(knot) / knot for knot in knots), min))

    def least(size: int) -> float:
        largest = size if most is None else min(size, most)
        if not largest:
            return 0.0
        knot = bisect_right(knots, largest)
        whole: float = floor(largest) * (size / largest)
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
