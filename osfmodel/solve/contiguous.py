"""What solvers share: pricing and checking plans of whole tensors, and turning a plan into a Solution.

A plan is given by the end of each bucket in ready order where there is one dtype (or one after the other), and by
groups of positions in ready order where dtypes alternate, since types never share a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from osfmodel.cost import Cost
from osfmodel.plan import Plan
from osfmodel.recursion import communication_finish, predict_timeline
from osfmodel.solve.bounds import iteration_bound
from osfmodel.solve.solution import Limits, Solution, Status
from osfmodel.workload import Gradients, Workload


def solution_of(workload: Workload, cost: Cost, plan: Plan | None, status: Status) -> Solution:
    """``plan`` with the timeline that the engine gives it and the bound; no plan where ``status`` says why."""
    timeline = None if plan is None else predict_timeline(workload, plan, cost)
    return Solution(plan, timeline, iteration_bound(workload, cost), status)


def groups_of(ends: Sequence[int]) -> list[list[int]]:
    """The positions in each bucket, for buckets that end at ``ends``."""
    return [list(range(start, end)) for start, end in pairwise([0, *ends])]


def finish(groups: Sequence[Sequence[int]], gradients: Gradients, cost: Callable[[int], float]) -> float:
    """When the communication of these buckets, sent in this order, ends: seconds after the start of the iteration."""
    return communication_finish(
        [max(gradients.ready_times[i] for i in group) for group in groups],
        [cost(sum(gradients.sizes[i] for i in group)) for group in groups],
    )


def allowed(groups: Sequence[Sequence[int]], gradients: Gradients, limits: Limits) -> bool:
    """Whether the buckets keep dtypes apart and respect the limits."""
    if limits.max_buckets is not None and len(groups) > limits.max_buckets:
        return False
    if any(len({gradients.dtypes[i] for i in group}) > 1 for group in groups):
        return False
    most = limits.max_bucket_bytes
    return most is None or all(sum(gradients.sizes[i] for i in group) <= most for group in groups)


def alternate(dtypes: Sequence[str]) -> bool:
    """Whether some dtype comes back after another: then buckets of one dtype are not runs in ready order."""
    return len(list(groupby(dtypes))) > len(set(dtypes))
