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

    label:   the file, or the bundled cluster
    kind:    a key of machines.KINDS
    slowest: seconds of the slowest repeat of each size, its time where that is not known; () if no size has it
    """

    label: str
    collective: str
    place: Placement
    kind: str
    sizes: tuple[int, ...]
    times: tuple[float, ...]
    prices: tuple[float, ...]
    slowest: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return brief(self, f"{self.label}: {self.collective} with {how_many(self.place.workers, 'worker')}")

    @property
    def crosses_nodes(self) -> bool:
        """Whether its workers are on several nodes."""
        return self.place.nodes > 1

    @property
    def octaves(self) -> Array:
        """The whole base-2 logarithm next to each size."""
        return np.array([round(math.log2(size)) for size in self.sizes])

    @property
    def ratios(self) -> Array:
        """ln(measured / priced) at each size."""
        found: Array = np.log(np.array(self.times) / np.array(self.prices))
        return found

    @property
    def lateness(self) -> Array:
        """ln(slowest repeat / median) at each size, 0 where that is not known."""
        found: Array = np.log(np.array(self.slowest or self.times) / np.array(self.times))
        return found


def curve_of(label: str, table: Table, against: Cluster) -> Curve:
    """The table beside the prices of ``against``. Raises CostError where that has too few workers or no network."""
    kept = by_octave(table.sizes, table.times)
    price = cost_of(against, table.workers, table.collective)
    place = placed(against, table.workers)
    return Curve(
        label,
        table.collective,
        place,
        kind_of(against, place),
        tuple(table.sizes[k] for k in kept),
        tuple(table.times[k] for k in kept),
        tuple(float(price(table.sizes[k])) for k in kept),
        tuple(table.slowest[k] for k in kept) if table.slowest else (),
    )


def prices_of(cluster: Cluster, curves: Sequence[Curve]) -> Array:
    """Seconds on ``cluster`` of every point of ``curves``, one curve after the other. Raises CostError."""
    found = [
        cost_of(cluster, curve.place.workers, curve.collective)(np.array(curve.sizes, dtype=float)) for curve in curves
    ]
    return np.concatenate(found)


def by_octave(sizes: Sequence[int], times: Sequence[float]) -> list[int]:
    """Positions of the sizes nearest to each power of two, one of an octave; times of 0 are left out."""
    nearest: dict[int, tuple[float, int]] = {}
    for place, (size, time) in enumerate(zip(sizes, times, strict=True)):
        octave = round(math.log2(size))
        off = abs(math.log2(size) - octave)
        if time > 0 and off < nearest.get(octave, (math.inf, 0))[0]:
            nearest[octave] = off, place
    return [place for _, (_, place) in sorted(nearest.items())]
