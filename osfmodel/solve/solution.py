"""Questions of planning, their solutions, and what solvers share: pricing and checking plans of whole tensors.

A plan of whole tensors is given by the end of each bucket in ready order where there is one dtype (or one after the
other), and by groups of positions in ready order where dtypes alternate, since types never share a message. The time of
a Solution is the engine's, never a solver's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby, pairwise
from typing import NamedTuple

from osfmodel.cost import Cost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline, recursion
from osfmodel.engine.recursion import communication_finish
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Gradients, Workload
from osfmodel.solve.bounds import iteration_bound, objective_bound


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the buckets: most bytes in one, most buckets in all; None for no bound."""

    max_bucket_bytes: int | None = None
    max_buckets: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("largest bucket", self.max_bucket_bytes), ("number of buckets", self.max_buckets)):
            if value is not None and value < 1:
                raise UsageError(f"the limit on the {name} is {value}: it must be 1 or more")


@dataclass(frozen=True, slots=True)
class Case:
    """What a framework may meet: when tensors are submitted, and what they pay; ``best``: seconds, to judge against."""

    workload: Workload
    pricing: Pricing
    best: float


class Status(Enum):
    """How a solver ended."""

    OPTIMAL = "optimal: no plan of whole tensors, in ready order within each dtype and within the limits, is faster"
    HEURISTIC = "heuristic: a rule made this plan; the gap says how far from the bound it is"
    INFEASIBLE = "infeasible: the limits allow no plan; raise the limit on bucket size or on bucket count"
    BEYOND_LIMITS = "beyond the limits: this rule knows no limits and breaks them here; take the exact solver, optimal"
    TOO_LARGE = "too large for this solver: take the exact solver, optimal"
    NOT_CONVERGED = "not converged: this is the best plan found before the solver stopped; allow it more time"
    NO_SOLVER = "no solver: cvxpy finds none that this programme needs; install highspy"
    NOT_LINEAR = (
        "not linear: block sizes need one channel, static order, no slowdown and no hooks; take another planner"
    )


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan, the timeline that an engine gives it, a bound that no plan can beat, and how the search ended.

    ``plan`` and ``timeline`` are None exactly where ``status`` says that there is none.
    """

    plan: Plan | None
    timeline: Timeline | None
    lower_bound: float
    status: Status

    @property
    def gap(self) -> float | None:
        """iteration_time / lower_bound - 1: how much faster any schedule could be, at most."""
        return None if self.timeline is None else self.timeline.iteration_time / self.lower_bound - 1

    def require(self) -> tuple[Plan, Timeline]:
        """The plan and its timeline. Raises PlanError with the status where there is none."""
        if self.plan is None or self.timeline is None:
            raise PlanError(self.status.value)
        return self.plan, self.timeline


class Solver(NamedTuple):
    """An entry of SOLVERS.

    solve:    (workload, cost, limits) -> Solution
    meaning:  half a line for a person
    caveats:  what to beware of
    searches: whether its name stands for the best that can be found rather than for this very rule. Its plan is then
              only a candidate: under effects it is asked again, and there and with several collectives in flight plans
              of other searches compete with its own. Left out, its plan is carried out as it is
    """

    solve: Callable[[Workload, Cost, Limits], Solution]
    meaning: str
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    searches: bool = False


class Scheduler(NamedTuple):
    """An entry of SCHEDULERS: plans that no stock framework carries out.

    solve:     (workload, pricing, objective) -> Solution, timed by the engine under that objective
    objective: what it was made for, where nobody asks for another
    meaning:   half a line for a person
    caveats:   what to beware of
    searches:  as of a Solver; it may then also use less than the rules permit
    costly:    whether it takes so long to load or to run that it is shown only where asked for
    """

    solve: Callable[[Workload, Pricing, Objective], Solution]
    objective: Objective
    meaning: str
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    searches: bool = False
    costly: bool = False


def timed(
    workload: Workload, plan: Plan, pricing: Pricing, objective: Objective, status: Status = Status.HEURISTIC
) -> Solution:
    """``plan`` carried out under ``objective``, with the bound that holds there."""
    under = plan.under(objective)
    timeline = predict_timeline(workload, under, pricing)
    return Solution(under, timeline, objective_bound(workload, pricing, objective), status)


def solution_of(workload: Workload, cost: Cost, plan: Plan | None, status: Status) -> Solution:
    """``plan`` with the timeline that the engine gives it and the bound; no plan where ``status`` says why."""
    timeline = None if plan is None else recursion.predict_timeline(workload, plan, cost)
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
