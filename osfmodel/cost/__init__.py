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
    meaning: half a line for a person
    counts:  (cluster) -> the worker counts that it can price for all-reduce; empty where it can price any
    uncertainty: relative error of its prices on tables held out, for a model that prices without a measurement
    stated:  those of bandwidth and latency that are figures of a link, so that another can take their place
    figures: what bandwidth and latency are, in a sentence, where they are no figures of links
    stays:   what of its prices no network changes, in words, such as launches; nothing where all of it is the network's
    networked: (cluster) -> whether its data tell a network between nodes, which then is what changes with the network
    startups: (cluster, workers) -> collective -> seconds of start-up of a message, where they were measured
    in_words: (name, parts) -> the cluster that a person says as ``MODEL:PART,PART``; None where it cannot be said so
    """

    cost: Callable[[Cluster, int, str], Cost]
    fit: Callable[[Sequence[Sample], int], Fit]
    meaning: str
    counts: Callable[[Cluster], tuple[int, ...]] = lambda cluster: ()
    uncertainty: float = 0
    stated: tuple[str, ...] = ()
    figures: str = ""
    stays: str = ""
    networked: Callable[[Cluster], bool] = lambda cluster: cluster.between_nodes is not None
    startups: Callable[[Cluster, int], Mapping[str, Cost]] = lambda cluster, workers: {}
    in_words: Callable[[str, Sequence[str]], Cluster] | None = None


LINK = ("bandwidth", "latency")
OF_LINES = "latency is the constant of each fitted line, and bandwidth its slope"
OF_TABLES = "latency is the measured time of the smallest messages, and bandwidth what larger ones take beyond it"


def _textbook(algorithm: str, meaning: str) -> CostModel:
    return CostModel(
        partial(textbook.cost, algorithm=algorithm),
        partial(textbook.fit, algorithm=algorithm),
        meaning,
        stated=LINK,
        in_words=partial(textbook.in_words, algorithm=algorithm),
    )


COST_MODELS: Mapping[str, CostModel] = {
    "hockney": CostModel(
        HOCKNEY.cost, HOCKNEY.fit, "one published or fitted line per worker count", HOCKNEY.counts, figures=OF_LINES
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
        stated=LINK,
        in_words=hierarchical.in_words,
    ),
    "nccl": CostModel(
        nccl.cost,
        nccl_fit.fit,
        "NCCL's fastest algorithm and protocol, from GPUs and NICs alone",
        uncertainty=nccl.UNCERTAINTY,
        stated=LINK[:1],
        stays="launches and the ceilings of NCCL's low-latency protocols",
        networked=nccl.networked,
        in_words=nccl.in_words,
    ),
    "protocols": CostModel(
        protocols.cost,
        protocols.fit,
        "the fastest of fitted protocols, shared by worker counts",
        stays="launches and passes over local memory",
        networked=protocols.networked,
    ),
    "piecewise": CostModel(
        PIECEWISE.cost,
        PIECEWISE.fit,
        "the minimum of a few fitted lines per worker count",
        PIECEWISE.counts,
        figures=OF_LINES,
    ),
    "tabulated": CostModel(
        TABULATED.cost,
        TABULATED.fit,
        "a measured size -> time table per worker count",
        TABULATED.counts,
        figures=OF_TABLES,
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
