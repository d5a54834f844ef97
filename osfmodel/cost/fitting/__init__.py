"""Fitting for all cost models: samples in, non-negative robust parameters, residuals and caveats out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from osfmodel.cost.shapes import Array, TableCost
from osfmodel.entities.checks import require_count, require_time
from osfmodel.entities.cluster import FittedRange, Table
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import CostError

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
        from osfmodel.cost.fitting.jumps import in_words  # not loaded where nothing is fitted

        sizes = [sample.size for sample in samples]
        found = tuple(
            sentence
            for workers, points in medians(samples).items()
            for sentence in in_words(workers, list(points), list(points.values()))
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
