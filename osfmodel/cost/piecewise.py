"""The minimum of K lines per worker count: min_k latency_k + seconds_per_byte_k * bytes.

The shape of a library's choice among algorithms and protocols (NCCL: LL, LL128, Simple), as a fit to a measured table.
It never falls with size nor rises per byte, so the fast solver serves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cluster import Cluster, Pieces
from osfmodel.cost import by_count
from osfmodel.cost.curves import AffineCost
from osfmodel.cost.fitting import Fit, Sample
from osfmodel.cost.minimum import fit_minimum


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The lines of ``cluster`` for that worker count. Raises CostError where there are none, naming those that are."""
    row = by_count.entry(cluster.pieces, workers, collective, cluster.name, "pieces")
    return AffineCost(tuple(zip(row.latencies, row.seconds_per_byte, strict=True)))


def counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts that have all-reduce lines, increasing."""
    return by_count.counts(cluster.pieces)


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """Up to four lines per worker count, as many as :mod:`~osfmodel.cost.minimum` finds worth it.

    ``parameters`` = {"pieces": ...}. Raises CostError for a worker count with one sample only.
    """
    return by_count.fit(samples, "pieces", _lines)


def _lines(workers: int, samples: Sequence[Sample]) -> tuple[Pieces, Sequence[float]]:
    minimum = fit_minimum(samples, lambda _, size: (1.0, size))
    latencies, per_byte = zip(*minimum.pieces, strict=True)
    return Pieces(workers, latencies, per_byte), minimum.residuals
