"""The collectives of a step as messages: when their gradients were ready, and how long each had the network."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

from osfmodel.entities.dtypes import holds_gradients
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import Interval, common, length, union, without
from osfmodel.entities.trace import Collective, GradientReady, Key, Step, keys_of
from osfmodel.formats.traces.network import carried, filled, wire_times

COMPLETE = 0.02
"""Largest fraction of the bytes sent that may be missing from the recorded gradients."""
PADDING = COMPLETE / 10
"""Fraction of the bytes that may be missing when a bucket counts as ready, since sizes may be padded."""
ROUNDING = 1e-9
"""Rounding error in sums of times, in seconds: a message that starts when another ends is not held back."""
EVEN = 16
"""Pieces into which a bucket is cut if its gradients are not in the trace."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of a step, as one rank sent it.

    formed:   when its content was ready (:func:`formats.traces.network.filled`), and that of all buckets before it;
              of a collective of sharded parameters that queued behind another, when FSDP could have begun it
    ready:    when it would have been with buckets in the order in which gradients become ready: as many bytes of
              gradients were ready as it and all before it have; ``formed`` if the trace does not say, or if sooner
    delay:    seconds from ``formed`` to its start, if no other was in flight just before it; else 0, since then it
              may have waited for the network
    wire:     seconds of network time: its transfer, shared evenly with others in flight
    gradient: whether it carries gradients, unlike a map of used parameters, a broadcast of buffers and the like
    pieces:   (ready time, its fraction of the bytes) of each gradient; if the trace does not say, evenly spread
              between the bucket before and this one
    """

    key: Key
    collective: Collective
    formed: float
    ready: float
    delay: float
    wire: float
    gradient: bool
    pieces: tuple[tuple[float, float], ...]


def used_map(kind: str, dtype: str | None) -> bool:
    """Whether a collective is the map of used parameters that DDP sends as int32 with ``find_unused_parameters``."""
    return kind == "all_reduce" and not holds_gradients(dtype)


def of_early_micro_batches(step: Step, messages: Sequence[Sent]) -> frozenset[Key]:
    """The messages that reduce gradients in a micro-batch before the last one.

    Of DDP, those of the sizes of the last one's buckets; synchronised normalisation sends all-reduces as well.
    """
    if step.micro_batches == 1 or step.backward is None:
        return frozenset()
    buckets = {(one.elements, one.dtype) for one in step.reductions}
    found = []
    for message in messages:
        one = message.collective
        reduces = (one.elements, one.dtype) in buckets and one.may_be_gradients
        if one.shard is not None:
            reduces = one.kind != "all_gather"
        if reduces and one.start < step.backward[0]:
            found.append(message.key)
    return frozenset(found)


def sent(step: Step, host_computes: bool) -> tuple[Sent, ...]:
    """The collectives that the rank sent in this step, in the order of their starts.

    ``host_computes``: whether computation is the host's own, as with gloo and MPI.
    """
    pairs = sorted(
        zip(keys_of(step), step.collectives, strict=True), key=lambda pair: (pair[1].start, pair[1].sequence or 0)
    )
    flying = LocalClock(step.start, step.communication)
    held = _held(step)
    earliest = _earliest(step)
    before = last = step.backward[0] if step.backward else step.start
    found = []
    for (key, one), wire in zip(pairs, wire_times([one for _, one in pairs]), strict=True):
        mine = held.get(id(one), ())
        formed = filled(one, mine, host_computes)
        formed = min(max(last, formed), one.start) if mine else formed
        quiet = flying.at(one.start) - flying.at(one.start - GRAIN) > ROUNDING
        formed = formed if quiet else min(formed, max(step.start, sharded_ready(step, one)))
        ready = min(earliest.get(id(one), formed), formed)
        gradient = id(one) in held
        delay = one.start - formed if quiet else 0.0
        pieces = _pieces(mine, before, ready) if gradient else ((formed, 1.0),)
        found.append(Sent(key, one, formed, ready, delay, wire, gradient, pieces))
        before, last = (max(before, ready), max(last, formed)) if gradient else (before, last)
    return tuple(found)


def sharded_ready(step: Step, one: Collective) -> float:
    """Time from which FSDP could have sent a collective of backward, if no other had been in its way.

    A group is gathered once the one that issues that is in use, and reduced once its backward is over. The start of the
    collective if the trace does not say, or in forward.
    """
    if one.shard is None or not one.shard.backward:
        return one.start
    module, end = (one.shard.by, False) if one.kind == "all_gather" else (one.shard.module, True)
    times = [use.end if end else use.start for use in step.uses if use.backward and use.module == module]
    known = [time for time in times if time <= one.start]
    return max(known[-1], one.issued or known[-1]) if known else one.start


def _held(step: Step) -> dict[int, Sequence[GradientReady]]:
    """The gradients in each all-reduce, by its identity; empty if they cannot be matched."""
    reductions = step.reductions
    messages = carried(step) or [[] for _ in reductions]
    return {id(one): mine for one, mine in zip(reductions, messages, strict=True)}


def _earliest(step: Step) -> dict[int, float]:
    """Time at which enough gradient elements were ready for each bucket and all before it; empty if sizes differ."""
    buckets = step.reductions
    ordered = sorted(step.gradients, key=lambda one: one.ready)
    there = list(accumulate(one.elements or 0 for one in ordered))
    total = sum(one.elements or 0 for one in buckets)
    if not there or not there[-1] or abs(there[-1] - total) > COMPLETE * total:
        return {}
    wanted = [need * (1 - PADDING) for need in accumulate(one.elements or 0 for one in buckets)]
    times = reached([one.ready for one in ordered], there, wanted)
    return {id(one): time for one, time in zip(buckets, times, strict=True)}


def reached(times: Sequence[float], there: Sequence[float], wanted: Iterable[float]) -> list[float]:
    """The time at which each of the amounts ``wanted`` is there, given how much is at each of ``times``."""
    return [times[min(len(times) - 1, bisect_left(there, need))] for need in wanted]


def _pieces(mine: Sequence[GradientReady], before: float, ready: float) -> tuple[tuple[float, float], ...]:
    total = sum(one.bytes or 0 for one in mine)
    if total:
        return tuple((one.ready, (one.bytes or 0) / total) for one in mine)
    if mine:
        return tuple((one.ready, 1 / len(mine)) for one in mine)
    return tuple((before + max(0.0, ready - before) * (k + 1) / EVEN, 1 / EVEN) for k in range(EVEN))


GRAIN = 5e-5
"""Seconds by which a collective may appear to end after the wait that it ended, since clocks differ."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a step in seconds; they add up to it.

    compute:  the device computed
    transfer: it waited for a collective that all ranks had joined
    waiting:  it waited for a collective that some rank had not joined: for other ranks, not for the network; None
              if only one rank was traced, and then it is part of ``transfer``
    held:     it waited for a collective that was submitted but had not begun, with none in flight
    copies:   it only copied, between host and device or within
    input:    it had nothing to do, while the host waited for its data loader
    idle:     it had nothing to do for no reason in the trace: the host was behind, or not traced
    """

    compute: float
    transfer: float
    waiting: float | None
    held: float
    copies: float
    input: float
    idle: float

    @property
    def exposed(self) -> float:
        """Seconds for which the device waited for a collective."""
        return self.transfer + (self.waiting or 0) + self.held


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of the device for a collective, from ``start`` until ``end``, when that ended."""

    start: float
    end: float
    collective: Collective


class LocalClock:
    """A clock of a step that stands still in some of its intervals."""

    def __init__(self, start: float, left_out: Iterable[Interval]) -> None:
        gone = [(max(begin, start), end) for begin, end in union(left_out) if end > start]
        self.start = start
        self.starts = [begin for begin, _ in gone]
        self.ends = [end for _, end in gone]
        self.before = [0.0, *accumulate(end - begin for begin, end in gone)]

    def at(self, time: float) -> float:
        """Seconds on this clock from the start of the step to ``time``."""
        place = bisect_right(self.starts, time)
        inside = max(0.0, self.ends[place - 1] - time) if place else 0.0
        return max(0.0, time - self.start - self.before[place] + inside)


def waits(step: Step, needed_late: Collection[int] = ()) -> tuple[Wait, ...]:
    """The device's waits for collectives.

    A wait is part of a pause, a time without other work: from when the first collective that ends in it or is in
    flight was submitted, to the last end of a collective in it. A pause in which none ends was not spent waiting
    for any, and the rest after the last end is idleness.

    ``needed_late``: by identity, collectives that nothing waits for until backward is over.
    """
    late = step.backward[1] if step.backward else step.start
    ends = sorted(step.collectives, key=lambda one: one.end)
    times = [one.end for one in ends]
    found = []
    for start, end in without([(step.start, step.end)], [*step.compute, *step.copies, *step.inputs]):
        first, last = bisect_right(times, start), bisect_right(times, end + GRAIN)
        ended = [one for one in ends[first:last] if start >= late or id(one) not in needed_late]
        if ended:
            since = min(one.start if one.issued is None else min(one.issued, one.start) for one in ended)
            found.append(Wait(max(start, since), min(end, ended[-1].end), ended[-1]))
    return tuple(one for one in found if one.end > one.start)


def parts_of(step: Step, waited: Sequence[Wait]) -> Parts:
    """The parts of one step of one rank, given its :func:`waits`."""
    exposed = [(wait.start, wait.end) for wait in waited]
    known = bool(step.collectives) and all(one.arrival is not None for one in step.collectives)
    transfer = length(common(exposed, [(one.moved_from, one.end) for one in step.collectives]))
    waiting = length(common(exposed, step.communication)) - transfer
    held = length(exposed) - transfer - waiting
    copies = without(step.copies, step.compute)
    inputs = length(input_waits(step))
    told = step.compute_time + length(exposed) + length(copies) + inputs
    idle = max(0.0, step.time - told)
    if known:
        return Parts(step.compute_time, transfer, waiting, held, length(copies), inputs, idle)
    return Parts(step.compute_time, transfer + waiting, None, held, length(copies), inputs, idle)


def input_waits(step: Step) -> tuple[Interval, ...]:
    """Intervals in which the rank waited for its data loader and did nothing else."""
    return without(common(step.inputs, [(step.start, step.end)]), [*step.compute, *step.copies])


def mean(parts: Sequence[Parts]) -> Parts:
    """The mean of each part; they still add up. ``waiting`` is part of the transfer if any of ``parts`` lacks it."""
    count = len(parts)
    means = {one.name: plain_sum(getattr(part, one.name) or 0.0 for part in parts) / count for one in fields(Parts)}
    found = Parts(**means)
    if all(one.waiting is not None for one in parts):
        return found
    return replace(found, transfer=found.transfer + means["waiting"], waiting=None)
