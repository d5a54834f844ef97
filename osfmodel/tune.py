"""Backward: the configuration that makes a framework form the best plan, for one worker count or a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osfmodel.cluster import Cluster
from osfmodel.cost import Cost, cost_of
from osfmodel.errors import UsageError
from osfmodel.plan import Plan, contiguous_ends, contiguous_plan
from osfmodel.predict import extrapolation
from osfmodel.recursion import predict_timeline
from osfmodel.solve import SOLVERS, Limits, Solution
from osfmodel.solve.robust import robust_ends
from osfmodel.targets import CONFIG_TARGETS, Target
from osfmodel.workload import Workload

WORTHWHILE = 0.005
"""Gains below half a percent are within what repeated runs differ by, so they are not called improvements."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recommended configuration at one worker count. Times in seconds.

    tuned_time:   with the configuration, as the framework will really carry it out
    default_time: with the framework's defaults
    optimal_time: of the best plan of whole tensors in ready order, whether the framework can form it or not
    """

    workers: int
    tuned_time: float
    default_time: float
    optimal_time: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """tuned_time / lower_bound - 1: at most so much is left for any other schedule."""
        return self.tuned_time / self.lower_bound - 1

    @property
    def gain(self) -> float:
        """Part of the default iteration time that the configuration saves."""
        return 1 - self.tuned_time / self.default_time


@dataclass(frozen=True, slots=True)
class Tuning:
    """The configuration for ``target``, the plan that comes of it, and what it does at each worker count."""

    workload: Workload
    cluster: Cluster
    target: str
    knobs: Any
    plan: Plan
    config: dict[str, Any]
    rendered: str
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()

    @property
    def improvement(self) -> bool:
        """Whether it saves 0.5 % or more of the default's time at some worker count."""
        return any(outcome.gain >= WORTHWHILE for outcome in self.outcomes)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        best = max(self.outcomes, key=lambda outcome: outcome.gain)
        where = f" (at {best.workers} workers)" if len(self.outcomes) > 1 else ""
        if not self.improvement:
            return f"No improvement worth having: at most {max(best.gain, 0):.2%} over the default{where}."
        saved = f"{best.gain:.1%} less time than the default{where}"
        return f"{saved}; no schedule can save more than another {1 - 1 / (1 + best.gap):.1%}."


def tune(
    workload: Workload,
    cluster: Cluster,
    workers: int | Sequence[int],
    target: str | None = None,
    limits: Limits = Limits(),
) -> Tuning:
    """The best configuration of ``target`` (default ddp) for ``workers``.

    For several worker counts, one configuration whose worst slow-down against the best plan of each count is as small
    as was found (solve/robust.py). Raises UsageError for an unknown target or no worker count,
    CostError where the cluster cannot price one, PlanError where the limits allow no plan.
    """
    chosen = _target(target or "ddp")
    counts = [workers] if isinstance(workers, int) else list(workers)
    if not counts:
        raise UsageError("no worker count was given")
    costs = [cost_of(cluster, count) for count in counts]
    solutions = [SOLVERS["optimal"](workload, cost, limits) for cost in costs]
    optima = [solution.require()[1].iteration_time for solution in solutions]
    candidates = _candidates(chosen, workload, costs, solutions, limits)
    times = [[_time(chosen, knobs, workload, cost) for cost in costs] for knobs in candidates]
    regrets = [max(time / best for time, best in zip(row, optima, strict=True)) for row in times]
    best = min(range(len(candidates)), key=regrets.__getitem__)
    default = [_time(chosen, chosen.default_knobs(), workload, cost) for cost in costs]
    bounds = [solution.lower_bound for solution in solutions]
    outcomes = tuple(map(Outcome, counts, times[best], default, optima, bounds))
    return _report(workload, cluster, target or "ddp", candidates[best], costs, outcomes)


def _report(
    workload: Workload, cluster: Cluster, target: str, knobs: Any, costs: Sequence[Cost], outcomes: tuple[Outcome, ...]
) -> Tuning:
    chosen = _target(target)
    plan = chosen.realise(knobs, workload, costs[0])
    notes = dict.fromkeys(note for cost in costs for note in extrapolation(plan, cost))
    return Tuning(
        workload,
        cluster,
        target,
        knobs,
        plan,
        chosen.config(knobs),
        chosen.render(knobs, workload),
        outcomes,
        (*notes, *_shortfall(outcomes)),
    )


def _candidates(
    target: Target, workload: Workload, costs: Sequence[Cost], solutions: Sequence[Solution], limits: Limits
) -> list[Any]:
    """Knobs to choose among: for the best plan of each count, for one made for all of them, and the defaults."""
    plans = [solution.require()[0] for solution in solutions]
    if len(costs) > 1:
        optima = [solution.require()[1].iteration_time for solution in solutions]
        starts = [ends for plan in plans if (ends := contiguous_ends(plan, workload)) is not None]
        plans.append(contiguous_plan(workload, robust_ends(workload, costs, optima, starts, limits)))
    paired = dict(zip(plans, [*costs, *costs[:1]], strict=False))
    candidates = [target.project(plan, workload, cost) for plan, cost in paired.items()]
    if limits == Limits():
        default = target.default_knobs()
        # Spelled out where the target can spell it, so that the recommendation is a complete one.
        candidates += [target.project(target.realise(default, workload, costs[0]), workload, costs[0]), default]
    return candidates


def _target(name: str) -> Target:
    if name not in CONFIG_TARGETS:
        raise UsageError(f"unknown target {name!r}: known are {', '.join(CONFIG_TARGETS)}")
    return CONFIG_TARGETS[name]


def _time(target: Target, knobs: Any, workload: Workload, cost: Cost) -> float:
    return predict_timeline(workload, target.realise(knobs, workload, cost), cost).iteration_time


def _shortfall(outcomes: Sequence[Outcome]) -> list[str]:
    """What is lost against the best plan, and why."""
    worst, workers = max((outcome.tuned_time / outcome.optimal_time - 1, outcome.workers) for outcome in outcomes)
    if worst < WORTHWHILE:
        return []
    if len(outcomes) > 1:
        return [f"one configuration for all counts costs up to {worst:.1%} (at {workers} workers) against one for each"]
    return [f"the best plan of whole tensors would be {worst:.1%} faster than what can be configured"]
