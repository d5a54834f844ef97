"""Log-likelihoods of a measured machine: of its medians given a shift of ln(time), and of its slowest repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from osfmodel.cost.shapes import Array
from osfmodel.diagnosis.doctor.curves import Curve
from osfmodel.diagnosis.doctor.faults import MeasuredMachine
from osfmodel.diagnosis.doctor.peers import expected
from osfmodel.diagnosis.doctor.tails import HEALTHY_TAIL, Tail, log_density_of_t, log_likelihood

REACH = 4.0
"""Octaves over which deviations of a healthy machine are correlated."""
SHARED, SAME_COUNT = 0.6, 0.95
"""Correlation between tables of one machine at the same size, of different worker counts and of the same."""
SCATTER = 0.05
"""Minimum standard deviation of ln(time) from one size to the next."""


class Likelihood:
    """Log-likelihoods of the curves of one machine, given its ``peers`` by kind of machine."""

    def __init__(self, measured: MeasuredMachine, peers: Mapping[str, Mapping[str, Sequence[Curve]]]) -> None:
        healthy = [expected(curve, measured.against, peers[curve.kind]) for curve in measured.curves]
        means, self.spreads = (np.concatenate(parts) for parts in zip(*healthy, strict=True))
        self.deviations = measured.each(lambda curve: curve.ratios) - means
        self.correlation = _correlation(measured)
        self.late = measured.each(lambda curve: curve.lateness)
        self.times = measured.each(lambda curve: np.array(curve.times))
        self.crossing = measured.crossing

    def of_medians(self, shift: Array, wide: float = 1.0, scatter: float = 0.0) -> float:
        """ln of the density of the medians with this shift, ``wide`` times the spread of peers, and more scatter."""
        spreads = wide * self.spreads
        alone = (SCATTER**2 + scatter**2) * np.eye(len(spreads))
        return log_density(self.deviations - shift, self.correlation * np.outer(spreads, spreads) + alone)

    def of_slowest(self, tails: Sequence[Tail]) -> float:
        """ln of the density of the slowest repeats, of which those between nodes have one of ``tails``, each as likely.

        Repeats inside a node are those of healthy machines.
        """
        inside, between = (self.late > 0) & ~self.crossing, (self.late > 0) & self.crossing
        found = log_mean([log_likelihood(self.late[between], self.times[between], tail) for tail in tails])
        return found + log_likelihood(self.late[inside], self.times[inside], HEALTHY_TAIL)


def _correlation(measured: MeasuredMachine) -> Array:
    octaves = measured.each(lambda curve: curve.octaves.astype(float))
    table = np.concatenate([np.full(len(curve.sizes), number) for number, curve in enumerate(measured.curves)])
    workers = measured.each(lambda curve: np.full(len(curve.sizes), curve.place.workers))
    near = np.exp(-np.abs(np.subtract.outer(octaves, octaves)) / REACH)
    apart = np.where(np.equal.outer(workers, workers), SAME_COUNT, SHARED)
    found: Array = near * np.where(np.equal.outer(table, table), 1.0, apart)
    return found


def log_density(values: Array, covariance: Array) -> float:
    """ln of the density of ``values`` around 0.

    Along each principal axis of ``covariance`` a t distribution of its own, so that no number of small deviations that
    fit vouches for the size of a large one.
    """
    variances, axes = np.linalg.eigh(covariance)
    away = (axes.T @ values) ** 2 / variances
    return float((log_density_of_t(away) - 0.5 * np.log(variances)).sum())


def log_mean(values: Sequence[float]) -> float:
    """ln of the mean of exp(values)."""
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values) / len(values))
