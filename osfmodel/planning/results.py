"""Results of planning: predictions side by side, and a tuned configuration with its times at each worker count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from osfmodel.engine.bands import Band, band_of
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import VIEWED, brief, how_many, little, show_share, show_time
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.rounding import TIE
from osfmodel.entities.sharding import EACH, Form
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import Finished
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.bounds import plan_bound
from osfmodel.solve.solution import Question
from osfmodel.targets import CONFIG_TARGETS


@dataclass(frozen=True, eq=False)
class Bound:
    """A lower bound, computed on first use, since that takes longer than a prediction."""

    question: Question
    plan: Plan | None = None

    @property
    def objective(self) -> Objective:
        """The rules under which the bound holds."""
        return self.question.objective

    @cached_property
    def value(self) -> float:
        """Seconds of the bound; if a plan is given, with its recomputing, releasing and sparse sending."""
        if self.plan is not None:
            return plan_bound(self.question.workload, self.plan, self.question.pricing)
        return self.question.lower_bound


@dataclass(frozen=True)
class Prediction:
    """The prediction of one iteration under one plan; slower parts are computed on first use.

    alone:     seconds of the iteration with perfect scaling, those of a single GPU
    subject:   the workload, the cluster and the worker count, as a comparison without plans
    finished:  from which cautions are told
    own:       assumptions of the rule that made the plan
    further:   caveats of what else was compared or changed
    formed_by: (plan, workload) -> the stock frameworks that can form it
    """

    name: str
    plan: Plan
    timeline: Timeline
    bound: Bound
    alone: float
    subject: Comparison = field(compare=False)
    finished: Finished = field(compare=False, repr=False)
    own: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    formed_by: Callable[[Plan, Workload], tuple[str, ...]] | None = field(default=None, compare=False)
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __repr__(self) -> str:
        exposed = f"{show_time(self.timeline.exposed_communication)} exposed"
        factor = f"scaling factor {self.scaling_factor:.3f}"
        buckets = how_many(len(self.plan.buckets), "bucket")
        return brief(self, f"{self.name}: {show_time(self.iteration_time)}, {factor}, {exposed}, {buckets}")

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        """Bytes of each bucket; of sharded parameters in the type in which they are gathered, without padding."""
        plan, workload = self.plan, self.bound.question.workload
        if plan.sharding is None or not plan.sharding.gather_dtype:
            return tuple(bucket.size for bucket in plan.buckets)
        kept, gathered = (
            {layer.name: layer.dtype for layer in workload.layers},
            element_bytes(plan.sharding.gather_dtype),
        )
        return tuple(
            sum(block.bytes // element_bytes(kept[block.layer]) * gathered for block in bucket.blocks)
            for bucket in plan.buckets
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about workload and cluster, and about extrapolated prices."""
        return self.finished.warnings()

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """Assumptions of the prediction."""
        return self.own + self.finished.caveats() + self.further

    @cached_property
    def band(self) -> Band | None:
        """The error band of such predictions against measured runs.

        None for a single worker, for other engines, and where nothing comparable was measured.
        """
        if not self.finished.ours:
            return None
        question = self.bound.question
        return band_of(question.workload, self.plan, self.timeline, question.pricing)

    @cached_property
    def runs_on(self) -> tuple[str, ...]:
        """The stock frameworks that can run the plan; empty if it needs an executor."""
        return () if self.formed_by is None else self.formed_by(self.plan, self.bound.question.workload)

    @property
    def scaling_factor(self) -> float:
        """Time of a single GPU, without recomputing, over the iteration time: 1 is perfect scaling."""
        return self.alone / self.iteration_time

    @property
    def notes(self) -> tuple[str, ...]:
        """All caveats and warnings."""
        return self.warnings + self.caveats

    @property
    def iteration_time(self) -> float:
        """Seconds for one iteration."""
        return self.timeline.iteration_time

    @property
    def engine(self) -> str:
        """Name of the engine that made the timeline."""
        return self.timeline.engine

    @property
    def lower_bound(self) -> float:
        """Seconds that no schedule under the rules of ``plan`` can beat."""
        return self.bound.value

    @property
    def gap(self) -> float:
        """iteration_time / lower_bound - 1."""
        gap = self.timeline.iteration_time / self.lower_bound - 1
        return 0.0 if abs(gap) <= TIE else gap


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several plans for one workload, cluster and worker count, as ``what_if`` changed them."""

    workload: Workload
    cluster: Cluster
    workers: int
    bounds: tuple[Bound, ...]
    predictions: tuple[Prediction, ...]
    what_if: WhatIf = WhatIf()
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __repr__(self) -> str:
        times = ", ".join(f"{one.name} {show_time(one.iteration_time)}" for one in self.predictions)
        workers = how_many(self.workers, "worker")
        return brief(self, f"{self.workload.name} on {self.cluster.name}, {workers}: {times}")

    @property
    def lower_bound(self) -> float:
        """Seconds that no schedule can beat under the rules of any of the plans."""
        return min(bound.value for bound in self.bounds)

    def throughput(self, prediction: Prediction) -> float | None:
        """Samples per second of all workers together; None if the batch size is not known."""
        batch = self.workload.batch_size
        return None if batch is None else self.workers * batch / prediction.iteration_time

    def of(self, predictions: Sequence[Prediction]) -> Comparison:
        """The comparison of these plans alone."""
        bounds = dict.fromkeys(one.bound for one in predictions)
        return replace(self, bounds=tuple(bounds), predictions=tuple(predictions))

    def under(self, what_if: WhatIf, alone: float) -> Comparison:
        """The comparison marked as made under ``what_if``, with scaling factors relative to ``alone`` seconds."""
        said = what_if.caveats(self.workload, self.cluster)
        subject = replace(self, what_if=what_if, predictions=())
        made = (replace(one, alone=alone, further=one.further + said, subject=subject) for one in self.predictions)
        return replace(subject, predictions=tuple(made))


WORTHWHILE = 0.005
"""Smallest gain that is called an improvement: repeated runs differ by as much."""


PROVEN = 0.0005
"""Gap to the bound below which a plan counts as optimal; smaller gaps are rounding."""


DRAWS = 32
"""Draws of a network and of effects, from what is doubtful about them."""


class Chance(NamedTuple):
    """The gain over the default, as a fraction of its time: the interval that holds 90 % of draws, and their wins.

    wins: fraction of the draws in which the configuration is faster than the default
    """

    low: float
    high: float
    wins: float

    @property
    def sure(self) -> bool:
        """Whether it is faster than the default throughout the interval."""
        return self.low > 0

    @property
    def words(self) -> str:
        """The chance in words."""
        drawn = f"over plausible networks and effects (faster in {round(self.wins * DRAWS)} of {DRAWS})"
        if self.sure or self.high < 0:
            return f"{show_share(self.low)} to {show_share(self.high)} {drawn}"
        return f"between {show_share(-self.low)} more and {show_share(self.high)} less {drawn}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recommended configuration at one worker count. Times in seconds.

    tuned_time:   with the configuration, as the framework really runs it
    default_time: with the framework's defaults
    band:         error band of such predictions
    optimal_time: of the best plan of whole tensors in ready order, even if the framework cannot form it
    chance:       of being faster than the default, whatever the network and the effects really are; None where the
                  configuration is the default
    exposed_time, plan: of communication that nothing hides; what the framework forms
    """

    workers: int
    tuned_time: float
    default_time: float
    optimal_time: float
    lower_bound: float
    band: Band | None = None
    chance: Chance | None = None
    exposed_time: float = 0.0
    plan: Plan | None = None

    def __repr__(self) -> str:
        times = f"{show_time(self.tuned_time)}, {show_time(self.default_time)} by default"
        return brief(self, f"{how_many(self.workers, 'worker')}: {times}, bound {show_time(self.lower_bound)}")

    @property
    def gap(self) -> float:
        """tuned_time / lower_bound - 1: no other schedule can save more."""
        return self.tuned_time / self.lower_bound - 1

    @property
    def left(self) -> float:
        """Largest fraction of the tuned iteration time that any other schedule could save."""
        return 1 - self.lower_bound / self.tuned_time

    @property
    def gain(self) -> float:
        """Fraction of the default iteration time that the configuration saves."""
        return 1 - self.tuned_time / self.default_time


@dataclass(frozen=True, slots=True)
class Tuning:
    """The configuration for ``target``, its plan, and its times at each worker count.

    ``plan`` is the one at the first worker count. ``warnings`` name extrapolated prices; ``remarks`` name losses,
    changes on a slower network, and assumptions of a prediction for this framework. ``form`` is the way in which plans
    that shard accumulate over micro-batches.
    """

    workload: Workload
    cluster: Cluster
    target: str
    knobs: Any
    plan: Plan
    config: dict[str, Any]
    rendered: str
    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    what_if: WhatIf = WhatIf()
    form: Form = EACH
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __repr__(self) -> str:
        times = (f"{show_time(one.tuned_time)} with {how_many(one.workers, 'worker')}" for one in self.outcomes)
        return brief(self, f"{self.target} for {self.workload.name} on {self.cluster.name}: {', '.join(times)}")

    def under(self, what_if: WhatIf) -> Tuning:
        """The tuning marked as made under ``what_if``; its settings accumulate as many micro-batches."""
        text = CONFIG_TARGETS[self.target].text
        told = filter(None, [text.accumulation.note(what_if.accumulate)] if what_if.accumulate > 1 else [])
        return replace(
            self,
            what_if=what_if,
            config=text.settings(self.config, what_if.accumulate),
            rendered=text.written(self.knobs, self.workload, micro_batches=what_if.accumulate, form=self.form),
            remarks=(*self.remarks, *what_if.caveats(self.workload, self.cluster), *told),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """All caveats and warnings."""
        return self.warnings + self.remarks

    @property
    def improvement(self) -> bool:
        """Whether the configuration saves 0.5 % or more of the default's time at some worker count."""
        return any(outcome.gain >= WORTHWHILE for outcome in self.outcomes)

    @property
    def recommended(self) -> bool:
        """Whether to use it: it is an improvement, and faster than the default throughout the interval of its gain."""
        best = max(self.outcomes, key=lambda outcome: outcome.gain)
        return self.improvement and (best.chance is None or best.chance.sure)

    @property
    def verdict(self) -> str:
        """The result in one sentence or two."""
        worst, best = (pick(self.outcomes, key=lambda outcome: outcome.gain) for pick in (min, max))
        where = f" (at {best.workers} workers)" if len(self.outcomes) > 1 else ""
        if worst.gain <= -WORTHWHILE:
            return (
                f"Between {show_share(-worst.gain)} more time than the default (at {worst.workers} workers) "
                f"and {show_share(best.gain)} less{where}."
                if len(self.outcomes) > 1
                else f"{show_share(-worst.gain)} more time than the default: the limits cost more than tuning gains."
            )
        if not self.improvement:
            return f"Keep the default: tuning would save {little(best.gain)}{where}."
        saved = f"{show_share(best.gain)} less time than the default{where}"
        if best.chance is not None and not best.chance.sure:
            alone = "Leave the default alone unless you can measure"
            return f"{alone}: {saved} is predicted, but it may be {best.chance.words}."
        likely = "" if best.chance is None else f", and {best.chance.words}"
        if best.left < PROVEN and show_time(best.tuned_time) == show_time(best.optimal_time):
            proven = f"no schedule is faster at these prices (to within {PROVEN:.2%})"
            return f"{saved}{likely}. Optimal: {self._rules}, {proven}."
        rules = self._rules[0].upper() + self._rules[1:]
        left = f"no schedule could save more than another {show_share(best.left)} at these prices"
        return f"{saved}{likely}. {rules}, {left}."

    @property
    def _rules(self) -> str:
        if self.plan.objective.plain and self.cluster.in_flight == 1:
            return "with one collective at a time and all gradients in before the optimizer step"
        return "under these rules"
