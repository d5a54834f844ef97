"""The minimum of K lines per worker count: min_k latency_k + seconds_per_byte_k * bytes.

The shape of a library's choice among algorithms and protocols (NCCL: LL, LL128, Simple), as a fit to a measured table.
It never falls with size nor rises per byte, so the fast solver serves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cluster import Cluster, Pieces
from osfmodel.cost.curves import AffineCost
from osfmodel.cost.fitting import Fit, Sample
from osfmodel.cost.minimum import fit_minimum
from osfmodel.errors import CostError


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The lines of ``cluster`` for that worker count. Raises CostError where there are none, naming those that are."""
    for row in cluster.pieces:
        if (row.workers, row.collective) == (workers, collective):
            return AffineCost(tuple(zip(row.latencies, row.seconds_per_byte, strict=True)))
    known = sorted(row.workers for row in cluster.pieces if row.collective == collective)
    have = f"has them for {', '.join(map(str, known))}" if known else "has none"
    raise CostError(f"no {collective} pieces for {workers} workers: cluster {cluster.name!r} {have}")


def counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts that have all-reduce lines, increasing."""
    return tuple(sorted(row.workers for row in cluster.pieces if row.collective == "all_reduce"))


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """Up to four lines per worker count, as many as :mod:`~osfmodel.cost.minimum` finds worth it.

    ``parameters`` = {"pieces": ...}. Raises CostError for a worker count with one sample only.
    """
    if not samples:
        raise CostError("there are no samples to fit")
    found: list[Pieces] = []
    residuals: dict[int, float] = {}
    for workers in sorted({sample.workers for sample in samples}):
        chosen = [i for i, sample in enumerate(samples) if sample.workers == workers]
        minimum = fit_minimum([samples[i] for i in chosen], lambda _, size: (1.0, size))
        latencies, per_byte = zip(*minimum.pieces, strict=True)
        found.append(Pieces(workers, latencies, per_byte))
        residuals.update(zip(chosen, minimum.residuals, strict=True))
    return Fit.of(samples, {"pieces": tuple(found)}, [residuals[i] for i in range(len(samples))])
