"""The network time of a trace's collectives, by bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from osfmodel.entities.cluster import COLLECTIVES, Table
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.trace import Collective, RankTrace, Trace
from osfmodel.formats.traces.buckets import wire_times
from osfmodel.formats.traces.usual import usual_steps

OTHERS = tuple(kind for kind in COLLECTIVES if kind != "all_reduce")
"""Kinds that count whatever they carry."""
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
            counts = one.shard is not None or one.may_be_gradients or one.kind in OTHERS
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


def sharded_tables(times: Mapping[tuple[str, int], Times], workers: int) -> list[Table]:
    """Tables of the collectives of sharded parameters, and of an all-reduce between all workers.

    A kind that was seen in one size only is taken to be in proportion to bytes. If no all-reduce between all was seen,
    it is a reduce-scatter, an all-reduce of the shards if there are replicas, and an all-gather.
    """
    tables = [_table(kind, ranks, found) for (kind, ranks), found in times.items()]
    known = {table.collective: table for table in tables}
    if ("all_reduce", workers) in times or not {"all_gather", "reduce_scatter"} <= known.keys():
        return tables
    scatter, gather = known["reduce_scatter"], known["all_gather"]
    seconds = [_at(scatter, size) + _at(gather, size) for size in scatter.sizes]
    if "all_reduce" in known:
        between = (_at(known["all_reduce"], size / scatter.workers) for size in scatter.sizes)
        seconds = [one + other for one, other in zip(seconds, between, strict=True)]
    return [*tables, Table(workers, scatter.sizes, tuple(seconds))]


def _table(kind: str, workers: int, times: Times) -> Table:
    sizes = sorted(times)
    means = rising_means([times[size] for size in sizes])
    if len(sizes) == 1:
        sizes, means = [sizes[0], 2 * sizes[0]], (means[0], 2 * means[0])
    return Table(workers, tuple(sizes), means, kind)


def _at(table: Table, size: float) -> float:
    return float(np.interp(size, table.sizes, table.times))


def arrivals_known(rank: RankTrace) -> bool:
    """Whether the trace shows, for any collective, when its last rank joined."""
    return any(one.arrival is not None for step in rank.steps for one in step.collectives)


def _whole(one: Collective) -> int | None:
    """Bytes of the whole vector: each rank has a part of an all-gather's result."""
    if one.kind == "all_gather" and one.bytes is not None:
        return one.bytes * one.workers if one.workers else None
    return one.bytes
