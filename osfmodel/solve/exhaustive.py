"""Every contiguous plan, one after the other: the oracle for tests. 2^(L-1) plans, so small workloads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise

from osfmodel.cost import Cost
from osfmodel.plan import contiguous_plan
from osfmodel.recursion import communication_finish, predict_timeline
from osfmodel.solve.bounds import iteration_bound
from osfmodel.solve.solution import Limits, Solution, Status
from osfmodel.workload import Workload

LARGEST = 16


def solve(workload: Workload, cost: Cost, limits: Limits = Limits()) -> Solution:
    """Try all plans of whole tensors in ready order; status TOO_LARGE above 16 gradients."""
    gradients = workload.gradients
    bound = iteration_bound(workload, cost)
    if len(gradients) > LARGEST:
        return Solution(None, None, bound, Status.TOO_LARGE)
    plans = [ends for ends in all_ends(len(gradients)) if within(ends, gradients.sizes, gradients.dtypes, limits)]
    if not plans:
        return Solution(None, None, bound, Status.INFEASIBLE)
    plan = contiguous_plan(
        workload, min(plans, key=lambda ends: finish(ends, gradients.ready_times, gradients.sizes, cost))
    )
    return Solution(plan, predict_timeline(workload, plan, cost), bound, Status.OPTIMAL)


def all_ends(count: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut ``count`` gradients into runs, as the end of each run."""
    if count == 0:
        yield ()
        return
    for cuts in range(count):
        for inner in combinations(range(1, count), cuts):
            yield (*inner, count)


def within(ends: Sequence[int], sizes: Sequence[int], dtypes: Sequence[str], limits: Limits) -> bool:
    """Whether the runs keep dtypes apart and respect the limits."""
    if limits.max_buckets is not None and len(ends) > limits.max_buckets:
        return False
    runs = list(pairwise([0, *ends]))
    if any(len(set(dtypes[start:end])) > 1 for start, end in runs):
        return False
    return limits.max_bucket_bytes is None or all(sum(sizes[i:j]) <= limits.max_bucket_bytes for i, j in runs)


def finish(ends: Sequence[int], ready: Sequence[float], sizes: Sequence[int], cost: Callable[[int], float]) -> float:
    """When the communication of that plan ends."""
    runs = list(pairwise([0, *ends]))
    return communication_finish([ready[end - 1] for _, end in runs], [cost(sum(sizes[i:j])) for i, j in runs])
