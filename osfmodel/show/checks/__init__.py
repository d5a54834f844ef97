"""Checks against measurements: errors of each source, its runs, and plans that were run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from osfmodel.entities.display import how_many, show_bytes, show_time
from osfmodel.ledger.results import MEMORY, UNSTEADY, Beside, Checked, PlanRuns, Row, UsedOverall
from osfmodel.show.document import Result
from osfmodel.show.table import Column, column, csv_row, json_row, percent, signed_percent
from osfmodel.show.terminal import ENDS, Console, print_fitting, show_title

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

IMPLAUSIBLE = 0.9
"""Median error above which units were most likely mixed up."""


class Judged(Result):
    """The result of ``osf check``; ``overall``: the medians over the sources of their median and 90th percentile.

    ``used``: the sources of real machines as used.
    """

    def __init__(
        self,
        checked: Sequence[Checked],
        overall: tuple[float | None, float | None],
        with_rows: bool,
        used: UsedOverall | None = None,
    ) -> None:
        self.checked, self.overall, self.with_rows, self.used = checked, overall, with_rows, used

    def content(self) -> dict[str, Any]:
        middle, high = self.overall
        used = self.used
        return {
            "sources": [self._source(one) for one in self.checked],
            "overall": {
                "median_abs_error": middle,
                "p90_abs_error": high,
                "passed": all(o.passed for o in self.checked),
                "as_used": used and used._asdict(),
            },
        }

    def _source(self, one: Checked) -> dict[str, Any]:
        summary = json_row(SOURCES, one)
        if one.beside:
            summary["side_by_side"] = [_beside(beside) for beside in one.beside]
        return {**summary, "rows": [json_row(RUNS, row) for row in one.rows]} if self.with_rows else summary

    def rows(self) -> list[dict[str, Any]]:
        return [{"source": one.source, **csv_row(RUNS, row)} for one in self.checked for row in one.rows]

    def show(self, console: Console) -> None:
        checked, used = self.checked, self.used
        for one in checked if self.with_rows else ():
            _show_runs(console, one)
        for one in checked:
            for beside in one.beside:
                _show_beside(console, beside)
        show_title(console, SELF_CONSISTENCY if all(one.self_consistency for one in checked) else PREDICTIONS)
        print_fitting(console, SOURCES, checked, leave_out=LEFT_OUT)
        if len(checked) > 1:
            middle, high = ("" if one is None else percent(one) for one in self.overall)
            console.print(f"Over all sources (median of each column): median error {middle}, p90 {high}.")
        if used is not None:
            console.print(
                f"As used, over {how_many(used.sources, 'source')} of real machines: median error "
                f"{percent(used.median_abs_error)}, bias {signed_percent(used.bias)} (medians of the sources); "
                f"{used.coverage:.0%} of a source's runs inside the 90 % error band (mean).",
                markup=False,
            )
        if any(one.as_used for one in checked if one.listed):
            console.print(AS_USED, markup=False)
        for one in checked:
            if one.n:
                said = "self-consistency, no prediction; fitted" if one.self_consistency else "fitted"
                console.print(f"{one.source}, {said}: {one.fitted_on}.", markup=False)
            for reason, count in one.reasons.items():
                console.print(f"{one.source}: {how_many(count, 'run')} not predicted: {reason}.", markup=False)
            if one.unsteady > one.busy:
                differing = how_many(one.unsteady - one.busy, "run")
                console.print(f"{one.source}: {differing} not counted: repeats differ too much.")
            if one.busy:
                console.print(f"{one.source}: {how_many(one.busy, 'run')} not counted: ranks kept the cores busy.")

    def warnings(self) -> list[str]:
        return (
            [
                f"{one.source}: {_uncounted(one)}"
                if one.median_abs_error is None
                else f"{one.source}: the median error is {one.median_abs_error:.2%}, above its tolerance of "
                f"{one.tolerance:.2%}"
                for one in self.checked
                if not one.passed
            ]
            + [
                f"{one.source}: errors near 100 %: check that iteration times are in seconds"
                for one in self.checked
                if one.tolerance is None and (one.median_abs_error or 0) > IMPLAUSIBLE
            ]
            + [f"{one.source}: {said}" for one in self.checked for said in one.remarks]
        )


def _uncounted(one: Checked) -> str:
    if one.unsteady > one.busy:
        return f"no run counts: repeats differ by more than {UNSTEADY:.0%}"
    return "no run counts: ranks kept the cores busy" if one.busy else "nothing is predicted"


def _beside(beside: Beside) -> dict[str, Any]:
    return {
        "workload": beside.workload,
        "cluster": beside.cluster,
        "workers": beside.workers,
        "scale": None if beside.scale is None else float(beside.scale),
        "plans": [json_row(TURNS, Turn(beside, runs)) for runs in beside.turns],
    }


PREDICTIONS = "Error of predictions, predicted / measured - 1, on runs that nothing was fitted on"
AS_USED = (
    "As used: predicted from the time on one GPU and a network in words, defaults only, nothing fitted; usual effects "
    "and error bands are those learned without the source and others on its machines."
)
SELF_CONSISTENCY = "Self-check (not a prediction): each run replayed from its own measurements, replayed / measured - 1"
LEFT_OUT = ("not predicted", "fitted", "tolerance", "worst", "p90", "bias", "note", "spread", "speed-up predicted")
"""Columns to leave out on a narrow terminal, the first one first."""


def _show_runs(console: Console, one: Checked) -> None:
    show_title(console, one.source)
    print_fitting(console, runs_of(one), one.rows, ENDS, LEFT_OUT, wrapped=["note"])
    console.print()


def _show_beside(console: Console, beside: Beside) -> None:
    """Print each plan of a live run, predicted and measured, and its speed-up over the default."""
    scale = "" if beside.scale in (None, "1") else f", computation times {beside.scale}"
    where = f"{beside.workload} on {beside.cluster}, {beside.workers} workers{scale}"
    show_title(console, f"{where}; speed-up over {beside.default.plan}")
    print_fitting(console, TURNS, [Turn(beside, runs) for runs in beside.turns], leave_out=LEFT_OUT)
    console.print()
