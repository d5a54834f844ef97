"""A measured size -> time table as it is: straight lines between its points, nothing smoothed."""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cluster import Cluster, Table
from osfmodel.cost import by_count
from osfmodel.cost.curves import Cost, TableCost
from osfmodel.cost.fitting import Fit, Sample, medians
from osfmodel.errors import CostError


def cost(cluster: Cluster, workers: int, collective: str) -> TableCost:
    """The table for that worker count. Raises CostError where it was not measured, naming those that were."""
    table = by_count.entry(cluster.tables, workers, collective, cluster.name, "table", "was measured with")
    return TableCost(table.sizes, table.times, measured_range=(table.sizes[0], table.sizes[-1]))


def startups(cluster: Cluster, workers: int) -> dict[str, Cost]:
    """Those that were measured beside the tables, by collective."""
    return {
        table.collective: TableCost(table.sizes, table.startups, 0.0)
        for table in cluster.tables
        if table.startups and table.workers == workers
    }


def counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts that have an all-reduce table, increasing."""
    return by_count.counts(cluster.tables)


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """Tables of the median time of each (workers, size); residuals are the spread of repeated samples around it.

    ``parameters`` = {"tables": ...}. Raises CostError for a worker count with fewer than two sizes.
    """
    return by_count.fit(samples, "tables", _table)


def _table(workers: int, samples: Sequence[Sample]) -> tuple[Table, Sequence[float]]:
    (points,) = medians(samples).values()
    if len(points) < 2:
        raise CostError(f"{workers} workers were measured at one size only: a table needs two or more")
    table = Table(workers, tuple(points), tuple(points.values()))
    return table, [points[sample.size] / sample.time - 1 for sample in samples]
