"""Uncertainty of the NCCL model's prices, learned by benchmarks/nccl_model.py on machines held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from osfmodel.cost.nccl import fabric_of
from osfmodel.cost.placement import Placement, layout_of
from osfmodel.entities.cluster import Cluster, NcclShape


class Uncertainty(NamedTuple):
    """The u with nine tenths of measured times between price / (1 + u) and price * (1 + u)."""

    all: float
    large: float
    """The same for messages of LARGE bytes and more."""


PARTS: Mapping[str, Uncertainty] = {
    "nvlink": Uncertainty(0.63, 0.27),
    "pcie": Uncertainty(1.36, 0.84),
    "host": Uncertainty(2.0, 2.0),
    "by_nic": Uncertainty(1.46, 0.67),
    "by_host": Uncertainty(0.54, 0.31),
    "not stated": Uncertainty(2.23, 1.11),
    "rccl": Uncertainty(1.0, 1.0),
}
"""By part, on machines held out (benchmarks/nccl_model.py). Those of host (a factor of three, since memory and CPUs of
hosts differ as much) and of rccl (a factor of two) are assumed, not measured."""
LARGE = 2**23
"""Bytes from which on bandwidth decides the time of a message."""


def part_of(shape: NcclShape, place: Placement) -> str:
    """The part of the model that decides how far its prices may be off: a key of PARTS."""
    if shape.generation == "cdna":
        return "rccl"
    if place.nodes > 1:
        return ("by_nic" if fabric_of(shape).by_nic else "by_host") if shape.network else "not stated"
    if shape.fabric in ("nvswitch", "nvlink-mesh"):
        return "nvlink"
    return "host" if shape.fabric == "host" else "pcie"


def uncertainty(cluster: Cluster, workers: int) -> tuple[float, float]:
    """The bounds of PARTS for the prices between so many workers; 0 for shapes that were fitted."""
    if cluster.nccl is None or cluster.fitted is not None:
        return 0.0, 0.0
    return PARTS[part_of(cluster.nccl, layout_of(workers, cluster.gpus_per_node))]
