"""Checks of numbers and names when a noun is made."""

from __future__ import annotations

import math
from collections.abc import Sequence

from osfmodel.entities.errors import DataError

LARGEST_COUNT = 2**53 - 1
"""The largest whole number up to which floating point tells neighbours apart."""
LONGEST_TIME = 1e12
"""Longest time in seconds, some 30,000 years: sums of times stay finite."""


def require_time(value: float, what: str) -> None:
    """Raise DataError unless ``value`` is a finite, non-negative number (of seconds)."""
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(value) or value < 0:
        raise DataError(f"{what} is {value!r}: it must be a finite number, zero or more")
    if value > LONGEST_TIME:
        raise DataError(f"{what} is {value!r}: it must be below {LONGEST_TIME:g}")


def require_positive(value: float, what: str) -> None:
    """Raise DataError unless ``value`` is a finite number above zero (a bandwidth)."""
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(value) or value <= 0:
        raise DataError(f"{what} is {value!r}: it must be a finite number above zero")


def require_name(name: str, what: str) -> None:
    """Raise DataError unless ``name`` is printable text: names end up in code to paste and on terminals."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise DataError(f"{what} is {name!r:.60}: it must be printable text, not empty")


def require_count(value: int, what: str, least: int = 0) -> None:
    """Raise DataError unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{what} is {value!r:.40}: it must be a whole number, {least} or more")
    if value > LARGEST_COUNT:
        raise DataError(f"{what} is {value!r:.40}: it must be below 2^53")


def require_unique(names: Sequence[str], what: str, kind: str) -> None:
    """Raise DataError if two ``kind`` of ``what`` have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{what} has two {kind} named {name!r}: names must be unique")
        seen.add(name)
