"""A tuning problem: workload, target, prices and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost
from osfmodel.engine import predict_timeline, without_priority
from osfmodel.engine.bands import Band, band_of
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.executors import DDP
from osfmodel.entities.modules import SHARDED, in_one_micro_batch
from osfmodel.entities.plan import PLAIN, REPLICATED, Objective, Plan, Search
from osfmodel.entities.sharding import EACH, Form
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.solve import SOLVERS
from osfmodel.solve.bounds import plan_bound
from osfmodel.solve.solution import Case, Limits, PlanRule, Question, Solution, Status
from osfmodel.solve.under_effects import plan_under_effects
from osfmodel.targets import Target

NEGLIGIBLE = 0.001
"""Largest loss against the optimum, as a fraction, that is accepted for robustness on a slower network."""


@dataclass(frozen=True)
class TuningProblem:
    """A workload under a target's rules at one or several prices, within limits. Knobs are timed once and kept.

    stock: prices for a stock framework; ``pricings`` are the same unless the target has an executor of its own
    leads: how many times as fast as the device the host may be, if the target's settings depend on that
    micro_batches: of a step under a strategy that shards, and their form; ``workload`` is one of them
    drawn: the problem under each draw of plausible prices, once ``planning.tuning.chances`` has asked for it
    """

    workload: Workload
    target: Target
    stock: tuple[Pricing, ...]
    limits: Limits = Limits()
    objective: Objective = PLAIN
    leads: tuple[float, ...] = ()
    micro_batches: tuple[int, Form] = (1, EACH)
    drawn: list[TuningProblem] = field(init=False, repr=False, compare=False, default_factory=list)
    _timed: dict[Any, list[tuple[Plan, Timeline]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def hosts(self) -> tuple[Workload, ...]:
        """The workload with each of the leads; unchanged if there are none, or for 1: effects slow the host as well."""
        return tuple(self.workload if lead == 1 else self.workload.ahead(lead) for lead in self.leads or (1,))

    @cached_property
    def _led(self) -> list[TuningProblem]:
        """The same problem with each of the leads."""
        return [replace(self, workload=workload, leads=()) for workload in self.hosts]

    @cached_property
    def pricings(self) -> tuple[Pricing, ...]:
        """Prices for the target at each worker count."""
        executor = self.target.executor
        return self.stock if executor is None else tuple(one.under(executor.conditions) for one in self.stock)

    def _paid(self, knobs: Any) -> tuple[Pricing, ...]:
        """Prices for ``knobs``; an executor's defaults are priced as the stock framework that they represent."""
        return self.stock if self.target.executes and knobs == self.target.convert.default_knobs() else self.pricings

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """The cost of an all-reduce at each worker count."""
        return tuple(pricing.cost() for pricing in self.pricings)

    def optima(self) -> list[tuple[Plan, Timeline]]:
        """The best plan at each price. Raises PlanError, naming the largest tensor, if there is none."""
        return [solution.require() for solution in self.solutions()]

    def solutions(self) -> list[Solution]:
        """The solutions behind :meth:`optima`, which raises alike."""
        return [self._optimum(question) for question in self._questions(self.pricings)]

    def _questions(self, pricings: Sequence[Pricing]) -> list[Question]:
        return [
            Question(self.workload, pricing, self.objective, self.limits, self.micro_batches) for pricing in pricings
        ]

    def _optimum(self, question: Question) -> Solution:
        """The best plan of whole tensors in ready order under plain rules; under others the best known."""
        if self.target.rule is not None or self.objective.strategy in SHARDED:
            return self._rule.solve(question)
        solution = plan_under_effects(question, self._planner)
        if solution.plan is None:
            gradients = self.workload.gradients
            size, name = max(zip(gradients.sizes, gradients.names, strict=True))
            said = f"{solution.status.value} (the largest tensor is {name!r} with {show_bytes(size)})"
            fits = f": give --max-bucket {-(-size // MIB)}MiB or more" * (size > (self.limits.max_bucket_bytes or size))
            raise PlanError(f"{said}{fits}")
        return solution

    @property
    def _rule(self) -> PlanRule:
        if self.target.rule is not None:
            return self.target.rule
        if self.objective.strategy in SHARDED:
            return SOLVERS["sharded"]
        return SOLVERS["optimal" if self.objective.plain else "planned"]

    def _planner(self, question: Question) -> Solution:
        """The solution of the target's rule; without priorities for an executor, which sends in a fixed order.

        A split plan that loses its priorities by that may be slower than one of all-reduces, which is asked for too.
        """
        solution = self._rule.solve(question)
        if solution.plan is None or solution.plan.credit is None or not self.target.executes:
            return solution
        plan = without_priority(question.workload, solution.plan, question.pricing)
        solution = Solution(question, plan, Status.HEURISTIC)
        if not question.objective.split:
            return solution
        whole = self._planner(replace(question, objective=replace(question.objective, strategy=REPLICATED)))
        return min(solution, replace(whole, question=question), key=lambda one: one.require()[1].iteration_time)

    def planned(self, knobs: Any, like: TuningProblem | None = None) -> list[tuple[Plan, Timeline]]:
        """The plan that the target makes of ``knobs`` at each price, and its timeline there.

        like: this problem at other prices or times of computation; a sharded step that it issued is only timed again
        """
        if knobs not in self._timed:
            known = [None] * len(self.stock) if like is None or like is self else like.planned(knobs)
            rows = zip(self._paid(knobs), known, strict=True)
            self._timed[knobs] = [self._step(knobs, pricing, other) for pricing, other in rows]
        return self._timed[knobs]

    def _step(self, knobs: Any, pricing: Pricing, known: tuple[Plan, Timeline] | None) -> tuple[Plan, Timeline]:
        # Only what a framework with a clock forms depends on prices and times.
        plan = known[0] if known and not self.target.clock else self._plan(knobs, pricing)
        like = known[1] if known and plan.sharding else None
        return plan, predict_timeline(self.workload, plan, pricing, like)

    def _plan(self, knobs: Any, pricing: Pricing) -> Plan:
        plan = self.target.convert.to_plan(knobs, self.workload, pricing)
        return Question(self.workload, pricing, self.objective, micro_batches=self.micro_batches).step(plan)

    @cached_property
    def usual(self) -> TuningProblem:
        """The same problem with the target's own way to accumulate."""
        return self.accumulating(self.target.text.accumulation.form)

    def accumulating(self, form: Form) -> TuningProblem:
        """The same problem with another way to accumulate."""
        count, chosen = self.micro_batches
        return self if form == chosen else replace(self, micro_batches=(count, form))

    @property
    def forms(self) -> tuple[Form, ...]:
        """The target's ways to accumulate, its own first; none for one micro-batch."""
        return tuple(self.target.text.accumulation.forms) if self.micro_batches[0] > 1 else ()

    def times(self, knobs: Any, like: TuningProblem | None = None) -> list[float]:
        """Iteration time of ``knobs`` at each price; ``like``: as for :meth:`planned`."""
        return [timeline.iteration_time for _, timeline in self.planned(knobs, like)]

    def judged(self, knobs: Any, like: TuningProblem | None = None) -> list[float]:
        """Iteration time of ``knobs`` at each price, with the worst host lead. ``like``: as for :meth:`times`."""
        if not self.leads:
            return self.times(knobs, like)
        return [max(times) for times in zip(*(problem.times(knobs) for problem in self._led), strict=True)]

    def bounds(self, knobs: Any) -> list[float]:
        """Seconds that no schedule can beat under these rules, at each price.

        A target with a search of its own chooses types and replicas that its objective does not state: the bound is
        that of the rules of its plan, and other settings took longer.
        """
        questions = self._questions(self._paid(knobs))
        if self.target.rule is not None:
            return [plan_bound(question.workload, plan, question.pricing) for (plan, _), question in
                    zip(self.planned(knobs), questions, strict=True)]  # fmt: skip
        return [question.lower_bound for question in questions]

    def bands(self, knobs: Any) -> list[Band | None]:
        """The error band of the tuned time at each price."""
        return [band_of(question.workload, plan, timeline, question.pricing) for (plan, timeline), question in
                zip(self.planned(knobs), self._questions(self._paid(knobs)), strict=True)]  # fmt: skip

    def plans(self, knobs: Any) -> list[Plan]:
        """The plan at each price with its executor and, where its rules do not show it, the search that found it."""
        room, made, ruled = self.limits.memory, [], self.target.rule is not None
        search = Search(self.objective, self.limits.max_bucket_bytes, None if room is None else room.bytes)
        executor = None if self._paid(knobs) is self.stock else self.target.executor
        for plan, _ in self.planned(knobs):
            name = executor.name if executor else "" if plan.plain else DDP.name
            shown = ruled or (plan.objective == self.objective and plan.sharding is None)
            made.append(replace(plan, executor=name, searched=None if shown else search))
        return made

    def from_plan(self, plan: Plan, pricing: Pricing) -> Any:
        """The target's knobs for ``plan``."""
        return self.target.convert.from_plan(in_one_micro_batch(plan), self.workload, pricing, self.limits)

    def complete(self, knobs: Any) -> Any:
        """``knobs`` completed with settings that only the final choice needs."""
        return self.target.convert.complete(knobs, self.workload, self.pricings, self.limits)

    def search(self, best: Sequence[float]) -> tuple[Any, tuple[str, ...]]:
        """Knobs that the target finds without a plan, and remarks; None if it has no such search, or finds none.

        ``best``: seconds of the best plan at each price.
        """
        if self.target.search is None:
            return None, ()
        cases = [
            Case(workload, pricing, time)
            for pricing, time in zip(self.pricings, best, strict=True)
            for workload in self.hosts
        ]
        return self.target.search.find(cases, self.limits)

    def keeps_limits(self, knobs: Any) -> bool:
        """Whether the plans that the target makes of ``knobs`` keep the limits."""
        if self.limits == Limits():
            return True
        plans = [self._plan(knobs, pricing) for pricing in self._paid(knobs)]
        return all(map(self.limits.allow, plans)) and self._fits(knobs)

    def _fits(self, knobs: Any) -> bool:
        """Whether the steps with ``knobs`` keep the limit on memory."""
        room = self.limits.memory
        if room is None:
            return True
        from osfmodel.solve.verdicts import peak_within  # not loaded without a limit

        return all(
            peak_within(room, self.workload, plan, timeline, pricing.workers).bytes <= room.bytes
            for (plan, timeline), pricing in zip(self.planned(knobs), self._paid(knobs), strict=True)
        )

    def slower(self, factor: float) -> TuningProblem:
        """The same problem on a network that takes ``factor`` times as long."""
        return replace(self, stock=tuple(pricing.slower(factor) for pricing in self.stock))

    def caveats(self) -> tuple[str, ...]:
        """Assumptions of the target's and the solver's results; with leads of the host the result says its own."""
        of_target = () if self.leads else self.target.text.caveats(self.workload)
        return of_target + self._rule.caveats(self.workload)


class SettledTask(NamedTuple):
    """The settings that were chosen, and how: the problem, the best plans, and what the target's search says."""

    task: TuningProblem
    knobs: Any
    optima: Sequence[tuple[Plan, Timeline]]
    searched: Any | None
    remarks: tuple[str, ...]
