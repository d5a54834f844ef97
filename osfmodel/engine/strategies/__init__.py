"""Parallel strategies: STRATEGIES maps a name to the lowering that turns a plan into a program.

To add one: a module with ``lower(workload, plan, pricing) -> Program`` and one line here; tests/conformance runs over
the table. The engine, the memory curve and the pictures know operations, streams and links, and no strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program
from osfmodel.engine.strategies import replicated, split
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload


class Strategy(NamedTuple):
    """An entry of STRATEGIES.

    lower:   (workload, plan, pricing) -> Program of one step, in the steady state
    summary: half a line for a person
    """

    lower: Callable[[Workload, Plan, Pricing], Program]
    summary: str


STRATEGIES: Mapping[str, Strategy] = {
    "replicated": Strategy(replicated.lower, "all weights and gradients on every worker, an all-reduce a bucket"),
    "split": Strategy(split.lower, "a reduce-scatter in backward and an all-gather before the next forward"),
}


def strategy_of(plan: Plan) -> Strategy:
    """The entry of STRATEGIES by which ``plan`` is carried out."""
    return STRATEGIES["split" if plan.split else "replicated"]


def lower(workload: Workload, plan: Plan, pricing: Pricing) -> Program:
    """The program of one step of ``workload`` under ``plan``, by the plan's strategy.

    Raises PlanError where the plan does not belong to the workload.
    """
    workload, plan = plan.computed(workload)
    plan.require_valid(workload)
    return strategy_of(plan).lower(workload, plan, pricing)
