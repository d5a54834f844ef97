"""The steps of a large report that are read: those in the middle, as many as memory allows.

A report of gigabytes holds thousands of steps, of which some hundred show what all do. Beside those that count, a few
before and after are read, so that work which was in flight is on the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from osfmodel.formats.nsight.ranges import LARGEST, StepRange

MOST_KERNELS = 250_000
"""Kernels of a job from which on not all steps are read."""
LEAST_STEPS, AROUND = 3, 2
"""Steps that are read at least, and steps before and after them."""


class Excerpt(NamedTuple):
    """A part of a process's record: ``steps`` and, in nanoseconds, the host's time of their submissions."""

    steps: Sequence[StepRange]
    since: int = -LARGEST
    until: int = LARGEST

    @property
    def whole(self) -> bool:
        """Whether it is all of the record."""
        return self.since == -LARGEST


def chosen_steps(
    processes: Sequence[tuple[Sequence[StepRange], int]], asked: tuple[int, int] | None
) -> tuple[range | None, str]:
    """The numbers of the steps to read of a job, and a remark; None for all of them.

    ``processes`` are (its steps, the number of its kernels) of each; ``asked`` are the first and the last step wanted.
    """
    total = sum(kernels for _, kernels in processes)
    shared = set.intersection(*({number for number, _, _ in steps} for steps, _ in processes))
    wanted = sorted(number for number in shared if asked is None or asked[0] <= number <= asked[1])
    if total <= MOST_KERNELS or not wanted:
        return None, ""
    in_a_step = sum(kernels / len(steps) for steps, kernels in processes)
    room = max(LEAST_STEPS, int(MOST_KERNELS / in_a_step) - 2 * AROUND)
    first = max(0, len(wanted) - room) // 2
    read = wanted[first : first + room]
    said = (
        f"has {total:,} kernels in {len(shared):,} steps, of which {read[0]} to {read[-1]} are read: --steps chooses "
        "others"
    )
    return range(read[0], read[-1] + 1), said if len(read) < len(wanted) else ""


def excerpt_of(steps: Sequence[StepRange], chosen: range | None) -> Excerpt:
    """The part of a process's record that holds the chosen steps, with a few before and after."""
    places = [place for place, (number, _, _) in enumerate(steps) if chosen is not None and number in chosen]
    if not places:
        return Excerpt(steps)
    part = steps[max(0, places[0] - AROUND) : places[-1] + 1 + AROUND]
    return Excerpt(part, part[0][1], max(end for _, _, end in part))
