"""Plans under effects: solvers know ready times and prices, so effects are turned into those, as the engine shows them.

Copies, hooks, stragglers and the slowdown of computation move ready times, partly as a consequence of the plan itself.
So a plan is made, timed by the engine with all effects, and made again for the ready times that came of it, a few
rounds; the best by the engine is kept. Hooks also cost something per bucket, which a second candidate pays as part of
every message. Not proven best: a note of the prediction says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from osfmodel.effects import NO_EFFECTS
from osfmodel.engine import predict_timeline
from osfmodel.plan import Plan
from osfmodel.pricing import Pricing
from osfmodel.timeline import Timeline
from osfmodel.workload import Workload

ROUNDS = 3
"""Plans settle after two or three."""


Make: TypeAlias = Callable[[Workload, Pricing], Plan]
"""(workload, pricing without effects) -> plan"""


def plan_under_effects(workload: Workload, pricing: Pricing, make: Make) -> Plan:
    """The best of the plans that ``make`` gives for what effects leave of ready times and prices."""
    bare = replace(pricing, effects=NO_EFFECTS)
    best = make(workload, bare)
    if not pricing.effects.active or not workload.gradients:
        return best
    hooked = replace(bare, costs={kind: cost.plus(pricing.effects.hook_time) for kind, cost in bare.costs.items()})
    prices = [bare, hooked] if pricing.effects.hook_time else [bare]
    timeline = predict_timeline(workload, best, pricing)
    shortest = timeline.iteration_time
    for _ in range(ROUNDS):
        seen = as_timed(workload, timeline)
        candidates = [make(seen, price) for price in prices]
        timed = [(predict_timeline(workload, plan, pricing), plan) for plan in candidates]
        timeline, plan = min(timed, key=lambda pair: pair[0].iteration_time)
        if timeline.iteration_time >= shortest:
            break
        shortest, best = timeline.iteration_time, plan
    return best


def as_timed(workload: Workload, timeline: Timeline) -> Workload:
    """``workload`` with the times that its layers took in ``timeline``: what a profile of that run would show."""
    took = {(span.kind, span.layers[0]): span.duration for span in timeline.spans if len(span.layers) == 1}
    layers = tuple(
        replace(
            layer,
            forward_time=took.get(("forward", layer.name), layer.forward_time),
            backward_time=took.get(("backward", layer.name), layer.backward_time),
        )
        for layer in workload.layers
    )
    return replace(workload, layers=layers)
