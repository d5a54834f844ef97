"""What a collective costs: COST_MODELS turns a cluster into seconds as a function of bytes.

To add a model: one module with ``cost(cluster, workers, collective)`` and ``fit(samples, gpus_per_node)``, and
one line in COST_MODELS. tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from osfmodel.cluster import COLLECTIVES, Cluster
from osfmodel.cost import collectives, hierarchical, hockney, tabulated
from osfmodel.cost.curves import FREE, AffineCost, Cost, TableCost
from osfmodel.cost.fitting import Fit, Sample
from osfmodel.errors import CostError, UsageError

__all__ = ["COST_MODELS", "AffineCost", "Cost", "CostModel", "Fit", "Sample", "TableCost", "cost_of"]


class CostModel(NamedTuple):
    """A way to price collectives.

    cost: (cluster, workers, collective) -> Cost; two workers or more
    fit:  (all-reduce samples, gpus_per_node) -> Fit, whose parameters make a cluster that ``cost`` can price
    """

    cost: Callable[[Cluster, int, str], Cost]
    fit: Callable[[Sequence[Sample], int], Fit]


def _textbook(algorithm: str) -> CostModel:
    return CostModel(partial(collectives.cost, algorithm=algorithm), partial(collectives.fit, algorithm=algorithm))


COST_MODELS: Mapping[str, CostModel] = {
    "hockney": CostModel(hockney.cost, hockney.fit),
    "ring": _textbook("ring"),
    "binary-tree": _textbook("binary-tree"),
    "double-binary-tree": _textbook("double-binary-tree"),
    "recursive-doubling": _textbook("recursive-doubling"),
    "halving-doubling": _textbook("halving-doubling"),
    "hierarchical": CostModel(hierarchical.cost, hierarchical.fit),
    "tabulated": CostModel(tabulated.cost, tabulated.fit),
}


def cost_of(cluster: Cluster, workers: int, collective: str = "all_reduce") -> Cost:
    """Seconds of ``collective`` between ``workers`` workers of ``cluster``, as a function of bytes per worker.

    One worker alone pays nothing. Raises UsageError for a worker count below 1 or an unknown collective, CostError
    where the cluster has too few workers or its model lacks the data.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise UsageError(f"workers is {workers!r}: it must be a whole number, 1 or more")
    if collective not in COLLECTIVES:
        raise UsageError(f"unknown collective {collective!r}: known are {', '.join(COLLECTIVES)}")
    if cluster.capacity is not None and workers > cluster.capacity:
        raise CostError(f"{workers} workers do not fit: cluster {cluster.name!r} has {cluster.capacity}")
    if cluster.cost_model not in COST_MODELS:
        raise CostError(
            f"cluster {cluster.name!r} names the unknown cost model {cluster.cost_model!r}: "
            f"known are {', '.join(COST_MODELS)}"
        )
    return FREE if workers == 1 else COST_MODELS[cluster.cost_model].cost(cluster, workers, collective)
