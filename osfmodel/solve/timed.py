"""Turning a plan into a Solution under an objective: the time is the engine's, never a solver's own."""

from __future__ import annotations

from osfmodel.engine import predict_timeline
from osfmodel.objective import Objective
from osfmodel.plan import Plan
from osfmodel.pricing import Pricing
from osfmodel.solve.bounds import objective_bound
from osfmodel.solve.solution import Solution, Status
from osfmodel.workload import Workload


def timed(
    workload: Workload, plan: Plan, pricing: Pricing, objective: Objective, status: Status = Status.HEURISTIC
) -> Solution:
    """``plan`` carried out under ``objective``, with the bound that holds there."""
    under = plan.under(objective)
    timeline = predict_timeline(workload, under, pricing)
    return Solution(under, timeline, objective_bound(workload, pricing, objective), status)
