"""Planning under effects: they are turned into ready times and prices, which is all that solvers know.

Copies, hooks, stragglers and the slowdown of computation move ready times, partly as a consequence of the plan itself.
So a plan is made, timed by the engine with all effects, and made again for the ready times that came of it, a few
rounds; the best by the engine is kept. Hooks also cost something per bucket, which a second candidate pays as part of
every message. Buckets that close at a cap compete with it, as DDP forms them, which may suit several collectives in
flight or copies better. Not proven best: a note of the prediction says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost
from osfmodel.entities.effects import NO_EFFECTS
from osfmodel.entities.plan import Plan, contiguous_plan, grouped_plan
from osfmodel.entities.rounding import just_below, least
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import (
    ALIKE,
    DDP_LIMITS,
    HALVINGS,
    CapSearch,
    best_cap,
    bucket_layout,
    capped_plans,
    search_caps,
)
from osfmodel.solve.exact import MergeProblem
from osfmodel.solve.search.robust import fairest
from osfmodel.solve.solution import Limits, Planner, Question, Solution, Status, allowed, finish, narrower

ROUNDS = 3
"""Maximum number of rounds; plans settle after two or three."""
STEPS_OF_TWO = 8
"""Caps per halving of all bytes that are timed under effects, down to MOST_BUCKETS buckets."""
MOST_BUCKETS = 256


def plan_under_effects(question: Question, planner: Planner, limited: bool = False) -> Solution:
    """The best plan of ``planner`` for the ready times and prices that effects lead to.

    If the library keeps several collectives in flight, which ``planner`` may not know, the best runs for so many
    channels are tried too, and with these or effects the plans that caps form, unless there are limits or ``limited``
    says that buckets have others (those searches know none). Without either the answer of ``planner`` is the answer.
    """
    workload, pricing = question.workload, question.pricing
    limited = limited or question.limits != Limits()
    active = bool(pricing.effects.active)
    several = pricing.in_flight > 1 and not limited
    if not workload.gradients or not (active or several):
        return planner(question)

    def best_for(seen: Workload) -> Solution | None:
        plans = [solution.plan for solution in map(planner, _undisturbed(replace(question, workload=seen)))]
        plans += _for_several(seen, pricing) if several else []
        return _fastest(Solution(question, plan, Status.HEURISTIC) for plan in plans if plan is not None)

    best = best_for(workload)
    if best is None:
        return planner(question)  # whose status says why
    for _ in range(ROUNDS if active else 0):
        found = best_for(as_timed(workload, best.require()[1]))
        if found is None or _time(found) >= just_below(_time(best)):
            break
        best = found
    formed = [] if limited else [*capped_plans(workload, pricing.cost()), *_flushed(workload, pricing)]
    others = [plan.under(rules) for rules in narrower(question.objective) for plan in formed]
    return _fastest([best, *(Solution(question, plan, Status.HEURISTIC) for plan in others)]) or best


def _undisturbed(question: Question) -> list[Question]:
    """The question without effects, and with the cost of hooks per bucket added to every message's price."""
    pricing = question.pricing
    bare = replace(pricing, effects=NO_EFFECTS)
    hooked = replace(bare, costs={kind: cost.plus(pricing.effects.hook_time) for kind, cost in bare.costs.items()})
    prices = [bare, hooked] if pricing.effects.hook_time else [bare]
    return [replace(question, pricing=price) for price in prices]


def _flushed(workload: Workload, pricing: Pricing) -> list[Plan]:
    """Plans that send, whenever the channel is free, all that is ready, up to all bytes, a half, a quarter..."""
    if not pricing.effects.fusion_copy:
        return []
    from osfmodel.engine.horovod_loop import Loop, steady_iteration

    inside, total = replace(pricing, blocking=True), workload.gradient_bytes
    loops = [Loop(total >> times, 0) for times in range(HALVINGS + 1)]
    return [grouped_plan(workload, steady_iteration(loop, workload, inside, 2).batches) for loop in loops]


def _time(solution: Solution) -> float:
    return solution.require()[1].iteration_time


def _fastest(solutions: Iterable[Solution]) -> Solution | None:
    found = list(solutions)
    return least(found, _time, lambda solution: solution.require_plan().rank) if found else None


def _for_several(workload: Workload, pricing: Pricing) -> list[Plan]:
    """The best runs in ready order for as many channels as the library keeps in flight."""
    from osfmodel.solve.exact import pareto  # not loaded for one in flight

    problem = MergeProblem.of(workload.gradients, Limits())
    return [contiguous_plan(workload, pareto.runs(problem, pricing, pricing.in_flight).ends)]


def as_timed(workload: Workload, timeline: Timeline) -> Workload:
    """``workload`` with the times that its layers took in ``timeline``, as a profile of that run would have them.

    Enqueue times stay: they are the host's, which runs ahead of the device that effects slow. Solvers do not read them.
    """
    took = {(span.kind, span.layers[0]): span.duration for span in timeline.spans if len(span.layers) == 1}
    layers = tuple(
        layer.retimed(
            took.get(("forward", layer.name), layer.forward_time),
            took.get(("backward", layer.name), layer.backward_time),
            layer.enqueue_time,
        )
        for layer in workload.layers
    )
    return replace(workload, layers=layers)


def best_cap_timed(workload: Workload, pricing: Pricing) -> int:
    """The single cap, in bytes, with the shortest iteration: :func:`caps_timed`; without effects ``best_cap``."""
    found = caps_timed(workload, [pricing], pairs=False) if pricing.effects.active else None
    return best_cap(workload, pricing.cost()) if found is None else found.cap


def search_caps_for_all(
    workload: Workload, costs: Sequence[Cost], limits: Limits = Limits(), pairs: bool = True
) -> CapSearch | None:
    """The caps of :func:`search_caps`; for several costs those that suit all, no slower than the default where any are.

    For several costs the best cap of each is tried, the default's, and all bytes, a half of them, a quarter...
    """
    found = [search_caps(workload, cost, limits, pairs) for cost in costs]
    kept = [one for one in found if one is not None]
    if len(found) == 1 or not kept:
        return found[0]
    gradients = workload.gradients

    def times(caps: Sequence[int]) -> list[float]:
        layout = bucket_layout(gradients, caps)
        return [finish(layout, gradients, cost) for cost in costs]

    def best(options: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        fair = [caps for caps in options if allowed(bucket_layout(gradients, caps), gradients, limits)]
        return fairest(fair, times, times(DDP_LIMITS))

    tried = [DDP_LIMITS[-1], *(max(workload.gradient_bytes >> times, 1) for times in range(HALVINGS + 1))]
    singles = [*(one.cap for one in kept), *tried]
    wholes = [one.whole_mib * MIB for one in kept if one.whole_mib is not None]
    wholes += [-(-cap // MIB) * MIB for cap in tried] if wholes else []
    (cap,) = best((cap,) for cap in singles)
    first, other = best([*(one.pair for one in kept), DDP_LIMITS, *((cap, cap) for cap in singles)])
    whole_mib = best((cap,) for cap in wholes)[0] // MIB if wholes else None
    return CapSearch(cap, whole_mib, (first, other), cap_exhaustive=False, pair_exhaustive=False)


def caps_timed(
    workload: Workload, pricings: Sequence[Pricing], limits: Limits = Limits(), pairs: bool = True
) -> CapSearch | None:
    """The caps of ``search_caps_for_all``; under effects those of the shortest iteration among them and others.

    A cap that is best without effects may make many buckets, each of which costs the host something. So the engine
    times it beside DDP's defaults and caps between all bytes and 1 / MOST_BUCKETS of them; of those that are ALIKE the
    largest is given. Without ``pairs`` the first cap is the other one. None if no cap keeps ``limits``.
    """
    found = search_caps_for_all(workload, [pricing.cost() for pricing in pricings], limits, pairs)
    if found is None or not any(pricing.effects.active for pricing in pricings):
        return found
    gradients = workload.gradients

    @cache
    def timed(plan: Plan) -> list[float]:
        return [_time(Solution(Question(workload, pricing), plan, Status.HEURISTIC)) for pricing in pricings]

    def times(caps: tuple[int, ...]) -> list[float]:
        return timed(grouped_plan(workload, bucket_layout(gradients, caps)))

    def best(options: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        kept = [caps for caps in dict.fromkeys(options) if allowed(bucket_layout(gradients, caps), gradients, limits)]
        return fairest(sorted(kept, reverse=True), times, times(DDP_LIMITS), ALIKE)

    steps = range(STEPS_OF_TWO * MOST_BUCKETS.bit_length())
    spread = [max(int(sum(gradients.held_sizes) * 0.5 ** (step / STEPS_OF_TWO)), 1) for step in steps]
    singles = [found.cap, DDP_LIMITS[-1], *spread]
    (cap,) = best((cap,) for cap in singles)
    if not pairs:
        return CapSearch(cap, None, (cap, cap), cap_exhaustive=False, pair_exhaustive=False)
    whole_mib = found.whole_mib
    if whole_mib is not None:
        (whole,) = best((-(-cap // MIB) * MIB,) for cap in [*singles, whole_mib * MIB])
        whole_mib = whole // MIB
    firsts = [DDP_LIMITS[0], found.pair[0], cap]
    first, other = best([found.pair, DDP_LIMITS, *((first, cap) for first in firsts)])
    return CapSearch(cap, whole_mib, (first, other), cap_exhaustive=False, pair_exhaustive=False)
