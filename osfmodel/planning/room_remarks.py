"""Remarks on the memory of tuned sharded settings: what they take, what is kept, and whether the default fits."""

from __future__ import annotations

from typing import Any

from osfmodel.engine.levels import Footprint
from osfmodel.engine.memory import known
from osfmodel.entities.display import show_bytes
from osfmodel.planning.tuning_task import TuningProblem
from osfmodel.solve.room import peak_within, shortfall
from osfmodel.solve.solution import MemoryLimit


def room_remarks(task: TuningProblem, knobs: Any) -> list[str]:
    """Remarks on the memory of ``knobs`` and of the default at the first worker count."""
    room = task.limits.memory
    if room is None:
        return ["groups are freed after forward: --memory SIZE keeps those that fit, and saves their second all-gather"]
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
    plan, timeline = task.planned(knobs)[0]
    return peak_within(room, task.workload, plan, timeline, task.pricings[0].workers)
