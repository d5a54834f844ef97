"""The linear programme for the sizes of a given sequence of collectives, compiled once for all costs and layers.

Positions x_1 <= ... of the cuts on the tape, finish F_j of each operation and the iteration time T:

    minimise T   subject to
    F_j >= r_j + a_j + b_j (x_k - x_{k-1})       its gradients are ready
    F_j >= F_{j-1} + a_j + b_j (x_k - x_{k-1})   the channel is free
    T   >= F_j + q_j                             what follows when it has arrived
    low_k <= x_k <= high_k                       each cut stays in its place
    least_k <= x_k - x_{k-1} <= most_k           each size where its line holds, and within a limit

where operation j carries collective k(j): of a split all-reduce there are two of each. The chain of the next forward is
in q_j, the forward and update work from the first layer that waits for j on: the start of each layer is the maximum
over such chains, so that nothing is lost by leaving those variables out. Everything but the pattern of the matrices is
a Parameter, r, a, b, q and all bounds, in affine places (DPP): cvxpy compiles once per number of operations.

Times are scaled by the value to beat and bytes by the total, so that the tolerance of the solver is relative.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from osfmodel.cost.shapes import Array
from osfmodel.solve.solution import Status

SOLVERS = ("HIGHS", "SCIPY", "CLARABEL")
"""Solvers of cvxpy, in order of preference: those that return vertices first; SCIPY is HiGHS as scipy has it."""


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


class Shape(NamedTuple):
    """The shape of the matrices: the collective that each operation carries, and whether sizes have an upper bound."""

    bucket: tuple[int, ...]
    capped: bool


class Matrices(NamedTuple):
    """moving z - slopes * (sizes z) >= offsets and fixed z >= bounds, for z = (positions, finishes, T)."""

    moving: Any
    sizes: Any
    fixed: Any


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """A compiled programme for sequences of one shape: the cvxpy problem, its unknowns and its Parameters."""

    problem: Any
    unknown: Any
    slopes: Any
    offsets: Any
    bounds: Any
    solver: str

    def solve(self, figures: Figures, scale: float) -> Optimum:
        """The best positions for these figures; ``scale`` is the order of the iteration time, in seconds."""
        import warnings

        import cvxpy as cp

        self.slopes.value, self.offsets.value, self.bounds.value = parameters(figures, scale)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what it warns of is in the status
                self.problem.solve(solver=self.solver)
        except cp.SolverError:
            return _failed(Status.NOT_CONVERGED)
        if self.problem.status in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE):
            return _failed(Status.INFEASIBLE)
        if self.problem.status != cp.OPTIMAL:
            return _failed(Status.NOT_CONVERGED)
        solution = self.unknown.value
        return Optimum(None, float(solution[-1]) * scale, solution[: len(figures.low)] * figures.total)


def solve_program(figures: Figures, scale: float) -> Optimum:
    """The best positions, by the programme of this shape; a status instead if there are none, or no solver."""
    program = program_for(shape_of(figures))
    return _failed(Status.NO_SOLVER) if program is None else program.solve(figures, scale)


def shape_of(figures: Figures) -> Shape:
    """The shape of the programme for these figures."""
    return Shape(figures.bucket, bool((figures.most < figures.total).any()))


@lru_cache(maxsize=64)
def program_for(shape: Shape) -> BlockProgram | None:
    """The compiled programme for sequences of this shape; None if cvxpy finds no solver for it."""
    import cvxpy as cp

    installed: list[str] = cp.installed_solvers()  # type: ignore[no-untyped-call]
    solver = next((name for name in SOLVERS if name in installed), None)
    if solver is None:
        return None
    parts = matrices(shape)
    unknown = cp.Variable(parts.moving.shape[1])
    slopes = cp.Parameter(parts.moving.shape[0])  # of a table that falls with size some are below 0
    offsets = cp.Parameter(parts.moving.shape[0])
    bounds = cp.Parameter(parts.fixed.shape[0])
    constraints = [
        parts.moving @ unknown - cp.multiply(slopes, parts.sizes @ unknown) >= offsets,  # type: ignore[attr-defined]
        parts.fixed @ unknown >= bounds,
    ]
    problem = cp.Problem(cp.Minimize(unknown[-1]), constraints)
    return BlockProgram(problem, unknown, slopes, offsets, bounds, solver)


def matrices(shape: Shape) -> Matrices:
    """The constant matrices of a shape. All constraints of a kind are one block of rows."""
    from scipy import sparse

    operations, buckets = len(shape.bucket), max(shape.bucket) + 1
    cuts = buckets - 1
    difference = sparse.diags_array([1.0, -1.0], offsets=[0, -1], shape=(buckets, cuts)).tocsr()
    carried = difference[list(shape.bucket)]
    finish = sparse.eye_array(operations, format="csr")
    chain = (finish - sparse.eye_array(operations, k=-1))[1:]
    place = sparse.eye_array(cuts)
    last = sparse.csr_array(np.ones((operations, 1)))
    fixed = [[None, -finish, last], [place, None, None], [-place, None, None], [difference, None, None]]
    moving = sparse.block_array([[sparse.csr_array((operations, cuts)), finish, 0 * last], [None, chain, None]])
    sizes = sparse.vstack([carried, carried[1:]])
    sizes.resize(moving.shape)
    capped = [[-difference, None, None]] if shape.capped else []
    return Matrices(moving.tocsr(), sizes.tocsr(), sparse.block_array(fixed + capped).tocsr())


def parameters(figures: Figures, scale: float) -> tuple[Array, Array, Array]:
    """Slopes, offsets and bounds, in units of ``scale`` seconds and of the total bytes."""
    total = figures.total
    slope, latency = figures.slope * (total / scale), figures.latency / scale
    # The last collective ends at the end of the tape, which is not an unknown.
    ends = np.zeros(len(figures.least))
    ends[-1] = 1
    constant = latency + slope * ends[list(figures.bucket)]
    slopes = np.concatenate([slope, slope[1:]])
    offsets = np.concatenate([figures.ready / scale + constant, constant[1:]])
    bounds = [figures.tail / scale, figures.low / total, -figures.high / total, figures.least / total - ends]
    if shape_of(figures).capped:
        bounds.append(ends - figures.most / total)
    return slopes, offsets, np.concatenate(bounds)


def _failed(status: Status) -> Optimum:
    return Optimum(status, np.inf, np.array([]))
