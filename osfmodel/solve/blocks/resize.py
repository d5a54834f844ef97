"""Block sizes of one sequence: the linear programme is repeated until the cost lines that it assumes apply.

A minimum of lines is concave, so a programme with it would not be linear. Each round takes for every collective the
line that holds at its present size: exact there and never below the price elsewhere (of a table: exact on the stretch,
to which the size is confined). So no round makes the sequence slower, and for a single line the first round is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import Objective
from osfmodel.entities.workload import Workload
from osfmodel.solve.blocks.programme import Figures, solve_program
from osfmodel.solve.blocks.tape import CostPiece, Cut, Tape, Times, line_at, lines_of, times_of
from osfmodel.solve.bounds import COLLECTIVES
from osfmodel.solve.solution import Status

ROUNDS = 8
"""Maximum number of linear programmes per sequence; a single line needs one."""
PROGRESS = 1e-9
"""Relative gain below which a change is rounding error."""


class SizingProblem(NamedTuple):
    """Data for all sequences: the times of the layers, the lines of each kind of collective, the place of
    each layer in forward, the seconds per byte of a message of several pieces, the largest message."""

    times: Times
    lines: tuple[tuple[CostPiece, ...], ...]
    places: dict[str, int]
    dtypes: dict[str, str]
    fusion_copy: float
    largest: float


class SegmentCollective(NamedTuple):
    """One operation: the collective that it carries, its kind (0, or 1 for an all-gather), and its segments' times."""

    bucket: int
    kind: int
    ready: float
    tail: float
    pieces: int


class Sized(NamedTuple):
    """A sequence of collectives: the tape, its cuts, the seconds of the iteration; ``status`` if a solver failed."""

    tape: Tape
    cuts: tuple[Cut, ...]
    value: float
    status: Status | None = None


def problem_of(workload: Workload, pricing: Pricing, objective: Objective, largest: int | None = None) -> SizingProblem:
    """The data that all sequences of a workload share under one objective. Raises CostError as Pricing.cost."""
    total = workload.gradient_bytes
    return SizingProblem(
        times=times_of(workload, pricing, objective),
        lines=tuple(lines_of(pricing.cost(kind), total) for kind in COLLECTIVES[objective.strategy]),
        places={layer.name: place for place, layer in enumerate(workload.layers)},
        dtypes={layer.name: layer.dtype for layer in workload.layers},
        fusion_copy=pricing.effects.fusion_copy,
        largest=total if largest is None else largest,
    )


def operations(problem: SizingProblem, tape: Tape, cuts: Sequence[Cut]) -> list[SegmentCollective]:
    """The operations on the channel, in order: every collective and then, if split, every all-gather."""
    times, split = problem.times, len(problem.lines) > 1
    ready = [times.ready[segment.layer] for segment in tape.segments]
    tails = [times.tails[segment.layer] for segment in tape.segments]
    found: list[SegmentCollective] = []
    gathers: list[tuple[int, SegmentCollective]] = []
    firsts, ends = [0, *[cut.after for cut in cuts]], [*[cut.before + 1 for cut in cuts], len(ready)]
    for number, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        tail = max(tails[first:end])
        found.append(SegmentCollective(number, 0, max(ready[first:end]), 0 if split else tail, end - first))
        if split:
            place = min(problem.places[segment.layer] for segment in tape.segments[first:end])
            gathers.append((place, SegmentCollective(number, 1, 0, tail, 1)))
    return found + [gather for _, gather in sorted(gathers)]


def sizes_of(tape: Tape, cuts: Sequence[Cut]) -> list[float]:
    """Bytes of each collective."""
    return [end - start for start, end in pairwise([0, *[cut.position for cut in cuts], tape.total])]


def time_of(problem: SizingProblem, tape: Tape, cuts: Sequence[Cut], work: Sequence[SegmentCollective] = ()) -> float:
    """Seconds of the iteration: the recursion over the channel, with the real price of each size.

    ``work``: the operations of these cuts, if known.
    """
    sizes, finish, end, copies = sizes_of(tape, cuts), 0.0, problem.times.least, problem.fusion_copy
    for bucket, kind, ready, tail, pieces in work or operations(problem, tape, cuts):
        size, lines = sizes[bucket], problem.lines[kind]
        latency, slope, _, _ = lines[0] if len(lines) == 1 else line_at(lines, size)
        start = finish if finish > ready else ready
        finish = start + latency + (slope + copies if pieces > 1 else slope) * size
        end = max(end, finish + tail)
    return end


def resized(problem: SizingProblem, tape: Tape, cuts: Sequence[Cut]) -> Sized:
    """The cuts at their best positions, each in its place. With a status, the cuts are unchanged."""
    work = operations(problem, tape, cuts)
    best = Sized(tape, tuple(cuts), time_of(problem, tape, cuts, work))
    lines: tuple[CostPiece, ...] = ()
    # A sequence that breaks the limit is not a value to keep.
    allowed = max(sizes_of(tape, cuts)) <= problem.largest
    for _ in range(ROUNDS if cuts else 0):
        lines = _lines(problem, sizes_of(tape, best.cuts), work, lines)
        figures = _figures(problem, best, work, lines)
        optimum = solve_program(figures, best.value)
        if optimum.status:
            return best._replace(status=optimum.status)
        positions = np.clip(optimum.positions, figures.low, figures.high).tolist()
        placed = tuple(Cut(cut.before, cut.after, place) for cut, place in zip(cuts, positions, strict=True))
        value = time_of(problem, tape, placed, work)
        if allowed and not value < best.value * (1 - PROGRESS):
            break
        best, allowed = Sized(tape, placed, value), True
        if len(problem.lines[0]) == 1:
            break
    return best


def figures_of(problem: SizingProblem, tape: Tape, cuts: Sequence[Cut]) -> Figures:
    """The numbers of the programme for cuts in these places, on the lines that hold at these positions."""
    work = operations(problem, tape, cuts)
    return _figures(problem, Sized(tape, tuple(cuts), 0), work, _lines(problem, sizes_of(tape, cuts), work))


def _lines(
    problem: SizingProblem, sizes: Sequence[float], work: Sequence[SegmentCollective], before: Sequence[CostPiece] = ()
) -> tuple[CostPiece, ...]:
    """The line of each operation at its present size."""
    last: Sequence[CostPiece | None] = before or [None] * len(work)
    return tuple(
        line_at(problem.lines[step.kind], sizes[step.bucket], line) for step, line in zip(work, last, strict=True)
    )


def _slope(problem: SizingProblem, step: SegmentCollective, line: CostPiece) -> float:
    """Seconds per byte, with copies into and out of a buffer if a message has several pieces."""
    return line.slope + (problem.fusion_copy if step.pieces > 1 else 0)


def _figures(
    problem: SizingProblem, sized: Sized, work: Sequence[SegmentCollective], lines: Sequence[CostPiece]
) -> Figures:
    """The numbers of the programme: each operation on its line, each collective within the range of its lines."""
    ranges = [
        sized.tape.range_of(cut) if cut.before == cut.after else (cut.position, cut.position) for cut in sized.cuts
    ]
    count = len(sized.cuts) + 1
    least, most = np.zeros(count), np.full(count, float(min(problem.largest, sized.tape.total)))
    for step, line in zip(work, lines, strict=True):
        least[step.bucket] = max(least[step.bucket], line.least)
        most[step.bucket] = min(most[step.bucket], line.most)
    return Figures(
        ready=np.array([step.ready for step in work]),
        latency=np.array([line.latency for line in lines]),
        slope=np.array([_slope(problem, step, line) for step, line in zip(work, lines, strict=True)]),
        tail=np.array([step.tail for step in work]),
        bucket=tuple(step.bucket for step in work),
        low=np.array([low for low, _ in ranges], dtype=float),
        high=np.array([high for _, high in ranges], dtype=float),
        least=least,
        most=most,
        total=sized.tape.total,
    )  # fmt: skip
