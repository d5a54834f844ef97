"""What is to be tuned, and the questions that a search for settings asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost
from osfmodel.engine import predict_timeline, without_priority
from osfmodel.engine.bands import Band
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import PLAIN, Objective, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import show_bytes
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import error_band, extrapolation
from osfmodel.solve import SOLVERS
from osfmodel.solve.solution import Case, Limits, PlanRule, Question, Solution, Status
from osfmodel.solve.under_effects import plan_under_effects
from osfmodel.targets import Target


@dataclass(frozen=True, slots=True)
class TuningProblem:
    """A workload under a target's rules at one or several prices, within limits.

    stock: what a stock framework pays at each, as ``pricings`` is where the target is one
    leads: how many times as fast as the device the host may be, where the target's settings depend on that
    """

    workload: Workload
    target: Target
    stock: tuple[Pricing, ...]
    limits: Limits = Limits()
    objective: Objective = PLAIN
    leads: tuple[float, ...] = ()

    @property
    def hosts(self) -> tuple[Workload, ...]:
        """The workload with each of the leads; as it is where there are none."""
        return tuple(map(self.workload.ahead, self.leads)) or (self.workload,)

    @property
    def pricings(self) -> tuple[Pricing, ...]:
        """What the target pays."""
        executor = self.target.executor
        return self.stock if executor is None else tuple(one.under(executor.conditions) for one in self.stock)

    def _paid(self, knobs: Any) -> tuple[Pricing, ...]:
        """What ``knobs`` pay: the default of an executor is what one has without it."""
        return self.stock if self.target.executes and knobs == self.target.convert.default_knobs() else self.pricings

    @property
    def costs(self) -> tuple[Cost, ...]:
        """What an all-reduce costs at each worker count."""
        return tuple(pricing.cost() for pricing in self.pricings)

    def optima(self) -> list[tuple[Plan, Timeline]]:
        """The best plan at each price. Raises PlanError, naming the largest tensor, where there is none."""
        return [self._optimum(question).require() for question in self._questions()]

    def _questions(self) -> list[Question]:
        return [Question(self.workload, pricing, self.objective, self.limits) for pricing in self.pricings]

    def _optimum(self, question: Question) -> Solution:
        """Of whole tensors in ready order under plain rules, else of all that is known."""
        solution = plan_under_effects(question, self._planner, limited=not self.objective.plain)
        if solution.plan is None:
            gradients = self.workload.gradients
            size, name = max(zip(gradients.sizes, gradients.names, strict=True))
            raise PlanError(f"{solution.status.value} (the largest tensor is {name!r} with {show_bytes(size)})")
        return solution

    @property
    def _rule(self) -> PlanRule:
        return SOLVERS["optimal" if self.objective.plain else "planned"]

    def _planner(self, question: Question) -> Solution:
        """What the rule answers; for an executor, which sends in a fixed order, without priorities."""
        solution = self._rule.solve(question)
        if solution.plan is None or solution.plan.credit is None or not self.target.executes:
            return solution
        plan = without_priority(question.workload, solution.plan, question.pricing)
        return Solution(question, plan, Status.HEURISTIC)

    def timeline(self, plan: Plan, pricing: Pricing) -> Timeline:
        """One iteration under ``plan``."""
        return predict_timeline(self.workload, plan, pricing)

    def realised(self, knobs: Any) -> list[tuple[Plan, Timeline]]:
        """What the target makes of ``knobs`` at each price, timed there."""
        plans = [(self.target.convert.realise(knobs, self.workload, pricing), pricing) for pricing in self._paid(knobs)]
        return [(plan, self.timeline(plan, pricing)) for plan, pricing in plans]

    def times(self, knobs: Any) -> list[float]:
        """Iteration time at each price of what the target makes of ``knobs``."""
        return [timeline.iteration_time for _, timeline in self.realised(knobs)]

    def judged(self, knobs: Any) -> list[float]:
        """The same where the host is as far ahead as is worst for these knobs."""
        if not self.leads:
            return self.times(knobs)
        each = [replace(self, workload=workload, leads=()).times(knobs) for workload in self.hosts]
        return [max(times) for times in zip(*each, strict=True)]

    def bounds(self) -> list[float]:
        """What no schedule under these rules can beat, at each price."""
        return [question.lower_bound for question in self._questions()]

    def bands(self, knobs: Any) -> list[Band | None]:
        """The error band of the tuned time at each price."""
        return [error_band(self.workload, plan, timeline, pricing) for (plan, timeline), pricing in
                zip(self.realised(knobs), self._paid(knobs), strict=True)]  # fmt: skip

    def project(self, plan: Plan, pricing: Pricing) -> Any:
        """The target's knobs for ``plan``."""
        return self.target.convert.project(plan, self.workload, pricing, self.limits)

    def complete(self, knobs: Any) -> Any:
        """``knobs`` with what only the final choice needs."""
        return self.target.convert.complete(knobs, self.workload, self.pricings[0], self.limits)

    def search(self, best: Sequence[float]) -> tuple[Any, tuple[str, ...]]:
        """Knobs that the target finds without a plan, and remarks; None where it has no such search, or finds none.

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
        """Whether what the target makes of ``knobs`` is within the limits."""
        return self.limits == Limits() or all(
            self.limits.allow(self.target.convert.realise(knobs, self.workload, pricing))
            for pricing in self._paid(knobs)
        )

    def slower(self, factor: float) -> TuningProblem:
        """The same on a network that takes ``factor`` times as long."""
        return replace(self, stock=tuple(pricing.slower(factor) for pricing in self.stock))

    def caveats(self) -> tuple[str, ...]:
        """What the target's and the solver's results take for granted."""
        return self.target.text.caveats(self.workload) + self._rule.caveats(self.workload)

    def extrapolation(self, plan: Plan) -> tuple[str, ...]:
        """What is beyond the measured sizes, each said once."""
        return tuple(dict.fromkeys(note for cost in self.costs for note in extrapolation(plan, cost)))
