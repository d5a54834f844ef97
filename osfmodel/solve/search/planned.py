"""The best known plan for given rules: several constructions, then local search from the best.

In turn, until the bound is attained: the exact optimum over all schedules of one channel (``windows``), for each line
that the price is made of or lies on; in order, then by priority (``priority``); the exact optimum in ready order
(``merge``), and the published rule of merging (``mg_wfbp``); everything in one message; for two channels the Pareto
recursion (``pareto``); one message per tensor, and the plans of ASC-WFBP, ByteScheduler and US-Byte; then buckets that
close at a cap (``caps``). Each is timed by the engine under the rules. If a gap is left, ``local_search`` goes on from
the best few without caps, and from the best of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective, Plan, contiguous_plan
from osfmodel.entities.rounding import just_below, ranked, within
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.solve import windows
from osfmodel.solve.bounds import bound_under, messages_bound
from osfmodel.solve.caps import capped_plans
from osfmodel.solve.exact import MergeProblem, optimal, pareto
from osfmodel.solve.published import asc_wfbp, byte_scheduler, mg_wfbp, us_byte
from osfmodel.solve.published.byte_scheduler import CREDIT
from osfmodel.solve.published.regression import linear
from osfmodel.solve.scheduling import Jobs, chunks_in, plan_of
from osfmodel.solve.search import priority
from osfmodel.solve.search.local_search import ChunkTimer, improve
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, Status, answer, narrower

SETTLED = 1e-6
"""Relative distance to the bound below which a plan is good enough: the rest is rounding to whole elements."""
WORK = 67_000
"""Maximum buckets that local search times from one plan on one channel; a fifth on several, which take longer."""
SEVERAL = 5
STARTS = 4
"""Plans other than caps from which local search starts: a cap may be faster and yet improve less."""
TRIES = 4
"""Numbers of gradients sent in order that ``priority`` tries here."""
SMALLEST = byte_scheduler.PARTITION
"""Base partition in bytes at which ``us_byte`` is tried: that of ByteScheduler."""
FEW = 24
"""Maximum number of gradients for which the Pareto recursion is affordable with more than two channels."""
LINES = 8
"""Maximum number of lines of a price to try; of a long table, lines evenly spread over its hull."""


def solve(question: Question) -> Solution:
    """The best plan of all that the rules permit. OPTIMAL if it attains their bound.

    Fewer channels, or whole all-reduces although a split is permitted, may be faster: all are tried. Has no limits:
    BEYOND_LIMITS if its plan breaks them.
    """
    question.require_searched()
    workload, pricing, bound = question.workload, question.pricing, question.lower_bound
    known: list[tuple[float, Plan, Timeline]] = []
    capped = cache(lambda: capped_plans(workload, pricing.cost()))
    for rules in narrower(question.objective):
        if known and bound_under(workload, pricing, rules) >= just_below(known[0][0]):
            continue
        known += _best_under(workload, pricing, rules, bound, capped)
        known = _ranked(known)
        if known[0][0] <= bound * (1 + SETTLED):
            break
    time, plan, timeline = known[0]
    status = Status.OPTIMAL if time <= within(bound) else Status.HEURISTIC
    return answer(question, plan, status, timeline)


def _best_under(
    workload: Workload, pricing: Pricing, rules: Objective, bound: float, capped: Callable[[], Iterable[Plan]]
) -> list[tuple[float, Plan, Timeline]]:
    """The fastest plan found under exactly these rules, timed."""
    known: list[tuple[float, Plan, Timeline]] = []
    if _settle(known, workload, _plans(workload, pricing, pricing.rules(rules), known), pricing, rules, bound):
        return known[:1]
    starts = _starts(known)
    if _settle(known, workload, capped(), pricing, rules, bound):
        return known[:1]
    starts = list(dict.fromkeys([*starts, known[0][1]]))
    for plan in _searched(workload, pricing, rules, starts, bound):
        _add(known, workload, plan, pricing)
    return known[:1]


def _settle(
    known: list[tuple[float, Plan, Timeline]],
    workload: Workload,
    plans: Iterable[Plan],
    pricing: Pricing,
    rules: Objective,
    bound: float,
) -> bool:
    """Add ``plans`` in turn, and return whether one is as good as the bound, at which it stops."""
    for plan in plans:
        _add(known, workload, plan.under(rules), pricing)
        if known[0][0] <= bound * (1 + SETTLED):
            return True
    return False


def _ranked(known: list[tuple[float, Plan, Timeline]]) -> list[tuple[float, Plan, Timeline]]:
    return ranked(known, lambda entry: entry[0], lambda entry: entry[1].rank)


def _starts(known: list[tuple[float, Plan, Timeline]]) -> list[Plan]:
    """The best few plans with different buckets."""
    unlike = {plan.buckets: plan for _, plan, _ in reversed(known)}
    best = [plan for _, plan, _ in known if unlike[plan.buckets] is plan]
    return best[:STARTS]


def _add(known: list[tuple[float, Plan, Timeline]], workload: Workload, plan: Plan, pricing: Pricing) -> None:
    """Time ``plan``; if all-gathers could use gaps between reduce-scatters, time it by priority as well.

    It is left out, or not timed by priority, where its messages alone take longer than the best.
    """
    least = messages_bound(workload, pricing, plan.objective, [bucket.size for bucket in plan.buckets])
    credits = (plan.credit, 1, CREDIT) if plan.split else (plan.credit,)
    for same in [replace(plan, credit=credit) for credit in dict.fromkeys(credits)]:
        if known and least > within(known[0][0]):
            return
        timeline = predict_timeline(workload, same, pricing)
        known.append((timeline.iteration_time, same, timeline))
        known[:] = _ranked(known)


def _plans(
    workload: Workload, pricing: Pricing, objective: Objective, known: Sequence[tuple[float, Plan, Timeline]]
) -> Iterator[Plan]:
    """Plans without searching or caps, the most promising first; not those that merge none and so are slower."""
    gradients = workload.gradients
    if not len(gradients):
        yield Plan(workload.name, ())
        return
    jobs = Jobs.of(workload, objective)
    yield from _windowed(workload, jobs, pricing, objective)
    yield priority.plan(workload, jobs, pricing, TRIES)
    if objective.channels == 2 or (objective.channels > 1 and len(gradients) <= FEW):
        problem = MergeProblem.of(gradients, Limits())
        placed = MergeProblem(jobs.ready, problem.prefix, problem.earliest)
        yield contiguous_plan(workload, pareto.runs(placed, pricing, objective.channels).ends)
    exact = optimal.solve(Question(workload, pricing)).plan
    if exact is not None:
        yield exact
    for ends in (_merged(workload, pricing), _dtype_ends(workload), range(1, len(gradients) + 1)):
        yield contiguous_plan(workload, ends)
    if not objective.plain:
        yield asc_wfbp.plan(workload, pricing)
    if not objective.plain and messages_bound(workload, pricing, objective, gradients.sizes, cut=True) <= known[0][0]:
        yield byte_scheduler.plan(workload, byte_scheduler.PARTITION, byte_scheduler.CREDIT)
        yield us_byte.plan(workload, pricing, SMALLEST)


def _windowed(workload: Workload, jobs: Jobs, pricing: Pricing, objective: Objective) -> Iterator[Plan]:
    cost = pricing.cost()
    lines = windows.minorants(cost, workload.gradient_bytes)
    lines = list(cost.pieces) if isinstance(cost, AffineCost) else lines[:: 1 + len(lines) // LINES]
    if objective.channels > 1:
        together = pricing.together(objective.channels)
        lines += [(startup / objective.channels, per_byte / together) for startup, per_byte in lines]
    for startup, per_byte in lines:
        line = windows.CostLine(startup, per_byte, startup)
        plan = plan_of(workload, windows.chunks_of(jobs, windows.optimum(jobs, line), line), objective)
        if plan is not None:
            yield plan


def _merged(workload: Workload, pricing: Pricing) -> tuple[int, ...]:
    gradients = workload.gradients
    startup, per_byte = linear(pricing.cost())
    return mg_wfbp.merge(gradients.ready_times, gradients.sizes, gradients.dtypes, startup, per_byte)


def _dtype_ends(workload: Workload) -> tuple[int, ...]:
    """Ends for everything in one message, or in one for each run of a dtype."""
    dtypes = workload.gradients.dtypes
    changes = [i for i in range(1, len(dtypes)) if dtypes[i] != dtypes[i - 1]]
    return (*changes, len(dtypes))


def _searched(
    workload: Workload, pricing: Pricing, objective: Objective, plans: list[Plan], bound: float
) -> Iterator[Plan]:
    """Plans found by local search from each of ``plans``."""
    rules = pricing.rules(objective)
    timer = ChunkTimer(Jobs.of(workload, rules), pricing, rules)
    work = WORK // (1 if rules.channels == 1 else SEVERAL)
    for plan in plans:
        chunks = chunks_in(workload, plan)
        found = plan_of(workload, improve(chunks, timer, bound, work // max(len(chunks), 1)), objective)
        if found is not None:
            yield found


RULE = PlanRule(
    solve,
    "the best found by several exact methods and local search",
    objective=Objective(forward_overlap=True),
    searches=True,
    chooses=True,
)
