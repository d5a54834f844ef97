"""A run: an executed program, with the times of its operations; and programs whose run follows operation by operation.

Where streams work strictly in order and share no link, :func:`run_in_order` gives the times of
:func:`osfmodel.engine.simulator.run`, as for most sharded steps, many times as fast. An operation begins when the one
before it on its stream, and all that it waits for, have ended. Where collectives slow computation down, each is taken
up as soon as the last computation has been on which it depends (``Program.in_time``), so that all that may be in flight
beside a computation is known when its turn comes: it is followed from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, pairwise

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.levels import Memory, curve
from osfmodel.engine.program import COMPUTE, Program, Turn
from osfmodel.entities.timeline import LateSpans, Span, Timeline


@dataclass(slots=True)
class Run:
    """An executed program: seconds by number of the operation, which ``computed`` and ``sent`` hold as they ended.

    begun: numbers of collectives in the order in which they began, by stream
    sent:  (number, channel); empty where all streams are in order, which have one channel each
    pauses: (seconds at an instant, seconds of work that are left then) of computations beside collectives
    alone:  seconds of each layer by itself, by kind and name, once they were needed; with or without what is added
    """

    program: Program
    starts: list[float]
    ends: list[float]
    begun: dict[str, list[int]] = field(default_factory=dict)
    computed: list[int] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    pauses: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    finish: float = 0
    alone: dict[bool, dict[tuple[str, str], float]] = field(default_factory=dict)

    def timeline(self, compute_time: float) -> Timeline:
        """The timeline of the run; ``compute_time``: seconds of a single GPU."""
        return Timeline(LateSpans(self.spans), compute_time, self.finish, "simulator", self)

    def spans(self) -> tuple[Span, ...]:
        """Spans of computations, then of collectives, each in the order in which they ended."""
        operations = self.program.operations
        computed = ((COMPUTE, number) for number in self.computed)
        begun = sorted(chain.from_iterable(self.begun.values()))
        ended = self.sent or [(number, 0) for number in sorted(begun, key=self.ends.__getitem__)]
        sent = ((f"{operations[number].stream} {channel}", number) for number, channel in ended)
        return tuple(
            span
            for lane, number in chain(computed, sent)
            if not operations[number].quiet or self.ends[number] > self.starts[number]
            for span in self._spans_of(lane, number)
        )

    def _spans_of(self, lane: str, number: int) -> list[Span]:
        """The span of an operation, or those of the layers that it computes."""
        one, bounds, layered = self.program.operations[number], self._bounds(number), self.program.layers
        if len(bounds) == TWO or layered is None:
            return [Span(one.kind, lane, one.layers, bounds[0], bounds[1], one.bucket)]
        times = zip(layered.parts(one), bounds, bounds[1:], strict=False)
        return [Span(kind, lane, (name,), start, end) for (kind, name), start, end in times]

    def apart(self) -> tuple[list[float], list[float]]:
        """Starts and ends of the operations of the program in which each layer is one of its own."""
        bounds = [self._bounds(number) for number in range(len(self.program.operations))]
        return list(chain.from_iterable(one[:-1] for one in bounds)), list(
            chain.from_iterable(one[1:] for one in bounds)
        )

    def _bounds(self, number: int) -> list[float]:
        """Seconds at which an operation begins and ends and, of several layers, at which each gives way to the next."""
        one, start, end = self.program.operations[number], self.starts[number], self.ends[number]
        if len(one.layers) < TWO or one.kind not in ("forward", "backward") or self.program.layers is None:
            return [start, end]
        whole = self.program.seconds[number][0] if self.program.seconds else one.startup
        progress = [(start, whole), *self.pauses.get(number, ()), (end, 0)]
        left, bounds = whole, [start]
        packed = number >= self.program.layers.since
        if packed not in self.alone:
            self.alone[packed] = self.program.layers.seconds(packed)
        for part in self.program.layers.parts(one)[:-1]:
            left -= self.alone[packed][part]
            bounds.append(_instant(progress, left))
        return [*bounds, end]

    @property
    def memory(self) -> Memory:
        """Memory at the moments of the program, which ``engine.strategies.holdings`` adds to it."""
        return curve(self.program, self.starts, self.ends, self.finish)


TWO = 2
"""Instants of an operation that computes one layer, its start and its end."""


def _instant(progress: Sequence[tuple[float, float]], left: float) -> float:
    """The instant at which ``left`` seconds of work are left; between those in ``progress`` the pace is even."""
    for (now, most), (then, least) in pairwise(progress):
        if least <= left:
            return then if most <= least else now + (then - now) * ((most - max(left, least)) / (most - least))
    return progress[-1][0]


@dataclass(slots=True)
class LongRun:
    """The run of a step of many micro-batches, which is made once it is asked for.

    short: the run of a step of SIMULATED of them, whose second one is like all between the first and the last
    """

    short: Run
    make: Callable[[], Run]
    made: Run | None = None

    def whole(self) -> Run:
        """The run of all micro-batches."""
        if self.made is None:
            self.made = self.make()
        return self.made

    def timeline(self, compute_time: float, count: int) -> Timeline:
        """The timeline of ``count`` micro-batches; ``compute_time``: seconds of a single GPU."""
        operations, starts = self.short.program.operations, self.short.starts
        forward = [number for number in self.short.computed if operations[number].kind == "forward"]
        begun = [starts[number] for number in forward if operations[number].layers == operations[forward[0]].layers]
        finish = self.short.finish + (count - SIMULATED) * (begun[-1] - begun[-2])
        return Timeline(LateSpans(lambda: self.whole().spans()), compute_time, finish, "simulator", self)


SIMULATED = 3
"""Micro-batches of which the second is like all between the first and the last of a longer step that shards.

Such steps have the same peak of memory.
"""


def issued_run(timeline: Timeline | None, short: bool = False) -> Run | None:
    """The run of a timeline, or of its first micro-batches, if its program holds at other prices as well."""
    run = None if timeline is None else timeline.run
    if isinstance(run, LongRun):
        run = run.short if short else run.whole()
    return run if isinstance(run, Run) and run.program.works else None


def run_in_order(program: Program, pricing: Pricing) -> Run | None:
    """The run of a program; None where streams share a link, or an operation may overtake another."""
    turns, seconds = program.turns(), program.durations
    if turns is None:
        return None
    for link in turns.shared:  # streams of which only one transfers anything share nothing
        if sum(any(seconds[number][1] for number in numbers) for numbers in link) > 1:
            return None
    found = Run(program, [0] * len(seconds), [-1] * len(seconds), turns.own, turns.computed)
    slowdown = pricing.effects.compute_slowdown
    _follow(found, program.in_time(turns) if slowdown else turns.issued, seconds, slowdown, 1 + len(turns.own))
    found.finish = max(found.ends, default=0)
    return found


def _follow(
    run: Run, order: Iterable[Turn], seconds: Sequence[tuple[float, float]], slowdown: float, streams: int
) -> None:
    """Fill in starts and ends, turn by turn; computation takes ``1 + slowdown`` times as long beside collectives."""
    starts, ends = run.starts, run.ends
    last: list[float] = [0] * streams
    flights: list[tuple[float, float]] = []
    for number, stream, earliest, waits, slowed, several in order:
        begin = last[stream]
        if earliest > begin:  # noqa: PLR1730 - max() takes longer
            begin = earliest
        for before in waits:
            if ends[before] > begin:  # noqa: PLR1730
                begin = ends[before]
        startup, transfer = seconds[number]
        end = begin + startup + transfer
        if slowdown and end > begin:
            if stream:
                heappush(flights, (begin, end))
            elif flights and slowed:
                pauses: list[tuple[float, float]] = []
                end = _beside(flights, begin, startup, 1 / (1 + slowdown), pauses)
                if pauses and several:
                    run.pauses[number] = pauses
        starts[number] = begin
        ends[number] = last[stream] = end


def _beside(
    flights: list[tuple[float, float]], now: float, left: float, disturbed: float, pauses: list[tuple[float, float]]
) -> float:
    """The end of a computation that begins ``now`` and goes at a speed of ``disturbed`` beside ``flights``.

    flights: (begin, end), a heap from which those that it outlasts are taken
    pauses:  gets (instant, seconds of work left then) where the speed changes
    """
    while flights:
        begin, end = flights[0]
        if begin > now:
            if now + left <= begin:
                break
            left, now = left - (begin - now), begin
            pauses.append((now, left))
        if end > now:
            if now + left / disturbed <= end:
                return now + left / disturbed
            left, now = max(left - (end - now) * disturbed, 0), end
            pauses.append((now, left))
        heappop(flights)
    return now + left
