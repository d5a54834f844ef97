"""NCCL's own choice: the fastest of its algorithms and protocols, priced from the shape of the machines alone.

T(M) = min over {ring, tree} x {LL, LL128, Simple}, and NVLS or NVLSTree where the switch can add up, of

    a + b M' + 2 kappa sqrt(a b M')

with latency a and seconds per byte b from NCCL's tuner (osfmodel.cost.nccl_constants), M' = M but for trees, whose
bandwidth the tuner corrects by size. Two corrections, each by name in :class:`Corrections`; with TUNER there are none,
and the formula is the tuner's. No measured collective is read.

The last term fills the pipeline. M bytes in pieces of s through p steps of latency l cost (M/s + p)(l + s b), that is
a + b M + M l/s + s b p with a = p l; the best s makes the rest 2 sqrt(a b M). kappa = 1 would be one piece in flight at
a time, 0 a pipeline that is free to fill. The curve is concave, so the minimum of lines through its values at powers
of two gives it: exact there, and between them at most 2 % of the last term below.

Reduce-scatter and all-gather run as rings, in half of the steps (as in PyTorch's mirror of the tuner).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from osfmodel.cost import nccl_constants as known
from osfmodel.cost.placement import Placement, layout_of
from osfmodel.cost.shapes import AffineCost, Array
from osfmodel.cost.spec import rate_from_spec, says_per
from osfmodel.entities.cluster import Cluster, NcclShape
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.units import show_rate


class Corrections(NamedTuple):
    """Corrections of the tuner's formula.

    pipeline:   kappa above, 0 for none
    nvls_bytes: NVLS moves (n + 1)/n of the message through each GPU's link, instead of half of a ring's bytes whatever
                the number n of GPUs (NVIDIA: N + 1 instead of 2 N operations)
    """

    pipeline: float
    nvls_bytes: bool


TUNER = Corrections(0.0, False)
"""NCCL's own constants, nothing corrected."""
CORRECTED = Corrections(0.29, True)
"""kappa learned by benchmarks/nccl_model.py on the tables named in docs/reference/nccl.md."""


class Way(NamedTuple):
    """One algorithm with one protocol: seconds before the first byte, seconds per byte, and its bytes on GRID."""

    latency: float
    seconds_per_byte: float
    stretch: str = "none"


UNCERTAINTY = 0.4
"""90th percentile of the relative error of prices on devices held out (benchmarks/nccl_model.py)."""


def cost(cluster: Cluster, workers: int, collective: str) -> AffineCost:
    """The price of NCCL's best way. Raises CostError if ``cluster`` has no NCCL shape, or no network for it."""
    if cluster.nccl is None:
        raise CostError(f"cluster {cluster.name!r} has no nccl shape, which the nccl cost model needs")
    place = layout_of(workers, cluster.gpus_per_node)
    if place.nodes > 1 and cluster.nccl.nic_bandwidth is None:
        raise CostError(
            f"cluster {cluster.name!r} has no nic_bandwidth, which the nccl cost model needs for {place.nodes} nodes"
        )
    return AffineCost(lines(ways(cluster.nccl, place, collective), CORRECTED))


def ways(
    shape: NcclShape, place: Placement, collective: str = "all_reduce", corrections: Corrections = CORRECTED
) -> Mapping[tuple[str, str], Way]:
    """Every (algorithm, protocol) that NCCL would consider here."""
    found: dict[tuple[str, str], Way] = {}
    for protocol in known.PROTOCOLS:
        if protocol == "LL128" and shape.fabric == "pcie":
            continue  # TUNING: LL128 only where stores of 128 bytes stay whole, over NVLink
        found["ring", protocol] = _ring(shape, place, protocol, collective)
        if collective == "all_reduce":
            found["tree", protocol] = _tree(shape, place, protocol)
    if shape.nvls and collective == "all_reduce" and place.fullest > 2:
        found["NVLS" if place.nodes == 1 else "NVLSTree", "Simple"] = _nvls(shape, place, corrections)
    return found


def fastest(shape: NcclShape, place: Placement, size: int) -> tuple[str, str]:
    """The (algorithm, protocol) of the lowest price for an all-reduce of ``size`` bytes."""
    found = ways(shape, place)
    return min(found, key=lambda name: float(np.interp(size, GRID, times(found[name]))))


def bus(shape: NcclShape, place: Placement) -> float:
    """Bytes per second through the narrowest cut: a GPU's links, or all network of the emptiest node."""
    inside = shape.gpu_bandwidth
    if shape.fabric == "nvlink-mesh":
        inside *= known.MESH_RINGS.get(place.fullest, known.MESH_LINKS) / known.MESH_LINKS
    if place.nodes == 1:
        return inside
    assert shape.nic_bandwidth is not None
    network = shape.nic_bandwidth * place.emptiest
    return network if place.fullest == 1 else min(inside, network)


def _ring(shape: NcclShape, place: Placement, protocol: str, collective: str) -> Way:
    phases = 2 if collective == "all_reduce" else 1
    steps, net_steps = phases * (place.workers - 1), phases * (place.nodes - 1)
    step, net_step = _hops(shape, place, "ring", protocol)
    hops = (steps - net_steps) * step + net_steps * net_step
    latency = _of(known.BASE_LATENCY["ring"], protocol) * shape.latency_scale + hops
    if protocol == "Simple" and place.nodes > 1 and collective == "all_reduce":
        latency *= known.RING_PLATEAU[shape.generation]
    return Way(latency, steps / place.workers / _ring_bus(shape, place, protocol))


def _ring_bus(shape: NcclShape, place: Placement, protocol: str) -> float:
    bandwidth, generation = bus(shape, place), shape.generation
    if protocol == "LL":
        return min(bandwidth * known.LL_SHARE, _ll_bandwidth(generation, place))
    if protocol == "LL128":
        channels = known.CHANNELS[generation] * known.RING_LL128_CHANNEL[generation][_scale(place)]
        return min(bandwidth * known.LL128_SHARE, channels)
    return bandwidth


def _tree(shape: NcclShape, place: Placement, protocol: str) -> Way:
    """A tree up and down: a chain through the GPUs of a node, a binary tree between nodes; half of the bus each way."""
    step, net_step = _hops(shape, place, "tree", protocol)
    hops = 2 * ((place.fullest - 1) * step + (place.nodes.bit_length() - 1) * net_step)
    latency = _of(known.BASE_LATENCY["tree"], protocol) * shape.latency_scale + hops
    return Way(latency, 2 / _tree_bus(shape, place, protocol), protocol)


def _tree_bus(shape: NcclShape, place: Placement, protocol: str) -> float:
    generation, channels = shape.generation, known.CHANNELS[shape.generation]
    simple = min(bus(shape, place) * known.TREE_SHARE, channels * known.TREE_CHANNEL[generation][_scale(place)])
    if protocol == "LL":
        return min(simple * known.TREE_LL_SHARE, _ll_bandwidth(generation, place))
    if protocol == "LL128":
        share = known.TREE_LL128_SHARE_ONE_NODE if place.nodes == 1 else known.LL128_SHARE
        return min(simple * share, channels * known.TREE_LL128_CHANNEL[generation][_scale(place)])
    return simple


def _nvls(shape: NcclShape, place: Placement, corrections: Corrections) -> Way:
    """NVLS: the switch adds up and sends to all. Between nodes a tree joins the switches."""
    inside, generation = place.fullest, shape.generation
    channels = known.CHANNELS[generation]
    gain = 2 * (inside - 1) / (inside + 1) if corrections.nvls_bytes else 2 * (channels - 1) / channels
    bandwidth = shape.gpu_bandwidth * known.NVLS_EFFICIENCY[generation] * gain
    latency = known.NVLS_LATENCY * shape.latency_scale
    if place.nodes > 1:
        assert shape.nic_bandwidth is not None
        network = shape.nic_bandwidth * place.emptiest * (2 if place.nodes == 2 else 1)
        bandwidth = min(bandwidth, network, channels * known.NVLS_TREE_CHANNEL[generation][_scale(place)])
        levels = 2 * (place.nodes.bit_length() - 1)
        latency += levels * known.NVLS_TREE_NET_LATENCY * shape.net_latency_scale
    return Way(latency, 2 * (place.workers - 1) / place.workers / bandwidth)


def _hops(shape: NcclShape, place: Placement, algorithm: str, protocol: str) -> tuple[float, float]:
    """Seconds of one step inside a node, and of one between nodes."""
    fabric = "pcie" if shape.fabric == "pcie" else "nvlink"
    step = _of(known.HOP_LATENCY[fabric][algorithm], protocol)
    if algorithm == "ring" and place.nodes > 1:
        step = max(step, _of(known.NET_OVERHEAD, protocol))
    net_of = "tree" if place.fullest == 1 else algorithm  # TUNING: with one GPU per node nothing hides it
    net_step = _of(known.HOP_LATENCY["net"][net_of], protocol)
    return step * shape.latency_scale, net_step * shape.net_latency_scale


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


def times(way: Way, corrections: Corrections = CORRECTED) -> Array:
    """Seconds at every size of GRID."""
    moving = way.seconds_per_byte * STRETCHED[way.stretch]
    total: Array = way.latency + moving + 2 * corrections.pipeline * np.sqrt(way.latency * moving)
    return total


def from_spec(name: str, parts: Sequence[str]) -> Cluster:
    """The cluster of ``GPUxGPUS_PER_NODE`` and, for several nodes, the network bandwidth. Raises UsageError.

    It is that of each GPU, or with ``/node`` that of all NICs of a node together.
    """
    match = re.fullmatch(r"\s*(.+)x([0-9]{1,6})\s*", parts[0])
    if match is None or len(parts) > 2:
        form = (
            "write nccl:GPUxGPUS_PER_NODE[,BANDWIDTH[/gpu|/node]], for example nccl:h100x8,400Gbps (400 Gbps per GPU)"
        )
        raise UsageError(f"{name!r} is not a cluster: {form}")
    device, gpus = known.DEVICES.get(match[1].lower()), int(match[2])
    if device is None:
        raise UsageError(f"{name!r}: unknown GPU {match[1]!r}: {suggestion(match[1].lower(), known.DEVICES)}")
    network = _per_gpu(parts[1], gpus) if len(parts) == 2 else None
    shape = NcclShape(device.generation, device.fabric, device.bandwidth, network, device.nvls)
    return Cluster(name, "nccl", gpus_per_node=gpus, nodes=None if network else 1, nccl=shape)


def _per_gpu(bandwidth: str, gpus: int) -> float:
    """Bytes per second of network of each GPU."""
    rate = rate_from_spec(bandwidth, ("gpu", "node"), ", for nccl: does not know how many NICs a node has")
    return rate.bytes_per_second / (max(gpus, 1) if rate.per == "node" else 1)


def doubts(cluster: Cluster, workers: int) -> tuple[str, ...]:
    """A question if words give each GPU many times the network of usual machines, without saying of what it is."""
    words = re.fullmatch(r"nccl:\s*(.+)x[0-9]+\s*,\s*(.+?)\s*", cluster.name)
    if words is None or says_per(words[2]) or workers <= cluster.gpus_per_node:
        return ()
    device, gpus = words[1].lower(), cluster.gpus_per_node
    taken, usual = _per_gpu(words[2], gpus), known.network_of(device, gpus)
    if taken < DOUBTFUL * usual:
        return ()
    meant = f". If the node has {words[2]} in all, write {words[2]}/node" if gpus > 1 else ""
    have = f"machines with {device.upper()} have {show_rate(usual)} per GPU"
    return (f"{cluster.name}: {words[2]} is taken per GPU; {have}{meant}",)


def rates(cluster: Cluster) -> str:
    """The network of each GPU and of a node, in words; "" without one."""
    if cluster.nccl is None or cluster.nccl.nic_bandwidth is None:
        return ""
    rate = cluster.nccl.nic_bandwidth
    whole = f", {show_rate(rate * cluster.gpus_per_node)} per node" if cluster.gpus_per_node > 1 else ""
    return f"{show_rate(rate)} per GPU{whole}"


DOUBTFUL = 2.0
"""Minimum multiple of the usual network of a GPU that is questioned."""


def has_network(cluster: Cluster) -> bool:
    """Whether a network between nodes is stated."""
    return cluster.nccl is not None and cluster.nccl.nic_bandwidth is not None


def lines(
    found: Mapping[tuple[str, str], Way], corrections: Corrections = CORRECTED
) -> tuple[tuple[float, float], ...]:
    """The (latency, seconds per byte) lines whose minimum is the fastest way; each is the lowest somewhere."""
    values = np.array([times(way, corrections) for way in found.values()])
    slopes = np.diff(values) / np.diff(GRID)
    latencies = np.maximum(values[:, :-1] - slopes * GRID[:-1], 0.0)
    return _lowest(list(zip(latencies.ravel().tolist(), slopes.ravel().tolist(), strict=True)))


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
