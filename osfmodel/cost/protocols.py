"""The fastest of a few protocols over two levels, with parameters that all worker counts share.

With g workers on a node and n nodes, protocol k takes

    T_k(M) = latency + seconds_per_byte M
             + in_node.latency 2 (g - 1)             + in_node.seconds_per_byte 2 (g - 1) / g M
             + between_nodes.latency 2 ceil(log2 n)  + between_nodes.seconds_per_byte 2 (n - 1) / n M s / g

and T = min_k T_k: rings inside the nodes, and between them the double binary tree that NCCL takes at these sizes
(``nccl`` tuning.cc: 2 [(N / nodes - 1) intra + log2(nodes) inter] hops; a tree and a ring send alike). s workers share
a NIC, see :mod:`~osfmodel.cost.hierarchical`. Protocols differ in all their figures, as LL, LL128 and Simple do.
The launch (latency) and the pass over local memory (seconds per byte) are paid once, whatever the worker count.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

from osfmodel.cost.fitting import Fit, Sample, fit_minimum
from osfmodel.cost.model import CostModel, layout_of
from osfmodel.cost.shapes import AffineCost
from osfmodel.entities.cluster import Cluster, Link, Protocol
from osfmodel.entities.errors import CostError

NONE = Link(0.0, 0.0)


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The price of the fastest protocol. Raises CostError if ``cluster`` has none for that layout.

    A reduce-scatter and an all-gather are the two halves of an all-reduce; each pays the launch in full.
    """
    if not cluster.protocols:
        raise CostError(f"cluster {cluster.name!r} has no protocols, which this cost model needs")
    _, in_hops, in_bytes, hops, per_byte = loads(workers, cluster.gpus_per_node, cluster.nics_per_node)
    half = 1.0 if collective == "all_reduce" else 0.5
    pieces = []
    for protocol in cluster.protocols:
        inside = _link(cluster, protocol.in_node, in_hops, "in_node")
        between = _link(cluster, protocol.between_nodes, hops, "between_nodes")
        latency = inside.latency * in_hops + between.latency * hops
        sent = inside.seconds_per_byte * in_bytes + between.seconds_per_byte * per_byte
        pieces.append((protocol.latency + half * latency, half * (protocol.seconds_per_byte + sent)))
    return AffineCost(tuple(pieces))


def _link(cluster: Cluster, link: Link | None, hops: float, which: str) -> Link:
    if link is None and hops:
        raise CostError(f"cluster {cluster.name!r} has a protocol without {which}, which was not measured")
    return link or NONE


def loads(workers: int, gpus_per_node: int, nics_per_node: int) -> tuple[float, float, float, float, float]:
    """Regressors: 1, then hops and bytes sent per byte of message, inside a node and between nodes."""
    _, nodes, fullest, emptiest = layout = layout_of(workers, gpus_per_node)
    between = 2 * (nodes - 1) / nodes * layout.sharing(nics_per_node) / emptiest
    return 1.0, 2 * (fullest - 1), 2 * (fullest - 1) / fullest, 2 * ceil(log2(nodes)), between


def has_network(cluster: Cluster) -> bool:
    """Whether protocols have links between nodes."""
    return any(row.between_nodes is not None for row in cluster.protocols)


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """Fit up to four protocols to all-reduce times at two worker counts or more.

    The figures between nodes are those of nodes with one NIC. ``parameters`` = {"protocols": ..., "nics_per_node": 1}.
    Raises CostError for one worker count, which tells nothing of another.
    """
    if len({sample.workers for sample in samples}) < 2:
        raise CostError("a fit of protocols needs all-reduce times at two worker counts or more")

    def regressors(workers: int, size: int) -> tuple[float, ...]:
        once, in_hops, in_bytes, hops, per_byte = loads(workers, gpus_per_node, 1)
        return once, once * size, in_hops, in_bytes * size, hops, per_byte * size

    found = fit_minimum(samples, regressors)
    layouts = [layout_of(sample.workers, gpus_per_node) for sample in samples]
    inside = any(layout.fullest > 1 for layout in layouts)
    between = any(layout.nodes > 1 for layout in layouts)
    protocols = tuple(
        Protocol(a, b, Link(c, d) if inside else None, Link(e, f) if between else None)
        for a, b, c, d, e, f in found.pieces
    )
    return Fit.of(samples, {"protocols": protocols, "nics_per_node": 1}, found.residuals)


MODEL = CostModel(
    cost,
    fit,
    "the fastest of fitted protocols, shared by worker counts",
    network_independent="launches and passes over local memory",
    has_network=has_network,
)
