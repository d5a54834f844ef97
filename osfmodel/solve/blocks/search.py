"""Block sizes by search: a plan's order of bytes, cut into collectives at the best places.

For a given sequence the sizes are a linear programme (solve.blocks.programme). In which layer each cut lies is a
choice on top of it: here a local search, in benchmarks/block_choice.py a mixed-integer programme that says how good the
search is on small instances. Cuts that the programme leaves at the edge of their layer are moved onto the edge,
which can only free something; then cuts on edges are moved into one of the two layers beside them, all at once where
that costs nothing, else one by one in the order of what it costs before the programme has moved them.

One channel, sent in the order of the plan; barrier or forward overlap, all-reduces whole or split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

import numpy as np

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.rounding import least, ranked, within
from osfmodel.entities.workload import Workload
from osfmodel.solve.blocks.resize import PROGRESS, Sized, SizingProblem, problem_of, resized, time_of
from osfmodel.solve.blocks.tape import Cut, Tape, laid_out, line_at, plan_of, tape_of
from osfmodel.solve.exact import merge, optimal
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, Status, answer

PROGRAMMES = 24
"""Maximum number of linear programmes that the search over cuts solves per sequence."""
SIZED, SEARCHED = 8, 2
"""Seeds, the fastest first, that get their sizes by a linear programme; and how many of these are searched from."""
PARTS = 16
"""Maximum number of collectives by priority, after those in ready order, in the seeds."""
TURNS = 24
"""Number of turns from ready order to priority that the seeds try, before those beside the best of them."""


def solve(question: Question) -> Solution:
    """The best sequence of a simple family, with its sizes improved; the seed itself if they cannot be.

    The seeds: the exact optimum in ready order, and with forward overlap its first collectives followed by the rest
    by priority. If the objective or the effects are not linear: the optimum in ready order, status NOT_LINEAR. Knows
    no limits: BEYOND_LIMITS where its plan breaks them.
    """
    question.require_searched()
    workload, pricing, objective = question.workload, question.pricing, question.objective
    base = optimal.solve(Question(workload, pricing)).require_plan()
    if not base.buckets or not linear(pricing, objective):
        return improved(question, base.under(objective))
    problem = problem_of(workload, pricing, objective)
    seeds = [_sized(problem, *tape_of(base)), *_turned(workload, problem, objective, pricing)]
    seeds = ranked(seeds, _value, _cuts)
    seed = _plan(workload, seeds[0], objective)
    if seeds[0].value <= question.lower_bound * (1 + PROGRESS):
        return answer(question, seed)
    sized = ranked((resized(problem, seed.tape, seed.cuts) for seed in seeds[:SIZED]), _value, _cuts)
    found = least((searched(problem, best.tape, best.cuts) for best in sized[:SEARCHED]), _value, _cuts)
    return _better(question, seed, found)


def improved(question: Question, seed: Plan) -> Solution:
    """The order of bytes of ``seed``, a plan under the rules of the question, cut at better positions; never slower."""
    static = seed.credit is None and not any(bucket.release_time for bucket in seed.buckets)
    if not linear(question.pricing, seed.objective) or not static:
        return answer(question, seed, Status.NOT_LINEAR)
    if not seed.buckets:
        return answer(question, seed)
    found = searched(problem_of(question.workload, question.pricing, seed.objective), *tape_of(seed))
    return _better(question, seed, found)


def _better(question: Question, seed: Plan, found: Sized) -> Solution:
    """The faster, by the engine, of a seed and the sequence found, rounded to whole elements."""
    status = found.status or Status.HEURISTIC
    plans = [seed, _plan(question.workload, found, seed.objective)]
    timed = [(predict_timeline(question.workload, plan, question.pricing), plan) for plan in plans]
    timeline, plan = least(timed, lambda pair: pair[0].iteration_time, lambda pair: pair[1].rank)
    return answer(question, plan, status, timeline)


def _plan(workload: Workload, sized: Sized, objective: Objective) -> Plan:
    return plan_of(workload, sized.tape, [cut.position for cut in sized.cuts]).under(objective)


def _value(sized: Sized) -> float:
    return sized.value


def _cuts(sized: Sized) -> int:
    return len(sized.cuts)


def linear(pricing: Pricing, objective: Objective) -> bool:
    """Whether the programme models the engine exactly: one channel, and computation that no plan slows down."""
    channels = pricing.rules(objective).channels
    return channels == 1 and not pricing.effects.compute_slowdown and not pricing.effects.hook_time


def searched(problem: SizingProblem, tape: Tape, cuts: Sequence[Cut], programmes: int = PROGRAMMES) -> Sized:
    """The best sequence found by moving cuts between edges and layers, with a limited number of linear programmes."""
    best = snapped(problem, resized(problem, tape, cuts))
    tried = 1
    while best.status is None and tried < programmes:
        better = None
        for proposal in _proposals(problem, best):
            found = resized(problem, tape, proposal)
            tried += 1
            if found.status is None and found.value < best.value * (1 - PROGRESS):
                better = snapped(problem, found)
            if better or tried >= programmes:
                break
        if better is None:
            break
        best = better
    return best


def snapped(problem: SizingProblem, sized: Sized) -> Sized:
    """The sequence with cuts that are almost at the edge of their layer moved onto the edge: less has to wait."""
    slack = 1e-7 * sized.tape.total
    cuts = list(sized.cuts)
    for number, cut in enumerate(sized.cuts):
        low, high = sized.tape.range_of(cut)
        if cut.before == cut.after and cut.after and cut.position - low <= slack:
            cuts[number] = Cut(cut.before - 1, cut.after, low)
        elif cut.before == cut.after < len(sized.tape.segments) - 1 and high - cut.position <= slack:
            cuts[number] = Cut(cut.before, cut.after + 1, high)
    if any(after.after > later.before for after, later in pairwise(cuts)):
        return sized  # a collective would be left with nothing
    value = time_of(problem, sized.tape, cuts)
    return sized._replace(cuts=tuple(cuts), value=value) if value <= within(sized.value) else sized


def _proposals(problem: SizingProblem, sized: Sized) -> Iterator[tuple[Cut, ...]]:
    """Sequences with cuts moved from an edge into a layer beside it: free moves together, then one by one."""
    slack = 1 + PROGRESS
    for side in (0, 1):
        cuts = list(sized.cuts)
        for number in range(len(cuts)):
            opened = _opened(problem, sized.tape, cuts[number], side)
            trial = [*cuts[:number], opened, *cuts[number + 1 :]]
            if opened != cuts[number] and time_of(problem, sized.tape, trial) <= sized.value * slack:
                cuts = trial
        if tuple(cuts) != sized.cuts:
            yield tuple(cuts)
    singles = []
    for number, cut in enumerate(sized.cuts):
        for side in (0, 1):
            opened = _opened(problem, sized.tape, cut, side)
            trial = [*sized.cuts[:number], opened, *sized.cuts[number + 1 :]]
            if opened != cut:
                singles.append((time_of(problem, sized.tape, trial), tuple(trial)))
    yield from (cuts for _, cuts in ranked(singles, itemgetter(0), lambda single: 0))


def _opened(problem: SizingProblem, tape: Tape, cut: Cut, side: int) -> Cut:
    """A cut on an edge moved into the layer before it (0) or after it (1); unchanged if types would mix."""
    before, after = tape.segments[cut.before].layer, tape.segments[cut.after].layer
    if cut.before == cut.after or problem.dtypes[before] != problem.dtypes[after]:
        return cut
    into = cut.after if side else cut.before
    return Cut(into, into, cut.position)


def _sized(problem: SizingProblem, tape: Tape, cuts: Sequence[Cut]) -> Sized:
    return Sized(tape, tuple(cuts), time_of(problem, tape, cuts))


def _turned(workload: Workload, problem: SizingProblem, objective: Objective, pricing: Pricing) -> list[Sized]:
    """Seeds for forward overlap: ready order up to a turn, then priority. Some turns, then those beside the best."""
    gradients, count = workload.gradients, len(workload.gradients)
    if not objective.forward_overlap or len(set(gradients.dtypes)) > 1:
        return []
    row = merge.sweep(merge.MergeProblem.of(gradients, Limits()), pricing.cost())
    step = 1 + count // TURNS
    found: dict[int, list[Sized]] = {}

    def look(turns: Iterable[int]) -> None:
        for turn in turns:
            start = max(row.finish[turn], gradients.ready_times[-1]) - workload.forward_time
            found.setdefault(turn, list(_turns(workload, problem, _ends(row, turn), start)))

    look(range(0, count, step))
    best = least(found, lambda turn: min(map(_value, found[turn])))
    look(range(max(0, best - step + 1), min(count, best + step)))
    return [seed for seeds in found.values() for seed in seeds]


def _ends(row: merge.MergeTable, end: int) -> list[int]:
    """The bucket ends of the optimum over the first ``end`` gradients."""
    ends = []
    while end > 0:
        ends.append(end)
        end = row.previous[end]
    return ends[::-1]


def _turns(workload: Workload, problem: SizingProblem, ends: Sequence[int], start: float) -> Iterator[Sized]:
    """Sequences of collectives that end at ``ends`` in ready order, with the rest by priority, not before ``start``."""
    turn, count = (ends[-1] if ends else 0), len(workload.gradients)
    tape = laid_out(workload, [*range(turn), *reversed(range(turn, count))])
    for edges in _priority(problem, tape, turn, start):
        yield _sized(problem, tape, [Cut(edge - 1, edge, tape.starts[edge]) for edge in [*ends, *edges]])


def _priority(problem: SizingProblem, tape: Tape, first: int, start: float) -> Iterator[list[int]]:
    """Numbers of the segments before which to cut the tape from segment ``first`` on, all ready at ``start``, into n
    collectives: for the best n, and those beside it.

    With V_n(m) the least time at which an iteration can end whose first m segments go in n collectives (see
    planning.md),  V_n(m) = min_l max(V_{n-1}(l), start + n a + b S_m + q_l),  where q_l is what follows the arrival of
    segment l, the first of the last collective. Exact for one line; a seed takes one line of several.
    """
    sent = np.array(tape.starts[first:], dtype=float) - tape.starts[first]
    tails = np.array([problem.times.tails[segment.layer] for segment in tape.segments[first:]])
    line = line_at(problem.lines[0], sent[-1] / 4)
    best, choices = np.where(sent > 0, np.inf, 0.0), []
    values: list[float] = []
    last = start + line.slope * sent[None, :] + tails[:, None]
    last[np.tri(*last.shape) > 0] = np.inf
    for count in range(1, min(PARTS, len(tails)) + 1):
        reached = np.maximum(best[:-1, None], last + count * line.latency)
        best = reached.min(axis=0)
        choices.append((reached <= within(1.0) * best).argmax(axis=0))
        values.append(float(best[-1]))
        if len(values) > 2 and values[-1] > values[-2] > values[-3]:
            break
    likely = least(range(1, len(values) + 1), lambda number: values[number - 1])
    for count in sorted({max(1, likely - 1), likely, min(len(values), likely + 1)}):
        cuts, end = [], len(tails)
        for chosen in reversed(choices[1:count]):
            end = int(chosen[end])
            cuts.append(first + end)
        yield cuts[::-1]


RULE = PlanRule(
    solve,
    "block sizes by linear programmes, tensors cut",
    objective=Objective(forward_overlap=True),
    searches=True,
    chooses=True,
    on_request=True,
)
