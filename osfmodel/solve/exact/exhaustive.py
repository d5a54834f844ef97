"""Every plan of whole tensors, in ready order within each dtype: the oracle for tests. Small workloads only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from osfmodel.cost import Cost
from osfmodel.entities.plan import grouped_plan
from osfmodel.entities.workload import Gradients, Workload
from osfmodel.solve.solution import Limits, Solution, Status, allowed, finish, groups_of, solution_of

LARGEST = 16


def solve(workload: Workload, cost: Cost, limits: Limits = Limits()) -> Solution:
    """Try all plans; status TOO_LARGE above 16 gradients (2^15 plans)."""
    gradients = workload.gradients
    if len(gradients) > LARGEST:
        return solution_of(workload, cost, None, Status.TOO_LARGE)
    plans = [groups for groups in all_groups(gradients) if allowed(groups, gradients, limits)]
    if not plans:
        return solution_of(workload, cost, None, Status.INFEASIBLE)
    best = min(plans, key=lambda groups: finish(groups, gradients, cost))
    return solution_of(workload, cost, grouped_plan(workload, best), Status.OPTIMAL)


def all_groups(gradients: Gradients) -> Iterator[list[list[int]]]:
    """Every way to cut each dtype's gradients into runs, sent in the order in which the runs are ready.

    That order is the best for given runs (earliest release first), so no other needs to be tried.
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
