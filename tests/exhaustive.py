"""Every plan of whole tensors, in ready order within each dtype: the oracle for tests. Small workloads only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from osfmodel.entities.plan import grouped_plan
from osfmodel.entities.rounding import least
from osfmodel.entities.workload import Gradients
from osfmodel.solve.solution import Question, Solution, Status, allowed, finish, groups_of, rank_of

LARGEST = 16


def solve(question: Question) -> Solution:
    """The best of all plans, without effects; status TOO_LARGE above 16 gradients (2^15 plans).

    Raises UsageError for other rules than the plain ones.
    """
    question.require_plain("trying all plans")
    workload, cost = question.workload, question.pricing.cost()
    gradients = workload.gradients
    if len(gradients) > LARGEST:
        return Solution(question, None, Status.TOO_LARGE)
    plans = [groups for groups in all_groups(gradients) if allowed(groups, gradients, question.limits)]
    if not plans:
        return Solution(question, None, Status.INFEASIBLE)
    best = least(plans, lambda groups: finish(groups, gradients, cost), rank_of)
    status = Status.OPTIMAL if question.undisturbed else Status.HEURISTIC
    return Solution(question, grouped_plan(workload, best), status)


def all_groups(gradients: Gradients) -> Iterator[list[list[int]]]:
    """Every way to cut each dtype's gradients into runs, sent in the order in which the runs are ready.

    This order is the best for given runs (earliest release first), so no other needs to be tried.
    """
    chains = gradients.chains
    for cut in product(*(all_ends(len(chain)) for chain in chains)):
        runs = [[chain[i] for i in run] for chain, ends in zip(chains, cut, strict=True) for run in groups_of(ends)]
        yield sorted(runs, key=lambda run: run[-1])


def all_ends(count: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut ``count`` gradients into runs, as the end of each run."""
    if count == 0:
        yield ()
        return
    for cuts in range(count):
        for inner in combinations(range(1, count), cuts):
            yield (*inner, count)
