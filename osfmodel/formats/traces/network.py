"""The network time of a trace's collectives, by bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osfmodel.entities.cluster import COLLECTIVES
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.trace import Collective, RankTrace, Trace
from osfmodel.formats.traces.buckets import wire_times
from osfmodel.formats.traces.usual import usual_steps

SEVERAL_SIZES = 2.0
"""Ratio of the largest to the smallest message from which start-ups can be told from transfer."""
Times = Mapping[int, Sequence[float]]
"""Seconds of each message, by bytes."""


def wire_times_by_size(trace: Trace) -> dict[tuple[str, int], dict[int, list[float]]]:
    """Seconds of each collective of the usual steps, by kind and workers, then by bytes.

    Of the rank that sets the pace, since none waits less; of all ranks where no rank knows what it waited.
    """
    times: dict[tuple[str, int], dict[int, list[float]]] = {}
    numbers = {step.number for step in usual_steps(trace)}
    ranks = [trace.pace] if any(map(arrivals_known, trace.ranks)) else trace.ranks
    for step in (step for rank in ranks for step in rank.steps if step.number in numbers):
        for one, took in zip(step.collectives, wire_times(step.collectives), strict=True):
            size, workers = _whole(one), one.workers or trace.workers
            counts = one.may_be_gradients if one.kind == "all_reduce" else one.kind in COLLECTIVES
            if size and workers and workers > 1 and counts:
                times.setdefault((one.kind, workers), {}).setdefault(size, []).append(took)
    return times


def several_sizes(times: Times) -> bool:
    """Whether sizes differ enough to tell start-ups from transfer."""
    return max(times) >= SEVERAL_SIZES * min(times)


def seconds_per_byte(times: Times) -> float:
    """Seconds per byte of all messages together: the slope of a line through the origin."""
    return plain_sum(map(plain_sum, times.values())) / plain_sum(size * len(seconds) for size, seconds in times.items())


def rising_means(times: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Means, in the order of sizes, that never fall, since a message could be padded to a larger one.

    Neighbours that do fall share their mean (pool adjacent violators): of all prices that never fall these are nearest
    to what was measured in the sum of squares, and all messages together take what they took.
    """
    pools: list[tuple[float, int, int]] = []  # seconds in all, messages, sizes
    for row in times:
        pool = (plain_sum(row), len(row), 1)
        while pools and pools[-1][0] * pool[1] > pool[0] * pools[-1][1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    return tuple(total / count for total, count, sizes in pools for _ in range(sizes))


def arrivals_known(rank: RankTrace) -> bool:
    """Whether the trace shows, for any collective, when its last rank joined."""
    return any(one.arrival is not None for step in rank.steps for one in step.collectives)


def _whole(one: Collective) -> int | None:
    """Bytes of the whole vector: each rank has a part of an all-gather's result."""
    if one.kind == "all_gather" and one.bytes is not None:
        return one.bytes * one.workers if one.workers else None
    return one.bytes
