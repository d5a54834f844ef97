"""What the fits of all cost models share: samples in, non-negative parameters and residuals out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from osfmodel.checks import require_count, require_time
from osfmodel.errors import CostError


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
            raise CostError("a sample takes no time at all, which no collective does")


@dataclass(frozen=True, slots=True)
class Fit:
    """What a fit found.

    parameters: the fields to set on a :class:`~osfmodel.cluster.Cluster`, as for ``dataclasses.replace``
    residuals:  fitted / measured - 1 of every sample, in the order given
    """

    parameters: Mapping[str, Any]
    residuals: tuple[float, ...]

    @property
    def median_abs_residual(self) -> float:
        """The typical relative error on the very samples that were fitted (not a prediction error)."""
        return float(np.median(np.abs(self.residuals)))

    @property
    def worst_abs_residual(self) -> float:
        """The largest relative error on the samples that were fitted."""
        return float(np.max(np.abs(self.residuals)))


def fit_nonnegative(
    samples: Sequence[Sample], regressors: Callable[[int, int], Sequence[float]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parameters x >= 0 that minimise the squared *relative* error of sum_k x_k regressors(workers, size)_k.

    Relative, because a table spans microseconds to seconds and every size matters. Non-negative least squares by
    Lawson and Hanson (scipy). Returns (parameters, residuals). Raises CostError for too few samples.
    """
    from scipy.optimize import nnls

    if not samples:
        raise CostError("there are no samples to fit")
    rows = np.array([regressors(sample.workers, sample.size) for sample in samples], dtype=float)
    times = np.array([sample.time for sample in samples])
    if len(samples) < rows.shape[1]:
        raise CostError(f"{len(samples)} samples cannot determine {rows.shape[1]} parameters: measure more sizes")
    relative = rows / times[:, None]
    scale = np.where(relative.any(axis=0), np.abs(relative).max(axis=0), 1.0)
    solution, _ = nnls(relative / scale, np.ones(len(samples)))
    parameters = solution / scale
    return tuple(parameters.tolist()), tuple((rows @ parameters / times - 1).tolist())
