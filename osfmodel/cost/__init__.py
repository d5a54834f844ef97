"""What a collective takes: cluster, workers -> Cost as a function of bytes.

To add a model: one module with ``cost(cluster, workers, collective)``, ``fit(samples, gpus_per_node)`` and a MODEL of
them, and one line in COST_MODELS. tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from osfmodel.cost.fitting import Fit, Sample
from osfmodel.cost.shapes import FREE, AffineCost, Cost, TableCost
from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.lookup import LateTable, suggestion

__all__ = ["COST_MODELS", "AffineCost", "Cost", "CostModel", "Fit", "Sample", "TableCost", "cost_of", "worker_counts"]


class CostModel(NamedTuple):
    """A way to price collectives.

    cost:    (cluster, workers, collective) -> Cost; two workers or more
    fit:     (all-reduce samples, gpus_per_node) -> Fit, whose parameters make a cluster that ``cost`` can price
    meaning: shown by ``osf list``
    counts:  (cluster) -> the worker counts that it can price for all-reduce; empty where it can price any
    uncertainty: relative error of its prices on tables held out, for a model that prices without a measurement
    link_parameters: those of bandwidth and latency that describe a link, so that a value can replace them
    link_note: a sentence on what bandwidth and latency are in a model that is not described by links
    network_independent: the part of its prices that does not depend on the network, e.g. launch latency; empty if none
    has_network: (cluster) -> whether its data distinguish a network between nodes, which a faster network then replaces
    startups: (cluster, workers) -> collective -> seconds of start-up of a message, where they were measured
    from_spec: (name, parts) -> the cluster given as ``MODEL:PART,PART``; None if the model cannot be given so
    """

    cost: Callable[[Cluster, int, str], Cost]
    fit: Callable[[Sequence[Sample], int], Fit]
    meaning: str
    counts: Callable[[Cluster], tuple[int, ...]] = lambda cluster: ()
    uncertainty: float = 0
    link_parameters: tuple[str, ...] = ()
    link_note: str = ""
    network_independent: str = ""
    has_network: Callable[[Cluster], bool] = lambda cluster: cluster.between_nodes is not None
    startups: Callable[[Cluster, int], Mapping[str, Cost]] = lambda cluster, workers: {}
    from_spec: Callable[[str, Sequence[str]], Cluster] | None = None


COST_MODELS: LateTable[CostModel] = LateTable(
    {
        "hockney": "cost.per_count:HOCKNEY",
        "ring": "cost.textbook:RING",
        "binary-tree": "cost.textbook:BINARY_TREE",
        "double-binary-tree": "cost.textbook:DOUBLE_BINARY_TREE",
        "recursive-doubling": "cost.textbook:RECURSIVE_DOUBLING",
        "halving-doubling": "cost.textbook:HALVING_DOUBLING",
        "hierarchical": "cost.hierarchical:MODEL",
        "nccl": "cost.nccl_fit:MODEL",
        "protocols": "cost.protocols:MODEL",
        "piecewise": "cost.per_count:PIECEWISE",
        "tabulated": "cost.per_count:TABULATED",
    }
)
LINK = ("bandwidth", "latency")
"""The parameters of a model that are figures of a link."""


def worker_counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts, above 1, that the cost model of ``cluster`` can price; empty where it can price any."""
    return COST_MODELS[cluster.cost_model].counts(cluster) if cluster.cost_model in COST_MODELS else ()


def cost_of(cluster: Cluster, workers: int, collective: str = "all_reduce") -> Cost:
    """Seconds of ``collective`` between ``workers`` workers of ``cluster``, as a function of bytes.

    The bytes are those of the whole vector: what every worker holds before an all-reduce or reduce-scatter, and after
    an all-gather.

    One worker alone pays nothing. Raises UsageError for a worker count below 1 or an unknown collective, CostError
    where the cluster has too few workers or its model lacks the data.
    """
    if isinstance(workers, bool) or not hasattr(workers, "__index__") or workers < 1:
        raise UsageError(f"workers is {workers!r}: it must be a whole number, 1 or more")
    if collective not in COLLECTIVES:
        raise UsageError(f"unknown collective {collective!r}: {suggestion(collective, COLLECTIVES)}")
    if cluster.capacity is not None and workers > cluster.capacity:
        raise CostError(
            f"{workers} workers do not fit: cluster {cluster.name!r} has {cluster.capacity}; for more nodes "
            "say what joins them, as in nccl:h100x8,400Gbps or hierarchical:8,5us,200GB/s,50us,25Gbps, or measure "
            "that many (osf bench)"
        )
    if cluster.cost_model not in COST_MODELS:
        raise CostError(
            f"cluster {cluster.name!r} names the unknown cost model {cluster.cost_model!r}: "
            f"{suggestion(cluster.cost_model, COST_MODELS)}"
        )
    if workers == 1:
        return FREE
    price = COST_MODELS[cluster.cost_model].cost(cluster, workers, collective)
    if cluster.fitted is None or price.measured_range is not None:
        return price
    return replace(price, measured_range=(cluster.fitted.smallest, cluster.fitted.largest))
