"""Where the time of a step went, as one rank saw it: computation, transfer, waiting, copies, input, idleness."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

from osfmodel.intervals import Interval, common, length, union, without
from osfmodel.trace.record import Collective, Step

GRAIN = 5e-5
"""Seconds by which what ended a wait may seem to end after it: what clocks of threads, hosts and devices differ by."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step; they add up to it.

    compute:  the device computed
    transfer: it waited for a collective that all ranks were in
    waiting:  it waited for a collective that some rank had not come to: for other ranks, not for the network; None
              where only one rank was traced, and then it is part of ``transfer``
    held:     it waited for a collective that had been submitted and not begun, with none in flight
    copies:   it only copied, between host and device or within
    input:    it had nothing to do, while the host waited for its data loader
    idle:     it had nothing to do, and nothing in the trace says why: the host was behind, or not traced
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
    """The device waited for a collective from ``start`` until ``end``, when that ended."""

    start: float
    end: float
    collective: Collective


class LocalClock:
    """The time of a step without some of its intervals: a clock that stands still in them."""

    def __init__(self, start: float, left_out: Iterable[Interval]) -> None:
        gone = [(max(begin, start), end) for begin, end in union(left_out) if end > start]
        self.start = start
        self.starts = [begin for begin, _ in gone]
        self.ends = [end for _, end in gone]
        self.before = [0.0, *accumulate(end - begin for begin, end in gone)]

    def at(self, time: float) -> float:
        """Its seconds from the start of the step to ``time``."""
        place = bisect_right(self.starts, time)
        inside = max(0.0, self.ends[place - 1] - time) if place else 0.0
        return max(0.0, time - self.start - self.before[place] + inside)


def waits(step: Step, needed_late: Collection[int] = ()) -> tuple[Wait, ...]:
    """When the device waited for collectives, and for which.

    That is a pause, a time in which it did nothing else, up to the last end of a collective in it, from when the first
    of those that ended in it or were in flight had been submitted. A pause in which none ends was not spent waiting
    for any, and what is left after the last end is idleness.

    ``needed_late``: by identity, collectives that nothing waits for before backward is over.
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
    """When the rank waited for its data loader and did nothing else."""
    return without(common(step.inputs, [(step.start, step.end)]), [*step.compute, *step.copies])


def mean(parts: Sequence[Parts]) -> Parts:
    """The mean of each part, which still add up; where one does not know ``waiting`` it is part of the transfer."""
    means = {field.name: sum(getattr(one, field.name) or 0.0 for one in parts) / len(parts) for field in fields(Parts)}
    found = Parts(**means)
    if all(one.waiting is not None for one in parts):
        return found
    return replace(found, transfer=found.transfer + means["waiting"], waiting=None)
