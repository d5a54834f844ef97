"""Measured times of a collective by size, beside the price from data sheets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from osfmodel.cost import cost_of
from osfmodel.cost.placement import Placement
from osfmodel.cost.shapes import Array
from osfmodel.diagnosis.doctor.machines import kind_of, placed
from osfmodel.entities.cluster import Cluster, Table
from osfmodel.entities.display import brief, how_many


@dataclass(frozen=True, slots=True)
class Curve:
    """One table, thinned to a size per octave: seconds measured and seconds priced, by bytes.

    label: the file, or the bundled cluster
    kind:  a key of machines.KINDS
    """

    label: str
    collective: str
    place: Placement
    kind: str
    sizes: tuple[int, ...]
    times: tuple[float, ...]
    prices: tuple[float, ...]

    def __repr__(self) -> str:
        return brief(self, f"{self.label}: {self.collective} with {how_many(self.place.workers, 'worker')}")

    @property
    def octaves(self) -> Array:
        """The whole base-2 logarithm next to each size."""
        return np.array([round(math.log2(size)) for size in self.sizes])

    @property
    def ratios(self) -> Array:
        """ln(measured / priced) at each size."""
        found: Array = np.log(np.array(self.times) / np.array(self.prices))
        return found


def curve_of(label: str, table: Table, against: Cluster) -> Curve:
    """The table beside the prices of ``against``. Raises CostError where that has too few workers or no network."""
    points = by_octave(table.sizes, table.times)
    price = cost_of(against, table.workers, table.collective)
    place = placed(against, table.workers)
    return Curve(
        label,
        table.collective,
        place,
        kind_of(against, place),
        tuple(size for size, _ in points),
        tuple(time for _, time in points),
        tuple(float(price(size)) for size, _ in points),
    )


def prices_of(cluster: Cluster, curves: Sequence[Curve]) -> Array:
    """Seconds on ``cluster`` of every point of ``curves``, one curve after the other. Raises CostError."""
    found = [
        cost_of(cluster, curve.place.workers, curve.collective)(np.array(curve.sizes, dtype=float)) for curve in curves
    ]
    return np.concatenate(found)


def by_octave(sizes: Sequence[int], times: Sequence[float]) -> list[tuple[int, float]]:
    """Of each octave the size nearest to its power of two, with its time; times of 0 are left out."""
    nearest: dict[int, tuple[float, int, float]] = {}
    for size, time in zip(sizes, times, strict=True):
        octave = round(math.log2(size))
        off = abs(math.log2(size) - octave)
        if time > 0 and off < nearest.get(octave, (math.inf, 0, 0.0))[0]:
            nearest[octave] = off, size, time
    return [(size, time) for _, (_, size, time) in sorted(nearest.items())]
