"""Block sizes by search: a plan's order of bytes, cut into collectives at the best places.

For a given sequence the sizes are a linear programme (``solve.blocks.resize``). In which layer each cut lies is a
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
from osfmodel.cost.shapes import Array
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.rounding import least, ranked, within
from osfmodel.entities.workload import Workload
from osfmodel.solve.blocks.resize import PROGRESS, Sized, SizingProblem, problem_of, resized, time_of
from osfmodel.solve.blocks.tape import CostPiece, Cut, Tape, laid_out, line_at, plan_of, tape_of
from osfmodel.solve.exact import MergeProblem, MergeTable, optimal, sweep
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
    row = sweep(MergeProblem.of(gradients, Limits()), pricing.cost())
    step = 1 + count // TURNS
    priority = _Priority(problem, laid_out(workload, range(count)[::-1]))
    found: dict[int, list[Sized]] = {}

    def look(turns: Iterable[int]) -> None:
        for turn in turns:
            found.setdefault(turn, list(_turns(workload, problem, _ends(row, turn), priority)))

    look(range(0, count, step))
    best = least(found, lambda turn: min(map(_value, found[turn])))
    look(range(max(0, best - step + 1), min(count, best + step)))
    return [seed for seeds in found.values() for seed in seeds]


def _ends(row: MergeTable, end: int) -> list[int]:
    """The bucket ends of the optimum over the first ``end`` gradients."""
    ends = []
    while end > 0:
        ends.append(end)
        end = row.previous[end]
    return ends[::-1]


def _turns(workload: Workload, problem: SizingProblem, ends: Sequence[int], priority: _Priority) -> Iterator[Sized]:
    """Sequences of collectives that end at ``ends`` in ready order, with the rest by priority."""
    turn, count = (ends[-1] if ends else 0), len(workload.gradients)
    tape = laid_out(workload, [*range(turn), *reversed(range(turn, count))])
    for cuts in priority.cuts(count - turn):
        edges = [*ends, *(turn + cut for cut in cuts)]
        yield _sized(problem, tape, [Cut(edge - 1, edge, tape.starts[edge]) for edge in edges])


class _Priority:
    """Cuts of the first m segments by priority, all ready at once, into n collectives.

    With V_n(m) the least time from then on at which an iteration can end whose first m segments go in n collectives
    (see planning.md),  V_n(m) = min_l max(V_{n-1}(l), n a + b S_m + q_l),  where q_l is what follows the arrival of
    segment l, the first of the last collective. Exact for one line; a seed takes one line of several.
    """

    def __init__(self, problem: SizingProblem, tape: Tape) -> None:
        """``tape``: all segments by priority."""
        self.lines, self.sent = problem.lines[0], np.array(tape.starts, dtype=float)
        self.tails = np.array([problem.times.tails[segment.layer] for segment in tape.segments])
        self.known: dict[CostPiece, list[Array]] = {}

    def cuts(self, end: int) -> Iterator[list[int]]:
        """The segments before which to cut the first ``end``, for the best number of collectives and those beside."""
        line = line_at(self.lines, self.sent[end] / 4)
        rows = self.known.setdefault(line, [np.where(self.sent > 0, np.inf, 0.0)])
        values: list[float] = []
        while len(values) < min(PARTS, end) and not (len(values) > 2 and values[-1] > values[-2] > values[-3]):
            number = len(values) + 1
            if number == len(rows):
                rows.append(_one_more(rows[-1], number * line.latency + line.slope * self.sent, self.tails))
            values.append(float(rows[number][end]))
        likely = least(range(1, len(values) + 1), lambda number: values[number - 1])
        for count in sorted({max(1, likely - 1), likely, min(len(values), likely + 1)}):
            cuts, last = [], end
            for number in range(count, 1, -1):
                begin = number * line.latency + line.slope * self.sent[last]
                reached = np.maximum(rows[number - 1][:last], begin + self.tails[:last])
                last = int((reached <= within(1.0) * rows[number][last]).argmax())
                cuts.append(last)
            yield cuts[::-1]


def _one_more(before: Array, begin: Array, tails: Array) -> Array:
    """V_n(m) for all m from V_{n-1} and ``begin``, n a + b S_m of each m; tails fall along the tape.

    With M the least of V_{n-1}(l) for l from some k up to m, it is the least over k of max(M, n a + b S_m + q_k): M
    grows with k and the other falls. So the first k where M is no less is found by steps of powers of two down from m.
    """
    lows = [before]
    while 1 << len(lows) < len(before):
        half = 1 << len(lows) - 1
        lows.append(np.append(np.minimum(lows[-1][:-half], lows[-1][half:]), lows[-1][-half:]))
    place, low = np.arange(len(before)), np.full(len(before), np.inf)
    for power in reversed(range(len(lows))):
        start = np.maximum(place - (1 << power), 0)
        lower = np.minimum(low, lows[power][start])
        more = (lower >= begin + tails[np.minimum(start, len(tails) - 1)]) & (start + (1 << power) == place)
        place, low = np.where(more, start, place), np.where(more, lower, low)
    return np.where(place > 0, np.minimum(low, begin + tails[place - 1]), low)


RULE = PlanRule(
    solve,
    "block sizes by linear programmes, tensors cut",
    objective=Objective(forward_overlap=True),
    searches=True,
    chooses=True,
    on_request=True,
)
