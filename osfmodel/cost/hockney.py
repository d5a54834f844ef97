"""Hockney: time = alpha + beta * bytes, one published or fitted line per worker count.

R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994; as used for all-reduce in
MG-WFBP (TPDS'21, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cluster import AlphaBeta, Cluster
from osfmodel.cost.curves import AffineCost
from osfmodel.cost.fitting import Fit, Sample, fit_nonnegative
from osfmodel.errors import CostError


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The line of ``cluster`` for that worker count. Raises CostError where there is none, naming those that are."""
    for line in cluster.fits:
        if (line.workers, line.collective) == (workers, collective):
            return AffineCost(((line.latency, line.seconds_per_byte),))
    known = sorted(line.workers for line in cluster.fits if line.collective == collective)
    have = f"has it for {', '.join(map(str, known))}" if known else "has none"
    raise CostError(f"no {collective} fit for {workers} workers: cluster {cluster.name!r} {have}")


def counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts that have an all-reduce line, increasing."""
    return tuple(sorted(line.workers for line in cluster.fits if line.collective == "all_reduce"))


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """One non-negative line per worker count, by relative error, robust to outliers. ``parameters`` = {"fits": ...}."""
    if not samples:
        raise CostError("there are no samples to fit")
    lines: list[AlphaBeta] = []
    residuals: dict[int, float] = {}
    for workers in sorted({sample.workers for sample in samples}):
        chosen = [i for i, sample in enumerate(samples) if sample.workers == workers]
        (latency, per_byte), errors = fit_nonnegative([samples[i] for i in chosen], lambda _, size: (1.0, size))
        lines.append(AlphaBeta(workers, latency, per_byte))
        residuals.update(zip(chosen, errors, strict=True))
    return Fit.of(samples, {"fits": tuple(lines)}, [residuals[i] for i in range(len(samples))])
