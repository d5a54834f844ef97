"""Steps of a scaling task beside the anchors that measured them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from osfmodel.engine.bands import kind_of
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_predicted_time
from osfmodel.entities.errors import UsageError
from osfmodel.entities.workload import Workload
from osfmodel.planning.predictions import Given, compare
from osfmodel.planning.scaling.anchors import (
    FARTHEST,
    AnchoredStep,
    Factors,
    Taught,
    Timed,
    computing,
    learn,
    with_factors,
)
from osfmodel.planning.scaling.curve import Anchor, ScalePoint

__all__ = ["banded", "factor_of", "far", "learn", "measured"]

SLOWEST = 1e3
"""Largest factor by which an anchor may lengthen computation."""
FAR = 3.0
"""Factor on computation, either way, from which an anchor is doubted."""


class AnchoredTask(Protocol):
    """A task of planning.scaling.scale, as far as anchors need it."""

    @property
    def cluster(self) -> Cluster:
        """The cluster, as data-parallel ranks see it."""
        ...

    def inside(self, workers: int) -> bool:
        """Whether so many GPUs are on one node."""
        ...

    def point(self, workload: Workload, workers: int) -> ScalePoint:
        """The strategies at this count, and the one to take."""
        ...

    def changed(self, workload: Workload, workers: int) -> Workload:
        """The workload of each GPU, with all micro-batches."""
        ...

    def given(self, name: str) -> Given:
        """The plan called so, as the groups run it."""
        ...

    def ranks(self, workers: int) -> int:
        """GPUs that reduce each gradient together."""
        ...

    def measuring(self, anchor: Anchor) -> AnchoredTask:
        """The task with the anchor's batch."""
        ...


def timed(task: AnchoredTask, workload: Workload, workers: int, name: str) -> Timed:
    """The step under the plan called ``name`` by the factors that anchors teach."""
    ranks, plan = task.ranks(workers), task.given(name)

    def seconds(factors: Factors) -> float:
        changed = task.changed(workload.scaled(computing(factors, task.inside(workers))), workers)
        (found,) = compare(changed, with_factors(task.cluster, factors), ranks, [plan]).predictions
        return found.iteration_time

    return seconds


def measured(task: AnchoredTask, workload: Workload, anchor: Anchor) -> tuple[AnchoredStep, str, AnchoredTask]:
    """The anchor's step under the best plan there, that plan's name, and the task with the anchor's batch.

    Raises UsageError for a step that is shorter than the data sheet allows.
    """
    task = task.measuring(anchor)
    point = task.point(workload, anchor.workers)
    target = anchor.step_time(point.samples, workload.sample_tokens)
    if (ideal := point.accumulated * (point.workload.ideal_time or 0)) > target:
        raise UsageError(
            f"--anchor says a step of {show_predicted_time(target)} on {anchor.workers} GPUs, and the data sheet "
            f"allows none below {show_predicted_time(ideal)}: check the unit and the GPU"
        )
    name = point.best.name
    return AnchoredStep(anchor.workers, target, timed(task, workload, anchor.workers, name), name), name, task


def banded(task: AnchoredTask, learned: Taught, workload: Workload, point: ScalePoint) -> ScalePoint:
    """A point with the band that anchors left; ``workload``: as counted or profiled."""
    seconds, found = timed(task, workload, point.workers, point.best.name), point.best.prediction
    kind = kind_of(found.plan, found.bound.question.pricing)
    return replace(point, taught=learned.band(point.time, seconds, kind, point.workers, point.inside))


def factor_of(task: AnchoredTask, workload: Workload, anchor: Anchor) -> float | None:
    """The factor on computation with which the step of the best plan takes as long as it was measured.

    None where only a faster network makes it so short. Raises UsageError where nothing does.
    """
    from scipy.optimize import brentq

    step, name, task = measured(task, workload, anchor)
    target, ranks = step.seconds, task.ranks(anchor.workers)

    def excess(factor: float) -> float:
        changed = task.changed(workload.scaled(factor), anchor.workers)
        (found,) = compare(changed, task.cluster, ranks, [task.given(name)]).predictions
        return found.iteration_time - target

    least, most = excess(1 / SLOWEST), excess(SLOWEST)
    if 0 < least < target * (math.exp(FARTHEST) - 1):  # a faster network would explain it
        return None
    if least > 0 or most < 0:
        bound = show_predicted_time(target + (least if least > 0 else most))
        what = "communication alone takes" if least > 0 else "the slowest computation that is tried takes"
        said = f"--anchor says a step of {show_predicted_time(target)} on {anchor.workers} GPUs"
        raise UsageError(f"{said}, and under {name} {what} {bound}: check the unit, the network, and --plan")
    return float(brentq(excess, 1 / SLOWEST, SLOWEST, rtol=1e-6))


def far(factor: float | None) -> Iterator[str]:
    """A warning of an anchor in a wrong unit."""
    if factor is not None and not 1 / FAR < factor < FAR:
        yield (
            f"--anchor makes computation {factor:.3g} times as long as counted or profiled: check its unit (tok/s is "
            "of all GPUs, tok/s/gpu of each)"
        )
