"""The gain of a tuned configuration over the default, on draws of prices, compute times and effects that are plausible.

Prices (by the doubt of large messages), compute times and effects of a prediction are doubtful. Both configurations
are timed under the same draws from these doubts (common random numbers), so that what slows both alike does not count.
The ratio of two plans' times is doubtful even where all of these are known, by what pairs of measured plans show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.bands import PART
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import DRAWS, Chance
from osfmodel.planning.tuning.task import TuningProblem
from osfmodel.solve.solution import PlanRule

STEPS = tuple(1.1347241384015194**-place for place in (1, 2, 3, 4, 5))
"""Steps of an even sequence in five dimensions: powers of the root of x^6 = x + 1 (additive recurrence)."""
MICRO_BATCHES = 3
"""Largest number of micro-batches of a draw."""
TIE = 0.002
"""Difference of mean times, as a fraction, within which two configurations are as good."""
COMPUTE = 0.05
"""Half width of the 90 % interval of compute times: GPUs of a node slow down by 0 to 10 % (profiles/effects.json)."""
SLOWDOWN = 2.0
"""Largest multiple of the stated compute_slowdown: published values go from none to twice the mean."""
HOOK = 2.0
"""The same of hook_time: a source's models go from a third to nearly twice its median."""
NORMAL = 1.645
"""Standard deviations on each side that hold 90 % of a normal distribution."""


class Draw(NamedTuple):
    """Standard normal deviates of network, computation and ratio of plans, uniform numbers of both effects."""

    network: float
    compute: float
    ratio: float
    slowdown: float
    hook: float

    def price(self, pricing: Pricing) -> Pricing:
        """The prices under this draw."""
        effects = pricing.effects
        drawn = replace(
            effects,
            compute_slowdown=effects.compute_slowdown * SLOWDOWN * self.slowdown,
            hook_time=effects.hook_time * HOOK * self.hook,
        )
        factor = math.exp(self.network * math.log1p(pricing.uncertainty_large) / NORMAL)
        return replace(pricing.slower(factor), effects=drawn) if drawn != effects else pricing.slower(factor)


@lru_cache(maxsize=1)
def draws() -> tuple[Draw, ...]:
    """The draws, spread evenly, the same for all configurations and all problems."""
    normal = NormalDist()
    columns = (_even([number * step % 1 for number in range(DRAWS)]) for step in STEPS)
    return tuple(Draw(*map(normal.inv_cdf, row[:3]), *row[3:]) for row in zip(*columns, strict=True))


def _even(values: Sequence[float]) -> list[float]:
    """The rank of each value among the n, as the middle of its n-th part of 0 to 1."""
    ordered = sorted(values)
    return [(ordered.index(value) + 0.5) / len(values) for value in values]


def drawn(problem: TuningProblem) -> list[TuningProblem]:
    """The problem under each draw, with its first prices alone; made once, so that their times are kept.

    Of many micro-batches there are MICRO_BATCHES: those between the first and the last are alike.
    """
    if not problem.drawn:
        problem.drawn.extend(_drawn(problem))
    return problem.drawn


def _drawn(problem: TuningProblem) -> list[TuningProblem]:
    count, form = problem.micro_batches
    return [
        replace(problem, workload=workload, stock=(pricing,), leads=(), micro_batches=(min(count, MICRO_BATCHES), form))
        for workload, pricing in doubted(problem.workload, problem.stock[0])
    ]


def doubted(workload: Workload, pricing: Pricing) -> Iterator[tuple[Workload, Pricing]]:
    """The workload and the prices under each draw."""
    doubt = math.log1p(max(workload.doubt, COMPUTE)) / NORMAL
    for draw in draws():
        yield workload.scaled(math.exp(draw.compute * doubt)), draw.price(pricing)


def plan_times(workload: Workload, stock: Pricing, plan: Plan, rule: PlanRule) -> list[float]:
    """Seconds of a step under ``plan``, which ``rule`` made, under each draw. ``stock``: prices without an executor."""
    timelines: list[Timeline] = []
    for drawn, drawn_stock in doubted(workload, stock):
        pricing, like = drawn_stock.for_rules(rule.objective, rule.executor), timelines[0] if timelines else None
        timelines.append(predict_timeline(drawn, plan, pricing, like))
    return [timeline.iteration_time for timeline in timelines]


def chance(mine: Sequence[float], theirs: Sequence[float], doubt: float = 0.0) -> Chance:
    """The chance of a configuration with times ``mine`` against the default's, draw by draw.

    ``doubt``: the part by which their ratio may be off, for PART of such pairs.
    """
    spread = math.log1p(doubt) / NORMAL
    rows = zip(mine, theirs, draws(), strict=True)
    gains = sorted(1 - one / other * math.exp(draw.ratio * spread) for one, other, draw in rows)
    outside = int((1 - PART) / 2 * DRAWS)
    return Chance(gains[outside], gains[-1 - outside], len([gain for gain in gains if gain > 0]) / DRAWS)


def times(problems: Sequence[TuningProblem], knobs: Any) -> list[float]:
    """Seconds of the step with ``knobs`` in each problem."""
    return [problem.times(knobs, like=problems[0])[0] for problem in problems]


def best_of(problem: TuningProblem, options: Sequence[Any]) -> Any:
    """Of the options within TIE of the largest mean gain over the default that default, else the one of fewest buckets.

    Of as many buckets the first is returned.
    """
    problems, default = drawn(problem), problem.target.convert.default_knobs()
    theirs = times(problems, default)

    ranked = sorted(options, key=lambda knobs: (knobs != default, len(problem.planned(knobs)[0][0].buckets)))
    gains = [0.0 if knobs == default else gain_over(times(problems, knobs), theirs) for knobs in ranked]
    return next(knobs for knobs, gain in zip(ranked, gains, strict=True) if gain >= max(gains) - TIE)


def gain_over(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Mean over the draws of the gain, as a fraction."""
    return plain_sum(1 - one / other for one, other in zip(mine, theirs, strict=True)) / len(mine)
