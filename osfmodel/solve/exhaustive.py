"""Every contiguous plan, one after the other: the oracle for tests. 2^(L-1) plans, so small workloads only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from osfmodel.cost import Cost
from osfmodel.plan import contiguous_plan
from osfmodel.recursion import predict_timeline
from osfmodel.solve.bounds import iteration_bound
from osfmodel.solve.contiguous import allowed, finish
from osfmodel.solve.solution import Limits, Solution, Status
from osfmodel.workload import Workload

LARGEST = 16


def solve(workload: Workload, cost: Cost, limits: Limits = Limits()) -> Solution:
    """Try all plans of whole tensors in ready order; status TOO_LARGE above 16 gradients."""
    gradients = workload.gradients
    bound = iteration_bound(workload, cost)
    if len(gradients) > LARGEST:
        return Solution(None, None, bound, Status.TOO_LARGE)
    plans = [ends for ends in all_ends(len(gradients)) if allowed(ends, gradients, limits)]
    if not plans:
        return Solution(None, None, bound, Status.INFEASIBLE)
    plan = contiguous_plan(workload, min(plans, key=lambda ends: finish(ends, gradients, cost)))
    return Solution(plan, predict_timeline(workload, plan, cost), bound, Status.OPTIMAL)


def all_ends(count: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut ``count`` gradients into runs, as the end of each run."""
    if count == 0:
        yield ()
        return
    for cuts in range(count):
        for inner in combinations(range(1, count), cuts):
            yield (*inner, count)
