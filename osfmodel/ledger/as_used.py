"""Measured runs predicted as a user predicts them: a workload with its time on one GPU, a cluster in words, defaults.

Nothing is fitted. The usual effects and the error band of each run are those learned without its own group of sources
(sources on the same machines), so that no run has a part in what it is held against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.band_values import LEVELS, Distances, bundled_distances
from osfmodel.engine.bands import (
    PART,
    Band,
    JudgedRun,
    around,
    distances_for,
    extremes,
    incomparable,
    kind_of,
    quantile,
)
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.effects import Effects
from osfmodel.entities.files.usual_effects import UsualValue, usual_effects, usual_values
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.targets.named_plans import make_plan, named_plan


class Job(NamedTuple):
    """A run as a user would ask for it.

    workload: at the pace that one GPU was measured to have, its GPU named
    cluster:  a bundled cluster, or one in words
    plan:     a name or, where the runs say which messages they sent, the plan
    conditions: of a run of a Plan, which say what executes it; of a name that is known
    """

    workload: Workload
    cluster: str
    plan: str | Plan
    conditions: Mapping[str, str] = MappingProxyType({})


Jobs: TypeAlias = Callable[[Sequence[Measurement]], Iterable["Job | str"]]
"""(runs) -> for each run its job, or the reason why a user could not ask for it."""


class Used(NamedTuple):
    """A run predicted as used: its judgement, and its band at PART; None if nothing comparable was measured."""

    label: str
    judged: JudgedRun
    band: Band | None

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.judged.predicted / self.judged.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured time lies within the band; None without one."""
        return None if self.band is None else self.band.low <= self.judged.measured <= self.band.high


def at_pace(workload: Workload, time: float, gpu: str) -> Workload:
    """``workload`` scaled to take ``time`` seconds on one ``gpu``: what a profile made there would say."""
    return replace(workload.scaled(time / workload.compute_time), source=replace(workload.source, gpu=gpu))


class Asked(NamedTuple):
    """The workload, plan and prices of a job."""

    workload: Workload
    plan: Plan
    pricing: Pricing


def asked(job: Job, workers: int, effects: Callable[[Workload, Cluster], Effects] = usual_effects) -> Asked:
    """The plan and the prices of a job; ``effects``: (workload, cluster) -> the usual ones to charge."""
    pricing = pricing_of(load_cluster(job.cluster), workers, job.workload, effects)
    if isinstance(job.plan, Plan):
        return Asked(job.workload, job.plan, pricing.under(job.conditions))
    rule = named_plan(job.plan)
    paid = pricing.for_rules(rule.objective, rule.executor)
    return Asked(job.workload, make_plan(job.plan, job.workload, paid), paid)


def effects_without(group: str, values: Sequence[UsualValue]) -> Callable[[Workload, Cluster], Effects]:
    """(workload, cluster) -> usual effects of ``values``, learned without a group of sources."""

    def found(workload: Workload, cluster: Cluster) -> Effects:
        return usual_effects(workload, cluster, group, values)

    return found


def judged_of(
    source: str,
    group: str,
    runs: Sequence[Measurement],
    jobs: Iterable[Job | str],
    values: Sequence[UsualValue] | None = None,
    without: str | None = None,
) -> list[tuple[Measurement, JudgedRun]]:
    """The runs on several workers that can be asked for, predicted with effects learned without ``without``.

    ``without``: the group itself, unless given; ``values``: the usual values, by default those that come with osfmodel.
    """
    known = usual_values() if values is None else values
    effects = effects_without(group if without is None else without, known)
    found = []
    seen: dict[tuple[int, int], tuple[Job, JudgedRun | None]] = {}  # repeats are one job, which is held here
    for run, job in zip(runs, jobs, strict=True):
        if isinstance(job, str) or run.workers == 1:
            continue
        if (id(job), run.workers) not in seen:
            seen[id(job), run.workers] = job, judge_one(source, group, run, *asked(job, run.workers, effects))
        one = seen[id(job), run.workers][1]
        if one is not None:
            found.append((run, one._replace(measured=run.iteration_time)))
    return found


def judge_one(
    source: str, group: str, run: Measurement, workload: Workload, plan: Plan, pricing: Pricing
) -> JudgedRun | None:
    """A run beside its prediction, and those with prices at their best and worst; None if nothing is comparable."""
    if incomparable(plan, pricing):
        return None
    timeline = predict_timeline(workload, plan, pricing)
    fast, slow = extremes(workload, plan, timeline, pricing)
    return JudgedRun(source, group, kind_of(plan, pricing), run.iteration_time, timeline.iteration_time, fast, slow)


def used_of(
    judged: Iterable[tuple[str, JudgedRun]], known: Sequence[Distances] | None = None, part: float = PART
) -> tuple[Used, ...]:
    """The runs with the bands that other groups of sources give them."""
    distances = bundled_distances() if known is None else known
    rows = []
    for label, one in judged:
        own = distances_for(one.kind, distances, one.group)
        band = None if own is None else around(one.predicted, one.fast, one.slow, own, part)
        rows.append(Used(label, one, band))
    return tuple(rows)


class UsedSummary(NamedTuple):
    """A source as used: runs, median |error|, median signed error, fraction of runs inside their bands.

    width: median half width of the bands over the 90th percentile of the |error| of runs inside them
    """

    source: str
    n: int
    median_abs_error: float
    p90_abs_error: float
    bias: float
    coverage: float | None
    width: float | None


def summary_of(source: str, rows: Sequence[Used]) -> UsedSummary | None:
    """The rows of a source in figures; None without rows."""
    if not rows:
        return None
    errors = [row.error for row in rows]
    sizes = [abs(error) for error in errors]
    p90 = quantile(sizes, 0.9) or 0.0
    banded = [row for row in rows if row.band is not None]
    widths = [row.band.half_width for row in banded if row.band is not None]
    covered = quantile([abs(row.error) for row in banded if row.inside], 0.9)
    return UsedSummary(
        source,
        len(rows),
        median(sizes),
        p90,
        median(errors),
        sum(bool(row.inside) for row in banded) / len(banded) if banded else None,
        median(widths) / covered if widths and covered else None,
    )


def reliability(judged: Mapping[str, Sequence[JudgedRun]]) -> dict[float, float]:
    """Found coverage by stated coverage, held out, as the mean over sources."""
    found = {}
    for level in LEVELS:
        parts: list[float] = []
        for runs in judged.values():
            rows = used_of([("", one) for one in runs], part=level)
            inside = [bool(row.inside) for row in rows if row.band is not None]
            if inside:
                parts.append(sum(inside) / len(inside))
        if parts:
            found[level] = sum(parts) / len(parts)
    return found
