"""A measured size -> time table as it is: straight lines between its points, nothing smoothed."""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cluster import Cluster, Table
from osfmodel.cost.curves import TableCost
from osfmodel.cost.fitting import Fit, Sample
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
    from statistics import median

    if not samples:
        raise CostError("there are no samples to fit")
    groups: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        groups.setdefault((sample.workers, sample.size), []).append(sample.time)
    medians = {key: median(times) for key, times in sorted(groups.items())}
    tables = []
    for workers in sorted({workers for workers, _ in medians}):
        points = [(size, time) for (count, size), time in medians.items() if count == workers]
        if len(points) < 2:
            raise CostError(f"{workers} workers were measured at one size only: a table needs two or more")
        tables.append(Table(workers, tuple(size for size, _ in points), tuple(time for _, time in points)))
    return Fit({"tables": tuple(tables)}, tuple(medians[s.workers, s.size] / s.time - 1 for s in samples))
