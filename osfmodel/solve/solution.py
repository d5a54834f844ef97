"""A planning question and its solution, with helpers for the rules that answer it.

A plan of whole tensors is given by the end of each bucket in ready order if there is one dtype (or one after the
other), and by groups of positions in ready order if dtypes alternate, since types never share a message. The time of
a Solution is the engine's, never a solver's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.recursion import communication_finish
from osfmodel.entities.batches import accumulating
from osfmodel.entities.display import brief, how_many
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.executors import ExecutorRow
from osfmodel.entities.modules import SHARDED, in_micro_batches
from osfmodel.entities.plan import PLAIN, REPLICATED, Objective, Plan
from osfmodel.entities.records import dataclass, field, replace
from osfmodel.entities.sharding import EACH, LAST, LAST_KEPT, SHARDS_EACH, Form
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Gradients, Workload
from osfmodel.solve.bounds import COLLECTIVES, objective_bound


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that a step may hold on each GPU.

    optimizer:    one of OPTIMIZERS, instead of the profiled one
    communicator: bytes that the library keeps for each communicator
    """

    bytes: int
    optimizer: str | None = None
    communicator: int = 0

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise UsageError(f"a memory limit of {self.bytes} bytes: give 1 or more, such as --memory 16GiB")


BUCKET_LIMITS = ("--max-bucket", "--max-buckets")
"""Options of the limits on buckets."""
MEMORY = "--memory"
"""The option of the limit on memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the buckets: most bytes in one, most buckets in all; None for no bound.

    memory: most bytes that a step may hold on each GPU, for sharded plans. Their root group may have any size
    """

    max_bucket_bytes: int | None = None
    max_buckets: int | None = None
    memory: MemoryLimit | None = None

    def __post_init__(self) -> None:
        for name, value in (("largest bucket", self.max_bucket_bytes), ("number of buckets", self.max_buckets)):
            if value is not None and value < 1:
                raise UsageError(f"the limit on the {name} is {value}: it must be 1 or more")

    @property
    def given(self) -> tuple[str, ...]:
        """The options of the limits that are set."""
        values = zip((*BUCKET_LIMITS, MEMORY), (self.max_bucket_bytes, self.max_buckets, self.memory), strict=True)
        return tuple(option for option, value in values if value is not None)

    def unmet(self, settings: str) -> str:
        """A message that no ``settings`` satisfy the limits that are given."""
        remedy = "raise them" if len(self.given) > 1 else "raise it"
        return f"no {settings} can satisfy {' and '.join(self.given)} for this workload: {remedy}"

    def allow(self, plan: Plan) -> bool:
        """Whether ``plan`` keeps them."""
        most, rules = self.max_bucket_bytes, plan.sharding
        sized = [bucket for place, bucket in enumerate(plan.buckets) if rules is None or rules.groups[place].modules]
        return (self.max_buckets is None or len(plan.buckets) <= self.max_buckets) and (
            most is None or all(bucket.size <= most for bucket in sized)
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A case to optimise settings for: submission times, prices, and the ``best`` seconds to compare with."""

    workload: Workload
    pricing: Pricing
    best: float


@dataclass(frozen=True)
class Question:
    """A question: the best plan for ``workload`` at these prices, under these rules and within these limits.

    Effects that lengthen computation whatever the plan are moved from the prices into the workload.

    micro_batches: of a step under a strategy that shards, and their form; ``workload`` is one of them
    """

    workload: Workload
    pricing: Pricing
    objective: Objective = PLAIN
    limits: Limits = Limits()
    micro_batches: tuple[int, Form] = (1, EACH)

    def __post_init__(self) -> None:
        workload, pricing = self.pricing.loaded(self.workload)
        object.__setattr__(self, "workload", workload)
        object.__setattr__(self, "pricing", pricing)

    def __repr__(self) -> str:
        rules = f", {self.objective!r}" * (self.objective != PLAIN) + f", {self.limits!r}" * (self.limits != Limits())
        return brief(self, f"{self.workload.name}, {how_many(self.pricing.workers, 'worker')}{rules}")

    @cached_property
    def lower_bound(self) -> float:
        """Seconds that no schedule under these rules can beat, whatever the limits.

        For sharded parameters, seconds that no grouping of whole blocks beats that is searched for, within a limit on
        memory in any way to accumulate.
        """
        if self.objective.strategy in SHARDED:
            from osfmodel.solve.sharded_bounds import planned_bound  # not loaded for other strategies

            most, kept = self.limits.max_bucket_bytes, self.limits.memory is not None
            strategy, (count, form) = self.objective.strategy, self.micro_batches
            forms = (EACH, SHARDS_EACH, LAST, LAST_KEPT) if kept and count > 1 else (form,)
            return min(planned_bound(self.workload, self.pricing, strategy, most, kept, (count, one)) for one in forms)
        step = accumulating(self.workload, self.micro_batches[0])
        return objective_bound(step, self.pricing, self.objective)

    def step(self, plan: Plan) -> Plan:
        """The plan of a whole step, made for one micro-batch or more: here micro-batches go into plans."""
        return plan if self.micro_batches[0] == 1 else in_micro_batches(plan, *self.micro_batches)

    @property
    def undisturbed(self) -> bool:
        """Whether ready times and prices are all that matters: no effects, one collective in flight per channel."""
        return self.pricing.in_flight == 1 and not self.pricing.effects.active

    def require_searched(self) -> None:
        """Raise UsageError for a strategy under which no search for plans exists."""
        if not searched(self.objective):
            raise UsageError(f"no plans are searched for under the strategy {self.objective.strategy}: name a plan")

    def require_plain(self, rule: str) -> None:
        """Raise UsageError for rules other than one collective at a time and a barrier."""
        if not self.objective.plain:
            raise UsageError(
                f"{rule} knows one collective at a time and a barrier before the update: ask planned for other rules"
            )


class Status(Enum):
    """The outcome of a solver."""

    OPTIMAL = "optimal: no plan of whole tensors, in ready order within each dtype and within the limits, is faster"
    HEURISTIC = "heuristic: a rule made this plan; the gap says how far from the bound it is"
    INFEASIBLE = "infeasible: the limits allow no plan; raise the limit on bucket size or on bucket count"
    BEYOND_LIMITS = "beyond the limits: this rule knows no limits and breaks them here; take the exact solver, optimal"
    TOO_LARGE = "too large for this solver: take the exact solver, optimal"
    NOT_CONVERGED = "not converged: this is the best plan found before the solver stopped; allow it more time"
    NO_SOLVER = "no solver: this programme needs highspy; install it"
    NOT_LINEAR = (
        "not linear: block sizes need one channel, static order, no slowdown and no hooks; take another planner"
    )


@dataclass(frozen=True)
class Solution:
    """The answer to a question: a plan, or None for the reason in ``status``, and how the search ended.

    ``timed``: the engine's timeline of the plan, if the search computed it.
    """

    question: Question
    plan: Plan | None
    status: Status
    timed: Timeline | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        plan = "no plan" if self.plan is None else how_many(len(self.plan.buckets), "bucket")
        return brief(self, f"{self.question.workload.name}: {plan}, {self.status.value.partition(':')[0]}")

    @cached_property
    def timeline(self) -> Timeline | None:
        """The engine's timeline of the plan, computed once; None without a plan."""
        if self.plan is None or self.timed is not None:
            return self.timed
        return predict_timeline(self.question.workload, self.plan, self.question.pricing)

    @property
    def lower_bound(self) -> float:
        """Seconds that no schedule under the rules of the question can beat; computed when first asked for."""
        return self.question.lower_bound

    @property
    def gap(self) -> float | None:
        """iteration_time / lower_bound - 1: no schedule can be faster by more."""
        return None if self.timeline is None else self.timeline.iteration_time / self.lower_bound - 1

    def require_plan(self) -> Plan:
        """The plan. Raises PlanError with the status if there is none."""
        if self.plan is None:
            raise PlanError(self.status.value)
        return self.plan

    def require(self) -> tuple[Plan, Timeline]:
        """The plan and its timeline. Raises as :meth:`require_plan`."""
        plan, timeline = self.require_plan(), self.timeline
        assert timeline is not None
        return plan, timeline


def searched(objective: Objective) -> bool:
    """Whether solvers can search for plans under the strategy of these rules."""
    return objective.strategy in COLLECTIVES


Planner: TypeAlias = Callable[[Question], Solution]
"""A planner: question -> solution. Raises UsageError for rules that it does not serve."""


class PlanRule(NamedTuple):
    """An entry of SOLVERS and of NAMED_PLANS.

    solve:      question -> the rule's own answer
    summary:    shown by ``osf list``
    caveats:    assumptions of a prediction under its plan
    objective:  the rules that it was made for, unless others are asked for
    serves:     (objective) -> whether it plans under these rules; by default all with a strategy that is searched
    searches:   whether its name means the best that can be found rather than this very rule. Its plan is then
                only a candidate: under effects it is asked again, and there and with several collectives in flight
                plans of other searches compete with its own. Left out, its plan is run as it is
    chooses:    whether its plan may use less than the rules permit
    on_request: whether it is shown only if asked for
    executor:   the one that runs it, on which prices depend; None if not given
    form:       the way in which a plan that shards accumulates over micro-batches
    unpriced:   whether its plan needs no prices
    unfused:    whether no two tensors share a message of its plan
    """

    solve: Planner
    summary: str
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    objective: Objective = PLAIN
    serves: Callable[[Objective], bool] = searched
    searches: bool = False
    chooses: bool = False
    on_request: bool = False
    executor: ExecutorRow | None = None
    form: Form = EACH
    unpriced: bool = False
    unfused: bool = False

    def make(self, question: Question) -> Solution:
        """The answer under any rules; a rule that does not serve them makes its plan for its own rules."""
        if self.serves(question.objective):
            return self.solve(question)
        made = self.solve(replace(question, objective=self.objective))
        return made if made.plan is None else answer(question, made.plan.under(question.objective))


def narrower(objective: Objective) -> list[Objective]:
    """The rules as given, with fewer channels, and all of these without a split."""
    channels = dict.fromkeys((objective.channels, 1, 2 if objective.channels > 2 else 1))
    strategies = dict.fromkeys((objective.strategy, REPLICATED))
    return [replace(objective, channels=count, strategy=name) for name in strategies for count in channels]


def answer(
    question: Question, plan: Plan, status: Status = Status.HEURISTIC, timed: Timeline | None = None
) -> Solution:
    """``plan`` as the solution; no plan, with status BEYOND_LIMITS, if it breaks the limits.

    timed: its timeline with one micro-batch, if known
    """
    if not question.limits.allow(plan):
        return Solution(question, None, Status.BEYOND_LIMITS)
    step = question.step(plan)
    return Solution(question, step, status, timed if step is plan else None)


def planner_of(make: Callable[[Workload, Pricing], Plan]) -> Planner:
    """A planner of one plan for any rules; it is run under those of the question."""
    return lambda question: answer(question, make(question.workload, question.pricing).under(question.objective))


def groups_of(ends: Sequence[int]) -> list[list[int]]:
    """The positions in each bucket, for buckets that end at ``ends``."""
    return [list(range(start, end)) for start, end in pairwise([0, *ends])]


def rank_of(groups: Sequence[Sequence[int]]) -> tuple[int, tuple[int, ...]]:
    """The order of plans whose times differ by rounding alone: fewest buckets, then the earliest cuts."""
    return len(groups), tuple(map(len, groups))


def finish(groups: Sequence[Sequence[int]], gradients: Gradients, cost: Callable[[int], float]) -> float:
    """Seconds from the start of the iteration until these buckets, sent in this order, have been sent."""
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
