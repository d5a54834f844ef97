"""Plans proven to be the best; here the exact optimum over plans of whole tensors in ready order, on one channel.

With F(i) the earliest time at which the first i gradients can have been communicated, r_i the ready time of the i-th
and P_i the bytes of the first i,

    F(0) = 0,   F(i) = min_{j < i} max(F(j), r_i) + T(P_i - P_j)

A plan's last bucket holds gradients j+1..i; it starts when they are ready and the channel is free, and an earlier F(j)
never hurts, so an optimal plan extends an optimal plan (docs/reference/model.md; holds for any T >= 0, also one that
falls). Limits and dtype changes only restrict j.

Two methods give the same plan value:

* a minimum of K affine pieces is nondecreasing, so F is too; a pointer and one monotone queue per piece give O(K L);
* anything else is searched row by row over the j that can still win (numpy), O(L * backlog).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from osfmodel.cost.shapes import AffineCost, Array, Cost, TableCost
from osfmodel.entities.plan import contiguous_plan
from osfmodel.entities.rounding import within
from osfmodel.entities.workload import Gradients
from osfmodel.solve.solution import Limits, Question, Solution, Status

NEVER = float("inf")
NARROW = 192
"""Number of choices up to which pricing all is faster than ruling some out."""
TIDY_CELLS = 256
"""Maximum product of candidate boundaries and buckets in the search for early buckets; it does not move the optimum."""


def solve(question: Question) -> Solution:
    """The fastest plan of whole tensors in ready order; under effects the fastest without them.

    Raises UsageError for other rules than the plain ones.
    """
    question.require_plain("exact merging")
    workload = question.workload
    ends = optimal_ends(workload.gradients, question.pricing.cost(), question.limits)
    if ends is None:
        return Solution(question, None, Status.INFEASIBLE)
    status = Status.OPTIMAL if question.undisturbed else Status.HEURISTIC
    return Solution(question, contiguous_plan(workload, ends), status)


def optimal_ends(gradients: Gradients, cost: Cost, limits: Limits = Limits()) -> tuple[int, ...] | None:
    """The end of each bucket of an optimal plan, in ready order; None if the limits allow no plan.

    Many plans share the optimal finish, since only the last buckets decide it. Among them this is one with few
    buckets (a message too many costs more in practice than a model says), whose parts end as early as so few allow
    (what is sent late has no slack).
    """
    problem = MergeProblem.of(gradients, limits)
    row = sweep(problem, cost)
    if row.finish[-1] == NEVER:
        return None
    few = _few_buckets(problem, cost, row)
    if limits.max_buckets is not None and len(few) > limits.max_buckets:
        return _at_most(problem, cost, limits.max_buckets)
    if len(few) > TIDY_CELLS:
        return few
    trace = ends_of(problem, cost, row)[::-1]
    candidates = sorted({*trace[:: 1 + len(trace) * len(few) // TIDY_CELLS], *few})
    if len(candidates) == len(few):
        return few
    early = _at_most(problem.contracted(candidates), cost, len(few))
    return few if early is None else tuple(candidates[end - 1] for end in early)


@dataclass(frozen=True, slots=True)
class MergeProblem:
    """Ready times and prefix sums of the sizes, and for each i the smallest j from which a bucket may reach i."""

    ready: Sequence[float]
    prefix: Sequence[int]
    earliest: Sequence[int]

    @staticmethod
    def of(gradients: Gradients, limits: Limits) -> MergeProblem:
        """The problem of merging these gradients, with dtype changes and ``limits`` as bounds on j."""
        prefix = [0]
        for size in gradients.sizes:
            prefix.append(prefix[-1] + size)
        earliest = [0]
        for i in range(1, len(prefix)):
            start = earliest[-1]
            if i > 1 and gradients.dtypes[i - 1] != gradients.dtypes[i - 2]:
                start = i - 1
            if limits.max_bucket_bytes is not None:
                start = max(start, bisect_left(prefix, prefix[i] - limits.max_bucket_bytes))
            earliest.append(start)
        return MergeProblem(gradients.ready_times, prefix, earliest)

    def contracted(self, ends: Sequence[int]) -> MergeProblem:
        """The same problem with buckets that end only at ``ends`` (increasing, the last one at the end of all)."""
        bounds = [0, *ends]
        return MergeProblem(
            [self.ready[end - 1] for end in ends],
            [self.prefix[bound] for bound in bounds],
            [bisect_left(bounds, self.earliest[bound]) for bound in bounds],
        )


@dataclass(frozen=True, slots=True)
class MergeTable:
    """F(0..L), and for each i the j that attains it (-1 if no plan reaches i)."""

    finish: list[float]
    previous: list[int]


def sweep(
    problem: MergeProblem, cost: Cost, base: list[float] | None = None, prices: Array | None = None
) -> MergeTable:
    """F(0..L). With ``base``, the row of plans with at most k buckets, the row of those with at most k + 1.

    prices: of :func:`_prices`, where they are known
    """
    if isinstance(cost, AffineCost):
        return _affine_row(problem, cost, base)
    if prices is None:
        prices = _prices(problem, cost)
    return _general_row(problem, cost, base) if prices is None else _priced_row(problem, prices, base)


def _prices(problem: MergeProblem, cost: Cost) -> Array | None:
    """The price of each bucket (j, i] at [i, j], infinite where it is not allowed; None for affine or long problems."""
    count = len(problem.prefix)
    if count > NARROW or isinstance(cost, AffineCost):
        return None
    positions, places = np.array(problem.prefix, dtype=float), np.arange(count)
    prices: Array = cost(positions[:, np.newaxis] - positions)
    prices[(places < np.array(problem.earliest)[:, np.newaxis]) | (places >= places[:, np.newaxis])] = np.inf
    return prices


def _priced_row(problem: MergeProblem, prices: Array, base: list[float] | None) -> MergeTable:
    """All F(i) where every bucket has been priced."""
    count = len(problem.prefix)
    if base is not None:
        times = prices[1:] + np.maximum(np.array(base, dtype=float), np.array(problem.ready)[:, np.newaxis])
        winners = times.argmin(axis=1)
        finish = times[np.arange(count - 1), winners]
        previous = np.where(finish < NEVER, winners, -1)
        return MergeTable([0, *finish.tolist()], [-1, *previous.tolist()])
    source, chosen = np.zeros(count), [-1]
    for i, now in enumerate(problem.ready, 1):
        row = np.maximum(source[:i], now)
        row += prices[i, :i]
        winner = int(row.argmin())
        source[i] = best = row[winner]
        chosen.append(winner if best < NEVER else -1)
    return MergeTable(source.tolist(), chosen)


def _affine_row(problem: MergeProblem, cost: AffineCost, base: list[float] | None) -> MergeTable:
    """All F(i) for a minimum of affine pieces.

    F is nondecreasing, so the j with F(j) <= r_i form a growing prefix. Among them the largest gives the smallest
    bucket and wins. For those behind, max(F(j), r_i) = F(j), and piece (a, b) costs a + b P_i + min (F(j) - b P_j): a
    sliding-window minimum, one monotone queue per piece.
    """
    ready, prefix, earliest = problem.ready, problem.prefix, problem.earliest
    finish: list[float] = [0]
    previous = [-1]
    source = finish if base is None else base
    queues: list[deque[tuple[float, int]]] = [deque() for _ in cost.pieces]
    free = -1
    for i in range(1, len(prefix)):
        now, position = ready[i - 1], prefix[i]
        value = source[i - 1]
        if value < NEVER:
            for (_, per_byte), queue in zip(cost.pieces, queues, strict=True):
                key = value - per_byte * prefix[i - 1]
                while queue and queue[-1][0] >= key:
                    queue.pop()
                queue.append((key, i - 1))
        while free + 1 < i and source[free + 1] <= now:
            free += 1
        best, choice = NEVER, -1
        if free >= earliest[i]:
            best, choice = now + cost(position - prefix[free]), free
        oldest = max(free + 1, earliest[i])
        for (latency, per_byte), queue in zip(cost.pieces, queues, strict=True):
            while queue and queue[0][1] < oldest:
                queue.popleft()
            if queue:
                candidate = queue[0][0] + latency + per_byte * position
                if candidate < best:
                    best, choice = candidate, queue[0][1]
        finish.append(best)
        previous.append(choice)
    return MergeTable(finish, previous)


def _general_row(problem: MergeProblem, cost: TableCost, base: list[float] | None) -> MergeTable:
    """All F(i) for any cost, trying only the j that a known candidate, the last row's winner, does not rule out.

    A bucket of m bytes takes at least floor(m), so no j whose bucket is so large that r_i + floor(m) passes the
    candidate can win; and while F has not decreased so far, no j with F(j) + (cheapest message) above it can. If few
    j are left anyway, all are tried.
    """
    ready, prefix, earliest = problem.ready, problem.prefix, problem.earliest
    count = len(prefix)
    positions = np.array(prefix, dtype=float)
    finish = np.full(count, np.inf)
    finish[0] = 0
    source = finish if base is None else np.array(base, dtype=float)
    floor = cost.floor
    cheapest = floor.times[0]
    previous = [-1] * count
    known = [float(source[0])]
    monotone = True
    guess = 0
    for i in range(1, count):
        now, low, high = ready[i - 1], earliest[i], i
        if high - low > NARROW:
            likely = max(guess, low)
            candidate = max(known[likely], now) + cost(prefix[i] - prefix[likely])
            # The candidate itself stays in, whatever the rounding of the differences says.
            low = min(likely, max(low, bisect_left(prefix, prefix[i] - _largest_within(floor, candidate - now))))
            if monotone:
                high = max(likely + 1, bisect_right(known, candidate - cheapest))
        if low < high:
            times = np.maximum(source[low:high], now) + cost(positions[i] - positions[low:high])
            winner = int(times.argmin())
            finish[i] = times[winner]
            if times[winner] < NEVER:
                guess = previous[i] = low + winner
        known.append(float(source[i]))
        monotone = monotone and known[-1] >= known[-2]
    return MergeTable(finish.tolist(), previous)


def _largest_within(floor: TableCost, budget: float) -> float:
    """A size in bytes above which every message takes more than ``budget`` seconds."""
    index = bisect_right(floor.times, budget)
    if index < len(floor.times):
        return floor.sizes[index]
    if not floor.asymptote:
        return NEVER
    return floor.sizes[-1] + (budget - floor.times[-1]) / floor.asymptote + 1


def ends_of(problem: MergeProblem, cost: Cost, row: MergeTable, end: int | None = None) -> list[int]:
    """The bucket ends behind F(end), F(L) without ``end``: of the j that attain an F the largest."""
    prefix, finish = _arrays(problem, row)
    end, ends = len(finish) - 1 if end is None else end, []
    while end > 0:
        ends.append(end)
        first = row.previous[end]
        if first + 1 < end:  # what the sweep chose attains F; so may others behind it, but for rounding
            times = np.maximum(finish[first + 1 : end], problem.ready[end - 1])
            alike = np.flatnonzero(times + cost(prefix[end] - prefix[first + 1 : end]) <= within(row.finish[end]))
            first += int(alike[-1]) + 1 if len(alike) else 0
        end = first
    return ends[::-1]


def _arrays(problem: MergeProblem, row: MergeTable) -> tuple[Array, Array]:
    """Prefix sums and F(0..L); of exact numbers objects."""
    kind = float if isinstance(row.finish[-1], float) else object
    return np.array(problem.prefix, dtype=kind), np.array(row.finish, dtype=kind)


def _few_buckets(problem: MergeProblem, cost: Cost, row: MergeTable) -> tuple[int, ...]:
    """An optimal plan in which, from the end, each bucket reaches back as far as the optimum allows.

    A bucket (j, i] that must end by ``deadline`` may be taken if its gradients are ready, and the first j can be sent,
    in time for it to start; the j that attains F(i) always may. Rounding is allowed for once, at the end of all.
    """
    end = len(row.finish) - 1
    deadline = within(row.finish[end])
    prefix, finish = _arrays(problem, row)
    ends = []
    while end > 0:
        ends.append(end)
        first, choice = problem.earliest[end], row.previous[end]
        starts = deadline - cost(prefix[end] - prefix[first : choice + 1])
        fits = np.flatnonzero((problem.ready[end - 1] <= starts) & (finish[first : choice + 1] <= starts))
        # The choice of the sweep fits but for rounding, so it is taken where nothing before it fits.
        end = first + int(fits[0]) if len(fits) else choice
        deadline = max(starts[end - first], finish[end])
    return tuple(reversed(ends))


def _at_most(problem: MergeProblem, cost: Cost, buckets: int) -> tuple[int, ...] | None:
    """The fastest plan with at most ``buckets`` buckets; None if there is none."""
    rows = [MergeTable([0] + [NEVER] * (len(problem.prefix) - 1), [])]
    prices = _prices(problem, cost)
    for _ in range(buckets):
        rows.append(sweep(problem, cost, rows[-1].finish, prices))
    end = len(problem.prefix) - 1
    if rows[-1].finish[end] == NEVER:
        return None
    most = within(rows[-1].finish[end])
    count = next(number for number, row in enumerate(rows) if row.finish[end] <= most)
    ends = []
    while end > 0:
        ends.append(end)
        end = _first_origin(problem, cost, rows[count - 1].finish, rows[count], end)
        count -= 1
    return tuple(reversed(ends))


def _first_origin(problem: MergeProblem, cost: Cost, source: Sequence[float], row: MergeTable, end: int) -> int:
    """The first j from which a bucket up to ``end`` attains the F of ``row`` there; F(j) is that of ``source``."""
    most, now, position = within(row.finish[end]), problem.ready[end - 1], problem.prefix[end]
    for j in range(problem.earliest[end], row.previous[end]):
        if source[j] <= most and max(source[j], now) + cost(position - problem.prefix[j]) <= most:
            return j
    return row.previous[end]
