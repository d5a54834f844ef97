"""Backward: the configuration that makes a framework form the best plan, for one worker count or a range."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osfmodel.bands import Band
from osfmodel.cluster import Cluster
from osfmodel.cost import Cost
from osfmodel.effects import NO_EFFECTS, Effects
from osfmodel.errors import PlanError, UsageError
from osfmodel.plan import Plan, contiguous_ends, contiguous_plan
from osfmodel.predict import count_warnings, effect_caveats, error_band, extrapolation, price, require_nouns
from osfmodel.recursion import predict_timeline
from osfmodel.solve import SOLVERS, Limits
from osfmodel.solve.bounds import iteration_bound
from osfmodel.solve.robust import penalised, robust_ends
from osfmodel.targets import CONFIG_TARGETS, Target
from osfmodel.timeline import Timeline
from osfmodel.units import show_bytes
from osfmodel.workload import Workload

WORTHWHILE = 0.005
"""Gains below half a percent are within what repeated runs differ by, so they are not called improvements."""
NEGLIGIBLE = 0.001
"""What a plan may lose against the optimum, as a part of its time, for being safe on a slower network."""
STRESS = (1.25, 1.5, 2.0)
"""How many times slower than stated a network may turn out to be; plans are made to bear it."""
MARGINS = (1.1, 1.25, 1.5, 2.0, 3.0)
"""Factors at which a plan is compared with the default."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recommended configuration at one worker count. Times in seconds.

    tuned_time:   with the configuration, as the framework will really carry it out
    default_time: with the framework's defaults
    band:         how far such predictions were from measured runs
    optimal_time: of the best plan of whole tensors in ready order, whether the framework can form it or not
    """

    workers: int
    tuned_time: float
    default_time: float
    optimal_time: float
    lower_bound: float
    band: Band | None = None

    @property
    def gap(self) -> float:
        """tuned_time / lower_bound - 1: at most so much is left for any other schedule."""
        return self.tuned_time / self.lower_bound - 1

    @property
    def left(self) -> float:
        """Part of the tuned iteration time that any other schedule could save at most."""
        return 1 - self.lower_bound / self.tuned_time

    @property
    def gain(self) -> float:
        """Part of the default iteration time that the configuration saves."""
        return 1 - self.tuned_time / self.default_time


@dataclass(frozen=True, slots=True)
class Tuning:
    """The configuration for ``target``, the plan that comes of it, and what it does at each worker count.

    ``plan`` is as realised at the first worker count. ``warnings`` say where a price is extrapolated, ``remarks`` what
    is lost, what a slower network would change, and what a prediction for this framework takes for granted.
    """

    workload: Workload = field(repr=False)
    cluster: Cluster = field(repr=False)
    target: str
    knobs: Any = field(repr=False)
    plan: Plan = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    rendered: str = field(repr=False)
    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """All that there is to be careful about."""
        return self.warnings + self.remarks

    @property
    def improvement(self) -> bool:
        """Whether it saves 0.5 % or more of the default's time at some worker count."""
        return any(outcome.gain >= WORTHWHILE for outcome in self.outcomes)

    @property
    def verdict(self) -> str:
        """The result in one sentence or two."""
        worst, best = (pick(self.outcomes, key=lambda outcome: outcome.gain) for pick in (min, max))
        where = f" (at {best.workers} workers)" if len(self.outcomes) > 1 else ""
        if worst.gain <= -WORTHWHILE:
            return (
                f"Between {-worst.gain:.1%} more time than the default (at {worst.workers} workers) "
                f"and {best.gain:.1%} less{where}."
                if len(self.outcomes) > 1
                else f"{-worst.gain:.1%} more time than the default: the limits cost more than tuning gains."
            )
        if not self.improvement:
            return f"No improvement worth having: {max(best.gain, 0):.2%} over the default{where}. Keep the default."
        saved = f"{best.gain:.1%} less time than the default{where}"
        return f"{saved}; no schedule can save more than another {best.left:.1%}."


def tune(
    workload: Workload,
    cluster: Cluster,
    workers: int | Sequence[int],
    target: str | None = None,
    limits: Limits = Limits(),
    effects: Effects | None = None,
) -> Tuning:
    """The best configuration of ``target`` (default ddp) for ``workers``.

    For one worker count the plan is within 0.1 % of the exact optimum and, within that, as good as was found on a
    network up to twice as slow as stated. For several it is the one whose worst slow-down against the best plan of
    each count is as small as was found, and it is slower than the default at none of them. ``effects`` default to the
    cluster's; every candidate is timed with them. Raises UsageError for an
    unknown target or no worker count, CostError where the cluster cannot price one, PlanError where the limits allow
    no plan.
    """
    require_nouns(workload, cluster)
    counts = [operator.index(workers)] if hasattr(workers, "__index__") else list(workers)
    if not counts:
        raise UsageError("no worker count was given")
    stated = cluster.effects if effects is None else effects
    costs = tuple(price(cluster, count, stated) for count in counts)
    task = Task(workload, _target(target or "ddp"), costs, limits, stated.apart_from_cost, tuple(counts))
    optima = task.optima()
    default = task.times(task.target.default_knobs())
    knobs = _choose(task, optima, default)
    times = task.times(knobs)
    knobs = task.target.complete(knobs, workload, task.costs[0], limits)
    plan = task.target.realise(knobs, workload, task.costs[0])
    # Where the optimum could only be searched for (several dtypes), what was realised may be better still.
    best = [min(time, timeline.iteration_time) for time, (_, timeline) in zip(times, optima, strict=True)]
    bounds = [iteration_bound(workload, cost) for cost in task.costs]
    outcomes = tuple(map(Outcome, counts, times, default, best, bounds, task.bands(knobs)))
    return Tuning(
        workload,
        cluster,
        target or "ddp",
        knobs,
        plan,
        task.target.config(knobs),
        task.target.render(knobs, workload),
        outcomes,
        (*(note for count in counts for note in count_warnings(cluster, count)), *task.extrapolation(plan)),
        (*_shortfall(outcomes), *_margin(task, knobs), *task.caveats(), *effect_caveats(stated)),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be tuned: a workload under a target's rules at one or several prices, within limits."""

    workload: Workload
    target: Target
    costs: tuple[Cost, ...]
    limits: Limits
    effects: Effects = NO_EFFECTS
    counts: tuple[int, ...] = ()

    def optima(self) -> list[tuple[Plan, Timeline]]:
        """The exact optimum under each cost. Raises PlanError, naming the largest tensor, where there is none."""
        return [self._optimum(position) for position in range(len(self.costs))]

    def _optimum(self, position: int) -> tuple[Plan, Timeline]:
        cost = self.costs[position]
        solution = SOLVERS["optimal"].solve(self.workload, cost, self.limits)
        if solution.plan is None:
            gradients = self.workload.gradients
            size, name = max(zip(gradients.sizes, gradients.names, strict=True))
            raise PlanError(f"{solution.status.value} (the largest tensor is {name!r} with {show_bytes(size)})")
        plan, timeline = solution.require()
        return plan, self._timeline(plan, position) if self.effects.active else timeline

    def _timeline(self, plan: Plan, position: int) -> Timeline:
        return predict_timeline(self.workload, plan, self.costs[position], self.effects, self.counts[position])

    def times(self, knobs: Any) -> list[float]:
        """Iteration time under each cost of what the target makes of ``knobs``."""
        return [
            self._timeline(self.target.realise(knobs, self.workload, cost), position).iteration_time
            for position, cost in enumerate(self.costs)
        ]

    def bands(self, knobs: Any) -> list[Band | None]:
        """The error band of the tuned time under each cost."""
        return [
            error_band(self.workload, self._timeline(self.target.realise(knobs, self.workload, cost), position), cost)
            for position, cost in enumerate(self.costs)
        ]

    def project(self, plan: Plan, cost: Cost) -> Any:
        """The target's knobs for ``plan``."""
        return self.target.project(plan, self.workload, cost, self.limits)

    def keeps_limits(self, knobs: Any) -> bool:
        """Whether what the target makes of ``knobs`` is within the limits under every cost."""
        most_bytes, most = self.limits.max_bucket_bytes, self.limits.max_buckets
        plans = [self.target.realise(knobs, self.workload, cost) for cost in self.costs]
        return all(most is None or len(plan.buckets) <= most for plan in plans) and all(
            most_bytes is None or bucket.size <= most_bytes for plan in plans for bucket in plan.buckets
        )

    def slower(self, factor: float) -> Task:
        """The same on a network that takes ``factor`` times as long."""
        return replace(self, costs=tuple(cost.slower(factor) for cost in self.costs))

    def caveats(self) -> tuple[str, ...]:
        """What the target's and the solver's results take for granted."""
        return self.target.caveats(self.workload) + SOLVERS["optimal"].caveats(self.workload)

    def extrapolation(self, plan: Plan) -> tuple[str, ...]:
        """What is beyond the measured sizes, each said once."""
        return tuple(dict.fromkeys(note for cost in self.costs for note in extrapolation(plan, cost)))


def _choose(task: Task, optima: Sequence[tuple[Plan, Timeline]], default: Sequence[float]) -> Any:
    """The first of the candidates whose worst slow-down is (all but) the smallest. Raises PlanError for none."""
    best = [timeline.iteration_time for _, timeline in optima]
    several = len(task.costs) > 1
    ceilings = list(default) if several else [time * (1 + NEGLIGIBLE) for time in best]
    candidates = [knobs for knobs in _candidates(task, optima, ceilings) if task.keeps_limits(knobs)]
    if not candidates:
        raise PlanError("no settings of this framework keep the limits for this workload: raise them")
    # For one count the robust plan comes first and is kept where it is all but the best.
    values = [penalised(task.times(knobs), best, ceilings if several else ()) for knobs in candidates]
    close = 1 if several else 1 + NEGLIGIBLE
    return next(knobs for knobs, value in zip(candidates, values, strict=True) if value <= min(values) * close)


def _candidates(task: Task, optima: Sequence[tuple[Plan, Timeline]], ceilings: Sequence[float]) -> Iterator[Any]:
    """Knobs to choose among: for a robust plan, for the best plan of each count, and the defaults."""
    robust = _robust(task, optima, ceilings)
    pairs = [(robust, task.costs[0])] if robust is not None else []
    pairs += [(plan, cost) for (plan, _), cost in zip(optima, task.costs, strict=True)]
    # Spelled out where the target can spell it, so that the recommendation is a complete one.
    default = task.target.default_knobs()
    pairs.append((task.target.realise(default, task.workload, task.costs[0]), task.costs[0]))
    seen: set[Plan] = set()
    for plan, cost in pairs:
        if plan not in seen:
            seen.add(plan)
            yield task.project(plan, cost)
    yield default


def _robust(task: Task, optima: Sequence[tuple[Plan, Timeline]], ceilings: Sequence[float]) -> Plan | None:
    """One plan for all counts; for one count, one that also serves slower networks. None where dtypes alternate."""
    costs, known = list(task.costs), list(optima)
    if len(costs) == 1:
        for factor in STRESS:
            slower = task.slower(factor)
            costs, known = [*costs, *slower.costs], [*known, *slower.optima()]
    starts = [ends for plan, _ in known if (ends := contiguous_ends(plan, task.workload)) is not None]
    if len(starts) < len(known) or not task.workload.gradients:
        return None
    best = [timeline.iteration_time for _, timeline in known]
    return contiguous_plan(task.workload, robust_ends(task.workload, costs, best, starts, task.limits, ceilings))


def _target(name: str) -> Target:
    if name not in CONFIG_TARGETS:
        raise UsageError(f"unknown target {name!r}: known are {', '.join(CONFIG_TARGETS)}")
    return CONFIG_TARGETS[name]


def _shortfall(outcomes: Sequence[Outcome]) -> list[str]:
    """What is lost against the best plan, and why."""
    worst, workers = max((outcome.tuned_time / outcome.optimal_time - 1, outcome.workers) for outcome in outcomes)
    if worst < WORTHWHILE:
        return []
    if len(outcomes) > 1:
        return [f"one configuration for all counts costs up to {worst:.1%} (at {workers} workers) against one for each"]
    return [f"the best plan of whole tensors would be {worst:.1%} faster than what was found for this framework"]


def _margin(task: Task, knobs: Any) -> list[str]:
    """How much slower than stated the network may be before the default would have been the better choice."""
    default = task.target.default_knobs()
    for factor in MARGINS:
        slower = task.slower(factor)
        pairs = zip(slower.times(knobs), slower.times(default), strict=True)
        if any(mine > theirs * (1 + NEGLIGIBLE) for mine, theirs in pairs):
            return [f"on a network {factor:g} times as slow as stated the default would be faster"]
    return []
