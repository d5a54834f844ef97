"""Execute programs whose streams work strictly in order and share no link: times follow operation by operation.

It gives the times of :func:`osfmodel.engine.simulator.run` for most sharded steps, many times as fast. An operation
begins when the one before it on its stream, and all that it waits for, have ended. Where collectives slow computation
down, each is taken up as soon as the last computation has been on which it depends (``Program.in_time``), so that all
that may be in flight beside a computation is known when its turn comes: it is followed from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program, Turn
from osfmodel.engine.run import Run


def run_in_order(program: Program, pricing: Pricing) -> Run | None:
    """The run of a program; None where streams share a link, or an operation may overtake another."""
    turns, seconds = program.turns(), program.durations
    if turns is None or any(_used(numbers, seconds) > 1 for numbers in turns.shared):
        return None
    found = Run(program, [0] * len(seconds), [-1] * len(seconds), turns.own, turns.computed)
    slowdown = pricing.effects.compute_slowdown
    _follow(found, program.in_time(turns) if slowdown else turns.issued, seconds, slowdown, 1 + len(turns.own))
    found.finish = max(found.ends, default=0)
    return found


def _used(streams: Sequence[Sequence[int]], seconds: Sequence[tuple[float, float]]) -> int:
    """How many of the streams of a link transfer anything."""
    return sum(any(seconds[number][1] for number in numbers) for numbers in streams)


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
