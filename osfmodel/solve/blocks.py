"""Block sizes: a plan's order of bytes, cut into collectives at the best places.

For a given sequence the sizes are a linear programme (osfmodel.solve.block_program). In which layer each cut lies is a
choice on top of it: here a local search, in osfmodel.solve.block_choice a mixed-integer programme that says how good
the search is on small instances. Cuts that the programme leaves at the edge of their layer are moved onto the edge,
which can only free something; then cuts on edges are moved into one of the two layers beside them, all at once where
that costs nothing, else one by one in the order of what it costs before the programme has moved them.

One channel, sent in the order of the plan; barrier or forward overlap, all-reduces whole or split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from osfmodel.engine import predict_timeline
from osfmodel.objective import Objective
from osfmodel.plan import Plan
from osfmodel.pricing import Pricing
from osfmodel.solve import optimal
from osfmodel.solve.bounds import objective_bound
from osfmodel.solve.resize import PROGRESS, Setting, Sized, resized, setting_of, time_of
from osfmodel.solve.solution import Limits, Solution, Status
from osfmodel.solve.tape import Cut, Tape, laid_out, plan_of, tape_of
from osfmodel.workload import Workload

PROGRAMMES = 24
"""Linear programmes that the search over places solves per sequence at most."""
SIZED, SEARCHED = 8, 2
"""So many of the fastest seeds get their sizes by a linear programme, so many of the fastest of these are searched."""
TAILS = (1, 2, 3, 4, 6, 8, 12)
"""Numbers of collectives after the turn from ready order to priority that the seeds try."""
TURNS = 24
"""Places of that turn that the seeds try."""


def solve(workload: Workload, pricing: Pricing, objective: Objective = Objective(forward_overlap=True)) -> Solution:
    """The best sequence of a simple family, with its sizes improved; the seed itself where they cannot be.

    The seeds: the exact optimum in ready order, and with forward overlap its first collectives followed by the rest
    by priority. Where the objective or the effects are not linear, the optimum in ready order, status NOT_LINEAR.
    """
    seeds = [plan.under(objective) for plan in _seeds(workload, objective, pricing)]
    if not seeds[0].buckets or not linear(pricing, objective):
        return improved(workload, seeds[0], pricing)
    setting = setting_of(workload, pricing, objective)
    tapes = [tape_of(plan) for plan in seeds]
    start = min((Sized(tape, tuple(cuts), time_of(setting, tape, cuts)) for tape, cuts in tapes), key=_value)
    quick = sorted({(time_of(setting, *tape), number) for number, tape in enumerate(tapes)})[:SIZED]
    sized = sorted((resized(setting, *tapes[number]) for _, number in quick), key=_value)
    found = [searched(setting, best.tape, best.cuts) for best in sized[:SEARCHED]]
    return _better(workload, _plan(workload, start, objective), min(found, key=_value), pricing)


def improved(workload: Workload, seed: Plan, pricing: Pricing) -> Solution:
    """The order of bytes of ``seed`` under its own rules, cut at better places; never slower than the seed."""
    lower = objective_bound(workload, pricing, seed.objective)
    static = seed.credit is None and not any(bucket.release_time for bucket in seed.buckets)
    if not linear(pricing, seed.objective) or not static:
        return Solution(seed, predict_timeline(workload, seed, pricing), lower, Status.NOT_LINEAR)
    if not seed.buckets:
        return Solution(seed, predict_timeline(workload, seed, pricing), lower, Status.HEURISTIC)
    found = searched(setting_of(workload, pricing, seed.objective), *tape_of(seed))
    return _better(workload, seed, found, pricing)


def _better(workload: Workload, seed: Plan, found: Sized, pricing: Pricing) -> Solution:
    """Of the seed and of what was found, rounded to whole elements, the faster under the engine."""
    plans = [seed, _plan(workload, found, seed.objective)]
    timed = [(predict_timeline(workload, plan, pricing), plan) for plan in plans]
    timeline, plan = min(timed, key=lambda pair: pair[0].iteration_time)
    lower = objective_bound(workload, pricing, seed.objective)
    return Solution(plan, timeline, lower, found.status or Status.HEURISTIC)


def _plan(workload: Workload, sized: Sized, objective: Objective) -> Plan:
    return plan_of(workload, sized.tape, [cut.position for cut in sized.cuts]).under(objective)


def _value(sized: Sized) -> float:
    return sized.value


def linear(pricing: Pricing, objective: Objective) -> bool:
    """Whether the programme says what the engine does: one channel, and nothing that hangs on the plan but its times."""
    return objective.channels == 1 and not pricing.effects.compute_slowdown and not pricing.effects.hook_time


def searched(setting: Setting, tape: Tape, cuts: Sequence[Cut], programmes: int = PROGRAMMES) -> Sized:
    """The best sequence found by moving cuts between edges and layers, after at most so many linear programmes."""
    best = snapped(setting, resized(setting, tape, cuts))
    tried = 1
    while best.status is None and tried < programmes:
        better = None
        for cuts in _proposals(setting, best):
            found = resized(setting, tape, cuts)
            tried += 1
            if found.status is None and found.value < best.value * (1 - PROGRESS):
                better = snapped(setting, found)
            if better or tried >= programmes:
                break
        if better is None:
            break
        best = better
    return best


def snapped(setting: Setting, sized: Sized) -> Sized:
    """Cuts at the very edge of their layer put onto the edge: fewer collectives wait, fewer layers wait for them."""
    slack = 1e-7 * sized.tape.total
    cuts = []
    for cut in sized.cuts:
        low, high = sized.tape.range_of(cut)
        if cut.before == cut.after and cut.after and cut.position - low <= slack:
            cut = Cut(cut.before - 1, cut.after, low)
        elif cut.before == cut.after < len(sized.tape.segments) - 1 and high - cut.position <= slack:
            cut = Cut(cut.before, cut.after + 1, high)
        cuts.append(cut)
    if any(after.after > later.before for after, later in pairwise(cuts)):
        return sized  # a collective would be left with nothing
    value = time_of(setting, sized.tape, cuts)
    return sized._replace(cuts=tuple(cuts), value=value) if value <= sized.value else sized


def _proposals(setting: Setting, sized: Sized) -> Iterator[tuple[Cut, ...]]:
    """Sequences with cuts moved from an edge into a layer beside it: free moves together, then each by itself."""
    slack = 1 + PROGRESS
    for side in (0, 1):
        cuts = list(sized.cuts)
        for number in range(len(cuts)):
            opened = _opened(setting, sized.tape, cuts[number], side)
            trial = [*cuts[:number], opened, *cuts[number + 1 :]]
            if opened != cuts[number] and time_of(setting, sized.tape, trial) <= sized.value * slack:
                cuts = trial
        if tuple(cuts) != sized.cuts:
            yield tuple(cuts)
    singles = []
    for number, cut in enumerate(sized.cuts):
        for side in (0, 1):
            opened = _opened(setting, sized.tape, cut, side)
            trial = [*sized.cuts[:number], opened, *sized.cuts[number + 1 :]]
            if opened != cut:
                singles.append((time_of(setting, sized.tape, trial), number, side, tuple(trial)))
    yield from (cuts for _, _, _, cuts in sorted(singles))


def _opened(setting: Setting, tape: Tape, cut: Cut, side: int) -> Cut:
    """A cut on an edge moved into the layer before it (0) or after it (1); itself where types would mix."""
    before, after = tape.segments[cut.before].layer, tape.segments[cut.after].layer
    if cut.before == cut.after or setting.dtypes[before] != setting.dtypes[after]:
        return cut
    into = cut.after if side else cut.before
    return Cut(into, into, cut.position)


def _seeds(workload: Workload, objective: Objective, pricing: Pricing) -> Iterator[Plan]:
    """In ready order, and with forward overlap the same up to a turn, then the rest by priority."""
    base, _ = optimal.solve(workload, pricing.cost(), Limits()).require()
    yield base
    if not objective.forward_overlap or len(set(workload.gradients.dtypes)) > 1:
        return
    ends = [0]
    for bucket in base.buckets:
        ends.append(ends[-1] + len(bucket.blocks))
    count = len(workload.gradients)
    for end in ends[:-1][:: 1 + len(ends) // TURNS]:
        order = [*range(end), *reversed(range(end, count))]
        tape = laid_out(workload, order)
        heads = [tape.starts[place] for place in ends if 0 < place <= end]
        for tails in TAILS:
            if tails <= count - end:
                yield plan_of(workload, tape, [*heads, *_even(tape, end, tails)])


def _even(tape: Tape, first: int, parts: int) -> list[int]:
    """Edges that cut the tape from segment ``first`` on into about equal parts; some fall together in small tapes."""
    start = tape.starts[first]
    goals = [start + (tape.total - start) * part / parts for part in range(1, parts)]
    return sorted({min(tape.starts[first + 1 : -1], key=lambda edge: abs(edge - goal)) for goal in goals})
