"""Block sizes of one sequence: the linear programme is repeated until the cost lines that it assumes apply.

A minimum of lines is concave, so a programme with it would not be linear. Each round takes for every collective the
line that holds at its present size: exact there and never below the price elsewhere (of a table: exact on the stretch,
to which the size is confined). So no round makes the sequence slower, and for a single line the first round is exact.

HiGHS solves the programme for the sizes of a given sequence of collectives.

Positions x_1 <= ... of the cuts on the tape, finish F_j of each operation and the iteration time T:

    minimise T   subject to
    F_j >= r_j + a_j + b_j (x_k - x_{k-1})       its gradients are ready
    F_j >= F_{j-1} + a_j + b_j (x_k - x_{k-1})   the channel is free
    T   >= F_j + q_j                             what follows when it has arrived
    low_k <= x_k <= high_k                       each cut stays in its place
    least_k <= x_k - x_{k-1} <= most_k           each size where its line holds, and within a limit

where operation j carries collective k(j): of a split all-reduce there are two of each. The chain of the next forward is
in q_j, the forward and update work from the first layer that waits for j on: the start of each layer is the maximum
over such chains, so that nothing is lost by leaving those variables out.

Times are scaled by the value to beat and bytes by the total, so that the tolerance of the solver is relative.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Array
from osfmodel.entities.plan import Objective
from osfmodel.entities.workload import Workload
from osfmodel.solve.blocks.tape import CostPiece, Cut, Tape, Times, line_at, lines_of, times_of
from osfmodel.solve.bounds import COLLECTIVES
from osfmodel.solve.solution import Status


class Figures(NamedTuple):
    """A sequence in numbers. Per operation: ``ready``, ``latency``, ``slope``, ``tail``, and the ``bucket`` it carries;
    per cut: ``low``, ``high``; per bucket: ``least``, ``most``. Seconds and bytes. ``total`` bytes in all."""

    ready: Array
    latency: Array
    slope: Array
    tail: Array
    bucket: tuple[int, ...]
    low: Array
    high: Array
    least: Array
    most: Array
    total: float


class Optimum(NamedTuple):
    """The iteration time and the positions of the cuts; ``status`` is not None if the solver missed the optimum."""

    status: Status | None
    value: float
    positions: Array


def solve_program(figures: Figures, scale: float) -> Optimum:
    """The best positions, or a status if there are none; ``scale`` is the order of the iteration time, in seconds."""
    try:
        import highspy
    except ImportError:
        return _failed(Status.NO_SOLVER)
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    ends = highspy.HighsModelStatus
    solver.setOptionValue("output_flag", False)
    solver.passModel(model_of(figures, scale))
    solver.run()
    status = solver.getModelStatus()
    if status in (ends.kInfeasible, ends.kUnboundedOrInfeasible):
        return _failed(Status.INFEASIBLE)
    if status != ends.kOptimal:
        return _failed(Status.NOT_CONVERGED)
    found = np.array(solver.getSolution().col_value)
    return Optimum(None, float(found[-1]) * scale, found[1 : len(figures.low) + 1] * figures.total)


def model_of(figures: Figures, scale: float) -> Any:
    """The programme as HiGHS takes it, in units of ``scale`` seconds and of the total bytes.

    Unknowns: the start of the tape, the positions, its end, the finishes, T.
    """
    import highspy

    total, carried = figures.total, np.array(figures.bucket)
    slope, latency = figures.slope * (total / scale), figures.latency / scale
    bucket = np.arange(len(figures.least))
    finish = len(bucket) + 1 + np.arange(len(carried))
    last, one = np.full(len(carried), finish[-1] + 1), np.ones(len(carried))
    # Columns and factors of the rows of each kind, and what the rows are at least.
    kinds: list[tuple[list[Array], list[Array], Array]] = [
        ([finish, carried + 1, carried], [one, -slope, slope], figures.ready / scale + latency),
        ([finish[1:], finish[:-1], carried[1:] + 1, carried[1:]], [one, -one, -slope, slope], latency[1:]),
        ([last, finish], [one, -one], figures.tail / scale),
        ([bucket + 1, bucket], [np.ones(len(bucket)), -np.ones(len(bucket))], figures.least / total),
    ]
    least = np.concatenate([bound for _, _, bound in kinds])
    most = np.full(len(least), np.inf)
    most[-len(bucket) :] = figures.most / total
    free = np.full(len(carried) + 1, np.inf)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = int(last[0]) + 1, len(least)
    model.col_cost_ = np.append(np.zeros(last[0]), 1.0)
    model.col_lower_ = np.concatenate([[0.0], figures.low / total, [1.0], -free])
    model.col_upper_ = np.concatenate([[0.0], figures.high / total, [1.0], free])
    model.row_lower_, model.row_upper_ = least, most
    lengths = np.concatenate([np.full(len(bound), len(columns)) for columns, _, bound in kinds])
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.append(0, np.cumsum(lengths))
    matrix.index_ = np.concatenate([np.stack(columns, 1).ravel() for columns, _, _ in kinds])
    matrix.value_ = np.concatenate(
        [np.stack([part[-len(bound) :] for part in factors], 1).ravel() for _, factors, bound in kinds if len(bound)]
    )
    return model


def _failed(status: Status) -> Optimum:
    return Optimum(status, np.inf, np.array([]))


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
        slope=np.array([  # with copies into and out of a buffer if a message has several pieces
            line.slope + (problem.fusion_copy if step.pieces > 1 else 0)
            for step, line in zip(work, lines, strict=True)
        ]),
        tail=np.array([step.tail for step in work]),
        bucket=tuple(step.bucket for step in work),
        low=np.array([low for low, _ in ranges], dtype=float),
        high=np.array([high for _, high in ranges], dtype=float),
        least=least,
        most=most,
        total=sized.tape.total,
    )  # fmt: skip
