"""Parallel strategies: STRATEGIES maps a name to the lowering that turns a plan into a program.

To add one: a module with ``lower(workload, plan, pricing) -> Program`` and a STRATEGY, and one line here;
tests/conformance runs over the table. The engine, the memory curve and the pictures know operations, streams and links,
and no strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program
from osfmodel.entities.lookup import LateTable, require
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload

if TYPE_CHECKING:
    from osfmodel.engine.strategies.lowering import Strategy

STRATEGIES: LateTable[Strategy] = LateTable(
    {
        "replicated": "engine.strategies.replicated:STRATEGY",
        "split": "engine.strategies.replicated:SPLIT",
        "fully-sharded": "engine.strategies.fully_sharded:STRATEGY",
        "hybrid-sharded": "engine.strategies.fully_sharded:HYBRID",
        "flat-sharded": "engine.strategies.flat_sharded:STRATEGY",
        "zero-1": "engine.strategies.zero:FIRST",
        "zero-1-owners": "engine.strategies.zero:OWNERS_STRATEGY",
        "zero-2": "engine.strategies.zero:SECOND",
        "zero-3": "engine.strategies.zero_3:STRATEGY",
        "distributed-optimizer": "engine.strategies.distributed_optimizer:STRATEGY",
        "decoupled": "engine.strategies.decoupled:STRATEGY",
    }
)


def strategy_of(plan: Plan) -> Strategy:
    """The entry of STRATEGIES that runs ``plan``. Raises UsageError for an unknown name."""
    return require(plan.strategy, STRATEGIES, "strategy")


def lower(workload: Workload, plan: Plan, pricing: Pricing) -> Program:
    """The program of one step of ``workload`` under ``plan``, by the plan's strategy.

    Raises PlanError if the plan does not belong to the workload, UsageError for an unknown strategy.
    """
    workload, plan = plan.computed(workload)
    plan.require_valid(workload)
    return strategy_of(plan).lower(workload, plan, pricing)
