"""Tune: find the settings with which a framework forms the best plan, for one worker count or several.

Remarks on them: what they lose, take in memory and time otherwise, and on which networks they hold.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from osfmodel.cost.clusters import pricing_of, require_nouns
from osfmodel.engine.bands import gain_doubt
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import require
from osfmodel.entities.modules import step_of
from osfmodel.entities.plan import PLAIN, Objective, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import Finished
from osfmodel.planning.results import WORTHWHILE, Chance, Outcome, Tuning
from osfmodel.planning.tuning.chances import chance, drawn, times
from osfmodel.planning.tuning.settling import settled
from osfmodel.planning.tuning.task import NEGLIGIBLE, SettledTask, TuningProblem
from osfmodel.solve.solution import MEMORY, Limits, MemoryLimit, PlanRule, planner_of
from osfmodel.targets import CONFIG_TARGETS, require_taken, target_name

if TYPE_CHECKING:
    from osfmodel.engine.levels import Footprint


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
    plan = task.planned(knobs)[0][0]
    if plan == task.usual.planned(default)[0][0]:
        return None
    mine, theirs = times(drawn(task), knobs), times(drawn(task.usual), default)
    return chance(mine, theirs, gain_doubt(plan, task.stock[0]))


def _leads(task: TuningProblem, leads: Sequence[float] | None) -> tuple[float, ...]:
    """The leads to tune for. Raises UsageError if leads are given but change nothing."""
    known = any(layer.enqueue_time is not None for layer in task.workload.layers)
    if leads and (known or not task.target.clock):
        why = "the workload says when its tensors are submitted" if known else "nothing of this target depends on them"
        raise UsageError(f"leads were given, but {why}: leave them out")
    if known or not task.target.clock or all(pricing.blocking for pricing in task.pricings):
        return tuple(leads or ())
    return tuple(leads or HOST_LEADS)


MARGINS = (1.1, 1.25, 1.5, 2.0, 3.0)
"""Factors of network slowness at which a plan is compared with the default."""


def remarks_on(chosen: SettledTask, outcomes: Sequence[Outcome]) -> list[str]:
    """Remarks on the settings that were chosen, in the order in which they are told."""
    task, knobs, _, searched, remarks = chosen
    return [
        *_shortfall(outcomes),
        *(_of_memory(task, knobs) if MEMORY in task.target.limits else ()),
        *(_of_forms(task, knobs) if task.forms else ()),
        *_without(task, knobs, searched),
        *remarks,
        *_margin(task, knobs),
        *_ahead(task, knobs),
        *_grain(task.workload),
        *task.caveats(),
    ]


def _of_forms(task: TuningProblem, knobs: Any) -> list[str]:
    """A remark on the chosen way to accumulate, and on each other, with the same settings at the first worker count."""
    forms, (count, chosen) = task.target.text.accumulation.forms, task.micro_batches
    mine, room = task.times(knobs)[0], _peak(task, knobs)
    said = [f"{count} micro-batches are accumulated by {forms[chosen][1]}"]
    for form, (_, words) in forms.items():
        if form != chosen:
            other = task.accumulating(form)
            time, more = other.times(knobs)[0], _peak(other, knobs) - room
            said.append(
                f"by {words} a step takes {show_predicted_time(time)} ({_share(time / mine - 1)}) and {_memory(more)}"
            )
    return ["; ".join(said)]


def _share(change: float) -> str:
    return f"-{show_share(-change)}" if change < 0 else show_share(change, "+")


def _memory(more: int) -> str:
    return f"{show_bytes(abs(more))} {'less' if more < 0 else 'more'} memory" if more else "as much memory"


def _peak(task: TuningProblem, knobs: Any) -> int:
    """Bytes of the highest level; with any optimizer, where none is known, as differences do not depend on it."""
    from osfmodel.engine.optimizers import OPTIMIZERS  # not loaded for one micro-batch
    from osfmodel.solve.verdicts import peak_of

    plan, timeline = task.planned(knobs)[0]
    room = task.limits.memory
    optimizer = room.optimizer if room is not None else None
    if optimizer is None and task.workload.state_bytes is None:
        optimizer = next(iter(OPTIMIZERS))
    return peak_of(task.workload, plan, timeline, task.pricings[0].workers, optimizer).bytes


def _of_memory(task: TuningProblem, knobs: Any) -> list[str]:
    """Remarks on the memory of ``knobs`` and of the default at the first worker count."""
    room = task.limits.memory
    if room is None:
        return ["groups are freed after forward: --memory SIZE keeps those that fit, and saves their second all-gather"]
    from osfmodel.engine.memory import known  # not loaded without a limit
    from osfmodel.solve.verdicts import shortfall

    level, plan = _level(task, knobs, room), task.planned(knobs)[0][0]
    groups = [group for group in plan.sharding.groups if group.modules] if plan.sharding else []
    kept = sum(group.reshard is not True for group in groups)
    found = [
        f"{show_bytes(level.bytes)} of {show_bytes(room.bytes)} are taken; {kept} of {len(groups)} groups are kept "
        "until backward (reshard_after_forward=False)"
    ]
    if not known(task.workload):
        found.append("memory is without activations, which this profile does not have: leave room for them")
    default = task.target.convert.default_knobs()
    usual = _level(task.usual, default, room)
    if usual.bytes > room.bytes:
        plan, batch = task.usual.planned(default)[0][0], task.workload.batch_size
        found.append(f"the default {shortfall(usual, plan, room.bytes, batch=batch)}")
    return found


def _level(task: TuningProblem, knobs: Any, room: MemoryLimit) -> Footprint:
    """The highest level of memory of these settings."""
    from osfmodel.solve.verdicts import peak_within

    plan, timeline = task.planned(knobs)[0]
    return peak_within(room, task.workload, plan, timeline, task.pricings[0].workers)


def _grain(workload: Workload) -> tuple[str, ...]:
    """A remark if the workload's layers are buckets from a trace, not single layers."""
    if workload.grain != "bucket":
        return ()
    return ("each layer is a bucket of the traced job, so that smaller buckets cannot be looked at",)


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
        return [f"the best plan at these prices would save {show_share(another)}, but not on plausible networks"]
    return [f"the ideal plan would save another {show_share(another)} over what was found for this framework"]


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
    now = zip(task.judged(knobs), task.usual.judged(default), strict=True)
    if any(mine >= theirs * (1 + WORTHWHILE) for mine, theirs in now):
        return []  # it loses on this network too, as the verdict says
    for factor in MARGINS:
        slower = task.slower(factor)
        pairs = zip(slower.judged(knobs, task), slower.usual.judged(default, task.usual), strict=True)
        if any(mine > theirs * (1 + NEGLIGIBLE) for mine, theirs in pairs):
            return [f"if the real network is {factor:g} times slower than described, this plan loses to the default"]
    return []
