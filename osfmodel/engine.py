"""Which engine carries a plan out: the closed form where it holds, the simulator for everything else."""

from __future__ import annotations

from osfmodel import recursion, simulator
from osfmodel.plan import Plan
from osfmodel.pricing import Pricing
from osfmodel.timeline import Timeline
from osfmodel.workload import Workload


def predict_timeline(workload: Workload, plan: Plan, pricing: Pricing) -> Timeline:
    """One iteration of ``workload`` under ``plan`` where communication costs what ``pricing`` says.

    Each channel of the plan keeps as many collectives in flight as ``pricing`` says. Both engines agree where both
    apply. Raises PlanError where the plan does not belong to the workload.
    """
    if pricing.in_flight > 1:
        plan = plan.under(pricing.rules(plan.objective))
    if plan.plain:
        return recursion.predict_timeline(workload, plan, pricing.cost(), pricing.effects, pricing.workers)
    return simulator.simulate(workload, plan, pricing)
