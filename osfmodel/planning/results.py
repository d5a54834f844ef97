"""What planning finds: predictions side by side, and a tuned configuration with what it does at each worker count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from osfmodel.engine.bands import Band
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import (
    error_band,
    plan_extrapolation,
)
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.bounds import plan_bound
from osfmodel.solve.solution import Question

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
    formed_by: (plan, workload) -> the stock frameworks that can form it
    """

    name: str
    plan: Plan = field(repr=False)
    timeline: Timeline = field(repr=False)
    bound: Bound = field(repr=False)
    alone: float
    caveats: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    has_bands: bool = field(default=True, repr=False)
    formed_by: Callable[[Plan, Workload], tuple[str, ...]] | None = field(default=None, repr=False, compare=False)

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
        return () if self.formed_by is None else self.formed_by(self.plan, self.bound.question.workload)

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


WORTHWHILE = 0.005
"""Gains below half a percent are within what repeated runs differ by, so they are not called improvements."""


PROVEN = 0.0005
"""What is left to the bound below this part is rounding of whole bytes and of what is printed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recommended configuration at one worker count. Times in seconds.

    tuned_time:   with the configuration, as the framework will really carry it out
    default_time: with the framework's defaults
    band:         how far such predictions were from measured runs
    optimal_time: of the best plan of whole tensors in ready order, whether the framework can form it or not
    """

    workers: int
    tuned_time: float
    default_time: float
    optimal_time: float
    lower_bound: float
    band: Band | None = None

    @property
    def gap(self) -> float:
        """tuned_time / lower_bound - 1: at most so much is left for any other schedule."""
        return self.tuned_time / self.lower_bound - 1

    @property
    def left(self) -> float:
        """Part of the tuned iteration time that any other schedule could save at most."""
        return 1 - self.lower_bound / self.tuned_time

    @property
    def gain(self) -> float:
        """Part of the default iteration time that the configuration saves."""
        return 1 - self.tuned_time / self.default_time


@dataclass(frozen=True, slots=True)
class Tuning:
    """The configuration for ``target``, the plan that comes of it, and what it does at each worker count.

    ``plan`` is as realised at the first worker count. ``warnings`` say where a price is extrapolated, ``remarks`` what
    is lost, what a slower network would change, and what a prediction for this framework takes for granted.
    """

    workload: Workload = field(repr=False)
    cluster: Cluster = field(repr=False)
    target: str
    knobs: Any = field(repr=False)
    plan: Plan = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    rendered: str = field(repr=False)
    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    what_if: WhatIf = field(default=WhatIf(), repr=False)

    def under(self, what_if: WhatIf) -> Tuning:
        """The same, where ``what_if`` made workload and cluster."""
        return replace(self, what_if=what_if, remarks=self.remarks + what_if.caveats(self.workload, self.cluster))

    @property
    def notes(self) -> tuple[str, ...]:
        """All that there is to be careful about."""
        return self.warnings + self.remarks

    @property
    def improvement(self) -> bool:
        """Whether it saves 0.5 % or more of the default's time at some worker count."""
        return any(outcome.gain >= WORTHWHILE for outcome in self.outcomes)

    @property
    def verdict(self) -> str:
        """The result in one sentence or two."""
        worst, best = (pick(self.outcomes, key=lambda outcome: outcome.gain) for pick in (min, max))
        where = f" (at {best.workers} workers)" if len(self.outcomes) > 1 else ""
        if worst.gain <= -WORTHWHILE:
            return (
                f"Between {-worst.gain:.1%} more time than the default (at {worst.workers} workers) "
                f"and {best.gain:.1%} less{where}."
                if len(self.outcomes) > 1
                else f"{-worst.gain:.1%} more time than the default: the limits cost more than tuning gains."
            )
        if not self.improvement:
            return f"No improvement worth having: {max(best.gain, 0):.2%} over the default{where}. Keep the default."
        saved = f"{best.gain:.1%} less time than the default{where}"
        if best.left < PROVEN:
            return f"{saved}; proven: no schedule {self._rules} is faster."
        return f"{saved}; no schedule {self._rules} can save more than another {best.left:.1%}."

    @property
    def _rules(self) -> str:
        plain = self.plan.objective.plain and self.cluster.in_flight == 1
        return "on one channel with a barrier" if plain else "under these rules"
