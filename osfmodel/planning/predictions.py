"""Predict a workload on a cluster under a plan, and several plans side by side; hours, cost and the knee of scaling."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from osfmodel.cost.clusters import pricing_of, require_nouns
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import AUTO, engine_called
from osfmodel.engine.alike import timeline_alike
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError, PlanError, UsageError
from osfmodel.entities.executors import ExecutorRow
from osfmodel.entities.modules import SHARDING, step_of
from osfmodel.entities.plan import PLAIN, REPLICATED, Objective, Plan, Search
from osfmodel.entities.rounding import within
from osfmodel.entities.sharding import EACH, Form, Sharding
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import Finished
from osfmodel.planning.results import Bound, Comparison, Prediction
from osfmodel.solve.solution import Limits, MemoryLimit, PlanRule, Question, Solution, Status
from osfmodel.targets import runs_on
from osfmodel.targets.named_plans import OPTIMAL, STOCK_PLANS, called, named_plan


@dataclass(frozen=True, slots=True)
class Economics:
    """Training on a number of samples with ``workers`` workers; ``cost`` in the currency of the price, or None."""

    workers: int
    hours: float
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class TrainingCosts:
    """A row for every prediction of every comparison, and the knee of each plan by its name."""

    rows: tuple[tuple[Economics, ...], ...]
    knees: Mapping[str, int | None]

    @staticmethod
    def of(names: Sequence[str], rows: Sequence[tuple[Economics, ...]]) -> TrainingCosts:
        """Costs with knees; each of ``rows`` is for one worker count, with the plans ``names`` in this order."""
        by_plan = zip(*rows, strict=True)
        return TrainingCosts(tuple(rows), {name: knee(row) for name, row in zip(names, by_plan, strict=True)})


def economics(
    workload: Workload, workers: int, iteration_time: float, samples: float, price_per_gpu_hour: float | None
) -> Economics:
    """Hours = iterations * iteration_time, with samples / (workers * batch_size) iterations (weak scaling).

    Raises UsageError if the workload has no batch size.
    """
    if workload.batch_size is None:
        raise UsageError(f"workload {workload.name!r} does not state its batch size: give --batch-size")
    hours = samples / (workers * workload.batch_size) * iteration_time / 3600
    gpu_hours = hours * workers
    return Economics(workers, hours, gpu_hours, None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour)


def knee(rows: Sequence[Economics]) -> int | None:
    """The last worker count that pays: with more, GPU-hours grow by a larger part than hours fall.

    A doubling pays if it runs at least 1.5 times as fast. None if every count listed pays.
    """
    ordered = sorted(rows, key=lambda row: row.workers)
    for before, after in itertools.pairwise(ordered):
        if after.gpu_hours / before.gpu_hours - 1 > 1 - after.hours / before.hours:
            return before.workers
    return None


Given: TypeAlias = str | Plan | tuple[str, Plan] | tuple[str, PlanRule]
"""A plan as a caller may give it: a name in NAMED_PLANS, a Plan, or a label with a Plan or a PlanRule."""


def predict(workload: Workload, cluster: Cluster, plan: str | Plan, workers: int, engine: str = AUTO) -> Prediction:
    """The iteration of ``workload`` under ``plan`` (a Plan, or a name from NAMED_PLANS) on ``workers`` workers.

    It includes the effects of the cluster; another engine of ENGINES, such as ``osf``, includes those that it knows.

    Raises UsageError for an unknown name or worker count, CostError if the cluster cannot price it, PlanError if
    the plan does not belong to the workload.
    """
    return compare(workload, cluster, workers, [plan], engine=engine).predictions[0]


def compare(
    workload: Workload,
    cluster: Cluster,
    workers: int,
    plans: Sequence[Given] = STOCK_PLANS,
    rules: Mapping[str, Any] = MappingProxyType({}),
    engine: str = AUTO,
) -> Comparison:
    """Predict each of ``plans``: a name, a Plan, (label, Plan) or (label, PlanRule). Raises as :func:`predict`.

    Each plan is predicted under its own rules, or those that a named plan was made for; fields of Objective in
    ``rules``, such as {"channels": 2}, replace them for all plans.
    """
    subject = PricedSubject(workload, cluster, workers, engine)
    predictions = tuple(_said_of_optimal([subject.predict(plan, rules) for plan in plans]))
    bounds = tuple(dict.fromkeys(prediction.bound for prediction in predictions)) or (
        subject.bound(PLAIN, subject.paid(PLAIN), REPLICATED),
    )
    return Comparison(workload, cluster, workers, bounds, predictions)


def _said_of_optimal(predictions: list[Prediction]) -> list[Prediction]:
    """The predictions; with a caveat where the optimum under plain rules is slower than another plan under these."""
    fastest = min((one.iteration_time for one in predictions), default=0.0)
    return [
        replace(one, further=(*one.further, NOT_THE_FASTEST))
        if one.name == OPTIMAL and one.bound.objective != PLAIN and one.iteration_time > within(fastest)
        else one
        for one in predictions
    ]


NOT_THE_FASTEST = (
    "`optimal` is the optimum for one collective at a time and a barrier before the update; under these rules "
    "`planned` is the plan to ask for"
)


class PricedSubject:
    """Prices and bounds that all plans of a comparison share."""

    def __init__(self, workload: Workload, cluster: Cluster, workers: int, engine: str = AUTO) -> None:
        require_nouns(workload, cluster)
        self.workload, self.engine, self.ours = workload, engine_called(engine), engine == AUTO
        self.cluster = cluster
        self.pricing = pricing_of(cluster, workers, workload)
        self._bounds: list[Bound] = []

    def predict(self, plan: Given, rules: Mapping[str, Any] = MappingProxyType({})) -> Prediction:
        """The prediction of a plan, as :func:`compare` makes it."""
        return _predict(self, plan, rules)

    def paid(self, objective: Objective, executor: ExecutorRow | None = None) -> Pricing:
        """Prices for plans under these rules and this executor, as far as the engine models them."""
        return self.engine.seen(self.pricing.for_rules(objective, executor))

    def bound(
        self, objective: Objective, pricing: Pricing, strategy: str, form: Form = EACH, limits: Limits = Limits()
    ) -> Bound:
        """The lower bound under these rules; plans with the same prices and rules share one.

        strategy: of the plan; form: in which it accumulates, if it shards; limits: of the search that found it
        """
        count, workload = step_of(self.workload, strategy)
        question = Question(workload, pricing, objective, limits, (count, form))
        for bound in self._bounds:
            if bound.question == question:
                return bound
        self._bounds.append(Bound(question))
        return self._bounds[-1]

    def finished(self, plan: Plan, bound: Bound, asked: str, timeline: Timeline) -> Finished:
        """A plan that was timed for this subject, for cautions; asked: the strategy."""
        return Finished(
            self.workload,
            self.cluster,
            plan,
            (self.pricing,),
            (bound.question.pricing,),
            asked,
            timeline.iteration_time,
            self.workload.compute_time,
            self.ours,
            self.engine.caveats,
        )

    def timeline(self, solution: Solution) -> Timeline:
        """The engine's timeline; with our own engine, the one that came with the solution."""
        plan, question = solution.require_plan(), solution.question
        if not self.ours:
            return self.engine.carry_out(question.workload, plan, question.pricing)
        return solution.timed or timeline_alike(question.workload, plan, question.pricing)


class PricedSubjects:
    """Priced subjects that are asked for again and again, as in a sweep: each is made once while this lives."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], PricedSubject] = {}

    def of(self, workload: Workload, cluster: Cluster, workers: int) -> PricedSubject:
        """The subject of this very workload and cluster. Raises as :func:`compare`."""
        key = id(workload), id(cluster), workers  # of objects that the subject keeps alive
        if key not in self._made:
            self._made[key] = PricedSubject(workload, cluster, workers)
        return self._made[key]


def _labelled(given: Given) -> tuple[str, Plan | PlanRule]:
    if isinstance(given, str):
        return called(given), named_plan(given)
    # A PlanRule is a tuple as well, but never given without its label.
    return ("given", given) if isinstance(given, Plan) else given


def _require_valid(plan: Plan, workload: Workload, place: str) -> None:
    """Raise PlanError or DataError, beginning with ``place``, where the plan is not one for the workload."""
    try:
        plan.require_valid(workload)
    except (PlanError, DataError) as error:
        raise type(error)(f"{place}{error}") from None


def _require_as_many(planned: int, asked: int, label: str) -> None:
    """Raise PlanError where a plan of several micro-batches is predicted for another number of them."""
    if planned not in (1, asked):
        raise PlanError(f"{label}: the plan is for {planned} micro-batches a step, not {asked}: --accumulate {planned}")


def _predict(subject: PricedSubject, given: Given, rules: Mapping[str, Any]) -> Prediction:
    label, entry = _labelled(given)
    own_bound = isinstance(entry, PlanRule) or bool(rules) or entry.searched is None
    if isinstance(entry, PlanRule):
        objective = replace(PLAIN if entry.chooses and rules else entry.objective, **rules)
        own = entry.objective.strategy
        strategy = own if own in SHARDING else objective.strategy
        bound = subject.bound(objective, subject.paid(objective, entry.executor), strategy, entry.form)
        solution, caveats = entry.make(bound.question), entry.caveats(subject.workload)
    else:
        _require_valid(entry, subject.workload, "" if isinstance(given, Plan) else f"{label}: ")
        plan = entry.under(replace(entry.objective, **rules))
        stated, caveats = plan.sharding or Sharding(()), ()
        searched = Search(plan.objective) if rules or entry.searched is None else entry.searched
        room, objective = searched.memory_bytes, searched.rules
        limits = Limits(searched.max_bucket_bytes, memory=None if room is None else MemoryLimit(room))
        paid = subject.engine.seen(subject.pricing.for_plan(plan))
        bound = subject.bound(objective, paid, plan.strategy, stated.form, limits)
        _require_as_many(stated.micro_batches, bound.question.micro_batches[0], label)
        solution = Solution(bound.question, bound.question.step(plan), Status.HEURISTIC)
    plan = solution.require_plan()
    own_bound &= plan.sharding is not None or plan.strategy in SHARDING
    own_bound |= plan.sparse or plan.release or bool(plan.recompute)
    timeline = subject.timeline(solution)
    return Prediction(
        name=label,
        plan=plan,
        timeline=timeline,
        bound=Bound(bound.question, plan) if own_bound else bound,
        alone=subject.workload.compute_time,
        subject=Comparison(subject.workload, subject.cluster, subject.pricing.workers, (), ()),
        finished=subject.finished(plan, bound, objective.strategy, timeline),
        own=caveats,
        formed_by=runs_on,
    )
