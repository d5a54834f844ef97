"""A cluster with a faster or slower network: links, lines, tables and shapes, each in its own terms."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple

from osfmodel.cost import COST_MODELS
from osfmodel.entities.cluster import AlphaBeta, Cluster, Link, NcclShape, Pieces, Protocol, Table
from osfmodel.entities.errors import UsageError
from osfmodel.entities.records import dataclass, replace


class Change(NamedTuple):
    """A change of bandwidth or latency: ``factor`` times the old one, or ``value`` instead (bytes/s, or seconds).

    ``per``: of what a bandwidth is, "gpu", "nic" or "node"; "" for a GPU, or for a NIC where GPUs share NICs.
    """

    factor: float = 1.0
    value: float | None = None
    per: str = ""

    def on(self, cluster: Cluster) -> Change:
        """The change with a value per link of ``cluster``: per NIC where GPUs share NICs, else per GPU."""
        if self.value is None or not self.per:
            return self
        links = cluster.gpus_per_node if cluster.nccl is not None else cluster.nics_per_node
        parts = {"node": links, "gpu": links / cluster.gpus_per_node, "nic": 1}
        return Change(value=self.value / parts[self.per])


SAME = Change()


@dataclass(frozen=True, slots=True)
class Network:
    """Changes of a network. ``bandwidth`` x2 sends twice as fast; ``latency`` x2 takes twice as long to start."""

    bandwidth: Change = SAME
    latency: Change = SAME

    def __post_init__(self) -> None:
        for name in ("bandwidth", "latency"):
            change: Change = getattr(self, name)
            for figure in (change.factor, *(() if change.value is None else (change.value,))):
                if not (math.isfinite(figure) and figure > 0):
                    raise UsageError(f"--{name}: it must be above 0, not {figure:g}")

    def sending(self, seconds: float) -> float:
        """The new time of ``seconds`` of sending, or the new seconds per byte."""
        return seconds / self.bandwidth.factor if self.bandwidth.value is None else 1 / self.bandwidth.value

    def starting(self, seconds: float) -> float:
        """The new time of ``seconds`` of start-up."""
        return seconds * self.latency.factor if self.latency.value is None else self.latency.value


def faster_network(cluster: Cluster, bandwidth: Change = SAME, latency: Change = SAME) -> Cluster:
    """``cluster`` with another network: the one between nodes if its data tells it from the one inside, else all of it.

    Links and lines (fits, pieces, protocols): seconds per byte are divided by the factor on bandwidth, latencies
    multiplied with that on latency. Measured tables: a(s), the least time of a message of at most that size, counts as
    latency, and the rest of the message's time as sending,

        t(s) -> latency a(s) + (t(s) - a(s)) / bandwidth,

    so sending that no message was small enough to show counts as latency, and a gain in bandwidth is rather under- than
    overstated. Trains alike; measured start-ups (which overlap with other messages) go with latency. NCCL shapes: the
    bandwidth of NIC or GPU, and the scale of latencies. Reducing, launching, copying (effects) and the gain of several
    collectives at once stay as they are, and so does the part of a price that depends on no network
    (``CostModel.network_independent``). A value instead of a factor needs a cost model that is described by a link
    (``CostModel.link_parameters``). Raises UsageError for other models, and for values of 0 or less.
    """
    network = Network(bandwidth.on(cluster), latency)
    _require_stated(cluster, network)
    if network == Network():
        return cluster
    outside = cluster.between_nodes is not None
    return replace(
        cluster,
        between_nodes=_link(cluster.between_nodes, network),
        in_node=cluster.in_node if outside else _link(cluster.in_node, network),
        fits=tuple(_fit(row, network) for row in cluster.fits),
        pieces=tuple(_pieces(row, network) for row in cluster.pieces),
        tables=tuple(_table(row, network) for row in cluster.tables),
        protocols=_protocols(cluster.protocols, network),
        nccl=None if cluster.nccl is None else _nccl(cluster.nccl, network),
    )


def caveat(cluster: Cluster) -> str:
    """Explain what bandwidth and latency change on this cluster, unless that is plain."""
    model = COST_MODELS[cluster.cost_model]
    if model.link_note:
        return model.link_note
    between = "the network between nodes changes, and what joins the GPUs of a node stays"
    said = [between] if cluster.gpus_per_node > 1 and model.has_network(cluster) else []
    return "; ".join([*said, *([f"{model.network_independent} stay as they are"] if model.network_independent else [])])


def _require_stated(cluster: Cluster, network: Network) -> None:
    model = COST_MODELS.get(cluster.cost_model)
    for name in ("bandwidth", "latency"):
        change: Change = getattr(network, name)
        if change.value is not None and model is not None and name not in model.link_parameters:
            raise UsageError(
                f"cluster {cluster.name!r} ({cluster.cost_model}) is not described by a {name} of a link: "
                f"change it by a factor, such as --{name} x2"
            )


def _link(link: Link | None, network: Network) -> Link | None:
    if link is None:
        return None
    return replace(
        link, latency=network.starting(link.latency), seconds_per_byte=network.sending(link.seconds_per_byte)
    )


def _factors(network: Network) -> Network:
    """The factors alone, for data without a bandwidth or latency that a value could replace."""
    return Network(Change(network.bandwidth.factor), Change(network.latency.factor))


def _fit(row: AlphaBeta, network: Network) -> AlphaBeta:
    network = _factors(network)
    return replace(row, latency=network.starting(row.latency), seconds_per_byte=network.sending(row.seconds_per_byte))


def _pieces(row: Pieces, network: Network) -> Pieces:
    network = _factors(network)
    return replace(
        row,
        latencies=tuple(map(network.starting, row.latencies)),
        seconds_per_byte=tuple(map(network.sending, row.seconds_per_byte)),
    )


def _table(table: Table, network: Network) -> Table:
    network = _factors(network)
    times = _split_times(table.times, network)
    startups = tuple(min(network.starting(startup), time) for startup, time in zip(table.startups, times, strict=False))
    return replace(table, times=times, startups=startups, trains=_split_times(table.trains, network), slowest=())


def _split_times(times: tuple[float, ...], network: Network) -> tuple[float, ...]:
    """Times of messages of increasing size, of each the least up to its size as start-up and the rest as sending."""
    least = accumulate(times, min)
    return tuple(
        network.starting(start) + network.sending(time - start) for start, time in zip(least, times, strict=True)
    )


def _protocols(protocols: tuple[Protocol, ...], network: Network) -> tuple[Protocol, ...]:
    network = _factors(network)
    if any(row.between_nodes is not None for row in protocols):
        return tuple(replace(row, between_nodes=_link(row.between_nodes, network)) for row in protocols)
    return tuple(replace(row, in_node=_link(row.in_node, network)) for row in protocols)


def _nccl(shape: NcclShape, network: Network) -> NcclShape:
    """The shape with another network; of a single node, with another fabric."""
    level = (
        ("gpu_bandwidth", "latency_scale") if shape.nic_bandwidth is None else ("nic_bandwidth", "net_latency_scale")
    )
    bandwidth, scale = level
    host = () if shape.nic_bandwidth is not None else ("host_bandwidth", "memory_bandwidth")
    return replace(
        shape,
        **{
            bandwidth: 1 / network.sending(1 / getattr(shape, bandwidth)),
            scale: getattr(shape, scale) * network.latency.factor,
            **{name: getattr(shape, name) * network.bandwidth.factor for name in host if getattr(shape, name)},
        },
    )
