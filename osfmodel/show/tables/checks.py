"""Columns of checks against measurements: sources, their runs, and plans that were run side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from osfmodel.entities.display import show_bytes, show_time
from osfmodel.ledger.results import MEMORY, Beside, Checked, PlanRuns, Row
from osfmodel.show.tables import Column, column, percent, signed_percent

SOURCES: tuple[Column[Checked], ...] = (
    column("source", "source", lambda one: one.source),
    column("n", "predicted", lambda one: one.n),
    column("median_abs_error", "median", lambda one: one.median_abs_error, percent),
    column("p90_abs_error", "p90", lambda one: one.p90_abs_error, percent),
    column("worst_abs_error", "worst", lambda one: one.worst_abs_error, percent),
    column("bias", "bias", lambda one: one.bias, signed_percent),
    column("as_used", None, lambda one: one.as_used and one.as_used._asdict()),
    column(None, "as used", lambda one: one.as_used and one.as_used.median_abs_error, percent),
    column(None, "its bias", lambda one: one.as_used and one.as_used.bias, signed_percent),
    column(None, "in band", lambda one: one.as_used and one.as_used.coverage, "{:.0%}".format),
    column("tolerance", "tolerance", lambda one: one.tolerance, percent),
    column("fitted_on", None, lambda one: one.fitted_on),
    column("self_consistency", None, lambda one: one.self_consistency),
    column("fitted_rows", "fitted", lambda one: one.fitted),
    column("not_predicted_rows", "not predicted", lambda one: one.not_predicted),
    column("unsteady_rows", None, lambda one: one.unsteady),
    column("passed", None, lambda one: one.passed),
)
"""Columns of a source."""


def _four_digits(value: float) -> str:
    return f"{value:#.4g}"


def _unless_plain(status: str) -> str:
    """A status that keeps a prediction from counting; "" for others, which other columns show."""
    return status if status in ("fitted", "unsteady") else ""


def runs_of(one: Checked) -> list[Column[Row]]:
    """RUNS, with figures in the unit of the source: bytes, seconds, or none for ratios of times."""
    timed = not one.listed or any(row.is_time for row in one.rows)
    write = show_bytes if one.compares == MEMORY else show_time if timed else _four_digits

    def shown(row: Row, key: str | None) -> str:
        value = getattr(row, str(key))
        return "not predicted" if value is None else write(value)

    return [
        replace(found, shown=partial(shown, key=found.key)) if found.key in ("measured", "predicted") else found
        for found in RUNS
    ]


RUNS: tuple[Column[Row], ...] = (
    column("run", "run", lambda row: row.label),
    column("status", "", lambda row: row.status, _unless_plain, after="error"),
    column("measured", "measured", lambda row: row.measured, _four_digits),
    Column(
        "predicted",
        "predicted",
        lambda row: row.predicted,
        lambda row: "not predicted" if row.predicted is None else _four_digits(row.predicted),
    ),
    column("error", "error", lambda row: row.error, signed_percent),
    # The reason for a missing prediction is shown below the sources.
    Column("note", "note", lambda row: row.note, lambda row: "" if row.predicted is None else row.note),
)
"""Columns of a run."""


class Turn(NamedTuple):
    """A plan of a live run, and all plans of that run."""

    beside: Beside
    runs: PlanRuns


TURNS: tuple[Column[Turn], ...] = (
    column("plan", "plan", lambda turn: turn.runs.plan),
    column("repeats", None, lambda turn: turn.runs.repeats),
    column("measured_s", "measured", lambda turn: turn.runs.measured, show_time),
    Column(
        "spread",
        "spread",
        lambda turn: turn.runs.spread,
        lambda turn: percent(turn.runs.spread) + ("" if turn.runs.steady else " unsteady"),
    ),
    column("steady", None, lambda turn: turn.runs.steady),
    column("predicted_s", "predicted", lambda turn: turn.runs.predicted, show_time),
    column("error", "error", lambda turn: turn.runs.error, signed_percent),
    column(
        "measured_speed_up",
        "speed-up measured",
        lambda turn: turn.beside.measured_speed_up(turn.runs),
        "{:.3f}".format,
    ),
    column(
        "predicted_speed_up",
        "speed-up predicted",
        lambda turn: turn.beside.predicted_speed_up(turn.runs),
        "{:.3f}".format,
    ),
    column("note", None, lambda turn: turn.runs.note),
)
"""Columns of a plan of a live run."""
