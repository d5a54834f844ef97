"""Sums and choices that are the same on every Python, because rounding decides none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import isfinite
from operator import add
from typing import Any, TypeVar

Item = TypeVar("Item")

TIE = 1e-12
"""Relative difference below which values count as equal, so that rounding never decides between plans."""


def plain_sum(numbers: Iterable[float]) -> float:
    """The numbers added one after the other; exact numbers stay exact.

    The built-in ``sum`` compensates rounding from Python 3.12 on and so is another number on older ones.
    """
    return reduce(add, numbers, 0)


def within(value: float, tie: float = TIE) -> float:
    """The largest number that equals ``value`` up to rounding; exact and infinite numbers are returned as they are."""
    return value + abs(value) * tie if isinstance(value, float) and isfinite(value) else value


def just_below(value: float, tie: float = TIE) -> float:
    """The bound below which numbers are less than ``value`` by more than rounding."""
    return value - abs(value) * tie if isinstance(value, float) and isfinite(value) else value


def ranked(
    items: Iterable[Item], value: Callable[[Item], float], rank: Callable[[Item], Any] = lambda item: 0
) -> list[Item]:
    """The items by increasing value; items of equal value up to rounding by rank, then in the order given."""
    rows = [(value(item), place, item) for place, item in enumerate(items)]
    rows.sort(key=lambda row: row[:2])
    found: list[Item] = []
    start = 0
    while start < len(rows):
        most, end = within(rows[start][0]), start
        while end < len(rows) and rows[end][0] <= most:
            end += 1
        alike = [row[2] for row in sorted(rows[start:end], key=lambda row: row[1])]
        found += sorted(alike, key=rank)
        start = end
    return found


def least(
    items: Iterable[Item],
    value: Callable[[Item], float],
    rank: Callable[[Item], Any] = lambda item: 0,
    tie: float = TIE,
) -> Item:
    """The item of the least value; of several up to rounding the first by rank, then in the order given.

    Raises ValueError for no items.
    """
    rows = [(value(item), item) for item in items]
    most = within(min(row[0] for row in rows), tie)
    return min((item for found, item in rows if found <= most), key=rank)
