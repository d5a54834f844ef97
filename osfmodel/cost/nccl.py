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

Reduce-scatter and all-gather run as rings, in half of the steps (as in PyTorch's mirror of the tuner), and NVLS is for
all-reduces alone: where a switch adds up, an all-reduce costs less than both halves. Between nodes their n - 1 steps
follow each other, each with its own n-th of the message, at a pace that is learned (``Corrections.step``). A broadcast
is the same ring without that: its pieces follow each other closely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from osfmodel.cost import nccl_constants as known
from osfmodel.cost.model import Placement, layout_of
from osfmodel.cost.shapes import AffineCost, Array
from osfmodel.entities.cluster import Cluster, NcclShape
from osfmodel.entities.errors import CostError


class Corrections(NamedTuple):
    """Corrections of the tuner's formula.

    pipeline:   kappa above inside a node, 0 for none
    by_nic:     kappa between nodes whose NICs move data on their own (ib, roce)
    by_host:    kappa between nodes where host or plugin has a part in each chunk (efa, tcpxo, tcp)
    own:        extra time of a ring over NVLink: that of sending this fraction of a GPU's own 1/n of the message
    launch:     factor on the tuner's base latencies, and on its steps inside a node
    nvls_bytes: NVLS moves (n + 1)/n of the message through each GPU's link, instead of half of a ring's bytes whatever
                the number n of GPUs (NVIDIA: N + 1 instead of 2 N operations)
    two_roots:  generations whose trees over two nodes use the network twice, since each half of a message has its root
                on another node. TUNING says so of all; measured machines with A100 and V100 did not show it.
    step:       seconds that each step of an all-gather or a reduce-scatter between nodes takes at least
    """

    pipeline: float
    by_nic: float
    by_host: float
    own: float
    launch: float
    nvls_bytes: bool
    two_roots: tuple[str, ...] = ("hopper", "blackwell")
    step: float = 0.0


TUNER = Corrections(0.0, 0.0, 0.0, 0.0, 1.0, False)
"""NCCL's own constants, nothing corrected."""
CORRECTED = Corrections(0.22, 0.22, 0.54, 0.3, 1.5, True, step=25e-6)
"""Learned by benchmarks/nccl_model.py on the machines named in docs/reference/nccl.md."""


HALVES = ("reduce_scatter", "all_gather")
"""Collectives that together make an all-reduce."""


class Way(NamedTuple):
    """One algorithm and protocol: seconds before the first byte, seconds per byte, its bytes on GRID, and kappa."""

    latency: float
    seconds_per_byte: float
    stretch: str = "none"
    pipeline: float = 0.0


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
    nvls = shape.nvls and (place.nodes == 1 or fabric_of(shape).nvls)
    if nvls and collective == "all_reduce" and place.fullest > 2:
        found["NVLS" if place.nodes == 1 else "NVLSTree", "Simple"] = _nvls(shape, place, corrections)
    pipeline = _pipeline(shape, place, corrections)
    return {name: way._replace(pipeline=pipeline) for name, way in found.items()}


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


def fastest(shape: NcclShape, place: Placement, size: int) -> tuple[str, str]:
    """The (algorithm, protocol) of the lowest price for an all-reduce of ``size`` bytes."""
    found = ways(shape, place)
    return min(found, key=lambda name: float(np.interp(size, GRID, times(found[name]))))


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
        return known.HOST_SHARE * min(bandwidth, shared)
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
    if place.nodes > 1 and collective in HALVES:
        latency = max(latency, steps * (shape.pace or corrections.step) * shape.net_latency_scale)
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


def _nvls(shape: NcclShape, place: Placement, corrections: Corrections) -> Way:
    """NVLS: the switch adds up and sends to all. Between nodes a tree joins the switches."""
    gpus, generation = place.fullest, _generation(shape)
    channels = known.CHANNELS[generation]
    gain = 2 * (gpus - 1) / (gpus + 1) if corrections.nvls_bytes else 2 * (channels - 1) / channels
    bandwidth = shape.gpu_bandwidth * known.NVLS_EFFICIENCY[generation] * gain
    latency = known.NVLS_LATENCY * shape.latency_scale * corrections.launch
    if place.nodes > 1:
        assert shape.nic_bandwidth is not None
        network = shape.nic_bandwidth * place.emptiest * known.NIC_SHARE * (2 if place.nodes == 2 else 1)
        bandwidth = min(bandwidth, network, channels * known.NVLS_TREE_CHANNEL[generation][_scale(place)])
        levels = 2 * (place.nodes.bit_length() - 1)
        latency += levels * (known.NVLS_TREE_NET_LATENCY * shape.net_latency_scale + _beyond(shape))
    return Way(latency, 2 * (place.workers - 1) / place.workers / bandwidth)


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


def _concave(values: Array) -> Array:
    """The smallest concave function on GRID that is nowhere below ``values``."""
    hull: list[int] = []
    for i in range(len(GRID)):
        while len(hull) > 1 and _bends_up(values, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    concave: Array = np.interp(GRID, GRID[hull], values[hull])
    return concave


def _bends_up(values: Array, i: int, j: int, k: int) -> bool:
    left = (values[j] - values[i]) * (GRID[k] - GRID[j])
    return bool(left <= (values[k] - values[j]) * (GRID[j] - GRID[i]))


GRID = 2.0 ** np.arange(6, 37)
"""Sizes in bytes at which prices are computed, with straight lines between: powers of two, 64 B to 64 GiB."""


def _tree_bytes(protocol: str) -> Array:
    """Bytes that match a tree's lower bandwidth: divided by NCCL's correction, with dips made concave."""
    table = known.TREE_CORRECTION[protocol]
    return _concave(GRID / np.array([*table, *[1.0] * (len(GRID) - len(table))]))


STRETCHED: Mapping[str, Array] = {"none": GRID, **{protocol: _tree_bytes(protocol) for protocol in known.PROTOCOLS}}
"""M' at every M of GRID. Made concave, so that lines can describe it: nowhere below the tuner's own times."""


def times(way: Way) -> Array:
    """Seconds at every size of GRID."""
    moving = way.seconds_per_byte * STRETCHED[way.stretch]
    total: Array = way.latency + moving + 2 * way.pipeline * np.sqrt(way.latency * moving)
    return total


def has_network(cluster: Cluster) -> bool:
    """Whether a network between nodes is stated."""
    return cluster.nccl is not None and cluster.nccl.nic_bandwidth is not None


def lines(found: Mapping[tuple[str, str], Way]) -> tuple[tuple[float, float], ...]:
    """The (latency, seconds per byte) lines whose minimum is the fastest way; each is the lowest somewhere."""
    latencies, slopes = pieces(found)
    return _lowest(list(zip(latencies.tolist(), slopes.tolist(), strict=True)))


def pieces(found: Mapping[tuple[str, str], Way]) -> tuple[np.ndarray, np.ndarray]:
    """Latencies and seconds per byte of all lines between neighbours of the grid, of each way."""
    values = np.array([times(way) for way in found.values()])
    slopes = np.diff(values) / np.diff(GRID)
    return np.maximum(values[:, :-1] - slopes * GRID[:-1], 0.0).ravel(), slopes.ravel()


def _lowest(pairs: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The lower envelope of lines, by falling slope."""
    kept: list[tuple[float, float]] = []
    for latency, slope in sorted(pairs, key=lambda pair: (-pair[1], pair[0])):
        while kept and latency <= kept[-1][0] * (1 + ROUNDING):
            kept.pop()
        while len(kept) > 1 and _hidden(kept[-2], kept[-1], (latency, slope)):
            kept.pop()
        if not kept or slope < kept[-1][1] * (1 - ROUNDING):
            kept.append((latency, slope))
    return tuple(kept)


ROUNDING = 1e-9
"""Relative difference below which two lines are one."""


def _hidden(steep: tuple[float, float], middle: tuple[float, float], flat: tuple[float, float]) -> bool:
    """Whether the middle line is nowhere below both others."""
    return (flat[0] - steep[0]) * (steep[1] - middle[1]) <= (middle[0] - steep[0]) * (steep[1] - flat[1])
