"""The messages of one rank of a traced job, as rows with their times and bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, harmonic_mean
from typing import Any

from osfmodel.diagnosis.explanation import BucketRow, bus_factor
from osfmodel.diagnosis.group_prices import GroupPrices, ListedGroups
from osfmodel.diagnosis.seen_step import SeenStep
from osfmodel.diagnosis.waits import LocalClock, Sent
from osfmodel.entities.trace import Collective

TIMES = ("ready", "issued", "start", "end", "waiting", "transfer", "wire", "hidden", "exposed")
"""Fields of a row that are in seconds."""


def bucket_rows(
    steps: Sequence[SeenStep], workers: int, groups: ListedGroups, prices: GroupPrices
) -> tuple[BucketRow, ...]:
    """The rows of the messages of one rank; means over the steps with the same messages as the median step.

    ``groups``: the process groups of that rank; ``prices``: of the cluster to compare with.
    """
    typical = sorted(steps, key=lambda one: one.step.time)[(len(steps) - 1) // 2]
    alike = [one for one in steps if _shape(one) == _shape(typical)]
    per_step = [_rows(one, workers) for one in alike]
    rows = [_mean(rows) for rows in zip(*per_step, strict=True)]
    if prices.pricing is None:
        return tuple(_beside_the_best(row, rows) for row in rows)
    messages = [sent.collective for sent in typical.sent]
    return tuple(
        replace(row, possible=_possible(one, one.workers or workers, groups, prices))
        for row, one in zip(rows, messages, strict=True)
    )


def _shape(one: SeenStep) -> list[tuple[str, int | None]]:
    return [(sent.collective.kind, sent.collective.bytes) for sent in one.sent]


def _rows(rank: SeenStep, workers: int) -> list[BucketRow]:
    own = rank.clock(())
    return [_row(number, sent, own, workers) for number, sent in enumerate(rank.sent)]


def _row(number: int, sent: Sent, own: LocalClock, workers: int) -> BucketRow:
    one, begin = sent.collective, own.start
    moving = (one.moved_from, one.end)
    transfer = moving[1] - moving[0]
    hidden = min(transfer, own.at(moving[1]) - own.at(moving[0]))
    return BucketRow(
        number, one.kind, one.dtype, one.bytes, sent.formed - begin, None if one.issued is None else one.issued - begin,
        one.start - begin, one.end - begin, one.waiting, transfer, sent.wire, _bandwidth(one, sent.wire, workers), None,
        hidden, transfer - hidden, sent.gradient, *((one.shard.module, one.shard.backward) if one.shard else ()),
    )  # fmt: skip


def _bandwidth(one: Collective, wire: float, workers: int) -> float | None:
    if one.bytes is None or wire <= 0:
        return None
    return one.bytes * bus_factor(one.kind, one.workers or workers) / wire


def _mean(rows: Sequence[BucketRow]) -> BucketRow:
    """The mean of each time, so that they add up as in a step; None if any row lacks it."""
    times: dict[str, Any] = {}
    for name in TIMES:
        values = [getattr(row, name) for row in rows]
        times[name] = None if None in values else fmean(values)
    speeds = [row.bandwidth for row in rows if row.bandwidth is not None]
    # The harmonic mean of speeds is the speed at the mean time, as the bytes are the same.
    return replace(rows[0], **times, bandwidth=harmonic_mean(speeds) if len(speeds) == len(rows) else None)


def _beside_the_best(row: BucketRow, rows: Sequence[BucketRow]) -> BucketRow:
    if not (row.bytes and row.bandwidth and (row.gradients or row.module is not None)):
        return row
    like = [
        one
        for one in rows
        if (one.gradients if row.module is None else one.module is not None and one.kind == row.kind)
    ]
    found = [one.bandwidth for one in like if one.bandwidth]
    return replace(row, possible=max(found)) if len(found) > 1 else row


def _possible(one: Collective, workers: int, groups: ListedGroups, prices: GroupPrices) -> float | None:
    """The cluster's bus bandwidth for a message, in bytes/s; None without a price."""
    seconds = prices(one.kind, one.bytes, groups.of(one), workers) if one.bytes else None
    return one.bytes * bus_factor(one.kind, workers) / seconds if one.bytes and seconds else None
