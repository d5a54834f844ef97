"""Remarks on tuned settings: what they lose, take in memory and time otherwise, and on which networks they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import WORTHWHILE, Outcome
from osfmodel.planning.tuning.task import NEGLIGIBLE, SettledTask, TuningProblem
from osfmodel.solve.solution import MEMORY, MemoryLimit

if TYPE_CHECKING:
    from osfmodel.engine.levels import Footprint

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
    from osfmodel.solve.room import peak_of

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
    from osfmodel.solve.room import shortfall

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
        found.append(f"the default {shortfall(usual, task.usual.planned(default)[0][0], room.bytes)}")
    return found


def _level(task: TuningProblem, knobs: Any, room: MemoryLimit) -> Footprint:
    """The highest level of memory of these settings."""
    from osfmodel.solve.room import peak_within

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
        return [f"the best plan at these very prices would save {show_share(another)}, but not on plausible networks"]
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
