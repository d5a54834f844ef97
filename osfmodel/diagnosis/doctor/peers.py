"""Peers of a machine, its percentile among them, and how far healthy machines stray from their price.

All machines are compared by ln(measured / price from data sheets), so machines of other sizes and rates are peers. A
machine with several worker counts of one kind counts once, with the median of its tables at each size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np

from osfmodel.cost import COST_MODELS
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.nccl_fit import LARGE
from osfmodel.cost.shapes import Array
from osfmodel.diagnosis.doctor.curves import KNOWN_MACHINES, Curve, curve_of
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.files import profiles
from osfmodel.entities.numbers import plain_sum

Ratios = Mapping[int, float]
"""ln(measured / priced) by octave."""
NINETY = 1.645
"""Standard deviations on either side of the mean that hold nine tenths of a normal distribution."""
STATED = 2.0
"""Weight, in machines, of the uncertainty that the cost model states, beside the spread of the peers."""
LAST, FIRST = "bandwidth", "start-up"
CLASSES: Mapping[str, tuple[int, int]] = {FIRST: (0, 17), "middle": (17, 23), LAST: (23, 99)}
"""Octaves of the parts of a curve: to below 128 KiB, to below 8 MiB, and beyond."""
LEAST_SPREAD = 0.05
"""Minimum standard deviation of ln(measured / price): repeats of one measurement differ by as much."""


@dataclass(frozen=True, slots=True)
class PercentileRange:
    """A place among ``peers`` machines: faster, for its price, than ``low`` to ``high`` of all machines (0 to 1)."""

    low: float
    high: float
    peers: int


@cache
def known_curves() -> tuple[tuple[str, Curve], ...]:
    """(machine, curve) of every bundled all-reduce table of KNOWN_MACHINES, beside the price of its own words."""
    found = []
    present = profiles.names("cluster")
    for name, known in KNOWN_MACHINES.items():
        if name in present:
            against = load_cluster(known.words)
            tables = (table for table in load_cluster(name).tables if table.collective == "all_reduce")
            found += [(known.machine, curve_of(name, table, against)) for table in tables]
    return tuple(found)


def ratios_of(curves: Iterable[Curve]) -> Ratios:
    """The median over ``curves``, of one machine and kind, of ln(measured / priced), by octave."""
    found: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for octave, ratio in zip(curve.octaves.tolist(), curve.ratios.tolist(), strict=True):
            found[octave].append(ratio)
    return {octave: median(values) for octave, values in sorted(found.items())}


def peers_of(kind: str, without: str = "") -> Mapping[str, Sequence[Curve]]:
    """Curves of each known machine of ``kind``, except the machine ``without``."""
    found: dict[str, list[Curve]] = defaultdict(list)
    for machine, curve in known_curves():
        if curve.kind == kind and machine != without:
            found[machine].append(curve)
    return found


def percentile(ratio: float, peers: Sequence[float]) -> PercentileRange | None:
    """The place of ``ratio`` among those of ``peers``; None without any.

    With k of n peers slower, each of the n + 1 places is as likely for one more machine, so the share of all machines
    that are slower lies between k / (n + 1) and (k + 1) / (n + 1). Peers that are equal widen the range.
    """
    if not peers:
        return None
    slower, equal = sum(peer > ratio for peer in peers), sum(peer == ratio for peer in peers)
    places = len(peers) + 1
    return PercentileRange(slower / places, (slower + equal + 1) / places, len(peers))


def nearest(workers: int, curves: Sequence[Curve]) -> tuple[float, Ratios]:
    """Ratios of a machine's tables with the nearest worker count, and their weight: 1 for the same, less for others."""
    apart = {curve.place.workers: abs(math.log2(curve.place.workers / workers)) for curve in curves}
    least = min(apart.values())
    return 1 / (1 + least), ratios_of(curve for curve in curves if apart[curve.place.workers] == least)


def at_octave(octave: int, peers: Mapping[str, Sequence[Curve]]) -> list[float]:
    """The ratios of the peers that were measured at this octave."""
    return [ratios[octave] for ratios in map(ratios_of, peers.values()) if octave in ratios]


def over(ratios: Ratios, low: int, high: int) -> float | None:
    """The median ratio of the octaves from ``low`` to below ``high``; None if none was measured."""
    found = [ratio for octave, ratio in ratios.items() if low <= octave < high]
    return median(found) if found else None


def expected(curve: Curve, against: Cluster, peers: Mapping[str, Sequence[Curve]]) -> tuple[Array, Array]:
    """Mean and standard deviation of ln(measured / priced) of a healthy machine, at each size of ``curve``.

    Those of the peers at that size, of which machines with as many workers weigh most; with the cost model's own
    uncertainty in the place of STATED machines. A new machine also strays by the uncertainty of their mean.
    """
    doubts = COST_MODELS[against.cost_model].uncertainty(against, curve.place.workers)
    whole, large = (math.log1p(doubt) / NINETY for doubt in doubts)
    near = [nearest(curve.place.workers, curves) for curves in peers.values()]
    means, spreads = [], []
    for octave in curve.octaves.tolist():
        found = [(weight, ratios[octave]) for weight, ratios in near if octave in ratios]
        weights = plain_sum(weight for weight, _ in found)
        mean = plain_sum(weight * ratio for weight, ratio in found) / (weights + 1)
        prior = large if 2**octave >= LARGE else whole
        squares = STATED * prior**2 + plain_sum(weight * (ratio - mean) ** 2 for weight, ratio in found)
        means.append(mean)
        spreads.append(max(math.sqrt(squares / (STATED + weights) * (1 + 1 / (weights + 1))), LEAST_SPREAD))
    return np.array(means), np.array(spreads)
