"""Remarks on other ways to accumulate gradients over micro-batches: what a step would take, in time and memory."""

from __future__ import annotations

from typing import Any

from osfmodel.engine.optimizers import OPTIMIZERS
from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.planning.tuning_task import TuningProblem
from osfmodel.solve.room import peak_of


def form_remarks(task: TuningProblem, knobs: Any) -> list[str]:
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
    plan, timeline = task.planned(knobs)[0]
    room = task.limits.memory
    optimizer = room.optimizer if room is not None else None
    if optimizer is None and task.workload.state_bytes is None:
        optimizer = next(iter(OPTIMIZERS))
    return peak_of(task.workload, plan, timeline, task.pricings[0].workers, optimizer).bytes
