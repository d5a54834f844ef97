"""An executor that runs any plan: its knobs are the plan itself, and its configuration is a plan file.

Its default is PyTorch DDP's default buckets, so that its gains are gains over stock DDP.
"""

from __future__ import annotations

from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.files.documents import document_of, encode
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import DDP_LIMITS, bucket_layout
from osfmodel.solve.solution import Limits
from osfmodel.targets.target import Accumulation, Conversion, Launch, SettingsText, Target


def from_plan(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> Plan:
    """The plan as it is."""
    plan.require_valid(workload)
    plan.require_whole_elements(workload)
    return plan


def to_plan(knobs: Plan | None, workload: Workload, pricing: Pricing) -> Plan:
    """The plan as it is; without one, DDP's default plan."""
    return grouped_plan(workload, bucket_layout(workload.gradients, DDP_LIMITS)) if knobs is None else knobs


def config(knobs: Plan | None) -> dict[str, Any]:
    """The plan as a document."""
    return {} if knobs is None else document_of(knobs)


def render(knobs: Plan | None, workload: Workload) -> str:
    """The plan file."""
    return "" if knobs is None else encode(document_of(knobs))


def accumulate(count: int) -> str:
    """A sentence on what the script does, since a plan file holds no code."""
    return (
        f"accumulate in the script: with executor.no_sync(): around the first {count - 1} of {count} backward passes "
        f"of a step, each on loss / {count}; executor is what osf.execute returns"
    )


TARGET = Target(
    summary="an executor for any plan; by default PyTorch DDP's buckets",
    convert=Conversion(default_knobs=lambda: None, from_plan=from_plan, to_plan=to_plan),
    text=SettingsText(
        config=config,
        render=render,
        ending="",
        accumulation=Accumulation(lambda text, ending, count: text, note=accumulate),
    ),
    launch=Launch(
        script="train.py is your script, with osf.execute and the plan that this command writes without --lines "
        "(-o plan.json)"
    ),
    executor=RUNTIME,
    executes=True,
    live=True,
)
