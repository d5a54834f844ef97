"""What every solver takes beside a workload and a cost, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from osfmodel.cost import Cost
from osfmodel.errors import PlanError, UsageError
from osfmodel.objective import Objective
from osfmodel.plan import Plan
from osfmodel.pricing import Pricing
from osfmodel.timeline import Timeline
from osfmodel.workload import Workload


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
