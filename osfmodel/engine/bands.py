"""Error bands: the errors of comparable predictions against measured runs.

A prediction's regime is how much it communicates (seconds in collectives per second of computation) over which kind of
network (bytes per second of one all-reduce of all its gradients). The ledger's runs on which nothing was fitted are
sorted into a grid of regimes; the band of a cell is the |error| that nine tenths of the runs of each source in it
stayed below, and no narrower than that of a cell with less communication over the same bandwidth, since more
communication is not predicted better for having been seen less. A regime without enough runs takes the nearest cell
that has them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from osfmodel.cost.shapes import Cost
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

RATIO_EDGES = (0.1, 0.3, 1.0, 3.0)
"""Bounds between regimes of communication time / computation time."""
BANDWIDTH_EDGES = (0.3e9, 1e9, 3e9, 3e10)
"""Bounds between regimes of bytes per second: 1 and 10 Gb/s Ethernet, one fast NIC, several of them, NVLink.

Edges are a choice: with either kind halved or doubled, bands cover 91 to 94 % of the rows of sources held out instead
of 93 %, and 85 to 92 % on average over the sources instead of 97 % (profiles/make_bands.py)."""
PART = 0.9
"""Fraction of each source's runs that an error band covers."""
ENOUGH = 8
"""Runs that a cell needs for a band of its own. With 4, 88 % are covered on average over the sources, with 16 97 %."""


class Regime(NamedTuple):
    """A kind of set-up: seconds in collectives per second of computation, and its bandwidth in bytes/s."""

    communication_ratio: float
    bandwidth: float

    @property
    def cell(self) -> tuple[int, int]:
        """The regime's cell in the grid."""
        return bisect_right(RATIO_EDGES, self.communication_ratio), bisect_right(BANDWIDTH_EDGES, self.bandwidth)


@dataclass(frozen=True, slots=True)
class Band:
    """The error band of a regime.

    half_width: |predicted / measured - 1| that 90 % of the runs of each of ``sources`` stayed below
    runs:       number of runs of this regime
    nearest:    whether the runs are of the nearest regime, because its own has too few
    """

    half_width: float
    runs: int
    sources: tuple[str, ...]
    nearest: bool = False

    def interval(self, time: float) -> tuple[float, float]:
        """The interval of measured times to expect if ``time`` is predicted."""
        return time / (1 + self.half_width), time / (1 - self.half_width) if self.half_width < 1 else math.inf


class Error(NamedTuple):
    """A judged run: its source, its regime and predicted / measured - 1."""

    source: str
    regime: Regime
    error: float


def regime_of(workload: Workload, timeline: Timeline, cost: Cost) -> Regime:
    """The regime of a prediction; its ratio is 0 if nothing is communicated."""
    size = workload.gradient_bytes
    price = cost(size)
    return Regime(timeline.communication_time / workload.compute_time, size / price if price else math.inf)


def bands_of(errors: Iterable[Error]) -> dict[tuple[int, int], Band]:
    """The band of every grid cell with enough runs."""
    cells: dict[tuple[int, int], dict[str, list[float]]] = {}
    for source, regime, error in errors:
        cells.setdefault(regime.cell, {}).setdefault(source, []).append(abs(error))
    bands: dict[tuple[int, int], Band] = {}
    for (ratio, bandwidth), found in sorted(cells.items()):
        count = sum(map(len, found.values()))
        if count >= ENOUGH:
            own = max(quantile(values, PART) or 0 for values in found.values())
            less = [band.half_width for (_, other), band in bands.items() if other == bandwidth]
            bands[ratio, bandwidth] = Band(max([own, *less]), count, tuple(sorted(found)))
    return bands


def band_for(regime: Regime, bands: dict[tuple[int, int], Band]) -> Band | None:
    """The band of the regime's cell, or of the nearest one; None if nothing is communicated or no band is known."""
    if not regime.communication_ratio or not bands:
        return None
    ratio, bandwidth = regime.cell
    nearest = min(bands, key=lambda cell: (abs(cell[0] - ratio) + abs(cell[1] - bandwidth), cell))
    band = bands[nearest]
    return Band(band.half_width, band.runs, band.sources, nearest != (ratio, bandwidth))


def quantile(values: Sequence[float], part: float) -> float | None:
    """The value below which ``part`` of ``values`` lie, interpolated between order statistics; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = part * (len(ordered) - 1)
    low = min(int(position), len(ordered) - 2) if len(ordered) > 1 else 0
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


class _Cell(documents.Strict):
    ratio_cell: int
    bandwidth_cell: int
    half_width: float
    runs: int
    sources: list[str]


class _Bands(documents.Strict):
    schema_version: int
    kind: str
    cells: list[_Cell]


def bands_document(bands: dict[tuple[int, int], Band]) -> dict[str, Any]:
    """The JSON-ready form of ``profiles/bands.json``; widths are rounded up to a thousandth."""
    rows = [
        _Cell(*cell, math.ceil(band.half_width * 1000) / 1000, band.runs, list(band.sources))
        for cell, band in bands.items()
    ]
    built: dict[str, Any] = msgspec.to_builtins(_Bands(documents.SCHEMA_VERSION, "bands", rows))
    return built


def decode_bands(text: bytes) -> dict[tuple[int, int], Band]:
    """The content of ``profiles/bands.json``. Raises DataError."""
    rows = documents.decode(text, "bands", _Bands).cells
    return {(row.ratio_cell, row.bandwidth_cell): Band(row.half_width, row.runs, tuple(row.sources)) for row in rows}


@lru_cache(maxsize=1)
def bundled_bands() -> dict[tuple[int, int], Band]:
    """The bands that come with osfmodel, from its ledger; none if the file is missing."""
    path = profiles.bundled_file("bands.json")
    return {} if path is None else profiles.read(path, decode_bands)
