"""What a person sees of ``osf check``: errors of each source, and runs beside their predictions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from osfmodel.entities.units import how_many, show_time
from osfmodel.ledger.check import Checked
from osfmodel.ledger.side_by_side import Beside
from osfmodel.show.terminal.results import table_under

PREDICTIONS = "Error of predictions, predicted / measured - 1, on runs that nothing was fitted on"
SELF_CONSISTENCY = "Self-consistency, no prediction: put together / measured - 1, each run out of its own figures"
NARROW = 96
"""Characters below which a table leaves out its last columns rather than cutting names."""


def show_check(
    console: Console,
    checked: Sequence[Checked],
    overall: tuple[float | None, float | None],
    with_rows: bool,
) -> None:
    """The errors of each source, what was fitted, and on request every run."""
    for one in checked if with_rows else ():
        _show_runs(console, one)
    for one in checked:
        for beside in one.beside:
            _show_beside(console, beside)
    columns = ("source", "predicted", "median", "p90", "worst", "bias", "tolerance", "fitted", "not predicted")
    shown = len(columns) if console.width >= NARROW else columns.index("fitted")
    title = SELF_CONSISTENCY if all(one.self_consistency for one in checked) else PREDICTIONS
    table = table_under(console, title, *columns[:shown])
    table.columns[0].min_width = max(len(one.source) for one in checked)
    for one in checked:
        errors = (one.median_abs_error, one.p90_abs_error, one.worst_abs_error)
        cells = (str(one.n), *map(_percent, errors), _percent(one.bias, "+"), _percent(one.tolerance))
        counts = (str(one.fitted), str(one.not_predicted))
        table.add_row(*(escape(one.source), *cells, *counts)[:shown])
    console.print(table)
    if len(checked) > 1:
        middle, high = overall
        console.print(f"Medians over the sources: median {_percent(middle)}, p90 {_percent(high)}.")
    for one in checked:
        if one.n:
            said = "self-consistency, no prediction; fitted" if one.self_consistency else "fitted"
            console.print(f"{one.source}, {said}: {one.fitted_on}.", markup=False)
        for reason, count in one.reasons.items():
            console.print(f"{one.source}: {how_many(count, 'run')} not predicted: {reason}.", markup=False)
        if one.unsteady:
            console.print(f"{one.source}: {how_many(one.unsteady, 'run')} not counted: repeats differ too much.")


def _show_runs(console: Console, one: Checked) -> None:
    table = table_under(console, one.source, "run", "measured", "predicted", "error", "", "note")
    table.columns[-1].justify = "left"
    for row in one.rows:
        predicted = "not predicted" if row.predicted is None else f"{row.predicted:.4g}"
        status = row.status if row.status in ("fitted", "unsteady") else ""
        note = "" if row.predicted is None else row.note
        table.add_row(
            escape(row.label), f"{row.measured:.4g}", predicted, _percent(row.error, "+"), status, escape(note)
        )
    console.print(table)
    console.print()


def _show_beside(console: Console, beside: Beside) -> None:
    """Each plan of a live run, predicted and measured, and what it gains over the default."""
    scale = "" if beside.scale in (None, "1") else f", computation times {beside.scale}"
    title = (
        f"{beside.workload} on {beside.cluster}, {beside.workers} workers{scale}; speed-up over {beside.default.plan}"
    )
    columns = ("plan", "measured", "spread", "predicted", "error", "speed-up measured", "speed-up predicted")
    table = table_under(console, title, *columns)
    for turns in beside.turns:
        predicted = "" if turns.predicted is None else show_time(turns.predicted)
        gain = beside.predicted_speed_up(turns)
        spread = f"{turns.spread:.1%}" if turns.steady else f"{turns.spread:.1%} unsteady"
        cells = (show_time(turns.measured), spread, predicted, _percent(turns.error, "+"))
        gains = (f"{beside.measured_speed_up(turns):.3f}", "" if gain is None else f"{gain:.3f}")
        table.add_row(escape(turns.plan), *cells, *gains)
    console.print(table)
    console.print()


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1%}"
