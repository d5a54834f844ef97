"""Several channels, first in, first out: the best runs in ready order, by a recursion over Pareto-optimal states.

Bucket i takes the channel that bucket i-k leaves, pays its start-up a(m) there, and transfers w(m) seconds once bucket
i-1 has transferred (docs/reference/planning.md):

    f_i = max( max(r_i, f_{i-k}) + a(m_i), f_{i-1} ) + w(m_i)

A prefix of the gradients, sent in some runs, leaves the state (f_{i-1}, ..., f_{i-k}). f_i and all later ends do not
decrease with any of them, so a state may be dropped when another of the same prefix is no later in each: *exact* for
this service and any price, for every k, as long as none but dominated states are dropped. For k = 2 the frontier is
short (17 at most was seen for 10 gradients). At most ``WIDEST`` states of a prefix are kept, the earliest, and of many
gradients at most ``MOST`` boundaries are tried; beyond these it is a heuristic, and ``exact`` says so.

Ready order and equal or growing tails: of buckets in order the last decides, barrier or not.

The service is that of the simulator if one flow fills the network (gain 1), except that the simulator shares
bandwidth between transfers rather than serve them in turn; so the plan is a seed there, exact here.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import le
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.rounding import ranked, within
from osfmodel.solve.exact import MergeProblem

WIDEST = 64
MOST = 96


class Runs(NamedTuple):
    """``finish`` under the service above, the end of each run in ready order, and whether no runs finish earlier."""

    finish: float
    ends: tuple[int, ...]
    exact: bool


class _ParetoState(NamedTuple):
    """The last ends, latest first; the ends of the runs so far; the state before."""

    ends: tuple[float, ...]
    cuts: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, tuple[int, ...]]:
        """Fewest buckets, then the earliest cuts, come first."""
        return len(self.cuts), self.cuts


def runs(problem: MergeProblem, pricing: Pricing, channels: int) -> Runs:
    """The runs that finish first on so many channels."""
    count = len(problem.prefix) - 1
    if count > MOST:
        marks = _marks(problem)
        found = _search(problem.contracted(marks), pricing, channels)
        return Runs(found.finish, tuple(marks[end - 1] for end in found.ends), False)
    return _search(problem, pricing, channels)


def _search(problem: MergeProblem, pricing: Pricing, channels: int) -> Runs:
    frontier: list[list[_ParetoState]] = [[_ParetoState((0,) * channels, ())]]
    split = pricing.splitter("all_reduce", channels)
    exact = True
    for i in range(1, len(problem.prefix)):
        states = [
            _ParetoState((served(problem.ready[i - 1], *split(size), state.ends), *state.ends[:-1]), (*state.cuts, i))
            for j in range(problem.earliest[i], i)
            for size in [problem.prefix[i] - problem.prefix[j]]
            for state in frontier[j]
        ]
        kept = _undominated(states)
        exact = exact and len(kept) <= WIDEST
        frontier.append(kept[:WIDEST])
    best = frontier[-1][0]
    return Runs(best.ends[0], best.cuts, exact)


def served(ready: float, startup: float, transfer: float, ends: Sequence[float]) -> float:
    """f_i, given the last k ends, latest first."""
    return max(max(ready, ends[-1]) + startup, ends[0]) + transfer


def _marks(problem: MergeProblem) -> list[int]:
    """At most ``MOST`` ends, about equal bytes apart, and wherever the dtype changes."""
    count, total = len(problem.prefix) - 1, problem.prefix[-1]
    changes = {problem.earliest[i] for i in range(1, count + 1)} - {0}
    room = max(MOST - len(changes) - 1, 1)
    marks, due = set(changes) | {count}, total / room
    for i in range(1, count):
        if problem.prefix[i] >= due:
            marks.add(i)
            due = (problem.prefix[i] // (total / room) + 1) * total / room
    return sorted(marks)


def _undominated(states: list[_ParetoState]) -> list[_ParetoState]:
    """The states that no other beats in each end, earliest first; of equal ones the first by rank."""
    kept: list[tuple[_ParetoState, tuple[float, ...]]] = []
    for state in sorted(states, key=lambda state: state.ends):
        ends, latest = state.ends, tuple(map(within, state.ends))
        for place, (other, rounded) in enumerate(kept):
            if all(map(le, other.ends, latest)):
                if all(map(le, ends, rounded)) and state.rank < other.rank:
                    kept[place] = state, latest
                break
        else:
            kept = [row for row in kept if row[1][0] < ends[0] or not all(map(le, ends, row[1]))]
            kept.append((state, latest))
    return ranked([state for state, _ in kept], lambda state: state.ends[0], lambda state: state.rank)
