"""Columns of predictions, of the cost of training, and of tuned settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from osfmodel.engine.bands import Band
from osfmodel.entities.display import how_many, show_predicted, show_predicted_time, show_share
from osfmodel.planning.results import Comparison, Outcome, Prediction, Tuning
from osfmodel.planning.what_if import WhatIf
from osfmodel.show.tables import PAGE, TERMINAL, Column, column, spaced

if TYPE_CHECKING:
    from osfmodel.planning.scaling.economics import Economics

EXECUTOR = "executor"
"""Name of whatever runs a plan that no stock framework can run."""


class PlanRow(NamedTuple):
    """A prediction, its comparison, and the cost of training with it, if asked for."""

    comparison: Comparison
    prediction: Prediction
    paid: Economics | None = None

    @property
    def speed_up(self) -> float:
        """Speed as a multiple of that of one worker."""
        return self.prediction.scaling_factor * self.comparison.workers


def plan_rows(comparison: Comparison, paid: Sequence[Economics] = ()) -> Iterator[PlanRow]:
    """A row for each prediction; ``paid``: the costs of training, in the same order."""
    for prediction, costs in zip_longest(comparison.predictions, paid):
        yield PlanRow(comparison, prediction, costs)


def varied(what_if: WhatIf) -> str:
    """The end of a title that says what was changed; "" for nothing."""
    return f" with {what_if.words}" if what_if.words else ""


def comparison_title(one: Comparison) -> str:
    """The workload, the cluster and the number of workers."""
    where = f"{one.cluster.name}{varied(one.what_if)}"
    return f"{one.workload.name} on {where}, {how_many(one.workers, 'worker')}"


def tuning_title(one: Tuning) -> str:
    """The workload, the cluster and the framework."""
    return f"{one.workload.name} on {one.cluster.name}{varied(one.what_if)} for {one.target}"


def band_value(band: Band | None) -> dict[str, Any] | None:
    """An error band, for documents."""
    if band is None:
        return None
    return {
        "half_width": band.half_width,
        "below": band.below,
        "above": band.above,
        "low_s": band.low,
        "high_s": band.high,
        "setup": band.kind,
        "runs": band.runs,
        "sources": list(band.sources),
    }


def band_text(band: Band | None) -> str:
    """Both ends of an error band against the prediction; "" without one."""
    return "" if band is None else f"{band.below:+.0%} {band.above:+.0%}"


def half_width(value: dict[str, Any] | None) -> float | None:
    """The error band's half width, for CSV."""
    return None if value is None else value["half_width"]


def three_digits(value: float) -> str:
    """A scaling factor with three digits, such as ``0.912``."""
    return f"{value:.3f}"


def times(value: float) -> str:
    """A speed-up, such as ``13.6x``."""
    return f"{show_predicted(value)}x"


def _gap(value: float) -> str:
    return show_share(max(value, 0))


def _exposed(seconds: float) -> str:
    return show_predicted_time(max(seconds, 0))


def _runners(names: list[str]) -> str:
    return "an executor" if names == [EXECUTOR] else ", ".join(names)


COMPARISONS: tuple[Column[Comparison], ...] = (
    column("workload", None, lambda one: one.workload.name),
    column("cluster", None, lambda one: one.cluster.name),
    column("workers", None, lambda one: one.workers),
    column("compute_time_s", None, lambda one: one.workload.compute_time),
)
"""Columns that all predictions of a comparison share."""
PLANS: tuple[Column[PlanRow], ...] = (
    column("plan", "plan", lambda row: row.prediction.name),
    column("buckets", "buckets", lambda row: len(row.prediction.plan.buckets)),
    column("bucket_sizes_bytes", None, lambda row: list(row.prediction.bucket_bytes), flat=spaced),
    column("iteration_time_s", "iteration", lambda row: row.prediction.iteration_time, show_predicted_time),
    column(
        "exposed_communication_s",
        "exposed",
        lambda row: row.prediction.timeline.exposed_communication,
        _exposed,
        after="speed_up",
    ),
    column("scaling_factor", "scaling factor", lambda row: row.prediction.scaling_factor, three_digits),
    column("speed_up", "speed-up", lambda row: row.speed_up, times),
    column("gap", "vs bound", lambda row: row.prediction.gap, _gap),
    Column(
        "error_band",
        "error band",
        lambda row: band_value(row.prediction.band),
        lambda row: band_text(row.prediction.band),
        flat=half_width,
    ),
    column("lower_bound_s", None, lambda row: row.prediction.lower_bound),
    column("channels", None, lambda row: row.prediction.plan.channels),
    column("forward_overlap", None, lambda row: row.prediction.plan.forward_overlap),
    column("split", None, lambda row: row.prediction.plan.split),
    column(
        "runs_on",
        "runs on",
        lambda row: list(row.prediction.runs_on) or [EXECUTOR],
        _runners,
        flat=spaced,
        only=PAGE,  # on a terminal a sentence below the table says it
    ),
    column("engine", None, lambda row: row.prediction.timeline.engine),
    column("notes", None, lambda row: list(row.prediction.notes), flat="; ".join),
)
"""Columns of a prediction."""
RATE: Column[PlanRow] = column(
    "samples_per_s", "samples/s", lambda row: row.comparison.throughput(row.prediction), show_predicted, only=TERMINAL
)
"""Samples per second, shown if asked for, or if known and there is room."""
PAID: tuple[Column[PlanRow], ...] = (
    column("hours", "hours", lambda row: row.paid and row.paid.hours, show_predicted),
    column("gpu_hours", "GPU hours", lambda row: row.paid and row.paid.gpu_hours, show_predicted),
    column("cost", "cost", lambda row: row.paid and row.paid.cost, show_predicted),
)
"""Time and cost of the whole training, if a number of samples is given."""
SUBJECT: tuple[Column[PlanRow], ...] = (
    column(None, "workers", lambda row: row.comparison.workers),
    column(None, "batch of each", lambda row: row.comparison.workload.batch_size),
)
"""Columns that differ from comparison to comparison, in tables over several worker counts."""
EVERY: tuple[Column[PlanRow], ...] = (*PLANS, RATE, *PAID, *SUBJECT)
OUTCOMES: tuple[Column[Outcome], ...] = (
    column("workers", "workers", lambda one: one.workers),
    column("default_iteration_time_s", "default", lambda one: one.default_time, show_predicted_time),
    column("tuned_iteration_time_s", "tuned", lambda one: one.tuned_time, show_predicted_time),
    column("optimal_iteration_time_s", "ideal plan", lambda one: one.optimal_time, show_predicted_time),
    column("exposed_communication_s", None, lambda one: one.exposed_time),
    column("lower_bound_s", "bound", lambda one: one.lower_bound, show_predicted_time),
    column("gap", "vs bound", lambda one: one.gap, _gap),
    column(None, "saved", lambda one: one.gain, lambda gain: show_share(gain if abs(gain) >= 5e-4 else 0.0)),
    Column(
        "error_band",
        "error band",
        lambda one: band_value(one.band),
        lambda one: band_text(one.band),
        flat=half_width,
    ),
)
"""Columns of tuned settings at one worker count."""
