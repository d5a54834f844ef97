"""Fit the machines behind measured all-reduces, as NCCL's tuner would describe them.

Every kind of device (KINDS) is tried with free bandwidths and latency scales, shared over all worker counts; the one
with the nearest prices is kept. Errors are of log(price / time), for a table spans microseconds to seconds, under the
soft-L1 loss of all fits, so a warm-up or a protocol jump pulls little (scipy least_squares). The generation found is
the one whose curve fits, which need not be that of the GPUs.

The uncertainty of the NCCL model's prices was learned by benchmarks/nccl_model.py on machines held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from osfmodel.cost.fitting import OUTLIER, Fit, Sample
from osfmodel.cost.model import LINK, CostModel, Placement, layout_of
from osfmodel.cost.nccl import HALVES, cost, fabric_of, has_network, unpaced, ways
from osfmodel.cost.nccl_constants import GB, PACES
from osfmodel.cost.nccl_lines import GRID, times
from osfmodel.cost.nccl_words import doubts, from_spec, rates
from osfmodel.cost.shapes import Array, Cost
from osfmodel.entities.cluster import Cluster, NcclShape
from osfmodel.entities.errors import CostError


class Uncertainty(NamedTuple):
    """The u with nine tenths of measured times between price / (1 + u) and price * (1 + u)."""

    all: float
    large: float
    """The same for messages of LARGE bytes and more."""


PARTS: Mapping[str, Uncertainty] = {
    "nvlink": Uncertainty(0.63, 0.27),
    "pcie": Uncertainty(1.36, 0.84),
    "host": Uncertainty(2.0, 2.0),
    "by_nic": Uncertainty(1.45, 0.62),
    "by_host": Uncertainty(0.56, 0.32),
    "not stated": Uncertainty(2.19, 1.01),
    "sharp": Uncertainty(2.19, 1.01),
    "rccl": Uncertainty(1.0, 1.0),
}
"""By part, on machines held out (benchmarks/nccl_model.py). Those of host (a factor of three, since memory and CPUs of
hosts differ as much), of rccl (a factor of two) and of sharp (as of a fabric not stated) are assumed, not measured."""
LARGE = 2**23
"""Bytes from which on bandwidth decides the time of a message."""


def part_of(shape: NcclShape, place: Placement) -> str:
    """The part of the model that decides how far its prices may be off: a key of PARTS."""
    if shape.generation == "cdna":
        return "rccl"
    if place.nodes > 1:
        if shape.sharp:
            return "sharp"
        return ("by_nic" if fabric_of(shape).by_nic else "by_host") if shape.network else "not stated"
    if shape.fabric in ("nvswitch", "nvlink-mesh"):
        return "nvlink"
    return "host" if shape.fabric == "host" else "pcie"


def uncertainty(cluster: Cluster, workers: int) -> tuple[float, float]:
    """The bounds of PARTS for the prices between so many workers; 0 for shapes that were fitted."""
    if cluster.nccl is None or cluster.fitted is not None:
        return 0.0, 0.0
    return PARTS[part_of(cluster.nccl, layout_of(workers, cluster.gpus_per_node))]


def slowest(cluster: Cluster, workers: int) -> dict[str, Cost]:
    """All-gather and reduce-scatter at the pace of the slowest machines published, where nothing tells the pace."""
    shape = cluster.nccl
    if shape is None or cluster.fitted is not None or workers <= cluster.gpus_per_node or not unpaced(shape):
        return {}
    slow = replace(cluster, nccl=replace(shape, pace=PACES[1]))
    return {half: cost(slow, workers, half) for half in HALVES}


PRIOR = 1e-3
"""Weight of log(fitted / start) in the loss; it decides between parameters that samples cannot tell apart."""
SHORTEST = 1e-15
"""Seconds below which a price is rounding error."""
WIDEST = 8.0
"""Natural logarithm of the largest factor between a start value and the fitted one."""
OLDER = "2.28"
"""A release of NCCL with the older NVLSTree."""
KINDS = (
    ("volta", "nvlink-mesh", False, ""),
    ("ampere", "nvswitch", False, ""),
    ("hopper", "nvswitch", True, ""),
    ("hopper", "nvswitch", True, OLDER),
    ("blackwell", "nvswitch", True, ""),
    ("blackwell", "nvswitch", True, OLDER),
    ("blackwell", "pcie", False, ""),
)
"""(generation, fabric, nvls, release) of the curves that are tried."""
NOMINAL = 240 * GB
"""Bus bandwidth of a GPU, in bytes per second, if no sample shows it."""


class _Group(NamedTuple):
    """The samples of one worker count, with the weights of the two GRID sizes around each."""

    place: Placement
    left: Array
    weight: Array
    log_times: Array


def fit(samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
    """``parameters`` = {"nccl": NcclShape} with bandwidths and latency scales. Raises CostError without samples.

    Parameters that the samples do not show (a network, if all lie in one node) stay unset or as the device's.
    """
    if not samples:
        raise CostError("there are no samples to fit")
    groups = _groups(samples, gpus_per_node)
    starts = [_start(NcclShape(*kind[:2], NOMINAL, nvls=kind[2], release=kind[3]), groups) for kind in KINDS]
    _, shape = min((_fitted(start, groups) for start in starts), key=lambda pair: pair[0])
    cluster = Cluster("fitted", "nccl", gpus_per_node=gpus_per_node, nccl=shape)
    prices = {workers: cost(cluster, workers, "all_reduce") for workers in {sample.workers for sample in samples}}
    return Fit.of(samples, {"nccl": shape}, tuple(prices[s.workers](s.size) / s.time - 1 for s in samples))


def _groups(samples: Sequence[Sample], gpus_per_node: int) -> list[_Group]:
    groups = []
    for workers in sorted({sample.workers for sample in samples}):
        rows = [sample for sample in samples if sample.workers == workers]
        sizes = np.array([row.size for row in rows], dtype=float)
        left = np.clip(np.searchsorted(GRID, sizes, side="right") - 1, 0, len(GRID) - 2)
        weight = (sizes - GRID[left]) / (GRID[left + 1] - GRID[left])
        groups.append(_Group(layout_of(workers, gpus_per_node), left, weight, np.log([row.time for row in rows])))
    return groups


def _start(shape: NcclShape, groups: Sequence[_Group]) -> NcclShape:
    """The shape with the bus bandwidths that the fastest samples reach."""
    inside = [_reached(group) for group in groups if group.place.nodes == 1]
    between = [_reached(group) / group.place.emptiest for group in groups if group.place.nodes > 1]
    return replace(
        shape,
        gpu_bandwidth=max(inside, default=shape.gpu_bandwidth),
        nic_bandwidth=max(between) if between else None,
    )


def _reached(group: _Group) -> float:
    workers = group.place.workers
    sizes = GRID[group.left] + group.weight * (GRID[group.left + 1] - GRID[group.left])
    return float(np.max(2 * (workers - 1) / workers * sizes / np.exp(group.log_times)))


def _fitted(start: NcclShape, groups: Sequence[_Group]) -> tuple[float, NcclShape]:
    """(loss, shape) of the best bandwidths and latency scales for this kind of device."""
    from scipy.optimize import least_squares

    def residuals(factors: Array) -> Array:
        shape = _scaled(start, factors)
        return np.concatenate([*(_errors(shape, group) for group in groups), PRIOR * factors])

    found = least_squares(
        residuals,
        np.zeros(4 if start.nic_bandwidth else 2),
        bounds=(-WIDEST, WIDEST),
        loss="soft_l1",
        f_scale=OUTLIER,
        x_scale=0.1,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
        max_nfev=200,
    )
    return float(found.cost), _scaled(start, found.x)


def _scaled(start: NcclShape, factors: Array) -> NcclShape:
    """``start`` times exp(factors): in-node bandwidth and latency, then the network's."""
    scale = np.exp(factors).tolist()
    shape = replace(start, gpu_bandwidth=start.gpu_bandwidth * scale[0], latency_scale=scale[1])
    if start.nic_bandwidth is None:
        return shape
    return replace(shape, nic_bandwidth=start.nic_bandwidth * scale[2], net_latency_scale=scale[3])


def _errors(shape: NcclShape, group: _Group) -> Array:
    """log(price / time) of every sample."""
    values = np.array([times(way) for way in ways(shape, group.place).values()])
    low, high = values[:, group.left], values[:, group.left + 1]
    prices = (low + group.weight * (high - low)).min(axis=0)
    errors: Array = np.log(np.maximum(prices, SHORTEST)) - group.log_times
    return errors


MODEL = CostModel(
    cost,
    fit,
    "NCCL's fastest algorithm and protocol, from GPUs and NICs alone",
    uncertainty=uncertainty,
    link_parameters=LINK[:1],
    network_independent="launches and the ceilings of NCCL's low-latency protocols",
    has_network=has_network,
    from_spec=from_spec,
    rates=rates,
    doubts=doubts,
    broadcast=partial(cost, collective="broadcast"),
    slowest=slowest,
)
