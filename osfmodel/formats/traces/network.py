"""The buckets in a trace: the gradients of each all-reduce, and the network time of collectives, by bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from osfmodel.entities.cluster import COLLECTIVES, Table
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import common, length, without
from osfmodel.entities.trace import Collective, GradientReady, RankTrace, Step, Trace
from osfmodel.formats.traces.usual import usual_steps


def carried(step: Step) -> list[list[GradientReady]] | None:
    """The gradients of each of the step's all-reduces, as the host submitted them; None if they do not match.

    An all-reduce carries what was accumulated when it was submitted and no other carries; where sizes are known, they
    must add up, which decides where some of that waited for a later bucket. Gradients may be of no message.
    """
    sizes = [one.elements for one in step.reductions]
    if not sizes or not step.gradients:
        return None
    if any(size is None for size in sizes) or any(gradient.elements is None for gradient in step.gradients):
        return [[one] for one in step.gradients] if len(sizes) == len(step.gradients) else _by_time(step)
    return _by_time(step) or _by_size(step)


def _by_time(step: Step) -> list[list[GradientReady]] | None:
    """The gradients that the host had accumulated before each all-reduce and that fill it, or all without sizes."""
    left = list(step.gradients)
    found: list[list[GradientReady]] = []
    for one in step.reductions:
        there = [gradient for gradient in left if (gradient.accumulated or 0) <= (one.issued or 0)]
        mine = _filling(there, one.elements)
        if not mine:
            return None
        taken = {id(gradient) for gradient in mine}
        left = [gradient for gradient in left if id(gradient) not in taken]
        found.append(mine)
    return found


def _filling(there: Sequence[GradientReady], size: int | None) -> list[GradientReady]:
    """All, the last or the first gradients, whichever add up to ``size``; none if none do."""
    if size is None or any(gradient.elements is None for gradient in there):
        return list(there)
    before = list(accumulate((gradient.elements or 0 for gradient in there), initial=0))
    for count in range(len(there), 0, -1):
        if before[-1] - before[-1 - count] == size:
            return list(there[-count:])
        if before[count] == size:
            return list(there[:count])
    return []


def _by_size(step: Step) -> list[list[GradientReady]] | None:
    """Gradients of each all-reduce, taken in order until its size is reached; None if they run out."""
    found, place = [], 0
    for one in step.reductions:
        mine: list[GradientReady] = []
        size = one.elements or 0
        while size > 0 and place < len(step.gradients):
            mine.append(step.gradients[place])
            size -= step.gradients[place].elements or 0
            place += 1
        if size:
            return None
        found.append(mine)
    return found


def filled(one: Collective, gradients: Sequence[GradientReady], host_computes: bool) -> float:
    """Time at which its last gradient was ready.

    If the trace does not tell its gradients: when it was submitted, if the host computes, as DDP does that with the
    last of them; else its start.
    """
    submitted = one.start if one.issued is None or not host_computes else one.issued
    there = max((gradient.ready for gradient in gradients), default=submitted)
    return min(there, one.start)


def exposed_others(step: Step) -> float:
    """Exposed seconds of collectives other than gradient all-reduces and those of sharded parameters."""
    known = {id(one) for one in (*step.reductions, *step.sharded)}
    others = [one.interval for one in step.collectives if id(one) not in known]
    return length(without(common(others, [(step.start, step.end)]), step.compute))


def wire_times(collectives: Sequence[Collective]) -> list[float]:
    """Network time of each collective in seconds: while all ranks were in it, shared with others at that time.

    Process groups share the network evenly, and so do the collectives of each.
    """
    spans = [(one.moved_from, one.end) for one in collectives]
    edges = sorted({edge for span in spans for edge in span})
    if not edges:
        return []
    starts = [bisect_left(edges, start) for start, _ in spans]
    ends = [bisect_left(edges, end) for _, end in spans]
    changes: dict[str, list[int]] = {}
    for one, start, end in zip(collectives, starts, ends, strict=True):
        change = changes.setdefault(one.group, [0] * len(edges))
        change[start] += 1
        change[end] -= 1
    flying = {group: list(accumulate(change)) for group, change in changes.items()}
    groups = [max(1, sum(map(bool, row))) for row in zip(*flying.values(), strict=True)]
    until = {}
    for group, counts in flying.items():
        parts = zip(edges, edges[1:], counts, groups, strict=False)
        until[group] = [0.0, *accumulate((late - early) / (max(1, n) * among) for early, late, n, among in parts)]
    return [
        until[one.group][end] - until[one.group][start]
        for one, start, end in zip(collectives, starts, ends, strict=True)
    ]


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
