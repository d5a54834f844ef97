"""The memory curve of a program: the bytes in memory at each of its moments, by owner."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from osfmodel.engine.program import COMPUTE, Hold, Instant, Program
from osfmodel.entities.display import brief, how_many, show_bytes, show_time
from osfmodel.entities.timeline import Timeline

Place: TypeAlias = tuple[float, int, bool]
"""An instant in the order in which memory changes: seconds, turn of the computation, and whether it is its end."""
ALWAYS: Place = (-math.inf, -1, False)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Maximum bytes in memory by owner at a moment of a step.

    during: the moment: ``forward LAYER``, ``backward LAYER``, ``hook LAYER`` (its gradient is packed or selected),
            ``means LAYER`` (those of its sparse bucket are made), ``update LAYER`` (its bucket is released),
            ``gather LAYER`` (the group that begins with it is copied out), ``reduce LAYER`` (its gradients are copied
            into the input of a reduce-scatter) or ``update``
    """

    during: str
    held: Mapping[str, int]

    def __repr__(self) -> str:
        return brief(self, f"{show_bytes(self.bytes)}: {self.during}")

    @property
    def bytes(self) -> int:
        """Bytes of all owners together."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Level(Footprint):
    """Bytes that are held from ``start`` to ``end`` (seconds after the start of the iteration)."""

    start: float
    end: float

    def __repr__(self) -> str:
        return brief(self, f"{show_bytes(self.bytes)}, {show_time(self.start)} to {show_time(self.end)}: {self.during}")


@dataclass(frozen=True, slots=True)
class Memory:
    """A step as a sequence of levels, in the order of time."""

    levels: tuple[Level, ...]

    def __repr__(self) -> str:
        peak = f"peak {show_bytes(self.peak.bytes)} in {self.peak.during}" if self.levels else "empty"
        return brief(self, f"{peak}, {how_many(len(self.levels), 'level')}")

    @property
    def peak(self) -> Level:
        """The first of the highest levels."""
        return max(self.levels, key=lambda level: level.bytes)


def curve(program: Program, starts: Sequence[float], ends: Sequence[float], finish: float) -> Memory:
    """Levels at the moments of ``program``, whose operations begin at ``starts`` and end at ``ends`` (seconds).

    If several operations end at one instant, memory changes in the order in which they were done, collectives first.
    The last moment, the update of all, goes on until ``finish``.
    """
    moments = _Moments(program, starts, ends, finish)
    levels = [moments.level(number, held) for number, held, _ in moments.held()]
    return Memory(tuple(sorted(levels, key=lambda level: level.start)))


def highest(program: Program, starts: Sequence[float], ends: Sequence[float], finish: float) -> Level:
    """The first of the highest levels of :func:`curve`, without the others."""
    moments = _Moments(program, starts, ends, finish)
    best = -1
    found: Level | None = None
    for number, held, total in moments.held():
        if total > best or (found is not None and total == best and moments.start(number) < found.start):
            best, found = total, moments.level(number, held)
    assert found is not None
    return found


def places_of(
    program: Program, starts: Sequence[float], ends: Sequence[float], finish: float
) -> tuple[Callable[[Hold], Place], Callable[[Instant], Place]]:
    """Functions for the places, in the order in which memory changes, where a hold begins, and of an instant."""
    moments = _Moments(program, starts, ends, finish)
    return moments.begun, moments.place


class _Moments:
    """Bytes that are held at the moments of an executed program."""

    def __init__(self, program: Program, starts: Sequence[float], ends: Sequence[float], finish: float) -> None:
        self.program, self.starts, self.ends, self.finish = program, starts, ends, finish
        computed = [number for number, operation in enumerate(program.operations) if program.computes(operation)]
        turns = {
            number: turn for turn, number in enumerate(sorted(computed, key=lambda at: (starts[at], ends[at], at)))
        }
        self.order = sorted(program.moments, key=turns.__getitem__)
        turn = [turns.get(number, -1) for number in range(len(starts))]
        self.places = (
            [(start, turn[number], False) for number, start in enumerate(starts)],
            [(end, turn[number], True) for number, end in enumerate(ends)],
        )
        self.before = dict(_before(program))
        self.lasting = {hold.owner for hold in program.holds if not hold.passing}

    def place(self, instant: Instant) -> Place:
        """The place of an instant among all events."""
        return self.places[instant.ended][instant.operation]

    def begun(self, hold: Hold) -> Place:
        """The place from which a hold holds its bytes."""
        first = max(map(self.place, hold.since)) if hold.since else ALWAYS
        return first if hold.latest is None else min(first, self.place(hold.latest))

    def held(self) -> Iterator[tuple[int, dict[str, int], int]]:
        """(operation, bytes by owner, bytes in all) at each moment, in turn; the mapping is one that changes."""
        holds = self.program.holds
        comes = deque(sorted(((self.begun(one), one) for one in holds), key=itemgetter(0)))
        goes = deque(sorted(((self.place(one.until), one) for one in holds if one.until), key=itemgetter(0)))
        held, total = dict.fromkeys([hold.owner for hold in holds], 0), 0
        for number in self.order:
            begin, end = self.places[False][number], self.places[True][number]
            while comes and comes[0][0] < end:
                hold = comes.popleft()[1]
                held[hold.owner] += hold.bytes
                total += hold.bytes
            while goes and goes[0][0] <= begin:
                hold = goes.popleft()[1]
                held[hold.owner] -= hold.bytes
                total -= hold.bytes
            yield number, held, total

    def start(self, number: int) -> float:
        """The start of a moment; the memory of what is quiet is that since the last operation that was not."""
        quiet = self.program.operations[number].quiet and number in self.before
        return self.ends[self.before[number]] if quiet else self.starts[number]

    def level(self, number: int, held: Mapping[str, int]) -> Level:
        """The level of a moment."""
        until = self.ends[number] if self.program.operations[number].layers else self.finish
        there = {owner: size for owner, size in held.items() if size or owner in self.lasting}
        return Level(self.program.moments[number], there, self.start(number), until)


def _before(program: Program) -> Iterator[tuple[int, int]]:
    """(operation, the last one before it that is not quiet) for each operation of the compute stream."""
    last = -1
    for number, operation in enumerate(program.operations):
        if operation.stream == COMPUTE:
            if last >= 0:
                yield number, last
            last = last if operation.quiet else number


def times_of(program: Program, timeline: Timeline) -> tuple[list[float], list[float]]:
    """(starts, ends) in seconds of the operations of ``program``, taken from ``timeline`` of the same plan.

    Operations that the timeline leaves out take no time: they come when what they wait for has ended.
    """
    spans: dict[tuple[str, frozenset[str]], deque[tuple[float, float]]] = {}
    for span in timeline.spans:
        spans.setdefault((span.kind, frozenset(span.layers)), deque()).append((span.start, span.end))
    starts, ends = [0.0] * len(program.operations), [0.0] * len(program.operations)
    last = 0.0
    for number in _sends_first(program):
        operation = program.operations[number]
        found = spans.get((operation.kind, frozenset(operation.layers)))
        there = max([last, *(ends[before] for before in operation.waits)])
        starts[number], ends[number] = found.popleft() if found else (there, there)
        last = ends[number] if operation.stream == COMPUTE else last
    return starts, ends


def _sends_first(program: Program) -> list[int]:
    """The numbers of all operations, collectives before the computations that wait for them."""
    sends = [not program.computes(operation) for operation in program.operations]
    return sorted(range(len(sends)), key=lambda number: not sends[number])
