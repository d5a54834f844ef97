"""Tune: find the settings with which a framework forms the best plan, for one worker count or several."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from osfmodel.cost.clusters import pricing_of, require_nouns
from osfmodel.engine.bands import gain_doubt
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import require
from osfmodel.entities.modules import step_of
from osfmodel.entities.plan import PLAIN, Objective, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import Finished
from osfmodel.planning.results import Chance, Outcome, Tuning
from osfmodel.planning.tuning.chances import chance, drawn, times
from osfmodel.planning.tuning.remarks import remarks_on
from osfmodel.planning.tuning.settling import settled
from osfmodel.planning.tuning.task import TuningProblem
from osfmodel.solve.solution import Limits, PlanRule, planner_of
from osfmodel.targets import CONFIG_TARGETS, require_taken, target_name

HOST_LEADS = (1.0, 2.0, 5.0)
"""Default factors of how much faster than the device a host may submit its work."""


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
        form=tuning.form,
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
    target = target_name(target) if target else target
    chosen = require(target or "ddp", CONFIG_TARGETS, "target")
    objective = chosen.objective if objective.plain else objective
    require_taken(limits, target or "ddp")
    if limits != Limits() and objective != chosen.objective:
        raise UsageError(f"{' and '.join(limits.given)}: leave it out, or the rules (--channels, --split, ...)")
    if objective != chosen.objective and not chosen.executes:
        has = "one collective at a time and a barrier" if chosen.objective.plain else "rules of its own"
        raise UsageError(f"{target or 'ddp'} has {has}: tune --for runtime instead")
    prices = tuple(pricing_of(cluster, count, workload) for count in counts)
    alone = workload.compute_time
    micro_batches, workload = step_of(workload, objective.strategy)
    several = (micro_batches, chosen.text.accumulation.form)
    task = TuningProblem(workload, chosen, prices, limits, objective, micro_batches=several)
    task = replace(task, leads=_leads(task, leads))
    if len(task.leads) == 1:
        task = replace(task, workload=workload.ahead(*task.leads), leads=())
    default = task.times(task.target.convert.default_knobs())
    found = settled(task, default)
    task, knobs = found.task, found.knobs
    plan, *_ = task.plans(knobs)
    knobs, unsaid = (plan, ()) if isinstance(knobs, Plan) else chosen.text.offloading(knobs, workload)
    outcomes = _outcomes(task, knobs, counts, found.optima, default)
    paid, asked = task.pricings, objective.strategy
    said = Finished(workload, cluster, plan, paid, paid, asked, outcomes[0].tuned_time, alone)
    return Tuning(
        workload,
        cluster,
        target or "ddp",
        knobs,
        plan,
        task.target.text.config(knobs),
        task.target.text.render(knobs, workload),
        outcomes,
        (*unsaid, *said.warnings()),
        (*remarks_on(found._replace(knobs=knobs), outcomes), *said.caveats()),
        form=task.micro_batches[1],
    )


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
    exposed = [timeline.exposed_communication for _, timeline in task.planned(knobs)]
    found = (counts, times, default, best, task.bounds(knobs), task.bands(knobs), chances, exposed, task.plans(knobs))
    return tuple(map(Outcome, *found))


def _chance(task: TuningProblem, knobs: Any) -> Chance | None:
    default = task.target.convert.default_knobs()
    if task.planned(knobs)[0][0] == task.usual.planned(default)[0][0]:
        return None
    mine, theirs = times(drawn(task), knobs), times(drawn(task.usual), default)
    return chance(mine, theirs, gain_doubt(task.stock[0]))


def _leads(task: TuningProblem, leads: Sequence[float] | None) -> tuple[float, ...]:
    """The leads to tune for. Raises UsageError if leads are given but change nothing."""
    known = any(layer.enqueue_time is not None for layer in task.workload.layers)
    if leads and (known or not task.target.clock):
        why = "the workload says when its tensors are submitted" if known else "nothing of this target depends on them"
        raise UsageError(f"leads of the host were given, but {why}: leave them out")
    if known or not task.target.clock or all(pricing.blocking for pricing in task.pricings):
        return tuple(leads or ())
    return tuple(leads or HOST_LEADS)
