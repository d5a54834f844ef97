"""Tune: find the settings with which a framework forms the best plan, for one worker count or several."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from osfmodel.cost.clusters import pricing_of
from osfmodel.engine.bands import gain_doubt
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_predicted_time, show_share
from osfmodel.entities.effects import NO_EFFECTS
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.lookup import require
from osfmodel.entities.modules import SHARDED
from osfmodel.entities.plan import PLAIN, Objective, Plan, contiguous_ends, contiguous_plan
from osfmodel.entities.rounding import within
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import (
    band_caveats,
    busy_caveats,
    cluster_warnings,
    device_caveats,
    effect_caveats,
    flight_caveats,
    network_caveats,
    require_nouns,
    size_warnings,
    slower_than_one,
)
from osfmodel.planning.chances import best_of, chance, drawn, times
from osfmodel.planning.results import WORTHWHILE, Chance, Outcome, Tuning
from osfmodel.planning.tiny_buckets import without_tiny
from osfmodel.planning.tuning_task import TuningProblem
from osfmodel.solve import SOLVERS
from osfmodel.solve.search.robust import penalised, robust_ends
from osfmodel.solve.solution import Limits, PlanRule, Question, planner_of
from osfmodel.solve.under_effects import as_timed
from osfmodel.targets import CONFIG_TARGETS

NEGLIGIBLE = 0.001
"""Largest loss against the optimum, as a fraction, that is accepted for robustness on a slower network."""
STRESS = (1.25, 1.5, 2.0)
"""Factors by which the real network may be slower than described; plans are made robust against them."""
HOST_LEADS = (1.0, 2.0, 5.0)
"""Default factors of how much faster than the device a host may submit its work."""
FEWER = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of buckets of the plans that are tried beside the best one."""
MARGINS = (1.1, 1.25, 1.5, 2.0, 3.0)
"""Factors of network slowness at which a plan is compared with the default."""


def tuned_rule(tuning: Tuning) -> PlanRule:
    """The tuned configuration as a rule that makes a plan at any worker count."""
    target, convert = CONFIG_TARGETS[tuning.target], CONFIG_TARGETS[tuning.target].convert
    default = target.executes and tuning.knobs == convert.default_knobs()  # which is what one has without it
    return PlanRule(
        planner_of(partial(convert.to_plan, tuning.knobs)),
        f"{tuning.target} as tuned for {tuning.outcomes[0].workers} workers",
        target.text.caveats,
        tuning.plan.objective,
        executor=None if default else target.executor,
    )


def tune(
    workload: Workload,
    cluster: Cluster,
    workers: int | Sequence[int],
    target: str | None = None,
    limits: Limits = Limits(),
    objective: Objective = PLAIN,
    leads: Sequence[float] | None = None,
) -> Tuning:
    """The best configuration of ``target`` (default ddp) for ``workers``.

    For one worker count the plan is within 0.1 % of the exact optimum (Horovod's settings alone are preferred to groups
    within 0.5 %) and, within that, the best that was found on a network up to twice as slow as stated. For several it
    is the one whose worst slow-down against the best plan of each count is the smallest that was found, and it is
    slower than the default at none of them. Every candidate is timed with the cluster's effects.

    If settings depend on how far the host runs ahead of the device (Horovod's), and the workload does not say when
    its tensors are submitted, they are the best in the worst of ``leads``: how many times as fast as the device the
    host may be; by default HOST_LEADS, or 1 if the host itself computes. Other rules than the plain ones, or than
    those of a target that has its own, need the target ``runtime``.

    Raises UsageError for an unknown target, no worker count, or leads that change nothing, CostError where the cluster
    cannot price one, PlanError where the limits allow no plan.
    """
    require_nouns(workload, cluster)
    counts = [operator.index(workers)] if hasattr(workers, "__index__") else list(workers)
    if not counts:
        raise UsageError("no worker count was given")
    chosen = require(target or "ddp", CONFIG_TARGETS, "target")
    objective = chosen.objective if objective.plain else objective
    if limits.memory is not None and objective.strategy not in SHARDED:
        raise UsageError(f"--memory does not work with --for {target or 'ddp'} here: only with sharded targets")
    if limits != Limits() and not objective.plain and objective.strategy not in SHARDED:
        raise UsageError(
            f"--max-bucket and --max-buckets do not work with --for {target or 'ddp'} under these rules: leave them out"
        )
    if objective != chosen.objective and not chosen.executes:
        has = "one collective at a time and a barrier" if chosen.objective.plain else "rules of its own"
        raise UsageError(f"{target or 'ddp'} has {has}: tune --for runtime instead")
    prices = tuple(pricing_of(cluster, count, workload) for count in counts)
    task = TuningProblem(workload, chosen, prices, limits, objective)
    task = replace(task, leads=_leads(task, leads))
    if len(task.leads) == 1:
        task = replace(task, workload=workload.ahead(*task.leads), leads=())
    optima = task.optima()
    default = task.times(task.target.convert.default_knobs())
    searched, remarks = task.search([timeline.iteration_time for _, timeline in optima])
    knobs = _likeliest(task, optima, _choose(task, optima, default, searched), searched)
    knobs = task.complete(knobs if knobs is searched else without_tiny(task, knobs))
    plan, _ = task.planned(knobs)[0]
    return Tuning(
        workload,
        cluster,
        target or "ddp",
        knobs,
        plan,
        task.target.text.config(knobs),
        task.target.text.render(knobs, workload),
        outcomes := _outcomes(task, knobs, counts, optima, default),
        (
            *size_warnings(workload, max(counts)),
            *dict.fromkeys(note for count in counts for note in cluster_warnings(cluster, count)),
            *task.extrapolation(plan),
        ),
        (
            *slower_than_one(workload, counts[0], outcomes[0].tuned_time),
            *_shortfall(outcomes),
            *_of_memory(task, knobs),
            *_without(task, knobs, searched),
            *remarks,
            *_margin(task, knobs),
            *_ahead(task, knobs),
            *_grain(workload),
            *task.caveats(),
            *band_caveats(plan, task.pricings[-1]),
            *effect_caveats(task.pricings[-1], cluster, workload),
            *flight_caveats(cluster),
            *device_caveats(workload, cluster),
            *busy_caveats(cluster, workload, plan, counts[0], outcomes[0].tuned_time),
            *network_caveats(cluster, max(counts)),
        ),
    )


def _of_memory(task: TuningProblem, knobs: Any) -> list[str]:
    """Remarks on the memory of sharded settings."""
    if task.objective.strategy not in SHARDED:
        return []
    from osfmodel.planning.room_remarks import room_remarks  # not loaded for other strategies

    return room_remarks(task, knobs)


def _grain(workload: Workload) -> tuple[str, ...]:
    """A remark if the workload's layers are buckets from a trace, not single layers."""
    if workload.grain != "bucket":
        return ()
    return ("each layer is a bucket of the traced job, so that smaller buckets cannot be looked at",)


def _outcomes(
    task: TuningProblem,
    knobs: Any,
    counts: Sequence[int],
    optima: Sequence[tuple[Plan, Timeline]],
    default: Sequence[float],
) -> tuple[Outcome, ...]:
    times = task.times(knobs)
    # With several dtypes the optimum is only searched for: the tuned plan may be better still.
    best = [min(time, timeline.iteration_time) for time, (_, timeline) in zip(times, optima, strict=True)]
    single = [task] if len(task.stock) == 1 else [replace(task, stock=(price,)) for price in task.stock]
    chances = [_chance(one, knobs) for one in single]
    return tuple(map(Outcome, counts, times, default, best, task.bounds(), task.bands(knobs), chances))


def _chance(task: TuningProblem, knobs: Any) -> Chance | None:
    default = task.target.convert.default_knobs()
    same = knobs == default or task.planned(knobs)[0][0] == task.planned(default)[0][0]
    problems = [] if same else drawn(task)
    if not problems:
        return None
    return chance(times(problems, knobs), times(problems, default), gain_doubt(task.stock[0]))


def _likeliest(task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], chosen: Any, searched: Any | None) -> Any:
    """For one count, whichever does best on plausible networks.

    Tried are ``chosen``, the default, plans with fewer buckets, and plans for slower networks.
    """
    if len(task.stock) > 1 or task.leads or searched is not None or task.target.executes:
        return chosen
    options = [task.target.convert.default_knobs(), chosen]
    options += [task.from_plan(plan, task.pricings[0]) for plan in _alternatives(task, *optima[0])]
    return best_of(task, [knobs for knobs in options if task.keeps_limits(knobs)] or [chosen])


def _alternatives(task: TuningProblem, plan: Plan, timeline: Timeline) -> Iterator[Plan]:
    """The best plans with fewer buckets and for slower networks, for the ready times that effects led to."""
    if not task.objective.plain:
        return
    seen, pricing = as_timed(task.workload, timeline), task.pricings[0]
    bare = replace(pricing, effects=NO_EFFECTS)
    asked = [
        Question(seen, bare, limits=replace(task.limits, max_buckets=most))
        for most in FEWER
        if most < min(len(plan.buckets), task.limits.max_buckets or len(plan.buckets))
    ]
    asked += [Question(seen, bare.slower(factor), limits=task.limits) for factor in STRESS]
    for question in asked:
        found = SOLVERS["optimal"].solve(question).plan
        if found is not None:
            yield found


def _choose(
    task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], default: Sequence[float], searched: Any | None
) -> Any:
    """The first candidate whose worst slow-down is the smallest, or almost. Raises PlanError without candidates."""
    best = [timeline.iteration_time for _, timeline in optima]
    several = len(task.costs) > 1
    ceilings = list(default) if several else [time * (1 + NEGLIGIBLE) for time in best]
    found = [searched, *_candidates(task, optima, ceilings)]
    candidates = [knobs for knobs in found if knobs is not None and task.keeps_limits(knobs)]
    if not candidates:
        raise PlanError(task.limits.unmet("settings of this framework"))
    # The target's own search wins unless another candidate is much better; then, for one count, the robust plan.
    values = [penalised(task.judged(knobs), best, ceilings if several else ()) for knobs in candidates]
    close = 0 if several else NEGLIGIBLE
    search = task.target.search
    allowed = [1 + (search.reluctance if search and knobs is searched else close) for knobs in candidates]
    rows = zip(candidates, values, allowed, strict=True)
    return next(knobs for knobs, value, factor in rows if value <= within(min(values) * factor))


def _candidates(
    task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], ceilings: Sequence[float]
) -> Iterator[Any]:
    """Knobs to choose among: those of a robust plan, of the best plan of each count, and the defaults."""
    robust = _robust(task, optima, ceilings)
    pairs = [(robust, task.pricings[0])] if robust is not None else []
    pairs += [(plan, pricing) for (plan, _), pricing in zip(optima, task.pricings, strict=True)]
    # The defaults are spelled out if the target can do so, for a complete recommendation.
    pairs.append((task.target.convert.default(task.workload, task.pricings[0]), task.pricings[0]))
    seen: set[Plan] = set()
    for plan, pricing in pairs:
        if plan not in seen:
            seen.add(plan)
            yield task.from_plan(plan, pricing)
    yield task.target.convert.default_knobs()


def _robust(task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], ceilings: Sequence[float]) -> Plan | None:
    """One plan for all counts; for one count, one that suits slower networks too. None if dtypes alternate."""
    if not task.objective.plain:
        return None  # the search for robust plans knows the barrier only
    costs, known = list(task.costs), list(optima)
    if len(costs) == 1:
        for factor in STRESS:
            slower = task.slower(factor)
            costs, known = [*costs, *slower.costs], [*known, *slower.optima()]
    starts = [ends for plan, _ in known if (ends := contiguous_ends(plan, task.workload)) is not None]
    if len(starts) < len(known) or not task.workload.gradients:
        return None
    best = [timeline.iteration_time for _, timeline in known]
    seen = task.workload
    if task.pricings[0].effects.active:
        seen = as_timed(task.workload, optima[0][1])
    return contiguous_plan(task.workload, robust_ends(seen, costs, best, starts, task.limits, ceilings))


def _shortfall(outcomes: Sequence[Outcome]) -> list[str]:
    """A remark on the loss against the best plan, with its reason."""
    worst, workers = max((outcome.tuned_time / outcome.optimal_time - 1, outcome.workers) for outcome in outcomes)
    if worst < WORTHWHILE:
        return []
    if len(outcomes) > 1:
        return [
            f"one configuration for all counts costs up to {show_share(worst)} (at {workers} workers) against "
            "one for each"
        ]
    another = 1 - outcomes[0].optimal_time / outcomes[0].tuned_time
    if outcomes[0].chance is None:
        return [f"the best plan at these very prices would save {show_share(another)}, but not on plausible networks"]
    return [f"the ideal plan would save another {show_share(another)} over what was found for this framework"]


def _leads(task: TuningProblem, leads: Sequence[float] | None) -> tuple[float, ...]:
    """The leads to tune for. Raises UsageError if leads are given but change nothing."""
    known = any(layer.enqueue_time is not None for layer in task.workload.layers)
    if leads and (known or not task.target.clock):
        why = "the workload says when its tensors are submitted" if known else "nothing of this target depends on them"
        raise UsageError(f"leads of the host were given, but {why}: leave them out")
    if known or not task.target.clock or all(pricing.blocking for pricing in task.pricings):
        return tuple(leads or ())
    return tuple(leads or HOST_LEADS)


def _without(task: TuningProblem, knobs: Any, searched: Any | None) -> list[str]:
    """A remark on the loss with the settings that the target's own search found, if others are recommended."""
    words = task.target.search.words if task.target.search else str
    if searched is None or words(knobs) in (words(searched), words(task.target.convert.default_knobs())):
        return []
    mine, theirs = task.times(knobs)[0], task.times(searched)[0]
    whatever = ", whether or not the CPU runs ahead," if task.leads else ","
    return [
        f"settings alone cannot form this plan: the best found, {words(searched)}{whatever} takes "
        f"{show_predicted_time(theirs)} ({show_share(theirs / mine - 1, '+')})"
    ]


def _ahead(task: TuningProblem, knobs: Any) -> list[str]:
    """A remark on the iteration time if the host runs ahead of the device, which the table does not show."""
    if not task.leads:
        return []
    times, worst = task.times(knobs)[0], task.judged(knobs)[0]
    apart = (
        f"up to {show_predicted_time(worst)} ({show_share(worst / times - 1, '+')})"
        if worst > times
        else "the step takes no longer"
    )
    ahead = f"submitting up to {max(task.leads):g} times as fast as the GPU computes"
    return [f"times assume that the CPU does not run ahead of the GPU; if it does ({ahead}), {apart}"]


def _margin(task: TuningProblem, knobs: Any) -> list[str]:
    """A remark on how much slower than stated the network may be before the default would be better."""
    default = task.target.convert.default_knobs()
    now = zip(task.judged(knobs), task.judged(default), strict=True)
    if any(mine >= theirs * (1 + WORTHWHILE) for mine, theirs in now):
        return []  # it loses on this network too, as the verdict says
    for factor in MARGINS:
        slower = task.slower(factor)
        pairs = zip(slower.judged(knobs), slower.judged(default), strict=True)
        if any(mine > theirs * (1 + NEGLIGIBLE) for mine, theirs in pairs):
            return [f"if the real network is {factor:g} times slower than described, this plan loses to the default"]
    return []
