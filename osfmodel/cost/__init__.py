"""What a collective takes: cluster, workers -> Cost as a function of bytes.

To add a model: one module with ``cost(cluster, workers, collective)`` and ``fit(samples, gpus_per_node)``, and
one line in COST_MODELS. tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from osfmodel.cost import hierarchical, nccl, nccl_fit, protocols, textbook
from osfmodel.cost.fitting import Fit, Sample
from osfmodel.cost.per_count import HOCKNEY, PIECEWISE, TABULATED, startups
from osfmodel.cost.shapes import FREE, AffineCost, Cost, TableCost
from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.lookup import suggestion

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


LINK = ("bandwidth", "latency")
OF_LINES = "latency is the constant of each fitted line, and bandwidth its slope"
OF_TABLES = "latency is the measured time of the smallest messages, and bandwidth what larger ones take beyond it"


def _textbook(algorithm: str, meaning: str) -> CostModel:
    return CostModel(
        partial(textbook.cost, algorithm=algorithm),
        partial(textbook.fit, algorithm=algorithm),
        meaning,
        link_parameters=LINK,
        from_spec=partial(textbook.from_spec, algorithm=algorithm),
    )


COST_MODELS: Mapping[str, CostModel] = {
    "hockney": CostModel(
        HOCKNEY.cost, HOCKNEY.fit, "one published or fitted line per worker count", HOCKNEY.counts, link_note=OF_LINES
    ),
    "ring": _textbook("ring", "ring over one kind of link"),
    "binary-tree": _textbook("binary-tree", "reduce to a root and broadcast"),
    "double-binary-tree": _textbook("double-binary-tree", "two pipelined trees, optimistic as printed"),
    "recursive-doubling": _textbook("recursive-doubling", "pairs exchange everything at doubling distance"),
    "halving-doubling": _textbook("halving-doubling", "Rabenseifner: recursive halving, then doubling"),
    "hierarchical": CostModel(
        hierarchical.cost,
        hierarchical.fit,
        "rings inside nodes, then between nodes",
        link_parameters=LINK,
        from_spec=hierarchical.from_spec,
    ),
    "nccl": CostModel(
        nccl.cost,
        nccl_fit.fit,
        "NCCL's fastest algorithm and protocol, from GPUs and NICs alone",
        uncertainty=nccl.UNCERTAINTY,
        link_parameters=LINK[:1],
        network_independent="launches and the ceilings of NCCL's low-latency protocols",
        has_network=nccl.has_network,
        from_spec=nccl.from_spec,
    ),
    "protocols": CostModel(
        protocols.cost,
        protocols.fit,
        "the fastest of fitted protocols, shared by worker counts",
        network_independent="launches and passes over local memory",
        has_network=protocols.has_network,
    ),
    "piecewise": CostModel(
        PIECEWISE.cost,
        PIECEWISE.fit,
        "the minimum of a few fitted lines per worker count",
        PIECEWISE.counts,
        link_note=OF_LINES,
    ),
    "tabulated": CostModel(
        TABULATED.cost,
        TABULATED.fit,
        "a measured size -> time table per worker count",
        TABULATED.counts,
        link_note=OF_TABLES,
        startups=startups,
    ),
}


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
