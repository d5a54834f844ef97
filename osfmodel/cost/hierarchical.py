"""Two levels: reduce-scatter inside each node, all-reduce of the parts between nodes, all-gather inside.

T(M) = T_rs(g, M) + T_ar(n, M / g) + T_ag(g, M) with rings at both levels, g GPUs in a node and n nodes; what
Horovod's and NCCL's hierarchical paths do. The g rings between nodes run at once: with k NICs in a node, g / k of them
share one and get that fraction of its bandwidth each (where g <= k each has its own). Workers spread evenly over as few
nodes as hold them; where they do not divide, the fullest node paces the phases inside and the emptiest sends the
largest parts between nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from osfmodel.cost.fitting import Fit, Sample, fit_nonnegative
from osfmodel.cost.model import LINK, STATED, CostModel, Rate, layout_of, link_from_spec, rate_from_spec
from osfmodel.cost.shapes import AffineCost
from osfmodel.cost.textbook import FORMULAS, line
from osfmodel.entities.cluster import Cluster, Link
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.units import parse_time, show_rate

RING = FORMULAS["ring"]


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The price of the two-level collective. Raises CostError if ``cluster`` lacks a link that it needs."""
    layout = layout_of(workers, cluster.gpus_per_node)
    latency, per_byte = 0.0, 0.0
    for phase in ("reduce_scatter", "all_gather") if collective == "all_reduce" else (collective,):
        if layout.fullest > 1:
            a, b = line(RING[phase], _link(cluster, "in_node"), layout.fullest)
            latency, per_byte = latency + a, per_byte + b
    if layout.nodes > 1:
        a, b = line(RING[collective], _link(cluster, "between_nodes"), layout.nodes)
        latency, per_byte = latency + a, per_byte + b * layout.sharing(cluster.nics_per_node) / layout.emptiest
    return AffineCost(((latency, per_byte),))


def from_spec(name: str, parts: Sequence[str]) -> Cluster:
    """The cluster of GPUs per node, link inside a node, link between nodes, and number of NICs. Raises UsageError.

    The rate between nodes is that of each GPU, or with a number of NICs that of each NIC, unless it has a unit.
    """
    counts = (parts[0], *parts[5:])
    if len(parts) not in (5, 6) or not all(re.fullmatch(r"\s*[0-9]{1,6}\s*", part) for part in counts):
        form = "GPUS_PER_NODE,LATENCY,BANDWIDTH,LATENCY,BANDWIDTH[/gpu|/node][,NICS]"
        example = (
            "hierarchical:8,5us,200GB/s,50us,25Gbps (25 Gbps per GPU) or hierarchical:8,5us,200GB/s,50us,25Gbps/node"
        )
        raise UsageError(f"{name!r} is not a cluster: write hierarchical:{form}, for example {example}")
    gpus, nics = int(parts[0]), int(parts[5]) if len(parts) == 6 else None
    nics, rate = _nics(rate_from_spec(parts[4], *(NO_NICS if nics is None else (WITH_NICS,))), gpus, nics)
    inside, between = link_from_spec(*parts[1:3]), Link(parse_time(parts[3]), 1 / rate)
    return Cluster(name, "hierarchical", gpus_per_node=gpus, nics_per_node=nics, in_node=inside, between_nodes=between)


WITH_NICS = ("nic", "gpu", "node")
NO_NICS = (("gpu", "node"), ", for the number of NICs is not given (as in 25Gbps/nic,2)")
"""Units of the rate between nodes, and why it has no others."""


def _nics(rate: Rate, gpus: int, nics: int | None) -> tuple[int, float]:
    """The number of NICs of a node, and bytes per second of each. Without a number each GPU, or the node, has one."""
    if nics is None:
        return 1 if rate.per == "node" else gpus, rate.bytes_per_second
    whole = {"gpu": gpus, "node": 1}.get(rate.per, nics)
    return nics, rate.bytes_per_second * whole / max(nics, 1)


def _link(cluster: Cluster, which: str) -> Link:
    link = cluster.in_node if which == "in_node" else cluster.between_nodes
    if link is None:
        raise CostError(f"cluster {cluster.name!r} has no {which} link, which the hierarchical cost model needs")
    return link


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """Fit both links to all-reduce times at several worker counts, on one node and on more.

    The ``between_nodes`` link found is that of a node with one NIC. ``parameters`` = {"in_node": Link, "between_nodes":
    Link, "nics_per_node": 1}. Raises CostError where the samples do not show both.
    """
    layouts = [layout_of(sample.workers, gpus_per_node) for sample in samples]
    if not any(one.nodes > 1 for one in layouts) or not any(one.fullest > 1 for one in layouts):
        raise CostError("a hierarchical fit needs all-reduce times inside one node and between several")

    def regressors(workers: int, size: int) -> tuple[float, float, float, float]:
        layout = layout_of(workers, gpus_per_node)
        inside, between = RING["all_reduce"](layout.fullest), RING["all_reduce"](layout.nodes)
        per_byte = between.sent * layout.sharing(1) / layout.emptiest
        return inside.rounds, inside.sent * size, between.rounds, per_byte * size

    (in_latency, in_per_byte, latency, per_byte), residuals = fit_nonnegative(samples, regressors)
    links = {"in_node": Link(in_latency, in_per_byte), "between_nodes": Link(latency, per_byte)}
    return Fit.of(samples, {**links, "nics_per_node": 1}, residuals)


def rates(cluster: Cluster) -> str:
    """The network of each GPU, or NIC, and of a node, in words; "" without one."""
    link, gpus, nics = cluster.between_nodes, cluster.gpus_per_node, cluster.nics_per_node
    if link is None or not link.seconds_per_byte:
        return ""
    each, whole = show_rate(1 / link.seconds_per_byte), show_rate(nics / link.seconds_per_byte)
    if gpus == 1:
        return f"{each} per GPU"
    if nics == 1:
        return f"{whole} per node, shared by its {gpus} GPUs"
    return f"{each} per {'GPU' if nics == gpus else 'NIC'}, {whole} per node"


MODEL = CostModel(
    cost,
    fit,
    "rings inside nodes, then between nodes",
    link_parameters=LINK,
    uncertainty=lambda cluster, workers: (STATED, STATED),
    rates=rates,
    from_spec=from_spec,
)
