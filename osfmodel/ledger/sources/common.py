"""Helpers of several recipes: scale a profile to measured times, and form old DDP's buckets."""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.entities.filling import Closes, fill
from osfmodel.entities.plan import Plan, contiguous_plan
from osfmodel.entities.workload import Workload


def with_compute_time(workload: Workload, compute_time: float) -> Workload:
    """``workload`` with all times scaled so that a single GPU takes ``compute_time`` per iteration."""
    return workload.scaled(compute_time / workload.compute_time)


def from_input(workload: Workload, limits: Sequence[int]) -> Plan:
    """DDP's buckets up to PyTorch 1.5: closed at ``limits`` on a walk from the input, and sent in reverse.

    The small first limit thus makes the *last* message small. Newer versions rebuild the buckets in ready order after
    the first iteration (pull request 35137 of PyTorch, May 2020), which makes the first one small. One dtype.
    """
    count = len(workload.gradients)
    last = len(limits) - 1
    closes = Closes(lambda held, number: held >= limits[min(number, last)])
    filled = fill(reversed(range(count)), workload.gradients.sizes, closes)
    return contiguous_plan(workload, sorted({*(place for place, _ in filled if place is not None), count} - {0}))
