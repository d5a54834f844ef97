"""Fitting for all cost models: samples in, non-negative robust parameters, residuals and caveats out.

A library's choice among protocols is fitted as the minimum of K linear models:

    time = min over k of  sum_j x_kj regressors_j(workers, size),   all x_kj >= 0

It is not known which samples belong to which k. As in the partition method of Magnani and Boyd ("Convex
piecewise-linear fitting", Optimization and Engineering 10, 2009): from a division of the sizes, fit each part, give
each sample to the model that is lowest there, and again until nothing moves; every division at K - 1 of seven quantiles
of the sizes is a start, and the smallest loss wins. Each model is non-negative, so the minimum neither falls with size
nor rises per byte.

K is the one of smallest Bayesian information criterion (Schwarz, Annals of Statistics 6(2), 1978),
n log(mean loss) + (parameters above 0) log n, on the samples of the fit and no others.

Jumps of a measured table are steps beyond noise that no such minimum can follow. It never falls with size, and its time
per byte never rises, so there are two kinds, protocol switches mostly: a *fall*, where a larger message is faster, and
a *rise*, where time grows faster than bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from math import log
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from osfmodel.cost.shapes import Array, TableCost
from osfmodel.entities.cluster import FittedRange, Table
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.errors import CostError, require_count, require_time
from osfmodel.entities.records import dataclass

OUTLIER = 0.05
"""Relative error above which the loss of a sample grows linearly instead of quadratically (soft L1).

In three rows of four of published nccl-tests, out-of-place and in-place times differ by 3 % or less, in one of ten by
more than 11 %: what is beyond 5 % is more likely an outlier, or a shape the model lacks, than noise.
"""
REWEIGHTINGS = 30

Regressors: TypeAlias = Callable[[int, int], Sequence[float]]
"""Factors of each parameter: (workers, size) -> one regressor each."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured collective: ``time`` seconds for ``size`` bytes between ``workers`` workers."""

    workers: int
    size: int
    time: float

    def __post_init__(self) -> None:
        require_count(self.workers, "workers of a sample", least=2)
        require_count(self.size, "size of a sample", least=1)
        require_time(self.time, "time of a sample")
        if self.time == 0:
            raise CostError("a sample takes no time: every collective takes some")


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a fit; :meth:`of` adds the fitted range.

    parameters: the fields to set on a :class:`~osfmodel.entities.cluster.Cluster`, as for ``dataclasses.replace``
    residuals:  fitted / measured - 1 of every sample, in the order given
    span:       smallest and largest size that was fitted; beyond it the fit is an extrapolation
    workers:    the worker counts that were fitted
    jumps:      sentences on steps of the samples that no smooth formula follows
    """

    parameters: Mapping[str, Any]
    residuals: tuple[float, ...]
    span: tuple[int, int] | None = None
    workers: tuple[int, ...] = ()
    jumps: tuple[str, ...] = ()

    @staticmethod
    def of(samples: Sequence[Sample], parameters: Mapping[str, Any], residuals: Sequence[float]) -> Fit:
        """A fit to ``samples``, with the range they cover and the jumps found in them.

        The range is also among the parameters, so that a cluster knows where its prices are extrapolated.
        """

        sizes = [sample.size for sample in samples]
        found = tuple(
            sentence
            for workers, points in medians(samples).items()
            for sentence in jumps_in_words(workers, list(points), list(points.values()))
        )
        workers = tuple(sorted({sample.workers for sample in samples}))
        span = min(sizes), max(sizes)
        return Fit({**parameters, "fitted": FittedRange(*span, workers)}, tuple(residuals), span, workers, found)

    @property
    def median_abs_residual(self) -> float:
        """The typical relative error on the very samples that were fitted (not a prediction error)."""
        return float(np.median(np.abs(self.residuals)))

    @property
    def worst_abs_residual(self) -> float:
        """The largest relative error on the samples that were fitted."""
        return float(np.max(np.abs(self.residuals)))

    @property
    def summary(self) -> str:
        """One line on the fit: its errors, its number of samples and its range."""
        parts = [f"median residual {self.median_abs_residual:.1%}", f"worst {self.worst_abs_residual:.1%}"]
        parts.append(f"{len(self.residuals)} samples")
        if self.span is not None:
            parts.append(f"{show_bytes(self.span[0])} to {show_bytes(self.span[1])}")
        if self.workers:
            parts.append(f"{', '.join(map(str, self.workers))} workers")
        return "; ".join(parts)


def samples_of(tables: Iterable[Table]) -> list[Sample]:
    """The points of tables as samples, in their order."""
    return [
        Sample(table.workers, size, time)
        for table in tables
        for size, time in zip(table.sizes, table.times, strict=True)
    ]


def medians(samples: Sequence[Sample]) -> dict[int, dict[int, float]]:
    """The median time of every size, by worker count; both increase."""
    groups: dict[int, dict[int, list[float]]] = {}
    for sample in sorted(samples, key=lambda sample: (sample.workers, sample.size)):
        groups.setdefault(sample.workers, {}).setdefault(sample.size, []).append(sample.time)
    return {workers: {size: median(times) for size, times in points.items()} for workers, points in groups.items()}


def design(samples: Sequence[Sample], regressors: Regressors) -> tuple[Array, Array]:
    """The rows of a linear model, and the times. Raises CostError with fewer samples than parameters."""
    if not samples:
        raise CostError("there are no samples to fit")
    rows = np.array([regressors(sample.workers, sample.size) for sample in samples], dtype=float)
    if len(samples) < rows.shape[1]:
        raise CostError(f"{len(samples)} samples cannot determine {rows.shape[1]} parameters: measure more sizes")
    return rows, np.array([sample.time for sample in samples])


def soft_l1(errors: Array) -> Array:
    """The square of small relative errors, growing like ``2 OUTLIER |error|`` for large ones."""
    loss: Array = 2 * OUTLIER**2 * (np.sqrt(1 + (errors / OUTLIER) ** 2) - 1)
    return loss


def solve_nonnegative(rows: Array, times: Array, reweightings: int = REWEIGHTINGS) -> Array:
    """Parameters x >= 0 that minimise the soft L1 of the relative errors ``rows @ x / times - 1``.

    Non-negative least squares by Lawson and Hanson (scipy), reweighted by what the loss makes of each error until the
    parameters stand; exact data have no errors, so that nothing is reweighted.
    """
    from scipy.optimize import nnls

    relative = rows / times[:, None]
    largest = np.abs(relative).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)
    relative = relative / scale
    weights, solution = np.ones(len(times)), np.zeros(rows.shape[1])
    for _ in range(reweightings):
        before = solution
        solution, _ = nnls(relative * weights[:, None], weights)
        if np.abs(solution - before).max() <= 1e-9 * np.abs(solution).max():
            break
        weights = (1 + ((relative @ solution - 1) / OUTLIER) ** 2) ** -0.25
    found: Array = solution / scale
    return found


def line(samples: Sequence[Sample]) -> tuple[float, float]:
    """(Seconds of start-up, seconds per byte) of the line through samples of one number of workers."""
    (startup, per_byte), _ = fit_nonnegative(samples, lambda _, size: (1.0, size))
    return startup, per_byte


def line_through(table: TableCost) -> tuple[float, float]:
    """The line of :func:`line` through a table's points; it separates start-up from transfer without small messages.

    Times of 0, too short to be printed, are left out; with fewer than two others both results are 0.
    """
    points = [Sample(2, size, time) for size, time in zip(table.sizes, table.times, strict=True) if size and time]
    return line(points) if len(points) > 1 else (0.0, 0.0)


def fit_nonnegative(samples: Sequence[Sample], regressors: Regressors) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parameters x >= 0 with which the time sum_k x_k regressors(workers, size)_k fits best, and the residuals.

    By *relative* error, because a table spans microseconds to seconds and every size matters, and robust to outliers:
    see :func:`solve_nonnegative`. Raises CostError for too few samples.
    """
    rows, times = design(samples, regressors)
    parameters = solve_nonnegative(rows, times)
    return tuple(parameters.tolist()), tuple((rows @ parameters / times - 1).tolist())


MOST_PIECES = 4
SAMPLES_PER_PIECE = 3
CUTS = 7
"""Quantiles of the sizes that may divide them. With 5 or 9, one of Echo's five tables has a held-out median of 1.9 %
instead of 1.4 %, the others stay as they are (tests/cost/test_fits.py)."""
ROUNDS = 25
QUICK = 3
"""Reweightings while samples still move between the models."""
EXACT = 1e-8
"""Mean loss (a relative error of 0.01 %) below which no further model is added."""


class Minimum(NamedTuple):
    """The parameters of each model, and fitted / measured - 1 of each sample."""

    pieces: tuple[tuple[float, ...], ...]
    residuals: tuple[float, ...]


def fit_minimum(samples: Sequence[Sample], regressors: Regressors, most: int = MOST_PIECES) -> Minimum:
    """The minimum of at most ``most`` models that explains ``samples`` best. Raises CostError for too few samples."""
    rows, times = design(samples, regressors)
    sizes = np.log([sample.size for sample in samples])
    best, lowest = [solve_nonnegative(rows, times)], float("inf")
    for count in range(1, max(1, min(most, len(times) // SAMPLES_PER_PIECE)) + 1):
        found = [solve_nonnegative(rows, times)] if count == 1 else _divided(rows, times, sizes, count)
        score = _criterion(found, rows, times)
        if score < lowest:
            best, lowest = found, score
    errors = predict(best, rows) / times - 1
    return Minimum(tuple(tuple(piece.tolist()) for piece in best), tuple(errors.tolist()))


def predict(pieces: Sequence[Array], rows: Array) -> Array:
    """The minimum of the models at each row."""
    lowest: Array = np.min([rows @ piece for piece in pieces], axis=0)
    return lowest


def _criterion(pieces: Sequence[Array], rows: Array, times: Array) -> float:
    loss = float(soft_l1(predict(pieces, rows) / times - 1).mean())
    used = sum(int((piece > 0).sum()) for piece in pieces)
    return len(times) * log(loss + EXACT) + used * log(len(times))


def _divided(rows: Array, times: Array, sizes: Array, count: int) -> list[Array]:
    """The best fit of all starts that divide the sizes into ``count`` parts."""
    cuts = np.unique(np.quantile(np.unique(sizes), np.linspace(0, 1, CUTS + 2)[1:-1]))
    best, lowest = [solve_nonnegative(rows, times)], float("inf")
    for bounds in combinations(cuts, count - 1):
        pieces = _settle(rows, times, np.searchsorted(bounds, sizes, side="right"))
        loss = float(soft_l1(predict(pieces, rows) / times - 1).sum())
        if loss < lowest:
            best, lowest = pieces, loss
    return best


def _settle(rows: Array, times: Array, owner: Array) -> list[Array]:
    """Fit each part and hand each sample to the lowest model until none moves; parts of one sample die out."""
    pieces: list[Array] = []
    for _ in range(ROUNDS):
        parts = [owner == k for k in range(owner.max() + 1)]
        parts = [part for part in parts if part.sum() > 1]
        pieces = [solve_nonnegative(rows[part], times[part], QUICK) for part in parts]
        moved = np.argmin([rows @ piece for piece in pieces], axis=0)
        if np.array_equal(moved, owner):
            break
        owner = moved
    parts = [owner == k for k in np.unique(owner)]
    return [solve_nonnegative(rows[part], times[part]) for part in parts if part.sum() > 1 or len(parts) == 1]


LEAST_STEP = 0.10
"""Minimum relative step of a jump: in one row of ten, out-of-place and in-place times of nccl-tests differ as much."""
DEVIATIONS = 4.0
"""Standard deviations of the table's own noise that a step must exceed. With 3 or 5, 20 or 17 of the 61 tables of
docs/reference/fits.md have jumps instead of 18 (tests/cost/test_fits.py)."""
SHOWN = 3


class Jump(NamedTuple):
    """A step from (``size``, ``time``) to (``next_size``, ``next_time``); ``excess`` is its part beyond any line."""

    size: int
    time: float
    next_size: int
    next_time: float
    excess: float

    @property
    def falls(self) -> bool:
        """Whether the larger message is faster."""
        return self.next_time < self.time


def noise(times: Sequence[float]) -> float:
    """Relative standard deviation of single times, from second differences of their logarithms.

    Differences of independent noise have variance 6 sigma^2, and a smooth curve has next to none; the median of their
    absolute values does not see a few jumps. 0 for fewer than five times.
    """
    if len(times) < 5:
        return 0.0
    bends = np.abs(np.diff(np.log(times), 2))
    return float(1.4826 * np.median(bends) / np.sqrt(6))


def find_jumps(sizes: Sequence[int], times: Sequence[float]) -> list[Jump]:
    """The jumps of a table with increasing ``sizes``, the largest first; consecutive steps in one direction are one.

    Times of 0, too short to be printed, are left out.
    """
    rows = [(size, time) for size, time in zip(sizes, times, strict=True) if time > 0]
    least = max(LEAST_STEP, DEVIATIONS * noise([time for _, time in rows]))
    found: list[Jump] = []
    for (size, time), (next_size, next_time) in pairwise(rows):
        excess = max(time / next_time, next_time * size / (time * next_size)) - 1
        if excess > 0:
            _extend(found, Jump(size, time, next_size, next_time, excess))
    return sorted((jump for jump in found if jump.excess > least), key=lambda jump: -jump.excess)


def _extend(found: list[Jump], jump: Jump) -> None:
    """Append the jump, or merge it with the last if both go the same way."""
    last = found[-1] if found else None
    if last is not None and last.next_size == jump.size and last.falls == jump.falls:
        found[-1] = Jump(*last[:2], *jump[2:4], (1 + last.excess) * (1 + jump.excess) - 1)
    else:
        found.append(jump)


def jumps_in_words(workers: int, sizes: Sequence[int], times: Sequence[float]) -> tuple[str, ...]:
    """A sentence for each of the largest jumps between ``workers`` workers, and one for the number of others."""
    found = find_jumps(sizes, times)
    sentences = [_sentence(workers, jump) for jump in found[:SHOWN]]
    if len(found) > SHOWN:
        sentences.append(f"and {len(found) - SHOWN} smaller jumps at {workers} workers")
    return tuple(sentences)


def _sentence(workers: int, jump: Jump) -> str:
    what = "is slower than" if jump.falls else "is faster per byte than"
    times = f"{show_time(jump.time)} and {show_time(jump.next_time)}"
    places = f"{show_bytes(jump.size)} {what} {show_bytes(jump.next_size)} at {workers} workers"
    return f"{places} ({times}): a protocol switch or an outlier"
