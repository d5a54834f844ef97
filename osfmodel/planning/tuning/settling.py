"""Settle on the settings of a framework: candidates of the best plans, and the one that does best on them all.

A message costs the host more than a model of the network shows, so tiny buckets are merged where that loses little.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

from osfmodel.entities.effects import NO_EFFECTS
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Plan, contiguous_plan
from osfmodel.entities.rounding import within
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import WORTHWHILE
from osfmodel.planning.tuning.chances import TIE, best_of
from osfmodel.planning.tuning.task import NEGLIGIBLE, SettledTask, TuningProblem
from osfmodel.solve import SOLVERS
from osfmodel.solve.search.robust import penalised, robust_ends
from osfmodel.solve.solution import Question, Solution, Status, allowed, groups_of, searched
from osfmodel.solve.under_effects import as_timed

TINY = MIB
"""Bytes below which a bucket is not worth a message of its own, unless it saves more than a tie: DDP's first limit."""
STRESS = (1.25, 1.5, 2.0)
"""Factors by which the real network may be slower than described; plans are made robust against them."""
FEWER = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of buckets of the plans that are tried beside the best one."""


def settled(task: TuningProblem, default: Sequence[float]) -> SettledTask:
    """The best settings; within memory in the way to accumulate that is faster by WORTHWHILE than the usual one."""
    found = _best(task, default)
    for form in task.forms[1:] if task.limits.memory is not None else ():
        with suppress(PlanError):  # it does not fit
            other = _best(task.accumulating(form), default)
            pairs = zip(other.task.times(other.knobs), found.task.times(found.knobs), strict=True)
            if all(mine < theirs * (1 - WORTHWHILE) for mine, theirs in pairs):
                found = other
    return found


def _best(task: TuningProblem, default: Sequence[float]) -> SettledTask:
    """The best settings in one way to accumulate. Raises PlanError if none keep the limits."""
    optima = [_fastest(task, solution).require() for solution in task.solutions()]
    own, remarks = task.search([timeline.iteration_time for _, timeline in optima])
    knobs = _likeliest(task, optima, _choose(task, optima, default, own), own)
    knobs = task.complete(knobs if knobs is own else without_tiny(task, knobs))
    return SettledTask(task, knobs, optima, own, remarks)


def _fastest(task: TuningProblem, solution: Solution) -> Solution:
    """The solution, or a faster named plan: an executor runs any in a fixed order, others whole tensors in order."""
    if task.target.rule is not None or not searched(task.objective):
        return solution
    if solution.status is Status.OPTIMAL and not task.target.executes:
        return solution
    from osfmodel.targets.named_plans import fastest  # it knows all solvers and targets, which take long to load

    made = ("optimal" if task.objective.plain else "planned", "planned")
    return fastest(solution.question, solution, whole=not task.target.executes, credit=False, made=made)


def _likeliest(task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], chosen: Any, searched: Any | None) -> Any:
    """For one count, whichever does best on plausible networks.

    Tried are ``chosen``, the default, plans with fewer buckets, and plans for slower networks.
    """
    if len(task.stock) > 1 or task.leads or searched is not None or task.target.executes:
        return chosen
    options = [task.target.convert.default_knobs(), chosen]
    options += [task.from_plan(plan, task.pricings[0]) for plan in _alternatives(task, *optima[0])]
    return best_of(task, [knobs for knobs in options if task.keeps_limits(knobs)] or [chosen])


def _alternatives(task: TuningProblem, plan: Plan, timeline: Timeline) -> Iterator[Plan]:
    """The best plans with fewer buckets and for slower networks, for the ready times that effects led to."""
    if not task.objective.plain:
        return
    seen, pricing = as_timed(task.workload, timeline), task.pricings[0]
    bare = replace(pricing, effects=NO_EFFECTS)
    asked = [
        Question(seen, bare, limits=replace(task.limits, max_buckets=most))
        for most in FEWER
        if most < min(len(plan.buckets), task.limits.max_buckets or len(plan.buckets))
    ]
    asked += [Question(seen, bare.slower(factor), limits=task.limits) for factor in STRESS]
    for question in asked:
        found = SOLVERS["optimal"].solve(question).plan
        if found is not None:
            yield found


def _choose(
    task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], default: Sequence[float], searched: Any | None
) -> Any:
    """The first candidate whose worst slow-down is the smallest, or almost. Raises PlanError without candidates."""
    best = [timeline.iteration_time for _, timeline in optima]
    several = len(task.costs) > 1
    ceilings = list(default) if several else [time * (1 + NEGLIGIBLE) for time in best]
    found = [searched, *_candidates(task, optima, ceilings)]
    candidates = [knobs for knobs in found if knobs is not None and task.keeps_limits(knobs)]
    if not candidates:
        raise PlanError(task.limits.unmet("settings of this framework"))
    # The target's own search wins unless another candidate is much better; then, for one count, the robust plan.
    values = [penalised(task.judged(knobs), best, ceilings if several else ()) for knobs in candidates]
    close = 0 if several else NEGLIGIBLE
    search = task.target.search
    allowed = [1 + (search.reluctance if search and knobs is searched else close) for knobs in candidates]
    rows = zip(candidates, values, allowed, strict=True)
    return next(knobs for knobs, value, factor in rows if value <= within(min(values) * factor))


def _candidates(
    task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], ceilings: Sequence[float]
) -> Iterator[Any]:
    """Knobs to choose among: those of a robust plan, of the best plan of each count, and the defaults."""
    robust = _robust(task, optima, ceilings)
    pairs = [(robust, task.pricings[0])] if robust is not None else []
    pairs += [(plan, pricing) for (plan, _), pricing in zip(optima, task.pricings, strict=True)]
    # The defaults are spelled out if the target can do so, for a complete recommendation.
    pairs.append((task.target.convert.default(task.workload, task.pricings[0]), task.pricings[0]))
    seen: set[Plan] = set()
    for plan, pricing in pairs:
        if plan not in seen:
            seen.add(plan)
            yield task.from_plan(plan, pricing)
    yield task.target.convert.default_knobs()


def _robust(task: TuningProblem, optima: Sequence[tuple[Plan, Timeline]], ceilings: Sequence[float]) -> Plan | None:
    """One plan for all counts; for one count, one that suits slower networks too. None if dtypes alternate."""
    if not task.objective.plain:
        return None  # the search for robust plans knows the barrier only
    costs, known = list(task.costs), list(optima)
    if len(costs) == 1:
        for factor in STRESS:
            slower = task.slower(factor)
            costs, known = [*costs, *slower.costs], [*known, *slower.optima()]
    starts = [ends for plan, _ in known if (ends := contiguous_ends(plan, task.workload)) is not None]
    if len(starts) < len(known) or not task.workload.gradients:
        return None
    best = [timeline.iteration_time for _, timeline in known]
    seen = task.workload
    if task.pricings[0].effects.active:
        seen = as_timed(task.workload, optima[0][1])
    return contiguous_plan(task.workload, robust_ends(seen, costs, best, starts, task.limits, ceilings))


def without_tiny(task: TuningProblem, knobs: Any) -> Any:
    """``knobs`` with buckets below TINY merged or grown, as long as no time grows by more than TIE in all."""
    if knobs == task.target.convert.default_knobs() or not task.objective.plain:
        return knobs
    most = [time * (1 + TIE) for time in task.judged(knobs)]

    def better(ends: tuple[int, ...]) -> Iterator[Any]:
        gradients = task.workload.gradients
        for changed in less_tiny(ends, gradients.sizes):
            if not allowed(groups_of(changed), gradients, task.limits):
                continue  # it mixes types, or has more than a bucket may hold
            found = task.from_plan(contiguous_plan(task.workload, changed), task.pricings[0])
            formed = contiguous_ends(task.planned(found)[0][0], task.workload)
            if formed == changed and task.keeps_limits(found) and all(map(operator.le, task.judged(found), most)):
                yield found

    while True:
        ends = contiguous_ends(task.planned(knobs)[0][0], task.workload)
        found = next(better(ends), None) if ends else None
        if found is None:
            return knobs
        knobs = found


def contiguous_ends(plan: Plan, workload: Workload) -> tuple[int, ...] | None:
    """The inverse of :func:`contiguous_plan`; None if the buckets are not runs of whole tensors in ready order."""
    order = [block.layer for bucket in plan.buckets for block in bucket.blocks]
    whole = sum(len(bucket.blocks) for bucket in plan.buckets) == len(workload.gradients)
    if not whole or tuple(order) != workload.gradients.names:
        return None
    ends, position = [], 0
    for bucket in plan.buckets:
        position += len(bucket.blocks)
        ends.append(position)
    return tuple(ends)


def less_tiny(ends: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The ends with the smallest bucket, if it is below TINY, merged with a neighbour or twice as large, best first."""
    starts, prefix = (0, *ends[:-1]), [0, *accumulate(sizes)]
    held = [prefix[end] - prefix[start] for start, end in zip(starts, ends, strict=True)]
    least_size, last = min(held), len(ends) - 1
    if least_size >= TINY:
        return
    tiny = held.index(least_size)
    yield from ((*ends[:gone], *ends[gone + 1 :]) for gone in (tiny, tiny - 1) if 0 <= gone < last)
    wanted = TINY
    while wanted >= 2 * least_size:
        before = bisect_right(prefix, prefix[ends[tiny]] - wanted) - 1
        after = bisect_left(prefix, prefix[starts[tiny]] + wanted)
        if tiny and before > starts[tiny - 1]:
            yield (*ends[: tiny - 1], before, *ends[tiny:])
        if tiny < last and after < ends[tiny + 1]:
            yield (*ends[:tiny], after, *ends[tiny + 1 :])
        wanted //= 2
