"""NCCL's own choice: the fastest of its algorithms and protocols, priced from the shape of the machines alone.

T(M) = min over {ring, tree} x {LL, LL128, Simple}, and NVLS or NVLSTree where the switch can add up, of

    a + b M' + 2 kappa sqrt(a b M')

with latency a and seconds per byte b from NCCL's tuner (osfmodel.cost.nccl_constants), M' = M but for trees, whose
bandwidth the tuner corrects by size. The corrections are in :class:`Corrections`; with TUNER there are none, and the
formula is the tuner's. No measured collective is read.

The last term fills the pipeline. M bytes in pieces of s through p steps of latency l cost (M/s + p)(l + s b), that is
a + b M + M l/s + s b p with a = p l; the best s makes the rest 2 sqrt(a b M). kappa = 1 would be one piece in flight at
a time, 0 a pipeline that is free to fill. The curve is concave, so the minimum of lines through its values at powers
of two gives it: exact there, and between them at most 2 % of the last term below.

Reduce-scatter and all-gather run as rings, in half of the steps; inside a node NVLS may serve as well, which sends all
of a message through a GPU's link one way where a ring sends (n - 1)/n of it (NVIDIA/nccl, issue 1506), so that only
many GPUs, whose rings have many steps, gain. Where a switch adds up, an all-reduce costs less than both halves. Between
nodes the n - 1 steps of a ring follow each other, each with its own n-th of the message, at the pace of the fabric
where it was measured (``NetworkFabric.pace``), with no pipeline to fill; small messages go as LL, which has no pace,
for its flags come with the data, so that no step waits until a chunk is announced. Nodes of one GPU each may have PAT,
with log2 n steps instead. A broadcast is the same ring without that: its pieces follow each other closely. Beyond some
nodes, collectives get in each other's way (``NetworkFabric.crowded``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from osfmodel.cost import nccl_constants as known
from osfmodel.cost.model import Placement, layout_of
from osfmodel.cost.nccl_constants import CORRECTED, Corrections
from osfmodel.cost.nccl_lines import Way, lines, up_to
from osfmodel.cost.shapes import AffineCost
from osfmodel.entities.cluster import Cluster, NcclShape
from osfmodel.entities.errors import CostError

HALVES = ("reduce_scatter", "all_gather")
"""Collectives that together make an all-reduce."""


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The price of NCCL's best way. Raises CostError if ``cluster`` has no NCCL shape, or no network for it."""
    if cluster.nccl is None:
        raise CostError(f"cluster {cluster.name!r} has no nccl shape, which the nccl cost model needs")
    place = layout_of(workers, cluster.gpus_per_node)
    if place.nodes > 1 and cluster.nccl.nic_bandwidth is None:
        raise CostError(
            f"cluster {cluster.name!r} has no nic_bandwidth, which the nccl cost model needs for {place.nodes} nodes"
        )
    return _fastest(cluster.nccl, place, collective)


@lru_cache(maxsize=2**12)
def _fastest(shape: NcclShape, place: Placement, collective: str) -> AffineCost:
    """The price of NCCL's best way, of which the same is asked again and again."""
    return AffineCost(lines(ways(shape, place, collective)))


def ways(
    shape: NcclShape, place: Placement, collective: str = "all_reduce", corrections: Corrections = CORRECTED
) -> Mapping[tuple[str, str], Way]:
    """Every (algorithm, protocol) that NCCL would consider here."""
    found: dict[tuple[str, str], Way] = {}
    for protocol in protocols(shape, place):
        found["ring", protocol] = _ring(shape, place, protocol, collective, corrections)
        if collective == "all_reduce":
            found["tree", protocol] = _tree(shape, place, protocol, corrections)
    if ("ring", "LL") in found and _paced(shape, place, collective, corrections):
        others = [way for name, way in found.items() if name != ("ring", "LL")]
        plain = corrections._replace(at_scale=False)
        low, *tuned = (_ring(shape, place, name, collective, plain) for name in protocols(shape, place))
        found["ring", "LL"] = up_to(low, tuned, others)
    adds_up = shape.nvls and place.fullest > 2 and collective != "broadcast"
    for name, price in OTHERS.items():
        usable = not name.startswith("NVLS") or (adds_up and _has(shape, name))
        if usable and (way := price(shape, place, collective, corrections)) is not None:
            found[name, "Simple"] = way
    measured = _paced(shape, place, collective, corrections) > 0 and shape.pace is None and not unpaced(shape)
    pipeline = 0.0 if measured else _pipeline(shape, place, corrections)
    kappas = {"NVLSTree": corrections.by_nic}
    more = _crowd(shape, place, collective) if corrections.at_scale else 1.0
    return {
        name: way._replace(pipeline=kappas.get(name[0], pipeline), seconds_per_byte=way.seconds_per_byte * more)
        for name, way in found.items()
    }


def _paced(shape: NcclShape, place: Placement, collective: str, corrections: Corrections) -> float:
    """Seconds of each step of an all-gather or reduce-scatter between nodes at least; 0 for the tuner's."""
    if place.nodes == 1 or collective not in HALVES or not corrections.at_scale:
        return 0.0
    fabric = known.by_generation(fabric_of(shape).pace, _generation(shape))
    return (fabric if shape.pace is None else shape.pace) * shape.net_latency_scale


def unpaced(shape: NcclShape) -> bool:
    """Whether neither machine nor fabric has a measured pace."""
    paces = fabric_of(shape).pace
    unknown = paces is known.ASSUMED_PACE or not known.by_generation(paces, _generation(shape))
    return shape.pace is None and unknown


def _crowd(shape: NcclShape, place: Placement, collective: str) -> float:
    """The factor on seconds per byte of so many nodes."""
    whole = collective == "all_reduce" and place.fullest > 2
    rules = fabric_of(shape).whole_nodes if whole else {"": known.CROWDED}
    rule = known.by_generation(rules, _generation(shape))
    return float(max(1.0, place.nodes / rule.nodes) ** rule.exponent)


def _generation(shape: NcclShape) -> str:
    """The generation whose constants of the tuner are used."""
    return known.LIKE.get(shape.generation, shape.generation)


def fabric_of(shape: NcclShape) -> known.NetworkFabric:
    """The fabric between nodes; InfiniBand if none is stated."""
    return known.BETWEEN_NODES[shape.network or "ib"]


def protocols(shape: NcclShape, place: Placement) -> tuple[str, ...]:
    """The protocols that NCCL uses here.

    LL128 only where stores of 128 bytes stay whole (TUNING): over NVLink, and between nodes over its fabric's.
    """
    joined = _over_nvlink(shape, place)
    allowed = (
        known.PROTOCOLS if place.nodes == 1 else known.by_generation(fabric_of(shape).protocols, _generation(shape))
    )
    return tuple(protocol for protocol in allowed if joined or protocol != "LL128")


def _pipeline(shape: NcclShape, place: Placement, corrections: Corrections) -> float:
    if place.nodes == 1:
        return corrections.pipeline
    return corrections.by_nic if fabric_of(shape).by_nic else corrections.by_host


def inside(shape: NcclShape, place: Placement) -> float:
    """Bytes per second that each GPU of the fullest node sends to another one there."""
    gpus, bandwidth = place.fullest, shape.gpu_bandwidth
    if shape.fabric == "nvlink-mesh":
        return bandwidth * known.MESH_RINGS.get(gpus, known.MESH_LINKS) / known.MESH_LINKS
    if shape.fabric == "nvlink-pairs" and gpus > 2:
        assert shape.host_bandwidth is not None
        return shape.host_bandwidth
    if shape.fabric == "pcie" and gpus > 2 and shape.host_bandwidth is not None:
        return min(bandwidth, shape.host_bandwidth)
    if shape.fabric == "host":  # in and out of memory for each GPU
        shared = math.inf if shape.memory_bandwidth is None else shape.memory_bandwidth / (2 * gpus)
        apart = shape.host_bandwidth if gpus > 2 and shape.host_bandwidth is not None else math.inf
        return known.HOST_SHARE * min(bandwidth, shared, apart)
    return bandwidth


def bus(shape: NcclShape, place: Placement, passes: int = 1) -> float:
    """Bytes per second of the narrowest cut: a GPU's links, or ``passes`` times all network of the emptiest node."""
    if place.nodes == 1:
        return inside(shape, place)
    assert shape.nic_bandwidth is not None
    network = min(shape.nic_bandwidth * place.emptiest * known.NIC_SHARE, fabric_of(shape).flow) * passes
    return network if place.fullest == 1 else min(inside(shape, place), network)


def _ring(shape: NcclShape, place: Placement, protocol: str, collective: str, corrections: Corrections) -> Way:
    phases = 2 if collective == "all_reduce" else 1
    steps, net_steps = phases * (place.workers - 1), phases * (place.nodes - 1)
    step, net_step = _hops(shape, place, "ring", protocol, corrections)
    hops = (steps - net_steps) * step + net_steps * net_step
    latency = _base(shape, "ring", protocol, corrections) + hops
    if protocol == "Simple" and place.nodes > 1 and collective == "all_reduce":
        latency *= known.RING_PLATEAU[_generation(shape)]
    latency += net_steps * _beyond(shape)
    latency = max(latency, steps * _paced(shape, place, collective, corrections))
    moved = steps / place.workers / _ring_bus(shape, place, protocol)
    alone = place.nodes == 1 and _over_nvlink(shape, place)
    return Way(latency, moved + (corrections.own / place.workers / shape.gpu_bandwidth if alone else 0.0))


def _ring_bus(shape: NcclShape, place: Placement, protocol: str) -> float:
    bandwidth, generation = bus(shape, place), _generation(shape)
    if protocol == "LL":
        return min(bandwidth * known.LL_SHARE, _ll_bandwidth(generation, place))
    if protocol == "LL128":
        channels = known.CHANNELS[generation] * known.RING_LL128_CHANNEL[generation][_scale(place)]
        return min(bandwidth * known.LL128_SHARE, channels)
    return bandwidth


def _base(shape: NcclShape, algorithm: str, protocol: str, corrections: Corrections) -> float:
    return _of(known.BASE_LATENCY[algorithm], protocol) * shape.latency_scale * corrections.launch


def _tree(shape: NcclShape, place: Placement, protocol: str, corrections: Corrections) -> Way:
    """A tree up and down: a chain through the GPUs of a node, a binary tree between nodes; half of the bus each way."""
    step, net_step = _hops(shape, place, "tree", protocol, corrections)
    levels = place.nodes.bit_length() - 1
    hops = 2 * ((place.fullest - 1) * step + levels * (net_step + _beyond(shape)))
    latency = _base(shape, "tree", protocol, corrections) + hops
    return Way(latency, 2 / _tree_bus(shape, place, protocol, corrections), protocol)


def _tree_bus(shape: NcclShape, place: Placement, protocol: str, corrections: Corrections) -> float:
    generation, channels = _generation(shape), known.CHANNELS[_generation(shape)]
    twice = place.nodes == 2 and generation in corrections.two_roots
    simple = min(
        bus(shape, place, 2 if twice else 1) * known.TREE_SHARE,
        channels * known.TREE_CHANNEL[generation][_scale(place)],
    )
    if protocol == "LL":
        return min(simple * known.TREE_LL_SHARE, _ll_bandwidth(generation, place))
    if protocol == "LL128":
        share = known.TREE_LL128_SHARE_ONE_NODE if place.nodes == 1 else known.LL128_SHARE
        return min(simple * share, channels * known.TREE_LL128_CHANNEL[generation][_scale(place)])
    return simple


def _has(shape: NcclShape, way: str) -> bool:
    """Whether the release of NCCL, the newest if none is stated, has this."""
    return not shape.release or tuple(map(int, shape.release.split("."))) >= known.SINCE[way]


def _nvls_bus(shape: NcclShape, place: Placement, corrections: Corrections) -> float:
    """Bytes per second of NVLS as of a ring's bus."""
    gpus, generation = place.fullest, _generation(shape)
    channels = known.CHANNELS[generation]
    gain = 2 * (gpus - 1) / (gpus + 1) if corrections.nvls_bytes else 2 * (channels - 1) / channels
    return shape.gpu_bandwidth * known.NVLS_EFFICIENCY[generation] * gain


def _network(shape: NcclShape, place: Placement) -> float:
    """Bytes per second of all NICs of the emptiest node."""
    assert shape.nic_bandwidth is not None
    return shape.nic_bandwidth * place.emptiest * known.NIC_SHARE


def _nvls(shape: NcclShape, place: Placement, collective: str, corrections: Corrections) -> Way | None:
    """NVLS: the switch adds up and sends to all; between nodes, those of SHARP do so too.

    An all-gather or reduce-scatter, of one node alone, sends all of a message through the link of each GPU one way.
    """
    gpus, latency = place.fullest, known.NVLS_LATENCY * shape.latency_scale * corrections.launch
    if collective in HALVES:
        if place.nodes > 1 or gpus > known.NVLS_HALVES_RANKS:
            return None
        part = 1.0 if corrections.nvls_bytes else ((gpus - 1) / gpus) ** 2  # TUNING, with as many channels as GPUs
        return Way(latency, 1 / (shape.gpu_bandwidth * known.NVLS_EFFICIENCY[_generation(shape)] * part))
    bandwidth, parts = _nvls_bus(shape, place, corrections), 2 * (place.workers - 1) / place.workers
    if place.nodes > 1:
        if not shape.sharp:
            return None
        network = _network(shape, place)  # TUNING takes it as a ring's bus; SHARP sends a message over it once
        bandwidth = min(bandwidth, network * parts if corrections.nvls_bytes else network)
        latency += known.NVLS_NET_LATENCY * shape.net_latency_scale
    return Way(latency, parts / bandwidth)


def _nvls_tree(shape: NcclShape, place: Placement, collective: str, corrections: Corrections) -> Way | None:
    """NVLS inside nodes, and a tree that joins their switches."""
    if collective != "all_reduce" or place.nodes == 1 or not fabric_of(shape).nvls:
        return None
    generation, levels, newer = _generation(shape), 2 * (place.nodes.bit_length() - 1), _has(shape, "NVLSTree's tuning")
    most = known.CHANNELS[generation] * known.NVLS_TREE_CHANNEL[generation][_scale(place)]
    network = _network(shape, place) * (2 if place.nodes == 2 else 1)
    bandwidth = min(_nvls_bus(shape, place, corrections), network, most)
    latency = known.NVLS_LATENCY * shape.latency_scale * corrections.launch
    hop = known.NVLS_TREE_NET_LATENCY if newer else known.OLDER_NVLS_TREE_NET_LATENCY
    latency += levels * (hop * shape.net_latency_scale + _beyond(shape))
    stretch = "Simple" if newer and generation == "blackwell" else "none"
    return Way(latency, 2 * (place.workers - 1) / place.workers / bandwidth, stretch)


def _collnet(name: str, shape: NcclShape, place: Placement, collective: str, corrections: Corrections) -> Way | None:
    """CollNet: a message goes up and down inside a node, and over the network once, where switches add up."""
    row, others = known.COLLNET[name], place.fullest - 1
    usable = shape.sharp and place.nodes > 1 and place.fullest <= known.COLLNET_GPUS
    if collective != "all_reduce" or not usable or not (row.by_ring or shape.fabric == "nvswitch"):
        return None
    steps = others * row.step if row.by_ring else min(1, others) * row.step + others * row.each
    latency = 2 * steps * shape.latency_scale * corrections.launch + row.net * shape.net_latency_scale
    share = 1.0 if row.by_ring else known.by_generation(known.COLLNET_DIRECT_SHARE, _generation(shape))
    network = 2 * _network(shape, place)
    return Way(latency, 2 / (share * (min(inside(shape, place), network) if others else network)))


def _pat(shape: NcclShape, place: Placement, collective: str, corrections: Corrections) -> Way | None:
    """PAT, a tree over nodes of one GPU, of a release that is stated: no published run that was compared had it."""
    if collective not in HALVES or place.nodes == 1 or place.fullest > 1 or not (shape.release and _has(shape, "PAT")):
        return None
    hop = (_of(known.HOP_LATENCY["net"]["tree"], "Simple") * shape.net_latency_scale + _beyond(shape)) * known.PAT.hops
    hop = max(hop, _paced(shape, place, collective, corrections))
    latency = known.PAT.base * shape.latency_scale * corrections.launch
    latency += (place.nodes.bit_length() - 1) * hop + place.workers * known.PAT.rank * shape.net_latency_scale
    return Way(latency, 1 / (bus(shape, place) * known.PAT.share))


OTHERS: Mapping[str, Callable[[NcclShape, Placement, str, Corrections], Way | None]] = {
    "NVLS": _nvls,
    "NVLSTree": _nvls_tree,
    **{name: partial(_collnet, name) for name in known.COLLNET},
    "PAT": _pat,
}
"""Algorithms besides ring and tree, all with plain copies (Simple): a price, None where NCCL would not take them."""


def _hops(
    shape: NcclShape, place: Placement, algorithm: str, protocol: str, corrections: Corrections
) -> tuple[float, float]:
    """Seconds of one step inside a node, and of one between nodes without what its fabric adds."""
    links = "nvlink" if _over_nvlink(shape, place) else "pcie"
    step = _of(known.HOP_LATENCY[links][algorithm], protocol) * corrections.launch
    if algorithm == "ring" and place.nodes > 1:
        step = max(step, _of(known.NET_OVERHEAD, protocol))
    net_of = "tree" if place.fullest == 1 else algorithm  # TUNING: with one GPU per node nothing hides it
    net_step = _of(known.HOP_LATENCY["net"][net_of], protocol)
    return step * shape.latency_scale, net_step * shape.net_latency_scale


def _over_nvlink(shape: NcclShape, place: Placement) -> bool:
    """Whether NVLink joins all GPUs of a node."""
    return shape.fabric in ("nvswitch", "nvlink-mesh") or (shape.fabric == "nvlink-pairs" and place.fullest <= 2)


def _beyond(shape: NcclShape) -> float:
    """Seconds of a hop between nodes that the fabric adds to the tuner's."""
    return known.by_generation(fabric_of(shape).latency, _generation(shape)) * shape.net_latency_scale


def _scale(place: Placement) -> int:
    """Index for constants that depend on the number of nodes."""
    return min(place.nodes, 3) - 1


def _of(row: known.ByProtocol, protocol: str) -> float:
    return row[known.PROTOCOLS.index(protocol)]


def _ll_bandwidth(generation: str, place: Placement) -> float:
    return known.LL_MAX_BANDWIDTH[generation if place.nodes == 1 else "volta"][_scale(place)]


def has_network(cluster: Cluster) -> bool:
    """Whether a network between nodes is stated."""
    return cluster.nccl is not None and cluster.nccl.nic_bandwidth is not None
