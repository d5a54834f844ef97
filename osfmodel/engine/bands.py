"""Error bands: the interval that should hold nine in ten comparable measured runs, learned from the ledger.

A prediction is doubtful in two ways that can be priced: in the prices of the network (``Pricing.uncertainty``, and
sizes or worker counts beyond those that were measured) and in the compute time (``Workload.doubt``). The step is
predicted again with both at their best, and at their worst. The rest is learned: how far each run of the ledger,
predicted as a user predicts it, was measured below the fastest or above the slowest. A band adds the quantiles of these
distances, in which each group of sources weighs the same however many runs it has (split conformal prediction over
groups). Runs with gloo, on the GPUs of one node and on those of several nodes are learned from apart, and so are those
that shard parameters (FSDP, HSDP), with gloo and on several nodes. For other strategies of frameworks, and for many
more workers, none are comparable: their bands have the distances of the nearest kind, WIDER times as far. Other plans
have none. The computation of sharded runs on GPUs is that of the smallest run of their series: their bands lack any
slowdown of computation on more GPUs.

The doubt of counted workloads on GPUs was learned from published runs: their band is what it and prices make of the
step. Replicas of several GPUs over several nodes have one distance for both ends, learned from such runs
(conformalized quantile regression; Romano, Patterson and Candes, 2019; profiles/make_efficiency.py).

``without`` leaves a group of sources out, so that its runs can be held against bands in which they had no part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.band_values import LEVELS, Distances, bundled_bands, bundled_distances
from osfmodel.entities.display import brief
from osfmodel.entities.files.usual_effects import effects_of_any
from osfmodel.entities.modules import FLAT_SHARDED, OWNERS, SHARDED, SHARDING, ZERO_3
from osfmodel.entities.plan import REPLICATED, SPLIT, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

PART = 0.9
"""Fraction of runs inside the band of a prediction."""
GLOO, NODE, NODES = "gloo", "one node", "several nodes"
SHARDED_GLOO, SHARDED_NODES = "gloo with sharding", "several nodes with sharding"
"""Kinds of set-up whose runs are learned from apart: on CPUs, on the GPUs of one node and of several; the first and the
last also with sharded parameters."""
SHARDED_KINDS = {GLOO: SHARDED_GLOO, NODES: SHARDED_NODES}
LEAST = 0.02
"""Smallest part by which a band goes beyond the prediction on each side: repeats of one run differ by about as much."""
ALONE = 0.045
"""The same where a single group of sources was seen, which does not tell how others differ: nine in ten runs of the
median group lie this far outside their doubts on one node, and 0.03 on several (six groups each)."""
PER_DOUBLING = 0.1
"""Part by which prices are more doubtful for each doubling of a size or worker count beyond those measured: held-out
worker counts of fitted tables (docs/reference/fits.md) are off by about as much."""
MOST_WORKERS = MappingProxyType({GLOO: 64, SHARDED_GLOO: 6, NODE: 64, NODES: 64, SHARDED_NODES: 256})
"""Largest number of workers of a measured run, by kind of set-up."""
ONE_SOURCE = (OWNERS,)
"""Strategies of which a single group of sources has runs, so that none is left to hold a band against."""
FAR = 4
"""Multiple of that from which nothing is comparable."""
COUNTED, REPLICAS = "counted", "replicas over several nodes, counted"
"""Kinds of counted set-ups: replicas of several GPUs on several nodes, and all others."""
NOTHING = (0.0,) * len(LEVELS)
"""Distances where doubts are the band."""
NEAREST = " (nearest)"
"""End of the kind of a band for which nothing comparable was measured."""
WIDER, LEAST_FAR = 2.0, 0.15
"""Factor on distances, and the least that they then are, where nothing comparable was measured: assumed."""


@dataclass(frozen=True, slots=True)
class Band:
    """The error band of a prediction of ``time`` seconds.

    low, high: seconds between which 90 % of the runs of comparable sources lie
    sources:   of the ledger that it was learned from
    kind:      of set-up: GLOO, SHARDED_GLOO, NODE, NODES, SHARDED_NODES, COUNTED or REPLICAS, followed by NEAREST where
               runs are not comparable
    runs:      number of runs of this kind
    """

    time: float
    low: float
    high: float
    kind: str
    sources: tuple[str, ...]
    runs: int

    def __repr__(self) -> str:
        return brief(self, f"{self.below:+.0%} to {self.above:+.0%}, {self.kind}")

    @property
    def below(self) -> float:
        """The lower end against the prediction, as a fraction; 0 or less."""
        return self.low / self.time - 1

    @property
    def above(self) -> float:
        """The upper end against the prediction, as a fraction."""
        return self.high / self.time - 1

    @property
    def half_width(self) -> float:
        """Half of the width, as a fraction of the prediction."""
        return (self.high - self.low) / 2 / self.time


class Weighed(Protocol):
    """A run or a pair of runs of a source."""

    @property
    def source(self) -> str:
        """Its source."""
        ...

    @property
    def group(self) -> str:
        """Sources on the same machines."""
        ...


class JudgedRun(NamedTuple):
    """A measured run beside its predictions in seconds: as it is, and with all doubts at their best and worst.

    group: sources on the same machines, which are left out together
    """

    source: str
    group: str
    kind: str
    measured: float
    predicted: float
    fast: float
    slow: float


def kind_of(plan: Plan, pricing: Pricing) -> str:
    """The kind of set-up of such a prediction."""
    kind = _place(pricing)
    return SHARDED_KINDS.get(kind, kind) if plan.strategy in (*SHARDED, FLAT_SHARDED, ZERO_3) else kind


def is_counted(workload: Workload, pricing: Pricing) -> bool:
    """Whether times were counted for a GPU, so that how far they are off is what published runs showed."""
    return workload.fixed_share is not None and workload.doubt > 0 and not pricing.blocking


def _place(pricing: Pricing) -> str:
    return GLOO if pricing.blocking else NODE if pricing.per_host >= pricing.workers else NODES


def extremes(workload: Workload, plan: Plan, timeline: Timeline, pricing: Pricing) -> tuple[float, float]:
    """Seconds of the step with prices and computation at their best and at their worst.

    On GPUs effects that are left out are among what may be worse: runs of frameworks pay the usual ones.
    """
    rows = ((pricing, -1), (_charged(workload, pricing), 1))
    best, worst = (_shifted(plan, timeline, *prices.loaded(workload), sign) for prices, sign in rows)
    if pricing.slowest:
        slow = predict_timeline(workload, plan, pricing.on_slowest(), timeline).iteration_time
        worst = max(worst, slow)
    return min(best, timeline.iteration_time), max(worst, timeline.iteration_time)


def _charged(workload: Workload, pricing: Pricing) -> Pricing:
    """The prices with the usual effects of any GPU where neither they nor the profile have any; CPUs have none."""
    if pricing.effects.active or pricing.blocking or workload.profiled_workers > 1:
        return pricing
    return replace(pricing, effects=effects_of_any(), usual=True)


def _shifted(plan: Plan, timeline: Timeline, workload: Workload, pricing: Pricing, sign: int) -> float:
    """Seconds with network and computation slower by what is doubtful about them, or faster for ``sign`` -1."""
    network, paced = (1 + pricing.uncertainty_of(plan)) * (1 + beyond(plan, pricing)), (1 + workload.doubt) ** sign
    slowed = workload.scaled(paced) if workload.doubt else workload
    if workload.doubt and any(bucket.release_time for bucket in plan.buckets):  # a clock follows the gradients
        released = (replace(bucket, release_time=bucket.release_time * paced) for bucket in plan.buckets)
        plan = replace(plan, buckets=tuple(released))
    slower = pricing if network == 1 else pricing.slower(network**sign)
    return predict_timeline(slowed, plan, slower, timeline).iteration_time


def beyond(plan: Plan, pricing: Pricing) -> float:
    """The part by which prices are more doubtful for messages and workers beyond those that were measured."""
    measured = pricing.cost().measured_range
    sizes = [bucket.size for bucket in plan.buckets]
    ratios = [pricing.workers / MOST_WORKERS[kind_of(plan, pricing)]]
    if measured is not None and sizes:
        ratios += [max(sizes) / measured[1], measured[0] / max(sizes)]
    return PER_DOUBLING * max(0.0, *map(math.log2, ratios))


def incomparable(plan: Plan, pricing: Pricing) -> str:
    """The reason why no measured runs are comparable with such a prediction; "" if there are some."""
    if plan.sparse:
        return "no sparse plans but those of one source"
    kind = kind_of(plan, pricing)
    if plan.strategy in ONE_SOURCE:
        return f"no plans of the strategy {plan.strategy} but those of one source"
    if plan.strategy in SHARDED and kind == NODE:
        return f"no plans of the strategy {plan.strategy} on one node"
    if plan.strategy not in (REPLICATED, SPLIT, *SHARDED):
        return f"no plans of the strategy {plan.strategy}"
    if pricing.blocking:
        return ""
    if not plan.plain and kind != SHARDED_NODES:
        return "on GPUs, no plans other than all-reduces with a barrier before the update"
    return too_many(plan, pricing)


def too_many(plan: Plan, pricing: Pricing) -> str:
    """The reason why measured runs are on too few GPUs to compare with; "" if there are some on as many."""
    most = MOST_WORKERS[kind_of(plan, pricing)]
    return f"no runs on more than {most} GPUs" if pricing.workers >= FAR * most and not pricing.blocking else ""


def wider(plan: Plan, pricing: Pricing) -> bool:
    """Whether the band of such a prediction is that of the nearest kind, as nothing comparable was measured."""
    return bool(incomparable(plan, pricing)) and not plan.sparse and (plan.plain or plan.strategy in SHARDING)


def band_of(workload: Workload, plan: Plan, timeline: Timeline, pricing: Pricing) -> Band | None:
    """The band of a prediction; None for a single worker and where nothing comparable or near was measured."""
    if pricing.workers == 1 or (incomparable(plan, pricing) and not wider(plan, pricing)):
        return None
    if is_counted(workload, pricing):
        return counted_band(workload, plan, timeline, pricing)
    distances = distances_for(kind_of(plan, pricing), bundled_distances())
    if distances is None:
        return None
    if wider(plan, pricing):
        below, above = (tuple(max(WIDER * x, LEAST_FAR) for x in ends) for ends in (distances.below, distances.above))
        distances = distances._replace(kind=f"{distances.kind}{NEAREST}", below=below, above=above)
    fast, slow = extremes(workload, plan, timeline, pricing)
    return around(timeline.iteration_time, fast, slow, distances)


def counted_band(workload: Workload, plan: Plan, timeline: Timeline, pricing: Pricing, spread: bool = False) -> Band:
    """The band of a counted workload; ``spread``: whether workers are several GPUs, on several nodes."""
    found = distances_for(REPLICAS, bundled_distances()) if spread else None
    found = found or Distances(COUNTED, "", NOTHING, NOTHING, 0, ())
    if too_many(plan, pricing):
        below, above = (tuple(max(x, LEAST_FAR) for x in ends) for ends in (found.below, found.above))
        found = found._replace(below=below, above=above)
    fast, slow = extremes(workload, plan, timeline, pricing)
    return around(timeline.iteration_time, fast, slow, found)


def around(time: float, fast: float, slow: float, distances: Distances, part: float = PART) -> Band:
    """The band of ``time`` seconds that are ``fast`` at best and ``slow`` at worst, as far as doubts can be priced."""
    place = LEVELS.index(part)
    low = min(fast * math.exp(-distances.below[place]), time / (1 + LEAST))
    high = max(slow * math.exp(distances.above[place]), time * (1 + LEAST))
    return Band(time, low, high, distances.kind, distances.sources, distances.runs)


def distances_for(kind: str, known: Iterable[Distances], without: str = "") -> Distances | None:
    """The distances of a kind of set-up without a group; those of all where it had no part. None if there are none."""
    found = {one.without: one for one in known if one.kind == kind and one.without in ("", without)}
    return found.get(without, found.get(""))


def distances_of(judged: Sequence[JudgedRun]) -> list[Distances]:
    """The distances of each kind of set-up, of all runs and without each group that has a part in it."""
    found = []
    for kind in dict.fromkeys(run.kind for run in judged):
        runs = [run for run in judged if run.kind == kind]
        for without in ("", *sorted({run.group for run in runs})):
            kept = [run for run in runs if run.group != without]
            if kept:
                found.append(_distances(kind, without, kept))
    return found


def _distances(kind: str, without: str, runs: Sequence[JudgedRun]) -> Distances:
    """The distances of these runs; the tails are those of a sample that lacks one group, the one to be predicted."""
    shares = weights(runs)
    below = [math.log(run.fast / run.measured) for run in runs]
    above = [math.log(run.measured / run.slow) for run in runs]
    groups = len({run.group for run in runs})
    if kind == REPLICAS:
        both = [max(pair) for pair in zip(below, above, strict=True)]
        ends = [tuple(weighed(both, shares, level) for level in LEVELS)] * 2
    else:
        if groups == 1:
            below, above = ([max(value, ALONE) for value in values] for values in (below, above))
        parts = [1 - (1 - level) / 2 * groups / (groups + 1) for level in LEVELS]
        ends = [tuple(weighed(values, shares, part) for part in parts) for values in (below, above)]
    return Distances(kind, without, ends[0], ends[1], len(runs), tuple(sorted({run.source for run in runs})))


def weights(runs: Sequence[Weighed]) -> list[float]:
    """Weight of each run: groups weigh the same, sources of a group the same, and runs of a source the same."""
    sizes = Counter(run.source for run in runs)
    sources = Counter(group for _, group in dict.fromkeys((run.source, run.group) for run in runs))
    return [1 / len(sources) / sources[run.group] / sizes[run.source] for run in runs]


def weighed(values: Sequence[float], weights: Sequence[float], part: float) -> float:
    """The smallest value such that values up to it have ``part`` of all weight, which is 1."""
    left = part
    for value, weight in (pairs := sorted(zip(values, weights, strict=True))):
        left -= weight
        if left <= ROUNDING:
            return value
    return pairs[-1][0]


ROUNDING = 1e-9
"""Weight that is lost in adding up."""


def quantile(values: Sequence[float], part: float) -> float | None:
    """The value below which ``part`` of ``values`` lie, interpolated between order statistics; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = part * (len(ordered) - 1)
    low = min(int(position), len(ordered) - 2) if len(ordered) > 1 else 0
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def gain_doubt(plan: Plan, pricing: Pricing) -> float:
    """The part by which the ratio of the times of ``plan`` and another may be off there, whatever the prices."""
    known = bundled_bands().gains
    return known.get(kind_of(plan, pricing), known.get(_place(pricing), max(known.values(), default=0.0)))
