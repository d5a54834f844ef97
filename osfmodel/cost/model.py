"""A cost model: the row type of COST_MODELS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from osfmodel.cost.fitting import Fit, Sample
from osfmodel.cost.shapes import Cost
from osfmodel.entities.cluster import Cluster

MEASURED = 0.1
"""Relative error of prices from tables: two of the same machines by different people differ by 5 to 30 % at a size."""
STATED = 0.3
"""The same of prices from a stated bandwidth and latency."""


class CostModel(NamedTuple):
    """A way to price collectives.

    cost:    (cluster, workers, collective) -> Cost; two workers or more
    fit:     (all-reduce samples, gpus_per_node) -> Fit, whose parameters make a cluster that ``cost`` can price
    summary: shown by ``osf list``
    counts:  (cluster) -> the worker counts that it can price for all-reduce; empty if it can price any
    uncertainty: (cluster, workers) -> u, and u of messages of 8 MiB and more: nine tenths of measured times lie between
        price / (1 + u) and price * (1 + u); by default MEASURED
    link_parameters: those of bandwidth and latency that describe a link, so that a value can replace them
    link_note: a sentence on what bandwidth and latency are in a model that is not described by links
    network_independent: the part of its prices that does not depend on the network, e.g. launch latency; empty if none
    has_network: (cluster) -> whether its data distinguish a network between nodes, which a faster network then replaces
    startups: (cluster, workers) -> collective -> seconds of start-up of a message, if measured
    alone: (cluster, workers) -> collective -> seconds of a message on an idle network, if measured
    rates: (cluster) -> the bandwidth of its network, per GPU and per node, in words; empty if the model has none
    doubts: (cluster, workers) -> a sentence for each figure that no usual machine has, or that prices do not follow
    broadcast: (cluster, workers) -> Cost of a broadcast; None if that of an all-gather of as many bytes serves
    from_spec: (name, parts) -> the cluster given as ``MODEL:PART,PART``; None if the model cannot be given so
    """

    cost: Callable[[Cluster, int, str], Cost]
    fit: Callable[[Sequence[Sample], int], Fit]
    summary: str
    counts: Callable[[Cluster], tuple[int, ...]] = lambda cluster: ()
    uncertainty: Callable[[Cluster, int], tuple[float, float]] = lambda cluster, workers: (MEASURED, MEASURED)
    link_parameters: tuple[str, ...] = ()
    link_note: str = ""
    network_independent: str = ""
    has_network: Callable[[Cluster], bool] = lambda cluster: cluster.between_nodes is not None
    startups: Callable[[Cluster, int], Mapping[str, Cost]] = lambda cluster, workers: {}
    alone: Callable[[Cluster, int], Mapping[str, Cost]] = lambda cluster, workers: {}
    rates: Callable[[Cluster], str] = lambda cluster: ""
    doubts: Callable[[Cluster, int], tuple[str, ...]] = lambda cluster, workers: ()
    broadcast: Callable[[Cluster, int], Cost] | None = None
    from_spec: Callable[[str, Sequence[str]], Cluster] | None = None


LINK = ("bandwidth", "latency")
"""The parameters of a model that describe a link."""
