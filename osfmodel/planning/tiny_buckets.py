"""Plans without tiny buckets: a message costs the host more than a model of the network shows."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from osfmodel.entities.plan import contiguous_ends, contiguous_plan
from osfmodel.entities.units import MIB
from osfmodel.planning.chances import TIE
from osfmodel.planning.tuning_task import TuningProblem

TINY = MIB
"""Bytes below which a bucket is not worth a message of its own, unless it saves more than a tie: DDP's first limit."""


def without_tiny(task: TuningProblem, knobs: Any) -> Any:
    """``knobs`` with buckets below TINY merged or grown, as long as no time grows by more than TIE in all."""
    if knobs == task.target.convert.default_knobs() or not task.objective.plain:
        return knobs
    most = [time * (1 + TIE) for time in task.judged(knobs)]

    def better(ends: tuple[int, ...]) -> Iterator[Any]:
        for changed in less_tiny(ends, task.workload.gradients.sizes):
            found = task.from_plan(contiguous_plan(task.workload, changed), task.pricings[0])
            formed = contiguous_ends(task.planned(found)[0][0], task.workload)
            if formed == changed and task.keeps_limits(found) and all(map(operator.le, task.judged(found), most)):
                yield found

    while True:
        ends = contiguous_ends(task.planned(knobs)[0][0], task.workload)
        found = next(better(ends), None) if ends else None
        if found is None:
            return knobs
        knobs = found


def less_tiny(ends: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The ends with the smallest bucket, if it is below TINY, merged with a neighbour or twice as large, best first."""
    starts, prefix = (0, *ends[:-1]), [0, *accumulate(sizes)]
    held = [prefix[end] - prefix[start] for start, end in zip(starts, ends, strict=True)]
    least_size, last = min(held), len(ends) - 1
    if least_size >= TINY:
        return
    tiny = held.index(least_size)
    yield from ((*ends[:gone], *ends[gone + 1 :]) for gone in (tiny, tiny - 1) if 0 <= gone < last)
    wanted = TINY
    while wanted >= 2 * least_size:
        before = bisect_right(prefix, prefix[ends[tiny]] - wanted) - 1
        after = bisect_left(prefix, prefix[starts[tiny]] + wanted)
        if tiny and before > starts[tiny - 1]:
            yield (*ends[: tiny - 1], before, *ends[tiny:])
        if tiny < last and after < ends[tiny + 1]:
            yield (*ends[:tiny], after, *ends[tiny + 1 :])
        wanted //= 2
