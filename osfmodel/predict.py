"""Forward: a workload on a cluster under a plan, and several plans side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from osfmodel import recursion
from osfmodel.bands import Band, band_for, bundled_bands, regime_of
from osfmodel.cluster import Cluster
from osfmodel.cost import Cost, TableCost, cost_of
from osfmodel.effects import Effects
from osfmodel.errors import UsageError
from osfmodel.plan import Plan
from osfmodel.plans import NAMED_PLANS, named_plan
from osfmodel.solve.bounds import iteration_bound
from osfmodel.timeline import Timeline
from osfmodel.units import show_bytes
from osfmodel.workload import Workload


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one plan makes of one iteration.

    ``warnings`` say where a price is extrapolated, ``caveats`` what a prediction for this framework takes for granted.
    ``band`` says how far such predictions were from measured runs; None where nothing is communicated.
    """

    name: str
    plan: Plan = field(repr=False)
    timeline: Timeline = field(repr=False)
    lower_bound: float
    warnings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    band: Band | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """All that there is to be careful about."""
        return self.warnings + self.caveats

    @property
    def iteration_time(self) -> float:
        """Seconds."""
        return self.timeline.iteration_time

    @property
    def engine(self) -> str:
        """Which engine made the timeline."""
        return self.timeline.engine

    @property
    def gap(self) -> float:
        """iteration_time / lower_bound - 1."""
        return self.timeline.iteration_time / self.lower_bound - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several plans for one workload, cluster and worker count."""

    workload: Workload = field(repr=False)
    cluster: Cluster = field(repr=False)
    workers: int
    lower_bound: float
    predictions: tuple[Prediction, ...]


def predict(
    workload: Workload, cluster: Cluster, plan: str | Plan, workers: int, effects: Effects | None = None
) -> Prediction:
    """The iteration of ``workload`` under ``plan`` (a Plan, or a name from NAMED_PLANS) on ``workers`` workers.

    ``effects`` default to the cluster's.

    Raises UsageError for an unknown name or worker count, CostError where the cluster cannot price it, PlanError where
    the plan does not belong to the workload.
    """
    return compare(workload, cluster, workers, [plan], effects=effects).predictions[0]


def compare(
    workload: Workload,
    cluster: Cluster,
    workers: int,
    plans: Sequence[str | Plan | tuple[str, Plan]] = tuple(NAMED_PLANS),
    changes: Mapping[str, Any] = MappingProxyType({}),
    effects: Effects | None = None,
) -> Comparison:
    """Predict each of ``plans``, given by name, as a Plan or as (label, Plan). Raises as :func:`predict`.

    ``changes`` are fields of Plan to set on each of them, such as {"channels": 2}.
    """
    require_nouns(workload, cluster)
    subject = _Subject(workload, cluster, workers, effects)
    bound = iteration_bound(workload, subject.cost)
    predictions = tuple(_predict(subject, plan, bound, changes) for plan in plans)
    return Comparison(workload, cluster, workers, bound, predictions)


class _Subject:
    """What all plans of a comparison share; the launch latency is part of the cost, so that solvers see it."""

    def __init__(self, workload: Workload, cluster: Cluster, workers: int, effects: Effects | None) -> None:
        self.workload, self.workers = workload, workers
        stated = cluster.effects if effects is None else effects
        self.cost = price(cluster, workers, stated)
        self.effects = stated.apart_from_cost
        self.caveats = effect_caveats(stated)
        self.warnings = count_warnings(cluster, workers)

    def timeline(self, plan: Plan) -> Timeline:
        """One iteration under ``plan``."""
        return recursion.predict_timeline(self.workload, plan, self.cost, self.effects, self.workers)


def price(cluster: Cluster, workers: int, effects: Effects) -> Cost:
    """All-reduce on ``cluster`` with the launch latency of ``effects``, which one worker alone does not pay."""
    cost = cost_of(cluster, workers)
    return cost.plus(effects.launch_latency) if effects.launch_latency and workers > 1 else cost


def effect_caveats(effects: Effects) -> tuple[str, ...]:
    """What is said of a prediction with effects: which, and that the search for plans does not see all of them."""
    if not effects.active:
        return ()
    named = ", ".join(f"{name}={value:g}" for name, value in effects.active.items())
    unseen = any(effects.apart_from_cost.active)
    proof = "; plans are compared with them, but made and bounded without all but launch_latency" if unseen else ""
    return (f"with the effects {named}{proof}",)


def _predict(
    subject: _Subject, given: str | Plan | tuple[str, Plan], bound: float, changes: Mapping[str, Any]
) -> Prediction:
    caveats: tuple[str, ...] = ()
    if isinstance(given, str):
        entry = named_plan(given)
        label, plan, caveats = given, entry.rule(subject.workload, subject.cost), entry.caveats(subject.workload)
    else:
        label, plan = given if isinstance(given, tuple) else ("given", given)
    plan = replace(plan, **changes)
    warnings, timeline = extrapolation(plan, subject.cost), subject.timeline(plan)
    band = error_band(subject.workload, timeline, subject.cost)
    return Prediction(label, plan, timeline, bound, subject.warnings + warnings, caveats + subject.caveats, band)


def error_band(workload: Workload, timeline: Timeline, cost: Cost) -> Band | None:
    """How far predictions in this regime were from measured runs."""
    return band_for(regime_of(workload, timeline, cost), bundled_bands())


def require_nouns(workload: object, cluster: object) -> None:
    """Raise UsageError, saying how to get one, for what is no Workload or no Cluster."""
    for value, noun, load in ((workload, Workload, "load_workload"), (cluster, Cluster, "load_cluster")):
        if not isinstance(value, noun):
            raise UsageError(f"{value!r} is not a {noun.__name__}: get one with osfmodel.{load}(name or path)")


def extrapolation(plan: Plan, cost: Cost) -> tuple[str, ...]:
    """A warning where a message is larger or smaller than what was measured."""
    measured = cost.measured_range
    if measured is None or not plan.buckets:
        return ()
    sizes = [bucket.size for bucket in plan.buckets]
    smallest, largest = min(sizes), max(sizes)
    notes = []
    if largest > measured[1]:
        notes.append(f"messages above {show_bytes(measured[1])}, the largest measured, are extrapolated")
    if smallest < measured[0]:
        how = "priced like that one" if isinstance(cost, TableCost) else "extrapolated"
        notes.append(f"messages below {show_bytes(measured[0])}, the smallest measured, are {how}")
    return tuple(notes)


def count_warnings(cluster: Cluster, workers: int) -> tuple[str, ...]:
    """A warning where a fitted cluster is asked for a worker count that the fit did not see."""
    if cluster.fitted is None or workers == 1 or workers in cluster.fitted.workers:
        return ()
    fitted = ", ".join(map(str, cluster.fitted.workers))
    return (f"prices for {workers} workers are extrapolated from a fit to {fitted} workers",)
