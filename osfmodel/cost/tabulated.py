"""A measured size -> time table as it is: straight lines between its points, nothing smoothed."""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cluster import Cluster, Table
from osfmodel.cost.curves import TableCost
from osfmodel.cost.fitting import Fit, Sample, medians
from osfmodel.errors import CostError


def cost(cluster: Cluster, workers: int, collective: str) -> TableCost:
    """The table for that worker count. Raises CostError where it was not measured, naming those that were."""
    for table in cluster.tables:
        if (table.workers, table.collective) == (workers, collective):
            return TableCost(table.sizes, table.times)
    known = sorted(table.workers for table in cluster.tables if table.collective == collective)
    have = f"was measured with {', '.join(map(str, known))}" if known else "has no such table"
    raise CostError(f"no {collective} table for {workers} workers: cluster {cluster.name!r} {have}")


def counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts that have an all-reduce table, increasing."""
    return tuple(sorted(table.workers for table in cluster.tables if table.collective == "all_reduce"))


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """Tables of the median time of each (workers, size); residuals are the spread of repeated samples around it.

    ``parameters`` = {"tables": ...}. Raises CostError for a worker count with fewer than two sizes.
    """
    if not samples:
        raise CostError("there are no samples to fit")
    tables = []
    found = medians(samples)
    for workers, points in found.items():
        if len(points) < 2:
            raise CostError(f"{workers} workers were measured at one size only: a table needs two or more")
        tables.append(Table(workers, tuple(points), tuple(points.values())))
    residuals = [found[sample.workers][sample.size] / sample.time - 1 for sample in samples]
    return Fit.of(samples, {"tables": tuple(tables)}, residuals)
