"""The exact optimum over all schedules of one channel: any order, any fusion, any cutting. T(m) = a + b m.

To finish by t, gradient j must be sent within [r_j, t - q_j]. Ready times and tails both grow in ready order, so these
windows are nested. Let S_j be the bytes of gradients j..L.

*Necessary.* All S_j bytes travel in buckets within window j. Some bucket c lies within window L. On one channel every
other bucket ends before c starts, and then it is within window j iff its start is r_j or later; or it starts after c
ends, and then iff its end is t - q_j or earlier. Call the largest such j its kind; let A be the kinds below L of the
buckets before c, and B of those after. Window j then holds at least n_j = 1 + |A from j on| + |B from j on| buckets,
the first of which starts at r_i or later, i the least of A from j on (L if none), and the last of which ends at
t - q_k or earlier, k the least of B from j on (L if none). Their start-ups and transfers fit in between, so

    t >= r_i(j) + q_k(j) + a n_j + b S_j     for all j.                                              (1)

*Sufficient.* Given A and B, let buckets begin at the r_i of A in increasing order, one at r_L, and after it let buckets
end at the t - q_k of B in decreasing order, each as long as there is time up to the next. (If one were shorter than a,
leaving it out of A or B would relax (1).) By (1) those within window j have room for S_j bytes, for each j; as windows
are nested, filling them from the last gradient to the first never fails.

*Split.* Where every byte crosses twice, scattered and later gathered, window L holds at least one message of each kind,
and all that carry bytes of j..L lie within window j. So (1) is necessary with the start-ups of both in window L, the
smaller start-up for each member of A and B, and b the sum of both: a lower bound, no longer attained by construction.

Hence t* = min over A, B of max over j of the right side of (1), at least the compute time. The search goes from j = L
down, and adds j to A or to B, or to both, only where (1) would fail without: adding it later serves later j better.
Of states (i, k, n) those are kept of which no other has i, k and n no larger. A test of one t visits L levels; t is
found by bisection, and then improved until no choice beats it, so rational input gives the rational optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from osfmodel.cost.shapes import AffineCost, Cost
from osfmodel.entities.rounding import just_below, within
from osfmodel.solve.scheduling import Chunk, Jobs

HALVINGS = 40


class CostLine(NamedTuple):
    """Seconds of start-up of a message, seconds per byte, and the least start-ups in window L."""

    startup: float
    per_byte: float
    first: float


@dataclass(frozen=True, slots=True)
class Windows:
    """``time`` = max over j of (1), not yet compared with compute time; ``starts`` is A and ``ends`` is B, both
    decreasing positions in ready order, the last gradient left out."""

    time: float
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class _WindowState(NamedTuple):
    """Minima of A and of B, the number added to both, and the state before."""

    start: int
    end: int
    added: int
    before: _WindowState | None


def optimum(jobs: Jobs, line: CostLine) -> Windows:
    """The windows of the fastest schedule for messages at these prices."""
    best = _timed(jobs, line, (), ())
    low = _relaxed(jobs, line)
    for _ in range(HALVINGS):
        if best.time <= within(low):
            return best
        middle = (low + best.time) / 2
        found = below(jobs, line, middle)
        if found is None:
            low = middle
        else:
            best = found
        if best.time - low <= best.time * 1e-9:
            break
    while (found := below(jobs, line, just_below(best.time))) is not None:
        best = found
    return best


def chunks_of(jobs: Jobs, windows: Windows, line: CostLine) -> list[Chunk]:
    """Buckets that fill the windows, in the order in which they are sent.

    They hold whole elements: rounded down, and where (1) then lacks room for the gradients, up.
    """
    last = len(jobs.sizes) - 1
    kinds = [*sorted(windows.starts), last, *windows.ends]
    marks = [jobs.ready[kind] for kind in kinds[: len(windows.starts) + 1]]
    marks += [windows.time - jobs.tails[kind] for kind in kinds[len(windows.starts) :]]
    grain, total = jobs.grain, sum(jobs.sizes)
    rooms = [
        min(total, int(within(max(0, end - start - line.startup) / line.per_byte)) // grain * grain)
        if line.per_byte
        else total
        for start, end in pairwise(marks)
    ]
    held = 0
    order = sorted(range(len(kinds)), key=lambda number: -kinds[number])
    for number, following in pairwise([*order, -1]):
        held += rooms[number]
        lacking = sum(jobs.sizes[kinds[following] + 1 if following >= 0 else 0 :]) - held
        if lacking > 0:
            added = -(-lacking // grain) * grain
            rooms[number], held = rooms[number] + added, held + added
    return [Chunk(kind, room) for kind, room in zip(kinds, rooms, strict=True) if room]


def minorants(cost: Cost, largest: int) -> list[tuple[float, float]]:
    """Lines a + b m, a and b not negative, nowhere above the cost of a message of 0 < m <= ``largest`` bytes.

    A minimum of lines is concave, so it lies above its chord; one line is its own chord. Of a table, the edges of the
    lower convex hull of its floor at the measured sizes up to there, which never falls.
    """
    if isinstance(cost, AffineCost):
        first = min(startup for startup, _ in cost.pieces)
        return [(first, (cost(largest) - first) / largest)]
    floor = cost.floor
    knots = [0, *(size for size in floor.sizes if 0 < size < largest), largest]
    hull: list[tuple[int, float]] = []
    for point in [(knot, floor(knot)) for knot in knots]:
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    lines = []
    for (left, low), (right, high) in pairwise(hull):
        slope = (high - low) / (right - left)
        if low - slope * left >= 0:
            lines.append((low - slope * left, slope))
    return lines


def _turns_down(first: tuple[int, float], second: tuple[int, float], third: tuple[int, float]) -> bool:
    """Whether the middle point lies on or above the line through the others."""
    along, up = third[0] - first[0], third[1] - first[1]
    return (second[1] - first[1]) * along >= up * (second[0] - first[0])


def _relaxed(jobs: Jobs, line: CostLine) -> float:
    """LB_q of docs/reference/planning.md, at least the compute time."""
    bound, suffix = jobs.least, 0
    for size, ready, tail in zip(reversed(jobs.sizes), reversed(jobs.ready), reversed(jobs.tails), strict=True):
        suffix += size
        bound = max(bound, ready + line.first + line.per_byte * suffix + tail)
    return bound


def below(jobs: Jobs, line: CostLine, limit: float) -> Windows | None:
    """A choice of A and B with few buckets that keeps the right side of (1) below ``limit``; None if none does."""
    ready, tails, last = jobs.ready, jobs.tails, len(jobs.sizes) - 1
    states, suffix = [_WindowState(last, last, 0, None)], 0

    def fits(state: _WindowState, sent: float) -> bool:
        return ready[state.start] + tails[state.end] + line.first + line.startup * state.added + sent < limit

    for j in reversed(range(len(jobs.sizes))):
        suffix += jobs.sizes[j]
        sent = line.per_byte * suffix
        kept = [state for state in states if fits(state, sent)]
        if len(kept) < len(states):
            for state in states:
                if not fits(state, sent):
                    left, right = (
                        _WindowState(j, state.end, state.added + 1, state),
                        _WindowState(state.start, j, state.added + 1, state),
                    )
                    able = [added for added in (left, right) if fits(added, sent)]
                    both = _WindowState(j, j, state.added + 2, state)
                    kept += able or ([both] if fits(both, sent) else [])
            states = _undominated(kept)
            if not states:
                return None
    fewest = min(states, key=lambda state: state.added)
    starts, ends = _trace(fewest)
    return _timed(jobs, line, starts, ends)


def _undominated(states: Sequence[_WindowState]) -> list[_WindowState]:
    """The states that no other beats in start, end and added."""
    kept: list[_WindowState] = []
    for state in sorted(states, key=lambda state: state[:3]):
        if not any(other.end <= state.end and other.added <= state.added for other in kept):
            kept.append(state)
    return kept


def _trace(state: _WindowState) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A and B, decreasing."""
    starts, ends = [], []
    while state.before is not None:
        before = state.before
        if state.start != before.start:
            starts.append(state.start)
        if state.end != before.end:
            ends.append(state.end)
        state = before
    return tuple(reversed(starts)), tuple(reversed(ends))


def _timed(jobs: Jobs, line: CostLine, starts: Sequence[int], ends: Sequence[int]) -> Windows:
    """The windows with the largest right side of (1) over j as their time."""
    start = end = len(jobs.sizes) - 1
    count, suffix = 0, 0
    time: float = 0
    first, last = set(starts), set(ends)
    for j in reversed(range(len(jobs.sizes))):
        suffix += jobs.sizes[j]
        if j in first:
            start, count = j, count + 1
        if j in last:
            end, count = j, count + 1
        time = max(
            time, jobs.ready[start] + jobs.tails[end] + line.first + line.startup * count + line.per_byte * suffix
        )
    return Windows(time, tuple(starts), tuple(ends))
