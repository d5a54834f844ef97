"""Find jumps of a measured table: steps beyond noise that no minimum of non-negative lines can follow.

Such a minimum T never falls with size, and its time per byte never rises. So there are two kinds of jump, protocol
switches mostly: a *fall*, where a larger message is faster, and a *rise*, where time grows faster than bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from osfmodel.entities.display import show_bytes, show_time

LEAST_STEP = 0.10
"""Minimum relative step of a jump: in one row of ten, out-of-place and in-place times of nccl-tests differ as much."""
DEVIATIONS = 4.0
"""Standard deviations of the table's own noise that a step must exceed. With 3 or 5, 20 or 17 of the 61 tables of
docs/reference/fits.md have jumps instead of 18 (tests/cost/test_fits.py)."""
SHOWN = 3


class Jump(NamedTuple):
    """A step from (``size``, ``time``) to (``next_size``, ``next_time``); ``excess`` is its part beyond any line."""

    size: int
    time: float
    next_size: int
    next_time: float
    excess: float

    @property
    def falls(self) -> bool:
        """Whether the larger message is faster."""
        return self.next_time < self.time


def noise(times: Sequence[float]) -> float:
    """Relative standard deviation of single times, from second differences of their logarithms.

    Differences of independent noise have variance 6 sigma^2, and a smooth curve has next to none; the median of their
    absolute values does not see a few jumps. 0 for fewer than five times.
    """
    if len(times) < 5:
        return 0.0
    bends = np.abs(np.diff(np.log(times), 2))
    return float(1.4826 * np.median(bends) / np.sqrt(6))


def find(sizes: Sequence[int], times: Sequence[float]) -> list[Jump]:
    """The jumps of a table with increasing ``sizes``, the largest first; consecutive steps in one direction are one.

    Times of 0, too short to be printed, are left out.
    """
    rows = [(size, time) for size, time in zip(sizes, times, strict=True) if time > 0]
    least = max(LEAST_STEP, DEVIATIONS * noise([time for _, time in rows]))
    found: list[Jump] = []
    for (size, time), (next_size, next_time) in pairwise(rows):
        excess = max(time / next_time, next_time * size / (time * next_size)) - 1
        if excess > 0:
            _extend(found, Jump(size, time, next_size, next_time, excess))
    return sorted((jump for jump in found if jump.excess > least), key=lambda jump: -jump.excess)


def _extend(found: list[Jump], jump: Jump) -> None:
    """Append the jump, or merge it with the last if both go the same way."""
    last = found[-1] if found else None
    if last is not None and last.next_size == jump.size and last.falls == jump.falls:
        found[-1] = Jump(*last[:2], *jump[2:4], (1 + last.excess) * (1 + jump.excess) - 1)
    else:
        found.append(jump)


def in_words(workers: int, sizes: Sequence[int], times: Sequence[float]) -> tuple[str, ...]:
    """A sentence for each of the largest jumps between ``workers`` workers, and one for the number of others."""
    found = find(sizes, times)
    sentences = [_sentence(workers, jump) for jump in found[:SHOWN]]
    if len(found) > SHOWN:
        sentences.append(f"and {len(found) - SHOWN} smaller jumps at {workers} workers")
    return tuple(sentences)


def _sentence(workers: int, jump: Jump) -> str:
    what = "is slower than" if jump.falls else "is faster per byte than"
    times = f"{show_time(jump.time)} and {show_time(jump.next_time)}"
    places = f"{show_bytes(jump.size)} {what} {show_bytes(jump.next_size)} at {workers} workers"
    return f"{places} ({times}): a protocol switch or an outlier"
