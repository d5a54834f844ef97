"""Cost models: cluster, workers -> Cost of a collective as a function of bytes.

To add a model: one module with ``cost(cluster, workers, collective)``, ``fit(samples, gpus_per_node)`` and a MODEL of
them, and one line in COST_MODELS; from another package, an entry point of ``osfmodel.cost_models``. tests/conformance
runs over the table.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.cost.fitting import Fit, Sample
from osfmodel.cost.model import CostModel
from osfmodel.cost.shapes import FREE, AffineCost, Cost, TableCost
from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.lookup import LateTable, suggestion

__all__ = [
    "COST_MODELS",
    "AffineCost",
    "Cost",
    "CostModel",
    "Fit",
    "Sample",
    "TableCost",
    "cost_of",
    "network_rates",
    "worker_counts",
]


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
    },
    "osfmodel.cost_models",
    CostModel,
)


def worker_counts(cluster: Cluster) -> tuple[int, ...]:
    """The worker counts, above 1, that the cost model of ``cluster`` can price; empty if it can price any."""
    return COST_MODELS[cluster.cost_model].counts(cluster) if cluster.cost_model in COST_MODELS else ()


def network_rates(cluster: Cluster) -> str:
    """The bandwidth of the network of ``cluster``, per GPU and per node, in words; "" if its cost model has none."""
    return COST_MODELS[cluster.cost_model].rates(cluster) if cluster.cost_model in COST_MODELS else ""


def cost_of(cluster: Cluster, workers: int, collective: str = "all_reduce") -> Cost:
    """Seconds of ``collective`` between ``workers`` workers of ``cluster``, as a function of bytes.

    Bytes are those of the whole vector: the input of each worker to an all-reduce or reduce-scatter, and the result of
    an all-gather.

    A single worker pays nothing. Raises UsageError for a worker count below 1 or an unknown collective, CostError
    if the cluster has too few workers or its model lacks the data.
    """
    if isinstance(workers, bool) or not hasattr(workers, "__index__") or workers < 1:
        raise UsageError(f"workers is {workers!r}: it must be a whole number, 1 or more")
    if collective not in COLLECTIVES:
        raise UsageError(f"unknown collective {collective!r}: {suggestion(collective, COLLECTIVES)}")
    if cluster.capacity is not None and workers > cluster.capacity:
        raise CostError(
            f"{workers} workers do not fit: cluster {cluster.name!r} has {cluster.capacity}: write --workers "
            f"{cluster.capacity}, or for more nodes say what joins them, as in nccl:h100x8,400Gbps or "
            "hierarchical:8,5us,200GB/s,50us,25Gbps, or measure that many (osf bench)"
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
