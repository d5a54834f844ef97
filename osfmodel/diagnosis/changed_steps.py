"""Replays of a traced step with a change of the job: other buckets, fewer bytes, other prices, more micro-batches.

They are made of the scene from which causes are taken away, so that what a change saves agrees with what causes cost.
Times are in seconds, the mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from statistics import fmean

from osfmodel.diagnosis.replay import Replays
from osfmodel.diagnosis.scene import RankLane, SceneMessage, SeenStep
from osfmodel.diagnosis.waits import PADDING, LocalClock, Sent, input_waits, reached
from osfmodel.entities.errors import DataError
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import Interval, common, length
from osfmodel.entities.trace import Key


def with_gradients_of(replays: Replays, part: float) -> float:
    """The step with messages of gradients of ``part`` of their bytes."""
    reduced = replays.gradients

    def time(key: Key, seconds: float) -> float:
        return seconds - (1 - part) * replays.of_bytes(key, seconds) if key in reduced else seconds

    return replays.traced.timed(time).duration


def with_prices(replays: Replays, price: Callable[[Sent, float], float | None]) -> float:
    """The step with messages that take ``price(message, seconds now)``; as now where that is None."""
    found = {one.key: one for rank in replays.ranks for one in rank.sent}

    def time(key: Key, seconds: float) -> float:
        priced = price(found[key], seconds)
        return seconds if priced is None else priced

    return replays.traced.timed(time).duration


def on_one_worker(replays: Replays) -> float:
    """The step of the usual rank without any communication."""
    return replays.usual.clock(()).at(replays.usual.step.end)


def with_micro_batches(replays: Replays, count: int) -> float:
    """The step with ``count`` times as many micro-batches, whose gradients are reduced in the last one only.

    Every rank does its forward and backward as often before; so it does collectives other than those of gradients, and
    waits for its data loader.
    """
    scene = replays.traced.without(replays.early)
    lanes = []
    for lane, rank in zip(scene.lanes, replays.ranks, strict=True):
        more = (count - 1) * _passes(rank, replays.gradients)
        ready = {key: time + more for key, time in lane.ready.items()}
        waits = tuple((time + more, key) for time, key in lane.waits)
        lanes.append(replace(lane, work=lane.work + more, ready=ready, waits=waits))
    return replace(scene, lanes=tuple(lanes)).duration


def _passes(rank: SeenStep, reduced: frozenset[Key]) -> float:
    """Seconds of all forwards and backwards of a step and of its waits for data, without waits for gradients.

    With several micro-batches the trace tells only the last ones from the rest: then from the start of the step.
    """
    step = rank.step
    if step.backward is None:
        raise DataError("the trace does not tell backward from the rest of the step")
    keys = {id(one.collective): one.key for one in rank.sent}
    clock = LocalClock(
        step.start, [(wait.start, wait.end) for wait in rank.waits if keys[id(wait.collective)] in reduced]
    )
    begin = step.start if step.micro_batches > 1 or step.forward is None else step.forward[0]
    inputs = length(common(input_waits(step), [(step.start, begin)]))
    return inputs + clock.at(step.backward[1]) - clock.at(begin)


def with_buckets(replays: Replays, sizes: Sequence[int], price: Callable[[int], float]) -> float:
    """The step with gradients in buckets of these ``sizes`` in bytes.

    DDP fills them in the order of its messages, others in the order in which gradients are ready. ``price`` gives
    seconds by bytes; it is scaled so that the messages of now take as long in all as they do. A bucket is sent as long
    after it is ready as they are. With fewer messages the rank is idle so much less after its waits for them.

    Raises DataError if it is not known which messages carry gradients.
    """
    now = {one.key for one in replays.usual.sent if one.gradient}
    fewer = max(0.0, 1 - len(sizes) / len(now)) if now else 0.0

    def waking(rank: SeenStep) -> list[Interval]:
        return [(start, start + fewer * (end - start)) for start, end in _after_waits(rank, now)]

    scene = replays.traced_without(waking)
    old = [one for one in scene.messages if one.key in now]
    if not old or not all(any(one.key in now for one in rank.sent) for rank in replays.ranks):
        raise DataError("the trace does not show which messages carry gradients on every rank")
    priced = plain_sum(price(one.collective.bytes or 0) for one in replays.usual.sent if one.key in now)
    scale = plain_sum(one.seconds for one in old) / priced if priced else 0.0
    new: list[Key] = [("bucket", place) for place in range(len(sizes))]
    parts = [size / sum(sizes) for size in sizes]
    ready = [_filled(rank, now, parts, replays.ddp) for rank in replays.ranks]
    clocks = [rank.clock(waking(rank)) for rank in replays.ranks]
    lanes = [_rebucketed(*row, now, new) for row in zip(scene.lanes, clocks, ready, strict=True)]
    order: dict[Key, float] = {}
    for one in (one for rank in replays.ranks for one in rank.sent if one.key not in now):
        order[one.key] = max(one.collective.start, order.get(one.key, 0.0))
    order |= {key: max(times) for key, times in zip(new, zip(*ready, strict=True), strict=True)}
    others = [one for one in scene.messages if one.key not in now]
    buckets = [SceneMessage(key, scale * price(size), old[0].group) for key, size in zip(new, sizes, strict=True)]
    sent = sorted([*others, *buckets], key=lambda one: order[one.key])
    return replace(scene, lanes=tuple(lanes), messages=tuple(sent)).duration


def _filled(rank: SeenStep, now: set[Key], parts: Sequence[float], ddp: bool) -> list[float]:
    """Time at which each bucket of these parts and all before it are ready on a rank."""
    sent = [one for one in rank.sent if one.key in now]
    sizes = [one.collective.bytes or 1 for one in sent]
    pieces = [
        (time, size * part / sum(sizes))
        for one, size in zip(sent, sizes, strict=True)
        for time, part in (sorted(one.pieces) if ddp else one.pieces)
    ]
    if not ddp:
        pieces.sort(key=itemgetter(0))
    times = list(accumulate((time for time, _ in pieces), max))
    there = list(accumulate(part for _, part in pieces))
    return reached(times, there, (need - PADDING for need in accumulate(parts)))


def _after_waits(rank: SeenStep, keys: set[Key]) -> tuple[Interval, ...]:
    """Intervals in which a rank is idle after its waits for these messages, as a thread is that wakes up."""
    mine = {id(one.collective) for one in rank.sent if one.key in keys}
    waited = [wait for wait in rank.waits if id(wait.collective) in mine]
    if not waited:
        return ()
    after = [start for start, _ in (*rank.step.compute, *rank.step.copies) if start >= waited[-1].end]
    return common(rank.idle, [(waited[0].end, min(after, default=waited[-1].end))])


def _rebucketed(
    lane: RankLane, clock: LocalClock, ready: Sequence[float], now: set[Key], new: Sequence[Key]
) -> RankLane:
    there = {key: clock.at(time) for key, time in zip(new, ready, strict=True)}
    delay = fmean(lane.delays[key] for key in now if key in lane.delays)
    last = new[-1]
    return replace(
        lane,
        ready=_without(lane.ready, now) | there,
        delays=_without(lane.delays, now) | dict.fromkeys(new, delay),
        waits=tuple(
            sorted(
                ((max(at, there[last]), last) if key in now else (at, key) for at, key in lane.waits), key=itemgetter(0)
            )
        ),
    )


def _without(times: Mapping[Key, float], keys: set[Key]) -> dict[Key, float]:
    return {key: time for key, time in times.items() if key not in keys}
