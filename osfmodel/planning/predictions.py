"""Forward: a workload on a cluster under a plan, and several plans side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from osfmodel.cost import Cost, TableCost
from osfmodel.cost.pricing import Pricing, pricing_of
from osfmodel.engine import AUTO, engine_called, predict_timeline
from osfmodel.engine.bands import Band, band_for, bundled_bands, regime_of
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.effects import Effects
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import ExecutorRow
from osfmodel.entities.plan import PLAIN, Objective, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import show_bytes
from osfmodel.entities.workload import Workload
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve import PlanRule, Question, Solution, Status
from osfmodel.solve.bounds import plan_bound
from osfmodel.targets import runs_on
from osfmodel.targets.named_plans import STOCK_PLANS, named_plan

Given: TypeAlias = str | Plan | tuple[str, Plan] | tuple[str, PlanRule]
"""A plan to predict: a name of NAMED_PLANS, a plan, or either under a label of its own."""
ROUNDING = 1e-12
"""A gap this small is rounding of the same number computed in two ways."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower bound that is computed when it is asked for, since it takes longer than a prediction."""

    question: Question
    plan: Plan | None = None

    @property
    def objective(self) -> Objective:
        """The rules that it holds for."""
        return self.question.objective

    @cached_property
    def value(self) -> float:
        """Seconds, for what this plan recomputes, releases and sends sparsely where there is one."""
        if self.plan is not None:
            return plan_bound(self.question.workload, self.plan, self.question.pricing)
        return self.question.lower_bound


@dataclass(frozen=True)
class Prediction:
    """What one plan makes of one iteration; what takes longer than that is computed when it is asked for.

    alone:     seconds of the iteration if it scaled perfectly, those of one worker alone
    caveats:   what a prediction for this framework takes for granted
    shared:    warnings about workload and cluster, whatever the plan
    has_bands: whether error bands were made for the engine
    """

    name: str
    plan: Plan = field(repr=False)
    timeline: Timeline = field(repr=False)
    bound: Bound = field(repr=False)
    alone: float
    caveats: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    has_bands: bool = field(default=True, repr=False)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Where a price is extrapolated."""
        question = self.bound.question
        return self.shared + plan_extrapolation(question.workload, self.plan, question.pricing)

    @cached_property
    def band(self) -> Band | None:
        """How far such predictions were from measured runs.

        None where nothing is communicated, and for sparse plans and engines other than ours, for which none was made.
        """
        if not self.has_bands or self.plan.sparse:
            return None
        question = self.bound.question
        return error_band(question.workload, self.plan, self.timeline, question.pricing)

    @cached_property
    def runs_on(self) -> tuple[str, ...]:
        """The stock frameworks that can carry the plan out; none means that it needs an executor."""
        return runs_on(self.plan, self.bound.question.workload)

    @property
    def scaling_factor(self) -> float:
        """Of one worker alone, who recomputes nothing, to this: 1 is perfect scaling."""
        return self.alone / self.iteration_time

    @property
    def notes(self) -> tuple[str, ...]:
        """All that there is to be careful about."""
        return self.warnings + self.caveats

    @property
    def iteration_time(self) -> float:
        """Seconds."""
        return self.timeline.iteration_time

    @property
    def engine(self) -> str:
        """Which engine made the timeline."""
        return self.timeline.engine

    @property
    def lower_bound(self) -> float:
        """Seconds that no schedule under the rules of ``plan`` can beat."""
        return self.bound.value

    @property
    def gap(self) -> float:
        """iteration_time / lower_bound - 1."""
        gap = self.timeline.iteration_time / self.lower_bound - 1
        return 0.0 if abs(gap) < ROUNDING else gap


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several plans for one workload, cluster and worker count, as ``what_if`` changed them."""

    workload: Workload = field(repr=False)
    cluster: Cluster = field(repr=False)
    workers: int
    bounds: tuple[Bound, ...] = field(repr=False)
    predictions: tuple[Prediction, ...]
    what_if: WhatIf = field(default=WhatIf(), repr=False)

    @property
    def lower_bound(self) -> float:
        """Seconds that no schedule can beat under any of the rules that the plans stand under."""
        return min(bound.value for bound in self.bounds)

    def throughput(self, prediction: Prediction) -> float | None:
        """Samples per second of all workers together; None where the batch size is not known."""
        batch = self.workload.batch_size
        return None if batch is None else self.workers * batch / prediction.iteration_time

    def under(self, what_if: WhatIf, alone: float) -> Comparison:
        """The same, where ``what_if`` made workload and cluster, with scaling factors relative to ``alone`` seconds."""
        said = what_if.caveats(self.workload, self.cluster)
        predictions = tuple(replace(one, alone=alone, caveats=one.caveats + said) for one in self.predictions)
        return replace(self, what_if=what_if, predictions=predictions)


def predict(workload: Workload, cluster: Cluster, plan: str | Plan, workers: int, engine: str = AUTO) -> Prediction:
    """The iteration of ``workload`` under ``plan`` (a Plan, or a name from NAMED_PLANS) on ``workers`` workers.

    With the effects of the cluster, or by another engine of ENGINES, such as ``osf``, with what that knows.

    Raises UsageError for an unknown name or worker count, CostError where the cluster cannot price it, PlanError where
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

    Each under its own rules, that of a plan given or those which a named one was made for, but for the fields of
    Objective in ``rules``, such as {"channels": 2}, which hold for all.
    """
    require_nouns(workload, cluster)
    subject = _Subject(workload, cluster, workers, engine)
    predictions = tuple(_predict(subject, plan, rules) for plan in plans)
    bounds = tuple(dict.fromkeys(prediction.bound for prediction in predictions)) or (
        subject.bound(PLAIN, subject.paid(PLAIN)),
    )
    return Comparison(workload, cluster, workers, bounds, predictions)


class _Subject:
    """What all plans of a comparison share."""

    def __init__(self, workload: Workload, cluster: Cluster, workers: int, engine: str) -> None:
        self.workload, self.engine, self.ours = workload, engine_called(engine), engine == AUTO
        self.pricing = pricing_of(cluster, workers)
        self.caveats = self.engine.caveats
        if self.ours:
            self.caveats += effect_caveats(cluster.effects) + flight_caveats(cluster)
        self.warnings = size_warnings(workload, workers) + count_warnings(cluster, workers)
        self._bounds: list[Bound] = []

    def paid(self, objective: Objective, executor: ExecutorRow | None = None) -> Pricing:
        """Prices for plans under these rules and this executor, as far as the engine knows them."""
        return self.engine.seen(self.pricing.for_rules(objective, executor))

    def bound(self, objective: Objective, pricing: Pricing) -> Bound:
        """What no schedule under these rules can beat; one for all plans that pay and are allowed the same."""
        question = Question(self.workload, pricing, objective)
        for bound in self._bounds:
            if bound.question == question:
                return bound
        self._bounds.append(Bound(question))
        return self._bounds[-1]

    def timeline(self, solution: Solution) -> Timeline:
        """That of the engine; ours made it for the solution."""
        plan, question = solution.require_plan(), solution.question
        return solution.require()[1] if self.ours else self.engine.carry_out(self.workload, plan, question.pricing)


def effect_caveats(effects: Effects) -> tuple[str, ...]:
    """What is said of a prediction with effects: which, and that the search for plans does not see all of them."""
    if not effects.active:
        return ()
    named = ", ".join(f"{name}={value:g}" for name, value in effects.active.items())
    unseen = any(effects.apart_from_cost.active)
    proof = "; the bound holds without them, and `optimal` is the best found with them" if unseen else ""
    copies = [name for name in effects.active if "copy" in name]
    said = f"; {' and '.join(copies)}, of one framework only, charged to every plan that is not of another"
    alike = said if copies else ""
    return (f"with the effects {named}{alike}{proof}",)


def flight_caveats(cluster: Cluster) -> tuple[str, ...]:
    """What is said where the library keeps several collectives in flight: that no optimum is proven then."""
    if cluster.in_flight == 1:
        return ()
    return (f"with {cluster.in_flight} collectives in flight at once; `optimal` is then the best found, not proven",)


def _labelled(given: Given) -> tuple[str, Plan | PlanRule]:
    if isinstance(given, str):
        return given, named_plan(given)
    # A PlanRule is a tuple as well, but never given without its label.
    return ("given", given) if isinstance(given, Plan) else given


def _predict(subject: _Subject, given: Given, rules: Mapping[str, Any]) -> Prediction:
    label, entry = _labelled(given)
    if isinstance(entry, PlanRule):
        objective = replace(PLAIN if entry.chooses and rules else entry.objective, **rules)
        bound = subject.bound(objective, subject.paid(objective, entry.executor))
        solution, caveats = entry.make(bound.question), entry.caveats(subject.workload)
    else:
        objective, caveats = replace(entry.objective, **rules), ()
        plan = entry.under(objective)
        bound = subject.bound(objective, subject.engine.seen(subject.pricing.for_plan(plan)))
        solution = Solution(bound.question, plan, Status.HEURISTIC)
    plan = solution.require_plan()
    return Prediction(
        name=label,
        plan=plan,
        timeline=subject.timeline(solution),
        bound=Bound(bound.question, plan) if plan.sparse or plan.release or plan.recompute else bound,
        alone=subject.workload.compute_time,
        caveats=caveats + subject.caveats,
        shared=subject.warnings,
        has_bands=subject.ours,
    )


def error_band(workload: Workload, plan: Plan, timeline: Timeline, pricing: Pricing) -> Band | None:
    """How far predictions in this regime were from measured runs, wider where the price itself was not measured.

    Then what the iteration takes with a price that is wrong by the model's own error is added.
    """
    band = band_for(regime_of(workload, timeline, pricing.cost()), bundled_bands())
    if band is None or not pricing.uncertainty:
        return band
    dearer = predict_timeline(workload, plan, pricing.slower(1 + pricing.uncertainty)).iteration_time
    return replace(band, half_width=band.half_width + dearer / timeline.iteration_time - 1)


def require_nouns(workload: object, cluster: object) -> None:
    """Raise UsageError, saying how to get one, for what is no Workload or no Cluster."""
    for value, noun, load in ((workload, Workload, "load_workload"), (cluster, Cluster, "load_cluster")):
        if not isinstance(value, noun):
            raise UsageError(f"{value!r} is not a {noun.__name__}: get one with osfmodel.{load}(name or path)")


def extrapolation(plan: Plan, cost: Cost) -> tuple[str, ...]:
    """A warning where a message is larger or smaller than what was measured."""
    return _beyond([bucket.size for bucket in plan.buckets if bucket.density is None], cost)


def plan_extrapolation(workload: Workload, plan: Plan, pricing: Pricing) -> tuple[str, ...]:
    """The same for all messages of ``plan``, those of sparse buckets at the price of an all-gather."""
    sparsity = Sparsity(workload, pricing.effects, pricing.workers)
    gathered = [sparsity.gathered_bytes(bucket) for bucket in plan.buckets if bucket.density is not None]
    notes = extrapolation(plan, pricing.cost()) + _beyond(gathered, pricing.cost("all_gather"))
    unmeasured = plan.sparse and pricing.workers > 1 and not (pricing.effects.select or pricing.effects.select_time)
    said = "what selecting entries computes is not known here and left out: measure it with `osf bench`"
    guessed = plan.sparse and "all_gather" in pricing.assumed
    assumed = "all-gathers are priced at half an all-reduce: measure them with `osf bench --collective all_gather`"
    return tuple(dict.fromkeys(notes)) + ((said,) if unmeasured else ()) + ((assumed,) if guessed else ())


def _beyond(sizes: Sequence[int], cost: Cost) -> tuple[str, ...]:
    measured = cost.measured_range
    if measured is None or not sizes:
        return ()
    smallest, largest = min(sizes), max(sizes)
    notes = []
    if largest > measured[1]:
        notes.append(f"messages above {show_bytes(measured[1])}, the largest measured, are extrapolated")
    if smallest < measured[0]:
        flat = isinstance(cost, TableCost) and cost.sizes[0] >= measured[0]
        how = "priced like that one" if flat else "extrapolated"
        notes.append(f"messages below {show_bytes(measured[0])}, the smallest measured, are {how}")
    return tuple(notes)


def count_warnings(cluster: Cluster, workers: int) -> tuple[str, ...]:
    """A warning where a fitted cluster is asked for a worker count that the fit did not see."""
    if cluster.fitted is None or workers == 1 or workers in cluster.fitted.workers:
        return ()
    fitted = ", ".join(map(str, cluster.fitted.workers))
    return (f"prices for {workers} workers are extrapolated from a fit to {fitted} workers",)


SIZED = "record a trace with record_shapes=True, import it with --model, or use osf profile"
"""How to have a workload whose gradients have sizes."""


def size_warnings(workload: Workload, workers: int) -> tuple[str, ...]:
    """A warning where several workers have nothing to send, which no training is like."""
    if workload.gradient_bytes or workers == 1:
        return ()
    return (f"no gradient of {workload.name!r} has a size, so that nothing is sent and scaling looks perfect: {SIZED}",)
