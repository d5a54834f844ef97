"""Replicated weights: every worker has all weights and all gradients; one all-reduce per bucket (DDP, Horovod)."""

from __future__ import annotations

from functools import partial

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program
from osfmodel.engine.strategies.lowering import Lowering, Strategy
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload


def lower(workload: Workload, plan: Plan, pricing: Pricing, apart: bool = False) -> Program:
    """The program of a step with one collective per bucket: an all-reduce, or an all-gather of sparse entries."""
    step = Lowering(workload, plan, pricing, apart)
    kinds = ["all_reduce" if bucket.density is None else "all_gather" for bucket in plan.buckets]
    return step.finished([step.send(number, kind) for number, kind in enumerate(kinds)])


STRATEGY = Strategy(
    lower, "all weights and gradients on every worker, an all-reduce a bucket", apart=partial(lower, apart=True)
)
