"""Plans under effects: solvers know ready times and prices, so effects are turned into those, as the engine shows them.

Copies, hooks, stragglers and the slowdown of computation move ready times, partly as a consequence of the plan itself.
So a plan is made, timed by the engine with all effects, and made again for the ready times that came of it, a few
rounds; the best by the engine is kept. Hooks also cost something per bucket, which a second candidate pays as part of
every message. Buckets that close at a cap compete with it, as DDP forms them, which may suit several collectives in
flight or copies better. Not proven best: a note of the prediction says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.horovod_loop import Loop, steady_iteration
from osfmodel.entities.effects import NO_EFFECTS
from osfmodel.entities.plan import Plan, contiguous_plan, grouped_plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import HALVINGS, capped_plans
from osfmodel.solve.exact import merge, pareto
from osfmodel.solve.solution import Limits

ROUNDS = 3
"""Plans settle after two or three."""


Make: TypeAlias = Callable[[Workload, Pricing], Plan]
"""(workload, pricing without effects) -> plan"""


def plan_under_effects(workload: Workload, pricing: Pricing, make: Make, limited: bool = False) -> Plan:
    """The best of the plans that ``make`` gives for what effects leave of ready times and prices.

    Where the library keeps several collectives in flight, which ``make`` may not know, the best runs for so many
    channels are tried too, and with these or effects the plans that caps form, unless ``limited`` says that buckets are
    (those searches know no limits).
    """
    bare = replace(pricing, effects=NO_EFFECTS)
    hooked = replace(bare, costs={kind: cost.plus(pricing.effects.hook_time) for kind, cost in bare.costs.items()})
    prices = [bare, hooked] if pricing.effects.hook_time else [bare]

    def plans(seen: Workload) -> list[Plan]:
        several = [] if limited else _for_several(seen, pricing)
        return [*(make(seen, price) for price in prices), *several]

    candidates = plans(workload)
    if not workload.gradients or (len(candidates) == 1 and not pricing.effects.active):
        return candidates[0]
    timeline, best = _fastest(workload, candidates, pricing)
    shortest = timeline.iteration_time
    for _ in range(ROUNDS if pricing.effects.active else 0):
        seen = as_timed(workload, timeline)
        timeline, plan = _fastest(workload, plans(seen), pricing)
        if timeline.iteration_time >= shortest:
            break
        shortest, best = timeline.iteration_time, plan
    others = [] if limited else [*capped_plans(workload, pricing.cost()), *_flushed(workload, pricing)]
    return _fastest(workload, [best, *others], pricing)[1]


def _flushed(workload: Workload, pricing: Pricing) -> list[Plan]:
    """Where fusing costs: whenever the channel is free all that is ready, up to all bytes, a half, a quarter..."""
    if not pricing.effects.fusion_copy:
        return []
    inside, total = replace(pricing, blocking=True), workload.gradient_bytes
    loops = [Loop(total >> times, 0) for times in range(HALVINGS + 1)]
    return [grouped_plan(workload, steady_iteration(loop, workload, inside, 2).batches) for loop in loops]


def _fastest(workload: Workload, plans: Sequence[Plan], pricing: Pricing) -> tuple[Timeline, Plan]:
    timed = [(predict_timeline(workload, plan, pricing), plan) for plan in plans]
    return min(timed, key=lambda pair: pair[0].iteration_time)


def _for_several(workload: Workload, pricing: Pricing) -> list[Plan]:
    """The best runs in ready order for as many channels as the library keeps in flight; none for one."""
    if pricing.in_flight == 1 or not workload.gradients:
        return []
    problem = merge.MergeProblem.of(workload.gradients, Limits())
    return [contiguous_plan(workload, pareto.runs(problem, pricing, pricing.in_flight).ends)]


def as_timed(workload: Workload, timeline: Timeline) -> Workload:
    """``workload`` with the times that its layers took in ``timeline``: what a profile of that run would show.

    Enqueue times stay: they are the host's, which runs ahead of the device that effects slow. Solvers do not read them.
    """
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
