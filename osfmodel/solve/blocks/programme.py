"""The linear programme for the sizes of a given sequence of collectives, solved by HiGHS.

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

from typing import Any, NamedTuple

import numpy as np

from osfmodel.cost.shapes import Array
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
