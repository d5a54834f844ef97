"""Measured steps of several numbers of GPUs teach computation, the network's bandwidth and its pace.

Each has a factor whose logarithm is normal around 0 beforehand, with a deviation of DOUBTS, and so has computation
between nodes, which waits for the slowest of many; measured steps are normal around predicted ones, with NOISE. The
likeliest factors are taken (least squares). A step that the network does not lengthen says nothing of it, so that only
factors that anchors tell apart move; the others stay where they were. What is left of the doubts is the normal
distribution around the likeliest factors (of the inverse of J'J), and a band has the steps at its edges. With three
anchors or more each is also predicted from all others (jackknife).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from osfmodel.cost.faster_network import Change, faster_network
from osfmodel.cost.nccl import unpaced
from osfmodel.cost.nccl_constants import MIDDLE_PACE
from osfmodel.engine.band_values import bundled_distances
from osfmodel.engine.bands import LEAST, PER_DOUBLING, Band, around, distances_for
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import brief, how_many, show_predicted_time
from osfmodel.entities.errors import UsageError

DOUBTS = (0.5, 0.3, 0.8, 0.06)
"""Deviations of the logarithms of computation, bandwidth, pace and computation between nodes: of what published runs
left of counted times, of a stated bandwidth (cost.model.STATED), of steps of published machines (PACES), and of runs on
several nodes whose communication is hidden (``osf check mosaicml-2023``: nine in ten within 10 %)."""
NAMES = ("computation", "bandwidth", "pace", "computation_between_nodes")
NOISE = 0.01
"""Deviation of the logarithm of a measured step: medians of two runs of one job differ by as much."""
EDGE = 1.645
"""Deviations to the edges that hold nine in ten."""
SHOWN = 0.7
"""Part of its doubt that a factor may keep and still count as shown by the anchors."""
APART = 0.05
"""Part by which a step may miss its anchor before they are said to contradict each other."""
UNLIKE = 2.5
"""Deviations from which a factor is doubted."""
STARTS = ((0.0, 0.0, 0.0, 0.0), (0.0, 0.3, 0.5, 0.0), (0.0, -0.5, 1.0, 0.0), (0.0, 0.0, 1.5, 0.0))
"""Logarithms from which the likeliest factors are searched: a hidden network shows nothing nearby."""
STEP = 1e-3
"""Change of a logarithm that shows its influence: above the precision of timelines."""
STUDENT = {3: 2.92, 4: 2.35, 5: 2.13}
"""Quantile of 95 % of Student's distribution for so many misses; 2 for more."""

NONE = (1.0, 1.0, 1.0, 1.0)
Factors = tuple[float, float, float, float]
Timed = Callable[[Factors], float]
"""Seconds of a step with these factors, in the order of DOUBTS."""


@dataclass(frozen=True, slots=True)
class AnchoredStep:
    """An anchor: its number of GPUs, the seconds measured, the step predicted by factors, and the plan there."""

    workers: int
    seconds: float
    timed: Timed
    plan: str = ""
    __repr__ = brief

    def miss(self, factors: Factors) -> float:
        """The logarithm of predicted / measured."""
        return math.log(self.timed(factors) / self.seconds)


@dataclass(frozen=True, slots=True)
class Taught:
    """Factors that anchors taught.

    factors: on computation, the network's bandwidth, its latencies and steps, and on computation between nodes
    spreads: deviations of their logarithms that are left
    edges:   factors at the edges of what is left, EDGE deviations along each axis of its ellipsoid, in pairs; and
             other factors that explain the steps nearly as well
    misses:  predicted / measured - 1 of each anchor, by its number of GPUs
    held:    the same predicted from all other anchors; empty for two
    plans:   under which the steps are taken to have run
    """

    factors: Factors
    spreads: Factors
    edges: tuple[tuple[Factors, Factors], ...]
    misses: tuple[tuple[int, float], ...]
    held: tuple[tuple[int, float], ...] = ()
    plans: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(self, self.words)

    def compute(self, inside: bool) -> float:
        """The factor on computation, inside a node or between nodes."""
        return computing(self.factors, inside)

    @property
    def words(self) -> str:
        """The factors that were shown, with their spreads."""
        said = []
        for name, factor, spread, doubt in zip(NAMES, self.factors, self.spreads, DOUBTS, strict=True):
            below, above = math.expm1(-EDGE * spread), math.expm1(EDGE * spread)
            shown = "" if spread < SHOWN * doubt else ", hardly shown"
            said.append(f"{name.replace('_', ' ')} x{factor:.3g} ({below:+.0%} {above:+.0%}{shown})")
        return ", ".join(said)

    @property
    def sentence(self) -> str:
        """A sentence on what was learned."""
        *first, last = dict.fromkeys(str(workers) for workers, _ in self.misses)
        counts = f"{', '.join(first)} and {last}" if first else last
        checked = ", ".join(f"{miss:+.1%} on {workers}" for workers, miss in self.held)
        also = f" Each predicted from the others: {checked} GPUs." if checked else ""
        under = f", taken as {' and '.join(self.plans)} (--plan says otherwise)" if self.plans else ""
        return f"Learned from steps on {counts} GPUs{under}: {self.words}.{also}"

    @property
    def contradictions(self) -> list[str]:
        """A warning for each anchor that is not met beside the others, and of a network unlike any published."""
        unlike = [
            f"{name} x{factor:.3g}"
            for name, factor, doubt in zip(NAMES[1:3], self.factors[1:3], DOUBTS[1:3], strict=True)
            if abs(math.log(factor)) > UNLIKE * doubt
        ]
        far = f"--anchor makes the network unlike published ones ({' and '.join(unlike)}): was a step disturbed?"
        return [far] * bool(unlike) + [
            f"--anchor of {how_many(workers, 'GPU')} contradicts the others: no computation and network meets all, and "
            f"this step is predicted {miss:+.0%} off: check its unit, batch and plan"
            for workers, miss in self.misses
            if abs(miss) > APART
        ]

    def cluster(self, cluster: Cluster) -> Cluster:
        """The cluster with the learned network."""
        return with_factors(cluster, self.factors)

    def band(self, time: float, timed: Timed, kind: str, workers: int, inside: bool) -> Band:
        """The band of a step of ``time`` seconds: what is left of doubts, and what a network's runs miss beyond it.

        kind:   of the set-up
        inside: whether all are on one node

        For each doubling beyond the anchors PER_DOUBLING more is doubted, and as much as anchors are missed by.
        """
        counts = [count for count, _ in self.misses]
        measured = workers in counts
        beyond = PER_DOUBLING * max(0.0, math.log2(workers / max(counts)))
        low = high = math.hypot(beyond, *(math.log1p(miss) for _, miss in self.misses))
        for pair in self.edges:
            changes = [math.log(timed(factors) / time) for factors in pair]
            low, high = math.hypot(low, min(0.0, *changes)), math.hypot(high, max(0.0, *changes))
        known = None if measured or inside else distances_for(kind, bundled_distances())
        fast, slow = time * math.exp(-low), time * math.exp(high)
        if known is None:
            return Band(time, min(fast, time / (1 + LEAST)), max(slow, time * (1 + LEAST)), kind, (), 0)
        if self.held:
            limit = self._held_out()
            shorter = tuple(min(one, limit) for one in known.below), tuple(min(one, limit) for one in known.above)
            known = known._replace(below=shorter[0], above=shorter[1])
        return around(time, fast, slow, known)

    def _held_out(self) -> float:
        """Nine in ten logarithms of misses like those of the jackknife are below it."""
        logs = [math.log1p(miss) for _, miss in self.held]
        return STUDENT.get(len(logs), 2.0) * math.sqrt(sum(one * one for one in logs) / len(logs))


def computing(factors: Factors, inside: bool) -> float:
    """The factor on computation, inside a node or between nodes."""
    return factors[0] * (1.0 if inside else factors[3])


def with_factors(cluster: Cluster, factors: Factors) -> Cluster:
    """The cluster with a network of another bandwidth and pace; where this is unknown, from the middle of machines."""
    if cluster.nccl is not None and cluster.nccl.nic_bandwidth is not None and unpaced(cluster.nccl):
        cluster = replace(cluster, nccl=replace(cluster.nccl, pace=MIDDLE_PACE))
    return faster_network(cluster, Change(factors[1]), Change(factors[2]))


def learn(anchors: Sequence[AnchoredStep]) -> Taught:
    """The factors that two anchors or more teach. Raises UsageError for a step that nothing explains."""
    factors, covariance, others = _likeliest(anchors)
    misses = tuple((one.workers, math.expm1(one.miss(factors))) for one in anchors)
    held: list[tuple[int, float]] = []
    if len(anchors) > 2:
        for place, one in enumerate(anchors):
            left, *_ = _likeliest([*anchors[:place], *anchors[place + 1 :]])
            held.append((one.workers, math.expm1(one.miss(left))))
    values, axes = np.linalg.eigh(covariance)
    edges = [(other, factors) for other in others]
    for value, axis in zip(values, axes.T, strict=True):
        shift = EDGE * math.sqrt(max(value, 0.0)) * axis
        edges.append((_times(factors, shift), _times(factors, -shift)))
    plans = tuple(dict.fromkeys(one.plan for one in anchors if one.plan))
    return Taught(factors, _four(np.sqrt(np.diag(covariance))), tuple(edges), misses, tuple(held), plans)


def _times(factors: Factors, logarithms: Sequence[float] | np.ndarray) -> Factors:
    return _four([factor * math.exp(one) for factor, one in zip(factors, logarithms, strict=True)])


def _four(values: Sequence[float] | np.ndarray) -> Factors:
    first, second, third, fourth = map(float, values)
    return first, second, third, fourth


def _likeliest(anchors: Sequence[AnchoredStep]) -> tuple[Factors, np.ndarray, list[Factors]]:
    """The likeliest factors, the covariance of their logarithms, and other factors that are as likely within EDGE."""
    from scipy.optimize import least_squares

    def residuals(logarithms: np.ndarray) -> list[float]:
        factors = _times(NONE, logarithms)
        missed = [one.miss(factors) / NOISE for one in anchors]
        return [*missed, *(float(one) / doubt for one, doubt in zip(logarithms, DOUBTS, strict=True))]

    found = [least_squares(residuals, start, diff_step=STEP, max_nfev=60) for start in STARTS]
    best = min(found, key=lambda one: float(one.cost))
    if max(abs(one.miss(_times(NONE, best.x))) for one in anchors) > FARTHEST:
        worst = max(anchors, key=lambda one: abs(one.miss(_times(NONE, best.x))))
        raise UsageError(
            f"--anchor says a step of {show_predicted_time(worst.seconds)} on {how_many(worst.workers, 'GPU')}, and "
            "nothing explains it beside the other anchors: check its unit, batch and plan"
        )
    likely = [_times(NONE, one.x) for one in found if one is not best and one.cost <= best.cost + EDGE**2 / 2]
    return _times(NONE, best.x), np.linalg.inv(best.jac.T @ best.jac), likely


FARTHEST = math.log(3)
"""Logarithm of predicted / measured from which an anchor is refused."""
