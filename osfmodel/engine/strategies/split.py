"""Split: each all-reduce is a reduce-scatter in backward and an all-gather in the order of the next forward."""

from __future__ import annotations

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program
from osfmodel.engine.strategies.lowering import Lowering, Strategy
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload


def lower(workload: Workload, plan: Plan, pricing: Pricing) -> Program:
    """A step with two collectives a bucket; the all-gathers are sent as the next forward needs them."""
    step = Lowering(workload, plan, pricing)
    scatters = [step.send(number, "reduce_scatter") for number in range(len(plan.buckets))]
    place = {layer.name: number for number, layer in enumerate(workload.layers)}
    first = [min(place[layer] for layer in step.operations[scatter].layers) for scatter in scatters]
    arrivals = list(scatters)
    for number in sorted(range(len(scatters)), key=first.__getitem__):
        arrivals[number] = step.send(number, "all_gather", (scatters[number],))
    return step.finished(arrivals)


STRATEGY = Strategy(
    lower, "a reduce-scatter in backward and an all-gather before the next forward", lambda plan: plan.split
)
