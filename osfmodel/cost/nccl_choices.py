"""NCCL's choices by the size of a message, and the reasons."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from osfmodel.cost.model import Placement
from osfmodel.cost.nccl import ways
from osfmodel.cost.nccl_lines import GRID, times
from osfmodel.entities.cluster import NcclShape


def fastest(shape: NcclShape, place: Placement, size: int, collective: str = "all_reduce") -> tuple[str, str]:
    """The (algorithm, protocol) of the lowest price for a message of ``size`` bytes."""
    found = ways(shape, place, collective)
    return min(found, key=lambda name: float(np.interp(size, GRID, times(found[name]))))


class WayTaken(NamedTuple):
    """NCCL's way for messages from ``size`` bytes on, and why: its price there, and that of the best other algorithm.

    ``latency`` and ``rate`` are the seconds before the first byte, and the bytes per second of the largest messages.
    """

    size: int
    algorithm: str
    protocol: str
    latency: float
    rate: float
    time: float
    other: str
    other_time: float


def choices(shape: NcclShape, place: Placement, collective: str) -> list[WayTaken]:
    """The ways of least price by rising size, from 1 KiB on."""
    found = ways(shape, place, collective)
    prices = {name: times(way) for name, way in found.items()}
    rows: list[WayTaken] = []
    for at in range(int(np.searchsorted(GRID, 2**10)), len(GRID)):
        algorithm, protocol = best = min(prices, key=lambda name: float(prices[name][at]))
        if rows and (rows[-1].algorithm, rows[-1].protocol) == best:
            continue
        others = {name: float(prices[name][at]) for name in prices if name[0] != algorithm}
        other = min(others, key=others.__getitem__, default=None)
        way, time = found[best], float(prices[best][at])
        rows.append(
            WayTaken(
                int(GRID[at]), algorithm, protocol, way.latency, 1 / way.seconds_per_byte, time,
                "/".join(other or ()), others[other] if other else 0.0,
            )
        )  # fmt: skip
    return rows
