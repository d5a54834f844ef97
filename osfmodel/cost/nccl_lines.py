"""Prices of NCCL's ways, with a pipeline that is filled, as lines whose minimum each is; and the way of the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from osfmodel.cost import nccl_constants as known
from osfmodel.cost.shapes import Array


class Way(NamedTuple):
    """One algorithm and protocol: seconds before the first byte, seconds per byte, its bytes on GRID, and kappa."""

    latency: float
    seconds_per_byte: float
    stretch: str = "none"
    pipeline: float = 0.0


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


def up_to(low: Way, tuned: Sequence[Way], others: Sequence[Way]) -> Way:
    """``low`` up to the size from which NCCL's tuner prefers another way, whose price as of ``others`` it meets there.

    tuned: the other ways as NCCL's tuner prices them, which decides, and ``others`` the same as they run; a price is
    concave, so it goes straight up between no bytes and that size, which leaves out that the others move bytes too
    """
    return low._replace(
        seconds_per_byte=max(
            low.seconds_per_byte * (as_run.latency - low.latency) / (way.latency - low.latency)
            + as_run.seconds_per_byte
            for way, as_run in zip(tuned, others, strict=True)
        )
    )


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


def fastest(found: Mapping[tuple[str, str], Way], size: int) -> tuple[str, str]:
    """The (algorithm, protocol) of the lowest price for a message of ``size`` bytes."""
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


def choices(found: Mapping[tuple[str, str], Way]) -> list[WayTaken]:
    """The ways of least price by rising size, from 1 KiB on."""
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
