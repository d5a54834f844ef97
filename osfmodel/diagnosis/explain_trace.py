"""Explain why a job is slow: where the time of its steps went, and the cause that limits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean, harmonic_mean
from typing import Any

from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.fitting import Sample, line, line_through
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import TableCost
from osfmodel.diagnosis import CAUSES, COMPUTE, Explanation, RankParts, StepParts, verdict
from osfmodel.diagnosis.causes import NETWORKS, costliest, gains_of, label_of
from osfmodel.diagnosis.explanation import BucketRow, Gains, bus_factor
from osfmodel.diagnosis.group_parts import GroupPrices, ListedGroups, group_parts
from osfmodel.diagnosis.message_times import all_reduce_bytes, even_times
from osfmodel.diagnosis.replay import Replays, StartupShare, median_place
from osfmodel.diagnosis.scene import SeenStep
from osfmodel.diagnosis.waits import LocalClock, Sent, mean, parts_of
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_time
from osfmodel.entities.errors import DataError
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.trace import Collective, Trace
from osfmodel.formats.traces import measurement_of
from osfmodel.formats.traces.network import SEVERAL_SIZES
from osfmodel.formats.traces.usual import unsteady, usual_steps, with_shared_steps, with_steps

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


WORTH = 0.05
"""Fraction of a step that a cause must cost to be named as the limit."""
TWO_TIMES = 0.02
"""Relative difference between two times for the same step from which both are mentioned."""
Steps = Mapping[int, Sequence[SeenStep]]
"""Each step as every rank saw it, in the order of the ranks, by step number."""


def explain_trace(trace: Trace, cluster: Cluster | None = None, steps: Sequence[int] = ()) -> Explanation:
    """The explanation of :func:`replayed_trace`: what limits the job of ``trace``, without remedies."""
    found, _ = replayed_trace(trace, cluster, steps)
    return found


def replayed_trace(
    trace: Trace, cluster: Cluster | None = None, steps: Sequence[int] = ()
) -> tuple[Explanation, tuple[Replays, ...]]:
    """Find what limits the job of ``trace``; and the replays of its usual steps, for remedies.

    ``cluster`` gives the possible speed of the network; without one it is the best that the trace shows. ``steps``:
    numbers of steps to look at; by default all that every rank has.

    Raises DataError for a trace of inference, and if a rank has none of these steps; CostError if the cluster cannot
    price so many workers.
    """
    trace.require_training()
    trace = with_shared_steps(with_steps(trace, steps) if steps else trace)
    seen = _seen(trace)
    workers = trace.workers or 1
    pricing = pricing_of(cluster, workers) if cluster is not None and workers > 1 else None
    prices = GroupPrices(pricing)
    share, unsure = _startup_share(seen, pricing, workers)
    replays = {number: Replays(ranks, share) for number, ranks in seen.items()}
    found = tuple(_step(number, one) for number, one in replays.items())
    numbers = [step.number for step in usual_steps(trace)]
    usual = [step for step in found if step.number in numbers]
    time = fmean(step.time for step in usual)
    if not time:
        raise DataError(f"the steps of the trace {trace.name!r} take no time at all: record whole steps")
    gains = _mean_gains(usual, time, trace.name)
    ranks = _ranks(trace, seen, numbers)
    place = median_place([rank.work for rank in ranks])
    worth = {cause: gain for cause, gain in gains.seconds.items() if gain >= WORTH * time}
    network = costliest(worth, lambda cause: cause.of_network)
    slow = costliest(worth, lambda cause: cause.of_rank)
    sender = [seen[number][place] for number in numbers]
    bare = Explanation(
        name=trace.name,
        workers=workers,
        cluster=None if cluster is None else cluster.name,
        ranks=ranks,
        steps=found,
        step_time=time,
        parts=mean([step.parts for step in usual]),
        gains=gains.seconds,
        replayed=gains.replayed,
        cause=max(worth, key=worth.__getitem__, default=COMPUTE),
        straggler=None if slow is None else max(ranks, key=lambda rank: (rank.slowest, rank.work)).rank,
        network=network,
        verdict="",
        buckets=bucket_rows(sender, workers, ListedGroups(trace.ranks[place], workers), prices),
        sender=ranks[place].rank,
        networks=gains.networks,
        alone=gains.alone,
        collectives=group_parts([seen[number] for number in numbers], trace.ranks, workers, prices),
    )
    missing = unsure if network else ()
    remarks = (*trace.remarks, *missing, *_unknown(bare), *unsteady(trace), *_of_one(bare, trace))
    return replace(bare, verdict=verdict(bare), remarks=remarks), tuple(replays[number] for number in numbers)


def _mean_gains(usual: Sequence[StepParts], time: float, name: str) -> Gains:
    """The means over the usual steps, scaled down to ``time`` where the replay takes longer.

    Raises DataError if a cause would cost more than ``time``.
    """
    gains = {cause: fmean(step.gains.seconds[cause] for step in usual) for cause in CAUSES}
    _require_fitting(gains, time, name)
    replayed = fmean(step.gains.replayed for step in usual)
    scale = time / max(time, replayed)
    return Gains(
        replayed,
        {cause: gain * scale for cause, gain in gains.items()},
        {factor: scale * max(0.0, fmean(step.gains.networks[factor] for step in usual)) for factor in NETWORKS},
        {cause: scale * fmean(step.gains.alone[cause] for step in usual) for cause in usual[0].gains.alone},
    )


def _require_fitting(gains: Mapping[str, float], time: float, name: str) -> None:
    """Raise DataError if a cause would cost more than the step: ranks of other jobs, or clocks that disagree."""
    cause = max(gains, key=gains.__getitem__)
    if gains[cause] > time:
        raise DataError(
            f"the traces of {name!r} disagree: {label_of(cause)} would cost {show_time(gains[cause])} of a step of "
            f"{show_time(time)}: give ranks of one job, of the same steps, with synchronised clocks"
        )


def _seen(trace: Trace) -> Steps:
    """Each step as the ranks saw it, by number."""
    by_rank = [{step.number: SeenStep.of(step, rank.host_computes) for step in rank.steps} for rank in trace.ranks]
    return {number: [steps[number] for steps in by_rank] for number in by_rank[0]}


def _startup_share(seen: Steps, pricing: Pricing | None, workers: int) -> tuple[StartupShare, tuple[str, ...]]:
    """Start-up as a fraction of a message's time, by its size, and remarks.

    It comes from the cluster. Without one, from the line through the trace's messages; it is 0 if all have the same
    size, since start-up cannot then be told from transfer.
    """
    if pricing is not None:
        return _stated_share(pricing), ()
    found: list[Sample] = []
    for ranks in seen.values():
        sizes = {one.key: all_reduce_bytes(one.collective) for one in ranks[0].sent}
        found += [
            Sample(max(2, workers), size, time)
            for key, time in even_times(ranks).items()
            if (size := sizes.get(key)) and time > 0
        ]
    if not found:
        return _none, ()
    if max(one.size for one in found) < SEVERAL_SIZES * min(one.size for one in found):
        return _none, (
            "all messages have about the same size, so that start-ups cannot be told from bytes: give --cluster",
        )
    startup, per_byte = line(found)
    return (lambda size: startup / (startup + per_byte * size) if startup else 0.0), ()


def _stated_share(pricing: Pricing) -> StartupShare:
    """Start-up as a fraction of a message's time by the prices; for a table at most that of the line through it."""
    cost, split = pricing.cost(), pricing.splitter("all_reduce")
    most = inf
    if isinstance(cost, TableCost):
        most, _ = line_through(cost)

    def share(size: int) -> float:
        startup, transfer = split(size)
        return min(startup, most) / (startup + transfer) if startup else 0.0

    return share


def _none(size: int) -> float:
    return 0.0


def _step(number: int, replays: Replays) -> StepParts:
    ranks = replays.ranks
    time = plain_sum(rank.step.time for rank in ranks) / len(ranks)
    return StepParts(number, time, mean([parts_of(rank.step, rank.waits) for rank in ranks]), gains_of(replays))


def _ranks(trace: Trace, seen: Steps, usual: Sequence[int]) -> tuple[RankParts, ...]:
    works = {number: [rank.own_work for rank in ranks] for number, ranks in seen.items()}
    slowest = [row.index(max(row)) for row in works.values()]
    return tuple(
        RankParts(
            rank.rank,
            mean([parts_of(seen[number][place].step, seen[number][place].waits) for number in usual]),
            fmean(works[number][place] for number in usual),
            slowest.count(place),
        )
        for place, rank in enumerate(trace.ranks)
    )


def _unknown(one: Explanation) -> tuple[str, ...]:
    """Remarks on data missing from the trace and on rough results."""
    found = []
    if len(one.ranks) == 1 and one.workers > 1 and one.buckets:
        found.append(
            "waiting for other ranks is counted as transfer: with the traces of all ranks (torch.profiler in every "
            "process, a file each) the two are told apart"
        )
    if len(one.ranks) > 1 and one.parts.waiting is None and one.buckets:
        found.append("collectives could not be matched between ranks, so waiting and transfer are not told apart")
    return tuple(found)


def _of_one(one: Explanation, trace: Trace) -> tuple[str, ...]:
    """A remark if the mean over the ranks differs from the time of the one rank whose steps an import takes."""
    time = measurement_of(trace).iteration_time
    if abs(one.step_time - time) <= TWO_TIMES * time:
        return ()
    rank = trace.pace.rank
    return (
        f"a step takes {show_time(one.step_time)} in the mean of ranks and steps, and {show_time(time)} in those of "
        f"rank {rank}, which osf import takes",
    )
