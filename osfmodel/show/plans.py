"""Columns and words of predicted plans: their times, error bands, rules, and the cost of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from osfmodel.engine.bands import COUNTED, NEAREST, Band
from osfmodel.entities.display import how_many, show_bytes, show_predicted, show_predicted_time, show_share
from osfmodel.entities.plan import REPLICATED, SPLIT, Objective, Plan
from osfmodel.planning.results import Comparison, Prediction
from osfmodel.planning.what_if import WhatIf
from osfmodel.show.table import PAGE, TERMINAL, Column, Record, column, spaced
from osfmodel.show.terminal import Console

if TYPE_CHECKING:
    from osfmodel.planning.predictions import Economics


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


def what_if_part(what_if: WhatIf) -> dict[str, Any]:
    """The key ``what_if`` of a document; empty if nothing was changed."""
    return {"what_if": what_if.document} if what_if.document else {}


def comparison_title(one: Comparison) -> str:
    """The workload, the cluster and the number of workers."""
    where = f"{one.cluster.name}{varied(one.what_if)}"
    return f"{one.workload.name} on {where}, {how_many(one.workers, 'worker')}"


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


def band_column(band: Callable[[Record], Band | None], without: str = "") -> Column[Record]:
    """The column of an error band; ``without`` is its text for people if there is none."""

    def shown(record: Record) -> str:
        return band_text(band(record)) or without

    return Column("error_band", "error band", lambda record: band_value(band(record)), shown, flat=half_width)


def three_digits(value: float) -> str:
    """A scaling factor with three digits, such as ``0.912``."""
    return f"{value:.3f}"


def times(value: float) -> str:
    """A speed-up, such as ``13.6x``."""
    return f"{show_predicted(value)}x"


def gap_text(value: float) -> str:
    """A fraction of time over a bound, in percent; 0 for one below it by rounding."""
    return show_share(max(value, 0))


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
        lambda seconds: show_predicted_time(max(seconds, 0)),
        after="speed_up",
    ),
    column("scaling_factor", "scaling factor", lambda row: row.prediction.scaling_factor, three_digits),
    column("speed_up", "speed-up", lambda row: row.speed_up, times),
    column("gap", "vs bound", lambda row: row.prediction.gap, gap_text),
    band_column(lambda row: row.prediction.band),
    column("lower_bound_s", None, lambda row: row.prediction.lower_bound),
    column("channels", None, lambda row: row.prediction.plan.channels),
    column("forward_overlap", None, lambda row: row.prediction.plan.forward_overlap),
    column("split", None, lambda row: row.prediction.plan.split),
    column(
        "runs_on",
        "runs on",
        lambda row: list(row.prediction.runs_on) or [EXECUTOR],
        lambda names: "an executor" if names == [EXECUTOR] else ", ".join(names),
        flat=spaced,
        only=PAGE,  # on a terminal a sentence below the table says it
    ),
    column("engine", None, lambda row: row.prediction.engine),
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

LEFT_OUT = ("samples/s", "exposed", "buckets", "batch of each", "speed-up", "vs bound", "bound")
"""Columns to leave out on a narrow terminal, the first one first."""


def describe(plan: Plan) -> str:
    """The rules of a plan in words."""
    credit = "" if plan.credit is None else f", by priority with a credit of {show_bytes(plan.credit)}"
    return rules_of(plan.objective) + credit + beyond_rules(plan)


def beyond_rules(plan: Plan) -> str:
    """Properties of a plan that change computation, in words."""
    densities = sorted({bucket.density for bucket in plan.buckets if bucket.density is not None})
    ends = dict.fromkeys(f"{density:.3g}" for density in (*densities[:1], *densities[-1:]))
    sent = [f"{' to '.join(ends)} of tensors sent"] if densities else []
    again = [f"{how_many(len(plan.recompute), 'segment')} recomputed"] if plan.recompute else []
    released = ["updates as buckets arrive"] if plan.release else []
    mirrored = ["mirror weights"] if plan.mirror else []
    return "".join(f", {words}" for words in (*sent, *mirrored, *released, *again))


def rules_of(objective: Objective) -> str:
    """The rules for a schedule, in words."""
    words = [f"{how_many(objective.channels, 'collective')} at a time"]
    words += ["forward before all has arrived"] if objective.forward_overlap else ["a barrier before the update"]
    strategies = {REPLICATED: (), SPLIT: ("reduce-scatter and all-gather apart",)}
    words += strategies.get(objective.strategy, (f"strategy {objective.strategy}",))
    return ", ".join(words)


def show_bands(console: Console, bands: Sequence[Band | None]) -> None:
    """Print the meaning and the sources of the error bands."""
    known = [band for band in bands if band is not None]
    if any(band.kind == COUNTED for band in known):
        console.print("Error band: how far published runs were off in computation, and the network's prices.")
        known = [band for band in known if band.kind != COUNTED]
    if known:
        sources = {source for band in known for source in band.sources}
        kinds = " or ".join(dict.fromkeys(band.kind.removesuffix(NEAREST) for band in known))
        console.print(
            f"Error band: holds nine in ten runs, learned from runs on {kinds} ({how_many(len(sources), 'source')}).",
            markup=False,
        )
