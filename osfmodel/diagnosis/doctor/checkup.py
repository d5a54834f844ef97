"""The check-up: which of NETWORK_FAULTS, or none, explains the measured curves.

ln(measured / priced) of a healthy machine has a mean and a spread at each size (``peers.expected``), is correlated
between near sizes and between tables of one machine, and has a scatter of its own. With a fault the mean is shifted.
The likelihood is that of a multivariate t distribution, whose tails forgive spreads that are off; a variant's weight is
its fault's over the number of variants, so a fault with many forms gains nothing by them. "Something else" has the
mean of the healthy and WIDE times their spread: a curve like no fault and like no healthy machine. Where the slowest
repeats are known, their likelihood (``tails``) is a factor beside; "something else" may have any of these tails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from osfmodel.cost.shapes import Array
from osfmodel.diagnosis.doctor.curves import Curve
from osfmodel.diagnosis.doctor.faults import NETWORK_FAULTS, MeasuredMachine, Variant
from osfmodel.diagnosis.doctor.machines import KINDS
from osfmodel.diagnosis.doctor.peers import (
    PercentileRange,
    at_octave,
    expected,
    over,
    peers_of,
    percentile,
    ratios_of,
)
from osfmodel.diagnosis.doctor.tails import ANY_TAIL, HEALTHY_TAIL, Tail, log_likelihood
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import brief
from osfmodel.formats.collectives.naming import factor

HEALTHY, OTHER, CANNOT_TELL = "healthy", "something-else", "cannot-tell"
SUMMARIES: Mapping[str, str] = {
    HEALTHY: "as other machines of its kind are",
    OTHER: "like no fault that is known here, nor like a healthy machine",
}
PRIOR: Mapping[str, float] = {HEALTHY: 0.5, OTHER: 0.1}
"""Weights before the measurement; the rest is shared by the faults that can occur."""
SURE = 0.8
"""Minimum probability of what is named."""
POSSIBLE = 0.05
"""Minimum probability of a fault that is listed as possible; below RULED_OUT it is listed as ruled out."""
RULED_OUT = 0.01
FREEDOM = 4.0
"""Degrees of freedom of the t distribution."""
REACH = 4.0
"""Octaves over which deviations of a healthy machine are correlated."""
SHARED, SAME_COUNT = 0.6, 0.95
"""Correlation between tables of one machine at the same size, of different worker counts and of the same."""
SCATTER = 0.05
"""Minimum standard deviation of ln(time) from one size to the next."""
NO_REPEATS = (
    "single calls are not known: lost packets that delay few of them cannot be seen (osf bench and NCCL Inspector keep "
    "the slowest of 5 or more calls of a size)"
)
WIDE = 3.0
"""Times the spread of healthy machines that "something else" has."""
FASTER = 3.0
"""Times as fast as described in all parts from which the description is doubted."""
LAST = "bandwidth"
CLASSES: Mapping[str, tuple[int, int]] = {"start-up": (0, 17), "middle": (17, 23), LAST: (23, 99)}
"""Octaves of the parts of a curve: to below 128 KiB, to below 8 MiB, and beyond."""


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """One measured size: seconds, seconds by data sheet, and the place among peers; None without peers.

    ``slowest`` is the slowest repeat in seconds; None if it is not known.
    """

    label: str
    collective: str
    workers: int
    nodes: int
    kind: str
    size: int
    time: float
    price: float
    place: PercentileRange | None
    slowest: float | None = None
    __repr__ = brief

    @property
    def ratio(self) -> float:
        """Measured / priced."""
        return self.time / self.price if self.price else math.inf

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second, scaled to the traffic of each link as nccl-tests does."""
        return factor(self.collective, self.workers) * self.size / self.time


@dataclass(frozen=True, slots=True)
class ClassCheck:
    """A part of the curve of one kind: median measured / price, and the place among peers; None without peers."""

    kind: str
    part: str
    ratio: float
    place: PercentileRange | None
    __repr__ = brief

    @property
    def kind_words(self) -> str:
        """The kind of machine."""
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A fault, HEALTHY or OTHER, with its probability and the words of its likeliest variant."""

    name: str
    probability: float
    words: str = ""
    __repr__ = brief

    @property
    def summary(self) -> str:
        """The fault in a few words."""
        return NETWORK_FAULTS[self.name].summary if self.name in NETWORK_FAULTS else SUMMARIES[self.name]


@dataclass(frozen=True, slots=True)
class Checkup:
    """The check-up of a machine: ``cause`` is a fault, HEALTHY, or CANNOT_TELL; hypotheses, the likeliest first."""

    name: str
    against: str
    cause: str
    verdict: str
    hypotheses: tuple[Hypothesis, ...]
    classes: tuple[ClassCheck, ...]
    sizes: tuple[SizeCheck, ...]
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.cause}")

    @property
    def possible(self) -> tuple[str, ...]:
        """Faults that the curve allows."""
        return tuple(one.name for one in self.hypotheses if one.name in NETWORK_FAULTS and one.probability >= POSSIBLE)

    @property
    def ruled_out(self) -> tuple[str, ...]:
        """Faults that the curve rules out, in the order of the table; those that cannot occur are not among them."""
        low = {one.name for one in self.hypotheses if one.probability < RULED_OUT}
        return tuple(name for name in NETWORK_FAULTS if name in low)

    @property
    def experiments(self) -> tuple[tuple[str, str], ...]:
        """(fault, experiment) of what is named, or of all that is possible where that cannot be told."""
        named = {CANNOT_TELL: self.possible, HEALTHY: ()}.get(self.cause, (self.cause,))
        return tuple((name, NETWORK_FAULTS[name].experiment) for name in named)


def check_up(name: str, curves: Sequence[Curve], against: Cluster, machine: str = "") -> Checkup:
    """Check the curves of one machine against its description.

    ``machine`` is a key of the bundled ones that is no peer of itself.
    """
    peers = {kind: peers_of(kind, machine) for kind in dict.fromkeys(curve.kind for curve in curves)}
    hypotheses = hypotheses_of(MeasuredMachine(against, tuple(curves)), peers)
    cause = cause_of(hypotheses)
    classes = tuple(_classes(curves, peers))
    return Checkup(
        name, against.name, cause, _verdict(cause, hypotheses, classes), hypotheses, classes,
        tuple(_sizes(curves, peers)), (*_faster(cause, classes), *_other(classes), *_remarks(curves, peers)),
    )  # fmt: skip


def hypotheses_of(
    measured: MeasuredMachine, peers: Mapping[str, Mapping[str, Sequence[Curve]]]
) -> tuple[Hypothesis, ...]:
    """HEALTHY, OTHER and each of NETWORK_FAULTS that can occur, with its probability; the likeliest first."""
    healthy = [expected(curve, measured.against, peers[curve.kind]) for curve in measured.curves]
    means, spreads = (np.concatenate(parts) for parts in zip(*healthy, strict=True))
    ratios = measured.each(lambda curve: curve.ratios)
    shape = _correlation(measured)

    def medians(shift: Array, wide: float = 1.0, scatter: float = 0.0) -> float:
        covariance = shape * np.outer(wide * spreads, wide * spreads) + (SCATTER**2 + scatter**2) * np.eye(len(ratios))
        return _log_density(ratios - means - shift, covariance)

    @cache
    def slowest(tails: tuple[Tail, ...]) -> float:
        crossing = measured.each(lambda curve: np.full(len(curve.sizes), curve.place.nodes > 1))
        late, times = (measured.each(value) for value in (_lateness, _times))
        inside, between = (late > 0) & ~crossing, (late > 0) & crossing
        found = _log_mean([log_likelihood(late[between], times[between], tail) for tail in tails])
        return found + log_likelihood(late[inside], times[inside], HEALTHY_TAIL)

    none = np.zeros(len(ratios))
    found: dict[str, tuple[float, str]] = {
        HEALTHY: (medians(none) + slowest((HEALTHY_TAIL,)), ""),
        OTHER: (medians(none, wide=WIDE) + slowest(ANY_TAIL), ""),
    }
    for name, fault in NETWORK_FAULTS.items():
        forms = [
            (one, medians(one.shift, 1.0, one.noise) + slowest(one.tails))
            for one in fault.variants(measured)
            if _told(one)
        ]
        if forms:
            best = max(forms, key=lambda form: form[1])
            found[name] = (_log_mean([value for _, value in forms]), best[0].words)
    share = (1 - math.fsum(PRIOR.values())) / max(len(found) - len(PRIOR), 1)
    weights = {name: value + math.log(PRIOR.get(name, share)) for name, (value, _) in found.items()}
    most = max(weights.values())
    total = math.fsum(math.exp(weight - most) for weight in weights.values())
    hypotheses = [Hypothesis(name, math.exp(weights[name] - most) / total, found[name][1]) for name in found]
    return tuple(sorted(hypotheses, key=lambda one: -one.probability))


def _told(variant: Variant) -> bool:
    """Whether the variant changes anything that was measured."""
    return bool(variant.noise or variant.tails != (HEALTHY_TAIL,) or np.abs(variant.shift).max() > SCATTER)


def _lateness(curve: Curve) -> Array:
    return curve.lateness


def _times(curve: Curve) -> Array:
    return np.array(curve.times)


def _correlation(measured: MeasuredMachine) -> Array:
    octaves = measured.each(lambda curve: curve.octaves.astype(float))
    table = np.concatenate([np.full(len(curve.sizes), number) for number, curve in enumerate(measured.curves)])
    workers = measured.each(lambda curve: np.full(len(curve.sizes), curve.place.workers))
    near = np.exp(-np.abs(np.subtract.outer(octaves, octaves)) / REACH)
    apart = np.where(np.equal.outer(workers, workers), SAME_COUNT, SHARED)
    found: Array = near * np.where(np.equal.outer(table, table), 1.0, apart)
    return found


def _log_density(values: Array, covariance: Array) -> float:
    """ln of the density of ``values`` around 0, up to a constant of their number.

    Along each principal axis of ``covariance`` a t distribution of its own, so that no number of small deviations that
    fit vouches for the size of a large one.
    """
    variances, axes = np.linalg.eigh(covariance)
    away = (axes.T @ values) ** 2 / variances
    return float(-0.5 * np.log(variances).sum() - (FREEDOM + 1) / 2 * np.log1p(away / FREEDOM).sum())


def _log_mean(values: Sequence[float]) -> float:
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values) / len(values))


def cause_of(hypotheses: Sequence[Hypothesis]) -> str:
    """The likeliest where it is sure; CANNOT_TELL else, and for a curve like no fault and no healthy machine."""
    first = hypotheses[0]
    return CANNOT_TELL if first.probability < SURE or first.name == OTHER else first.name


def _classes(curves: Sequence[Curve], peers: Mapping[str, Mapping[str, Sequence[Curve]]]) -> list[ClassCheck]:
    found = []
    for kind in dict.fromkeys(curve.kind for curve in curves):
        own = ratios_of(curve for curve in curves if curve.kind == kind)
        for part, (low, high) in CLASSES.items():
            ratio = over(own, low, high)
            if ratio is not None:
                beside = [
                    other for one in peers[kind].values() if (other := over(ratios_of(one), low, high)) is not None
                ]
                found.append(ClassCheck(kind, part, math.exp(ratio), percentile(ratio, beside)))
    return found


def _sizes(curves: Sequence[Curve], peers: Mapping[str, Mapping[str, Sequence[Curve]]]) -> list[SizeCheck]:
    return [
        SizeCheck(
            curve.label, curve.collective, curve.place.workers, curve.place.nodes, curve.kind, size, time, price,
            percentile(ratio, at_octave(octave, peers[curve.kind])), slowest if slowest > time else None,
        )
        for curve in curves
        for size, time, price, ratio, octave, slowest in zip(
            curve.sizes, curve.times, curve.prices, curve.ratios.tolist(), curve.octaves.tolist(),
            curve.slowest or curve.times, strict=True,
        )
    ]  # fmt: skip


def _verdict(cause: str, hypotheses: Sequence[Hypothesis], classes: Sequence[ClassCheck]) -> str:
    found = {one.name: one for one in hypotheses}
    if cause == HEALTHY:
        return "Healthy: the curve is that of other machines of its kind."
    if cause in NETWORK_FAULTS:
        return NETWORK_FAULTS[cause].sentence(found[cause].words)
    possible = [one.name for one in hypotheses if one.probability >= POSSIBLE and one.name != OTHER]
    if possible:
        return f"Cannot tell: {' or '.join(possible)}."
    return f"Cannot tell: {'much faster than described' if _other(classes) else 'the curve is like no known fault'}."


def _remarks(curves: Sequence[Curve], peers: Mapping[str, Mapping[str, Sequence[Curve]]]) -> list[str]:
    found = [f"there is no other machine of this kind: {KINDS[kind]}" for kind, found in peers.items() if not found]
    crossing = [curve for curve in curves if curve.place.nodes > 1]
    return [*found, NO_REPEATS] if crossing and not any(curve.lateness.any() for curve in crossing) else found


def _other(classes: Sequence[ClassCheck]) -> list[str]:
    """A remark on a machine that is much faster than described in all parts of its curves."""
    slowest = max(row.ratio for row in classes)
    if slowest * FASTER > 1:
        return []
    return [f"measured at least {1 / slowest:.0f} times as fast as described: check that --against is this machine"]


def _faster(cause: str, classes: Sequence[ClassCheck]) -> list[str]:
    """A remark on a fault that leaves the machine faster than its data sheet."""
    large = [row.ratio for row in classes if row.part == LAST]
    if cause not in NETWORK_FAULTS or not large or max(large) >= 1:
        return []
    return [f"large messages take {max(large):.2f} of the time by data sheet all the same"]
