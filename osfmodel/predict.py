"""Forward: a workload on a cluster under a plan, and several plans side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from osfmodel import recursion
from osfmodel.cluster import Cluster
from osfmodel.cost import Cost, cost_of
from osfmodel.errors import UsageError
from osfmodel.plan import Plan, contiguous_plan
from osfmodel.solve import SOLVERS, Limits
from osfmodel.solve.bounds import iteration_bound
from osfmodel.targets import CONFIG_TARGETS, Target
from osfmodel.timeline import Timeline
from osfmodel.units import show_bytes
from osfmodel.workload import Workload

PlanRule: TypeAlias = Callable[[Workload, Cost], Plan]


def _one_each(workload: Workload, cost: Cost) -> Plan:
    return contiguous_plan(workload, range(1, len(workload.gradients) + 1))


def _single(workload: Workload, cost: Cost) -> Plan:
    """Everything in one message; one per dtype where there are several, since types do not mix."""
    dtypes = workload.gradients.dtypes
    changes = [i for i in range(1, len(dtypes)) if dtypes[i] != dtypes[i - 1]]
    return contiguous_plan(workload, [*changes, len(dtypes)] if dtypes else [])


def _by_default(target: Target) -> PlanRule:
    return lambda workload, cost: target.realise(target.default_knobs(), workload, cost)


def _by_solver(name: str) -> PlanRule:
    return lambda workload, cost: SOLVERS[name](workload, cost, Limits()).require()[0]


NAMED_PLANS: Mapping[str, PlanRule] = {
    "wfbp": _one_each,
    "single": _single,
    **{name: _by_default(target) for name, target in CONFIG_TARGETS.items()},
    **{name: _by_solver(name) for name in SOLVERS},
}

DESCRIPTIONS: Mapping[str, str] = {
    "wfbp": "one collective per tensor, as soon as it is ready (wait-free backpropagation)",
    "single": "all gradients in one collective after backward",
    "ddp": "PyTorch DistributedDataParallel with its default caps, 1 MiB then 25 MiB",
    "horovod": "Horovod with its default fusion threshold, 128 MiB, and cycle time, 1 ms",
    "mg-wfbp": "merged-gradient WFBP as published (TPDS'21)",
    "optimal": "the exact optimum over plans of whole tensors in ready order",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one plan makes of one iteration. ``notes`` says what to be careful about."""

    name: str
    plan: Plan
    timeline: Timeline
    lower_bound: float
    engine: str = recursion.NAME
    notes: tuple[str, ...] = ()

    @property
    def iteration_time(self) -> float:
        """Seconds."""
        return self.timeline.iteration_time

    @property
    def gap(self) -> float:
        """iteration_time / lower_bound - 1."""
        return self.timeline.iteration_time / self.lower_bound - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several plans for one workload, cluster and worker count."""

    workload: Workload
    cluster: Cluster
    workers: int
    lower_bound: float
    predictions: tuple[Prediction, ...]


def predict(workload: Workload, cluster: Cluster, plan: str | Plan, workers: int) -> Prediction:
    """The iteration of ``workload`` under ``plan`` (a Plan, or a name from NAMED_PLANS) on ``workers`` workers.

    Raises UsageError for an unknown name or worker count, CostError where the cluster cannot price it, PlanError where
    the plan does not belong to the workload.
    """
    cost = cost_of(cluster, workers)
    return _predict(workload, cost, plan, iteration_bound(workload, cost))


def compare(
    workload: Workload, cluster: Cluster, workers: int, plans: Sequence[str | tuple[str, Plan]] = tuple(NAMED_PLANS)
) -> Comparison:
    """Predict each of ``plans``, given by name or as (label, Plan). Raises as :func:`predict`."""
    cost = cost_of(cluster, workers)
    bound = iteration_bound(workload, cost)
    predictions = []
    for entry in plans:
        label, plan = (entry, entry) if isinstance(entry, str) else entry
        predictions.append(_predict(workload, cost, plan, bound, label))
    return Comparison(workload, cluster, workers, bound, tuple(predictions))


def _predict(workload: Workload, cost: Cost, plan: str | Plan, bound: float, label: str = "") -> Prediction:
    if isinstance(plan, str):
        label, plan = plan, named_plan(plan, workload, cost)
    timeline = recursion.predict_timeline(workload, plan, cost)
    return Prediction(label or "given", plan, timeline, bound, notes=extrapolation(plan, cost))


def named_plan(name: str, workload: Workload, cost: Cost) -> Plan:
    """The plan called ``name``. Raises UsageError for a name that is not in NAMED_PLANS."""
    if name not in NAMED_PLANS:
        raise UsageError(f"unknown plan {name!r}: known are {', '.join(NAMED_PLANS)}, or give a plan file")
    return NAMED_PLANS[name](workload, cost)


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
        notes.append(f"messages below {show_bytes(measured[0])}, the smallest measured, are priced like that one")
    return tuple(notes)
