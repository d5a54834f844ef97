"""The plan ``optimal``: exact merging, in whatever order dtypes alternate.

Dtypes may alternate in ready order, such as bfloat16 weights between float32 norms.
Types never share a message, so the gradients are one chain per dtype, all on the same channel. With two chains A and B
and F(i, j) the earliest time at which the first i of A and the first j of B can have been sent,

    F(i, j) = min( min_{k < i} max(F(k, j), r_A,i) + T(A_k..i),  min_{k < j} max(F(i, k), r_B,j) + T(B_k..j) )

by the argument of exact merging, chain by chain. For more states than MOST_STATES, or more dtypes, the best of many
simple plans, each dtype walked by itself, is improved by local search; the status says which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from osfmodel.cost.shapes import Array, Cost
from osfmodel.entities.plan import PLAIN, grouped_plan
from osfmodel.entities.rounding import least, within
from osfmodel.entities.workload import Gradients, Workload
from osfmodel.solve import exact
from osfmodel.solve.caps import DDP_LIMITS, bucket_layout, distinct
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, Status, allowed, alternate, finish, rank_of

if TYPE_CHECKING:
    from osfmodel.entities.filling import Closes


def caveats(workload: Workload) -> tuple[str, ...]:
    """A caveat if the optimum is not proven."""
    gradients = workload.gradients
    if not alternate(gradients.dtypes) or exact_is_possible(gradients):
        return ()
    return ("with so many tensors of alternating dtypes the plan optimal is the best found, not proven to be the best",)


def solve(question: Question) -> Solution:
    """The fastest plan of whole tensors, in ready order within each dtype, within the limits; without effects.

    Raises UsageError for other rules than the plain ones.
    """
    method = solve_alternating if alternate(question.workload.gradients.dtypes) else exact.solve
    return method(question)


MOST_STATES = 40_000


CAPS_TRIED = 200


MOST_TRIES = 2000
"""Plans that the local search prices before it stops."""


def solve_alternating(question: Question) -> Solution:
    """The fastest plan of whole tensors, in ready order within each dtype. Raises as :func:`solve`."""
    question.require_plain("exact merging")
    gradients, cost, limits = question.workload.gradients, question.pricing.cost(), question.limits
    chains = gradients.chains
    status = Status.OPTIMAL if question.undisturbed else Status.HEURISTIC
    groups = None
    if exact_is_possible(gradients):
        groups = two_chains(gradients, chains, cost, limits)
    if groups is None or not allowed(groups, gradients, limits):
        status = Status.HEURISTIC
        candidates = [found for found in simple(gradients, chains, limits) if allowed(found, gradients, limits)]
        groups = least(candidates, lambda found: finish(found, gradients, cost), rank_of) if candidates else None
        groups = None if groups is None else improved(groups, gradients, cost, limits)
    if groups is None:
        return Solution(question, None, Status.INFEASIBLE)
    return Solution(question, grouped_plan(question.workload, groups), status)


def exact_is_possible(gradients: Gradients) -> bool:
    """Whether there are two dtypes and few enough tensors of them."""
    counts = [gradients.dtypes.count(kind) for kind in dict.fromkeys(gradients.dtypes)]
    return len(counts) == 2 and (counts[0] + 1) * (counts[1] + 1) <= MOST_STATES


def two_chains(
    gradients: Gradients, chains: Sequence[Sequence[int]], cost: Cost, limits: Limits
) -> list[list[int]] | None:
    """The buckets behind F(|A|, |B|) in the order in which they are sent; None if a tensor is above the limit."""
    ready = [[gradients.ready_times[i] for i in chain] for chain in chains]
    prices = [_prices([gradients.sizes[i] for i in chain], cost, limits) for chain in chains]
    rows, columns = len(chains[0]) + 1, len(chains[1]) + 1
    best = np.full((rows, columns), np.inf)
    best[0, 0] = 0
    for i in range(rows):
        if i:
            best[i] = (np.maximum(best[:i], ready[0][i - 1]) + prices[0][i, :i, None]).min(axis=0)
        for j in range(1, columns):
            best[i, j] = min(best[i, j], (np.maximum(best[i, :j], ready[1][j - 1]) + prices[1][j, :j]).min())
    if not np.isfinite(best[-1, -1]):
        return None
    return _walk_back(best, ready, prices, chains)


def _walk_back(
    best: Array, ready: Sequence[Sequence[float]], prices: Sequence[Array], chains: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Buckets that attain the last of ``best``: from the end the one that reaches back furthest, as in ``merge``."""
    groups: list[list[int]] = []
    place = [best.shape[0] - 1, best.shape[1] - 1]
    deadline = within(float(best[-1, -1]))
    while any(place):
        found = []
        for side, before in enumerate((best[: place[0], place[1]], best[place[0], : place[1]])):
            starts = deadline - prices[side][place[side], : place[side]]
            fits = np.flatnonzero(before <= starts)
            fits = fits[ready[side][place[side] - 1] <= starts[fits]]
            if len(fits):
                found.append((place[side] - int(fits[0]), -side, float(starts[fits[0]])))
        count, other, deadline = max(found)
        end = place[-other]
        place[-other] = end - count
        groups.append(list(chains[-other][end - count : end]))
    return groups[::-1]


def _prices(sizes: Sequence[int], cost: Cost, limits: Limits) -> Array:
    """Price of sending items k..i of a chain together, at [i, k]; infinite above the limit on size."""
    prefix = np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])
    spans = np.maximum(prefix[:, None] - prefix[None, :], 0)
    prices = cost(spans.astype(float))
    return prices if limits.max_bucket_bytes is None else np.where(spans <= limits.max_bucket_bytes, prices, np.inf)


def simple(gradients: Gradients, chains: Sequence[Sequence[int]], limits: Limits) -> Iterator[list[list[int]]]:
    """Simple plans: a bucket per tensor, per dtype, or per run of a dtype, DDP's default, and many caps."""
    yield [[i] for i in range(len(gradients))]
    yield sorted(([*chain] for chain in chains), key=lambda group: group[-1])
    yield [[i for i, _ in run] for _, run in groupby(enumerate(gradients.dtypes), key=lambda item: item[1])]
    yield bucket_layout(gradients, DDP_LIMITS)
    yield from capped(gradients, chains, limits)


def improved(groups: list[list[int]], gradients: Gradients, cost: Cost, limits: Limits) -> list[list[int]]:
    """Move, join and cut buckets of one dtype while that helps, for MOST_TRIES plans at most."""
    best, tries, better = finish(groups, gradients, cost), 0, True
    while better and tries < MOST_TRIES:
        better = False
        for candidate in _neighbours(groups, gradients):
            tries += 1
            ordered = sorted(candidate, key=lambda group: group[-1])
            if allowed(ordered, gradients, limits) and (time := finish(ordered, gradients, cost)) < best * (1 - 1e-9):
                groups, best, better = ordered, time, True
                break
            if tries >= MOST_TRIES:
                break
    return groups


def _neighbours(groups: list[list[int]], gradients: Gradients) -> Iterator[list[list[int]]]:
    """Plans in which two buckets of one dtype in a row are joined or share otherwise, or one is halved."""
    follower: dict[str, int] = {}
    for later in range(len(groups) - 1, -1, -1):
        kind = gradients.dtypes[groups[later][0]]
        if kind in follower:
            first, second = groups[later], groups[follower[kind]]
            rest = [group for k, group in enumerate(groups) if k not in (later, follower[kind])]
            joined = first + second
            yield [*rest, joined]
            for step in (1, -1, 2, -2, 4, -4, 8, -8):
                cut = len(first) + step
                if 0 < cut < len(joined):
                    yield [*rest, joined[:cut], joined[cut:]]
        follower[kind] = later
    for k, group in enumerate(groups):
        if len(group) > 1:
            middle = len(group) // 2
            yield [*groups[:k], group[:middle], group[middle:], *groups[k + 1 :]]


def capped(gradients: Gradients, chains: Sequence[Sequence[int]], limits: Limits) -> Iterator[list[list[int]]]:
    """Plans that close a bucket at a cap, each dtype by itself, for caps spread evenly in the logarithm."""
    from osfmodel.entities.filling import fill  # not loaded where types do not alternate

    total = sum(gradients.sizes)
    caps = np.geomspace(max(1, min(gradients.sizes)), max(total, 1), CAPS_TRIED).astype(np.int64)
    for cap in distinct(caps).tolist():
        closes = _closing(cap, limits.max_bucket_bytes)
        groups = [bucket for chain in chains for _, bucket in fill(chain, gradients.sizes, closes)]
        yield sorted(groups, key=lambda group: group[-1])


def _closing(cap: int, most: int | None) -> Closes:
    """The rule that closes a bucket once it holds the cap, and before it would hold more than ``most``."""
    from osfmodel.entities.filling import Closes

    return Closes(
        full=lambda held, number: held >= cap,
        over=None if most is None else lambda held, bucket, item: held > most,
    )


RULE = PlanRule(
    solve, "the exact optimum over plans of whole tensors in ready order", caveats, serves=PLAIN.permits, searches=True
)
