"""A check-up of a network: which of NETWORK_FAULTS, or none, explains the measured curves.

ln(measured / priced) of a healthy machine has a mean and a spread at each size (``curves.expected``), is correlated
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

import numpy as np

from osfmodel.cost.nccl import ways
from osfmodel.cost.nccl_lines import fastest
from osfmodel.cost.shapes import Array
from osfmodel.diagnosis.doctor.curves import (
    ANY_TAIL,
    CLASSES,
    HEALTHY_TAIL,
    KINDS,
    LAST,
    MEASURED,
    Curve,
    PercentileRange,
    Tail,
    at_octave,
    expected,
    log_density_of_t,
    log_likelihood,
    over,
    peers_of,
    percentile,
    ratios_of,
)
from osfmodel.diagnosis.doctor.faults import NETWORK_FAULTS, MeasuredMachine, Variant
from osfmodel.entities.cluster import Cluster, NcclShape
from osfmodel.entities.display import brief
from osfmodel.formats.collectives import factor

REACH = 4.0
"""Octaves over which deviations of a healthy machine are correlated."""
SHARED, SAME_COUNT = 0.6, 0.95
"""Correlation between tables of one machine at the same size, of different worker counts and of the same."""
SCATTER = 0.05
"""Minimum standard deviation of ln(time) from one size to the next."""


class Likelihood:
    """Log-likelihoods of the curves of one machine, given its ``peers`` by kind of machine."""

    def __init__(self, measured: MeasuredMachine, peers: Mapping[str, Mapping[str, Sequence[Curve]]]) -> None:
        healthy = [expected(curve, measured.against, peers[curve.kind]) for curve in measured.curves]
        means, self.spreads = (np.concatenate(parts) for parts in zip(*healthy, strict=True))
        self.deviations = measured.each(lambda curve: curve.ratios) - means
        self.correlation = _correlation(measured)
        self.late = measured.each(lambda curve: curve.lateness)
        self.times = measured.each(lambda curve: np.array(curve.times))
        self.crossing = measured.crossing

    def of_medians(self, shift: Array, wide: float = 1.0, scatter: float = 0.0) -> float:
        """ln of the density of the medians with this shift, ``wide`` times the spread of peers, and more scatter."""
        spreads = wide * self.spreads
        alone = (SCATTER**2 + scatter**2) * np.eye(len(spreads))
        return log_density(self.deviations - shift, self.correlation * np.outer(spreads, spreads) + alone)

    def of_slowest(self, tails: Sequence[Tail]) -> float:
        """ln of the density of the slowest repeats, of which those between nodes have one of ``tails``, each as likely.

        Repeats inside a node are those of healthy machines.
        """
        inside, between = (self.late > 0) & ~self.crossing, (self.late > 0) & self.crossing
        found = log_mean([log_likelihood(self.late[between], self.times[between], tail) for tail in tails])
        return found + log_likelihood(self.late[inside], self.times[inside], HEALTHY_TAIL)


def _correlation(measured: MeasuredMachine) -> Array:
    octaves = measured.each(lambda curve: curve.octaves.astype(float))
    table = np.concatenate([np.full(len(curve.sizes), number) for number, curve in enumerate(measured.curves)])
    workers = measured.each(lambda curve: np.full(len(curve.sizes), curve.place.workers))
    near = np.exp(-np.abs(np.subtract.outer(octaves, octaves)) / REACH)
    apart = np.where(np.equal.outer(workers, workers), SAME_COUNT, SHARED)
    found: Array = near * np.where(np.equal.outer(table, table), 1.0, apart)
    return found


def log_density(values: Array, covariance: Array) -> float:
    """ln of the density of ``values`` around 0.

    Along each principal axis of ``covariance`` a t distribution of its own, so that no number of small deviations that
    fit vouches for the size of a large one.
    """
    variances, axes = np.linalg.eigh(covariance)
    away = (axes.T @ values) ** 2 / variances
    return float((log_density_of_t(away) - 0.5 * np.log(variances)).sum())


def log_mean(values: Sequence[float]) -> float:
    """ln of the mean of exp(values)."""
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values) / len(values))


HEALTHY, OTHER, CANNOT_TELL = "healthy", "something-else", "cannot-tell"
SUMMARIES: Mapping[str, str] = {
    HEALTHY: "no fault: as fast as expected",
    OTHER: "matches no known fault and no healthy machine",
}
PRIOR: Mapping[str, float] = {HEALTHY: 0.5, OTHER: 0.1}
"""Weights before the measurement; the rest is shared by the faults that can occur."""
SURE = 0.8
"""Minimum probability of what is named."""
POSSIBLE = 0.05
"""Minimum probability of a fault that is listed as possible; below RULED_OUT it is listed as ruled out."""
RULED_OUT = 0.01
NO_REPEATS = (
    "the file has only averages per size: stalls from lost packets would not show; osf bench and NCCL Inspector keep "
    "the slowest of 5 or more calls"
)
ONE_EARLIER = "no percentiles: --against is a measurement, so there are no other machines to compare with"
WIDE = 3.0
"""Times the spread of healthy machines that "something else" has."""
FASTER = 3.0
"""Times as fast as described in all parts from which the description is doubted."""


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
    way: str = ""
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
        tuple(_sizes(curves, peers, against.nccl)),
        (*_faster(cause, classes), *_other(classes), *_remarks(curves, peers)),
    )  # fmt: skip


def hypotheses_of(
    measured: MeasuredMachine, peers: Mapping[str, Mapping[str, Sequence[Curve]]]
) -> tuple[Hypothesis, ...]:
    """HEALTHY, OTHER and each of NETWORK_FAULTS that can occur, with its probability; the likeliest first."""
    likelihood = Likelihood(measured, peers)
    none = np.zeros(len(measured.prices))
    found: dict[str, tuple[float, str]] = {
        HEALTHY: (likelihood.of_medians(none) + likelihood.of_slowest((HEALTHY_TAIL,)), ""),
        OTHER: (likelihood.of_medians(none, wide=WIDE) + likelihood.of_slowest(ANY_TAIL), ""),
    }
    for name, fault in NETWORK_FAULTS.items():
        forms = [
            (one, likelihood.of_medians(one.shift, scatter=one.noise) + likelihood.of_slowest(one.tails))
            for one in fault.variants(measured)
            if _told(one)
        ]
        if forms:
            best = max(forms, key=lambda form: form[1])
            found[name] = (log_mean([value for _, value in forms]), best[0].words)
    share = (1 - math.fsum(PRIOR.values())) / max(len(found) - len(PRIOR), 1)
    weights = {name: value + math.log(PRIOR.get(name, share)) for name, (value, _) in found.items()}
    most = max(weights.values())
    total = math.fsum(math.exp(weight - most) for weight in weights.values())
    hypotheses = [Hypothesis(name, math.exp(weights[name] - most) / total, found[name][1]) for name in found]
    return tuple(sorted(hypotheses, key=lambda one: -one.probability))


def _told(variant: Variant) -> bool:
    """Whether the variant changes anything that was measured."""
    return bool(variant.noise or variant.tails != (HEALTHY_TAIL,) or np.abs(variant.shift).max() > SCATTER)


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


def _sizes(
    curves: Sequence[Curve], peers: Mapping[str, Mapping[str, Sequence[Curve]]], shape: NcclShape | None
) -> list[SizeCheck]:
    return [
        SizeCheck(
            curve.label, curve.collective, curve.place.workers, curve.place.nodes, curve.kind, size, time, price,
            percentile(ratio, at_octave(octave, peers[curve.kind])), slowest if slowest > time else None,
            "/".join(fastest(ways(shape, curve.place, curve.collective), size))
            if shape and curve.kind != MEASURED else "",
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
        compared = any(row.place is not None for row in classes)
        return f"Healthy: as fast as {'other machines of this kind' if compared else 'expected'}."
    if cause in NETWORK_FAULTS:
        return NETWORK_FAULTS[cause].sentence(found[cause].words)
    possible = [one.name for one in hypotheses if one.probability >= POSSIBLE and one.name != OTHER]
    if possible:
        return f"Cannot tell: {' or '.join(possible)}."
    return f"Cannot tell: {'much faster than described' if _other(classes) else 'the curve matches no known fault'}."


def _remarks(curves: Sequence[Curve], peers: Mapping[str, Mapping[str, Sequence[Curve]]]) -> list[str]:
    found = [
        ONE_EARLIER if kind == MEASURED else f"no percentiles: no other machine of this kind is known ({KINDS[kind]})"
        for kind, others in peers.items()
        if not others
    ]
    crossing = [curve for curve in curves if curve.crosses_nodes]
    return [*found, NO_REPEATS] if crossing and not any(curve.lateness.any() for curve in crossing) else found


def _other(classes: Sequence[ClassCheck]) -> list[str]:
    """A remark on a machine that is much faster than described in all parts of its curves."""
    slowest = max(row.ratio for row in classes)
    if slowest * FASTER > 1:
        return []
    return [f"measured at least {1 / slowest:.0f} times as fast as described: check that --against is this machine"]


def _faster(cause: str, classes: Sequence[ClassCheck]) -> list[str]:
    """A remark on a fault that leaves large messages faster than expected."""
    large = [row.ratio for row in classes if row.part == LAST]
    if cause not in NETWORK_FAULTS or not large or max(large) >= 1:
        return []
    return [f"large messages are nevertheless faster than expected ({max(large):.2f}x the time)"]
