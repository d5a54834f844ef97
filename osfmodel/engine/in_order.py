"""Execute programs whose streams work strictly in order and share no link: times follow operation by operation.

It gives the times of :func:`osfmodel.engine.simulator.run` for most sharded steps, several times as fast. An operation
begins when the one before it on its stream, and all that it waits for, have ended. Where collectives slow
computation down, the device and the streams are followed from one end to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import COMPUTE, Operation, Program
from osfmodel.engine.run import Run


def run_in_order(program: Program, pricing: Pricing) -> Run | None:
    """The run of a program; None where streams share a link, or an operation may overtake another."""
    if any(one.width > 1 or one.credit is not None or one.between for one in program.streams.values()):
        return None
    seconds, slowdown = program.durations, pricing.effects.compute_slowdown
    owners: dict[str, str] = {}
    for number, (one, (_, transfer)) in enumerate(zip(program.operations, seconds, strict=True)):
        if (slowdown and one.not_before) or (one.waits and max(one.waits) >= number):
            return None
        if transfer and owners.setdefault(program.stream(one).link, one.stream) != one.stream:
            return None
    found = Run(program, [0] * len(seconds), [-1] * len(seconds))
    if slowdown:
        _follow(found, 1 / (1 + slowdown))
    else:
        _recur(found, seconds)
    _note(found, program.operations)
    return found


def _recur(run: Run, seconds: Sequence[tuple[float, float]]) -> None:
    """Fill in starts and ends, in the order of issue: all that an operation waits for stands before it."""
    starts, ends, last = run.starts, run.ends, dict[str, float]()
    for number, (one, (startup, transfer)) in enumerate(zip(run.program.operations, seconds, strict=True)):
        begin = max(last.get(one.stream, 0), one.not_before)
        for before in one.waits:
            begin = max(begin, ends[before])
        starts[number] = begin
        ends[number] = last[one.stream] = begin + startup + transfer
    run.finish = max(ends, default=0)


def _follow(run: Run, disturbed: float) -> None:
    """Fill in starts and ends where computation goes at a speed of ``disturbed`` beside collectives."""
    operations, seconds, starts, ends = run.program.operations, run.program.durations, run.starts, run.ends
    queues: dict[str, list[int]] = {COMPUTE: []}
    awaited: set[int] = set()
    for number, one in enumerate(operations):
        queues.setdefault(one.stream, []).append(number)
        if one.stream != COMPUTE:
            awaited.update(one.waits)
    computed, idle = queues.pop(COMPUTE)[::-1], [queue[::-1] for queue in queues.values()]
    flying: list[tuple[float, int, list[int]]] = []  # (end, operation, its queue)
    now: float = 0
    computing, left = -1, 0.0

    def ready(queue: list[int]) -> bool:
        return bool(queue) and all(ends[before] >= 0 for before in operations[queue[-1]].waits)

    while True:
        for flight in [one for one in flying if one[0] <= now]:
            flying.remove(flight)
            ends[flight[1]] = now
            idle.append(flight[2])
        while not left and (computing >= 0 or ready(computed)):
            if computing >= 0:
                ends[computing], computing = now, -1
            else:
                computing = computed.pop()
                starts[computing], left = now, seconds[computing][0]
        for queue in [one for one in idle if ready(one)]:
            idle.remove(queue)
            number = queue.pop()
            starts[number] = now
            flying.append((now + seconds[number][0] + seconds[number][1], number, queue))
        if not flying and computing < 0:
            run.finish = now
            return
        until = min([one[0] for one in flying], default=inf)
        while computing >= 0:
            one = operations[computing]
            speed = disturbed if flying and one.slowed else 1
            end = now + left / speed
            if end > until:
                rest = left - (until - now) * speed
                if len(one.layers) > 1:
                    run.pauses.setdefault(computing, []).extend([(now, left), (until, rest)])
                now, left = until, rest
                break
            ends[computing] = now = end
            done, computing, left = computing, -1, 0
            if done in awaited or not ready(computed):
                break
            computing = computed.pop()
            starts[computing], left = now, seconds[computing][0]
        else:
            now = until


def _note(run: Run, operations: Sequence[Operation]) -> None:
    """Note the order of computations and collectives."""
    for number, one in enumerate(operations):
        if one.stream == COMPUTE:
            run.computed.append(number)
        else:
            run.begun.setdefault(one.stream, []).append(number)
            run.sent.append((number, 0))
    run.sent.sort(key=lambda one: run.ends[one[0]])
