"""Fit a minimum of K linear models, such as a library's choice among protocols.

    time = min over k of  sum_j x_kj regressors_j(workers, size),   all x_kj >= 0

It is not known which samples belong to which k. As in the partition method of Magnani and Boyd ("Convex
piecewise-linear fitting", Optimization and Engineering 10, 2009): from a division of the sizes, fit each part, give
each sample to the model that is lowest there, and again until nothing moves; every division at K - 1 of seven quantiles
of the sizes is a start, and the smallest loss wins. Each model is non-negative, so the minimum neither falls with size
nor rises per byte.

K is the one of smallest Bayesian information criterion (Schwarz, Annals of Statistics 6(2), 1978),
n log(mean loss) + (parameters above 0) log n, on the samples of the fit and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import log
from typing import NamedTuple

import numpy as np

from osfmodel.cost.fitting import Regressors, Sample, design, soft_l1, solve_nonnegative
from osfmodel.cost.shapes import Array

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
    best, lowest = _single(rows, times), float("inf")
    for count in range(1, max(1, min(most, len(times) // SAMPLES_PER_PIECE)) + 1):
        found = _single(rows, times) if count == 1 else _divided(rows, times, sizes, count)
        score = _criterion(found, rows, times)
        if score < lowest:
            best, lowest = found, score
    errors = predict(best, rows) / times - 1
    return Minimum(tuple(tuple(piece.tolist()) for piece in best), tuple(errors.tolist()))


def predict(pieces: Sequence[Array], rows: Array) -> Array:
    """The minimum of the models at each row."""
    lowest: Array = np.min([rows @ piece for piece in pieces], axis=0)
    return lowest


def _single(rows: Array, times: Array) -> list[Array]:
    return [solve_nonnegative(rows, times)]


def _criterion(pieces: Sequence[Array], rows: Array, times: Array) -> float:
    loss = float(soft_l1(predict(pieces, rows) / times - 1).mean())
    used = sum(int((piece > 0).sum()) for piece in pieces)
    return len(times) * log(loss + EXACT) + used * log(len(times))


def _divided(rows: Array, times: Array, sizes: Array, count: int) -> list[Array]:
    """The best fit of all starts that divide the sizes into ``count`` parts."""
    cuts = np.unique(np.quantile(np.unique(sizes), np.linspace(0, 1, CUTS + 2)[1:-1]))
    best, lowest = _single(rows, times), float("inf")
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
