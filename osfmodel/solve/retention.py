"""Choose what to keep, recompute and send sparsely so that a step fits into memory: a mixed-integer programme.

For one batch size, with x_s = 1 where segment s is computed again and z_l = 1 where layer l is sent sparsely,

    minimise T   subject to
    T >= t_f + t_b + t_u + sum_s f_s x_s + sum_l sel_l z_l                              all is computed
    T >= r_i(x, z) + a + sum_{j >= i} (b g_j (1 - z_j) + b' n_j z_j) [+ t_u]            what is ready last is sent
    M >= fixed + sum_l e_l z_l + peak_t - sum_{s before t} kept_s x_s + gradients_t(z)   in every backward t

g are bytes of gradients in ready order, n what is gathered of them, a + b m and b' m lines below the prices, r_i the
ready time of gradient i with all that is computed again or selected before it. Each row holds for every schedule on one
channel with a barrier, so the optimum of the programme is a bound on all of them, and infeasible means that no choice
fits. The schedule itself is the dynamic programme's (``solve.merge``), made for what is chosen here.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Array
from osfmodel.engine.optimizers import update_scratch
from osfmodel.engine.sparse import Sparsity, part_bytes
from osfmodel.engine.strategies.holdings import activation_levels
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Block, Bucket
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import Status
from osfmodel.solve.windows import minorants

SECONDS, CLOSE, NODES = 20.0, 1e-3, 200
"""Seconds, relative distance to the bound, and number of nodes at which the integer search ends with its best so
far. Nodes come first except on slow machines, so that results are the same on most."""


@dataclass(frozen=True, slots=True)
class Room:
    """The limits and permissions of a choice.

    limit:   bytes, for all that a step keeps
    fixed:   bytes that are in memory throughout: weights, state, buffers
    release: whether gradients are freed as their buckets arrive
    density: for layers that are sent sparsely; None to permit none
    """

    limit: int
    fixed: int
    release: bool
    density: float | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """A choice of segments to recompute and of layers to send sparsely.

    status:    OPTIMAL, INFEASIBLE, or NOT_CONVERGED if time ran out, perhaps with the best choice so far
    bound:     seconds that no schedule of any choice that fits can beat
    recompute: segments; None if no choice was found
    sparse:    layers
    """

    status: Status
    bound: float
    recompute: tuple[str, ...] | None = None
    sparse: frozenset[str] = frozenset()


def choose(workload: Workload, pricing: Pricing, room: Room) -> Retention:
    """The best choice that fits, for lines that lie nowhere above the prices.

    If the search ends early, its best choice is taken; the bound still holds. Raises PlanError if cvxpy
    has no solver for whole numbers.
    """
    import cvxpy

    cp: Any = cvxpy  # half of what is used here has no types
    if "HIGHS" not in cp.installed_solvers():
        raise PlanError(Status.NO_SOLVER.value)
    figures = _Figures(workload, pricing, room)
    x = cp.Variable(max(len(workload.segments), 1), boolean=True)
    z = cp.Variable(max(len(figures.sizes), 1), boolean=True)
    time = cp.Variable()
    times, memory = figures.times(), figures.memory()
    scale = workload.compute_time
    constraints = [
        time >= (times.constant + times.again @ x + times.sparse @ z) / scale,
        memory.constant + memory.again @ x + memory.sparse @ z <= room.limit / figures.unit,
    ]
    if room.density is None or not figures.sizes.size:
        constraints.append(z == 0)
    if not workload.segments:
        constraints.append(x == 0)
    # The smallest weight on what is chosen keeps out what gains nothing.
    options = {"time_limit": SECONDS, "mip_rel_gap": CLOSE, "mip_max_nodes": NODES}
    problem = cp.Problem(cp.Minimize(time + 1e-7 * (cp.sum(x) / x.size + cp.sum(z) / z.size)), constraints)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a solution that is not proven best, which the status says
            problem.solve(solver="HIGHS", highs_options=options)
    except cp.SolverError:
        return Retention(Status.NOT_CONVERGED, workload.compute_time)
    if problem.status in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE):
        return Retention(Status.INFEASIBLE, float("inf"))
    if x.value is None:
        return Retention(Status.NOT_CONVERGED, workload.compute_time)
    again = tuple(segment.name for segment, on in zip(workload.segments, x.value, strict=False) if on > 0.5)
    sparse = frozenset(name for name, on in zip(workload.gradients.names, z.value, strict=False) if on > 0.5)
    extra = getattr(problem.solver_stats, "extra_stats", None)
    bound = getattr(extra, "mip_dual_bound", None)
    least = float(problem.value if bound is None else bound) - 1e-7 * 2
    status = Status.OPTIMAL if problem.status == cp.OPTIMAL else Status.NOT_CONVERGED
    return Retention(status, max(least, 0.0) * scale, again, sparse)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the form constant + again x + sparse z."""

    constant: Array
    again: Array
    sparse: Array


class _Figures:
    """The numbers of the programme: gradients in ready order, segments in the order of the layers."""

    def __init__(self, workload: Workload, pricing: Pricing, room: Room) -> None:
        self.workload, self.pricing, self.room = workload, pricing, room
        gradients = workload.gradients
        place = {layer.name: number for number, layer in enumerate(workload.layers)}
        self.places = np.array([place[name] for name in gradients.names], dtype=int)
        self.sizes = np.array(gradients.sizes, dtype=float)
        self.ready = np.array(gradients.ready_times, dtype=float)
        self.spans = [workload.span(segment.name) for segment in workload.segments]
        self.again = np.array([plain_sum(layer.forward_time for layer in workload.layers[span]) for span in self.spans])
        self.kept = np.array([segment.kept_bytes for segment in workload.segments], dtype=float)
        # Were each tensor sent sparsely in a message of its own, which is not padded here.
        density, sparsity = room.density or 1.0, Sparsity(workload, pricing.effects, pricing.workers)
        pairs = zip(gradients.names, gradients.sizes, strict=True)
        alone = [Bucket((Block(name, 0, size),), density=density) for name, size in pairs]
        sent = [part_bytes(bucket.size, density, sparsity.widths[bucket.blocks[0].layer]) for bucket in alone]
        self.gathered = np.array(sent, dtype=float) * pricing.workers
        self.selecting = np.array([sparsity.sparsify(bucket.blocks[0], density) for bucket in alone])
        self.spreading = np.array([sparsity.densify(bucket) for bucket in alone])
        self.unit = float(room.limit)

    def times(self) -> _Rows:
        """Seconds that T cannot be below, row by row."""
        workload = self.workload
        count, segments = len(self.sizes), max(len(self.spans), 1)
        work = _Rows(
            np.array([workload.compute_time]),
            _filled(self.again, segments),
            _filled(self.selecting + self.spreading, 1),
        )
        if not count:
            return work
        startup, dense = self._line()
        rate = _cheapest(self.pricing, float(self.gathered.sum()))
        after = 0 if self.room.release else workload.update_time
        sent = dense * self.sizes
        earlier = np.tril(np.ones((count, count)))  # what is ready at i or before
        later = np.triu(np.ones((count, count)))  # what is sent at i or after
        begun = np.array([[place < span.stop for span in self.spans] for place in self.places], dtype=float)
        again = begun * self.again if self.spans else np.zeros((count, 1))
        constant = self.ready + later @ sent + after + (startup if self.room.density is None else 0)
        sparse = earlier * self.selecting + later * (rate * self.gathered - sent)
        return _Rows(
            np.concatenate([work.constant, constant]), np.vstack([work.again, again]), np.vstack([work.sparse, sparse])
        )

    def _line(self) -> tuple[float, float]:
        """The line, among those below the price of an all-reduce, that bounds a dense iteration best."""
        suffix = self.sizes[::-1].cumsum()[::-1]
        lines = minorants(self.pricing.cost(), int(suffix[0])) or [(0.0, 0.0)]
        return max(lines, key=lambda line: float((self.ready + line[0] + line[1] * suffix).max()))

    def memory(self) -> _Rows:
        """Bytes in each backward and in the update, in units of the limit."""
        workload, count = self.workload, max(len(self.sizes), 1)
        alive = np.array(activation_levels(workload, ()), dtype=float)
        homes = 0.0 if self.room.release else float(self.sizes.sum())
        layers = np.arange(len(alive))
        freed = np.array([[-kept * (place >= span.stop) for kept, span in zip(self.kept, self.spans, strict=True)]
                          for place in layers]) if self.spans else np.zeros((len(alive), 1))  # fmt: skip
        # A residual or mirror is as large as the gradient, whose own place in a bucket it does without.
        state = (self.sizes if self.room.release else 0 * self.sizes) if len(self.sizes) else np.zeros(1)
        # Where buckets are released one after the other, the largest tensor is in one of them.
        scratch = update_scratch(workload, [max(workload.gradients.sizes, default=0)] if self.room.release else None)
        constant = np.concatenate([alive, [float(scratch)]]) + self.room.fixed + homes
        sparse = np.vstack([np.tile(state, (len(alive), 1)), _filled(self.sizes, count)])
        again = np.vstack([freed, np.zeros((1, freed.shape[1]))])
        return _Rows(constant / self.unit, again / self.unit, sparse / self.unit)


def _filled(row: Array, least: int) -> Array:
    """The row as a matrix of one row with at least ``least`` columns."""
    return np.pad(np.atleast_2d(row), ((0, 0), (0, max(0, least - np.atleast_1d(row).size))))


def _cheapest(pricing: Pricing, total: float) -> float:
    """Seconds per gathered byte that no message of up to ``total`` bytes can beat."""
    floor = pricing.cost("all_gather").floor
    sizes = [size for size in pricing.cost("all_gather").breakpoints if 0 < size < total]
    return min(floor(size) / size for size in [*sizes, total])
