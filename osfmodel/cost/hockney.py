"""Hockney: time = alpha + beta * bytes, one published or fitted line per worker count.

R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994; as used for all-reduce in
MG-WFBP (TPDS'21, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cluster import AlphaBeta, Cluster
from osfmodel.cost import by_count
from osfmodel.cost.curves import AffineCost
from osfmodel.cost.fitting import Fit, Sample, fit_nonnegative


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The line of ``cluster`` for that worker count. Raises CostError where there is none, naming those that are."""
    line = by_count.entry(cluster.fits, workers, collective, cluster.name, "fit")
    return AffineCost(((line.latency, line.seconds_per_byte),))


def counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts that have an all-reduce line, increasing."""
    return by_count.counts(cluster.fits)


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """One non-negative line per worker count, by relative error, robust to outliers. ``parameters`` = {"fits": ...}."""
    return by_count.fit(samples, "fits", _line)


def _line(workers: int, samples: Sequence[Sample]) -> tuple[AlphaBeta, Sequence[float]]:
    (latency, per_byte), residuals = fit_nonnegative(samples, lambda _, size: (1.0, size))
    return AlphaBeta(workers, latency, per_byte), residuals
