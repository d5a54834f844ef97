"""A cost model: the row type of COST_MODELS, and what several models share.

That is the parts of a cluster specification in words (``--cluster ring:50us,10Gbps``), and the placement of workers on
nodes: evenly, on as few nodes as hold them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from osfmodel.cost.fitting import Fit, Sample
from osfmodel.cost.shapes import Cost
from osfmodel.entities.cluster import Cluster, Link
from osfmodel.entities.errors import UsageError
from osfmodel.entities.units import parse_bandwidth, parse_time

_PER = re.compile(r"(.+)/\s*(gpu|node|nic)\s*", re.IGNORECASE)


class Rate(NamedTuple):
    """Bytes per second of each GPU, node or NIC; ``per`` is "" where the words do not say of which."""

    bytes_per_second: float
    per: str = ""


def rate_from_spec(bandwidth: str, units: Sequence[str] = ("gpu",), why: str = "") -> Rate:
    """Parse ``400Gbps``, ``400Gbps/gpu`` or ``3200Gbps/node``, above 0, where ``units`` are those that make sense.

    ``why`` tells why others do not. Raises UsageError.
    """
    match = _PER.fullmatch(bandwidth)
    figure, per = (match[1], match[2].lower()) if match else (bandwidth, "")
    if per and per not in units:
        known = " or ".join(f"/{unit}" for unit in units)
        raise UsageError(f"{bandwidth.strip()!r}: a rate per {per} does not work here{why}: write {known}")
    rate = parse_bandwidth(figure)
    if not rate:
        raise UsageError(f"a bandwidth of {bandwidth!r} moves nothing: it must be above 0")
    return Rate(rate, per)


def says_per(words: str) -> bool:
    """Whether a specification ends in a rate that says of what it is."""
    return _PER.fullmatch(words) is not None


def link_from_spec(latency: str, bandwidth: str) -> Link:
    """Parse ``50us`` and ``10Gbps`` or ``10Gbps/gpu`` into the link of each GPU. Raises UsageError."""
    rate = rate_from_spec(bandwidth, why=", where only the link of each GPU counts")
    return Link(parse_time(latency), 1 / rate.bytes_per_second)


class Placement(NamedTuple):
    """Number of workers, of nodes, and of workers on the fullest and on the emptiest node."""

    workers: int
    nodes: int
    fullest: int
    emptiest: int

    def sharing(self, nics: int) -> float:
        """Number of workers of the fullest node that share one of its ``nics`` NICs."""
        return max(1.0, self.fullest / nics)


def layout_of(workers: int, gpus_per_node: int) -> Placement:
    """``workers`` spread evenly over as few nodes of ``gpus_per_node`` as hold them."""
    nodes = -(-workers // gpus_per_node)
    return Placement(workers, nodes, -(-workers // nodes), workers // nodes)


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
    slowest: (cluster, workers) -> collective -> Cost on the slowest machines that words like its own were true of
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
    slowest: Callable[[Cluster, int], Mapping[str, Cost]] = lambda cluster, workers: {}
    from_spec: Callable[[str, Sequence[str]], Cluster] | None = None


LINK = ("bandwidth", "latency")
"""The parameters of a model that describe a link."""
