"""``osf check`` on a terminal: errors of each source, and runs beside their predictions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from osfmodel.entities.display import how_many
from osfmodel.ledger.results import Beside, Checked, UsedOverall
from osfmodel.show.tables import percent, signed_percent
from osfmodel.show.tables.checks import SOURCES, TURNS, Turn, runs_of
from osfmodel.show.terminal.tables import ENDS, print_fitting, show_title

PREDICTIONS = "Error of predictions, predicted / measured - 1, on runs that nothing was fitted on"
AS_USED = (
    "As used: predicted from the time on one GPU and a network in words, defaults only, nothing fitted; usual effects "
    "and error bands are those learned without the source and others on its machines."
)
SELF_CONSISTENCY = "Self-check (not a prediction): each run replayed from its own measurements, replayed / measured - 1"
LEFT_OUT = ("not predicted", "fitted", "tolerance", "worst", "p90", "bias", "note", "spread", "speed-up predicted")
"""Columns to leave out on a narrow terminal, the first one first."""


def show_check(
    console: Console,
    checked: Sequence[Checked],
    overall: tuple[float | None, float | None],
    with_rows: bool,
    used: UsedOverall | None = None,
) -> None:
    """Print the errors of each source, the runs that were fitted on, and on request every run."""
    for one in checked if with_rows else ():
        _show_runs(console, one)
    for one in checked:
        for beside in one.beside:
            _show_beside(console, beside)
    show_title(console, SELF_CONSISTENCY if all(one.self_consistency for one in checked) else PREDICTIONS)
    print_fitting(console, SOURCES, checked, leave_out=LEFT_OUT)
    if len(checked) > 1:
        middle, high = overall
        console.print(f"Over all sources (median of each column): median error {_known(middle)}, p90 {_known(high)}.")
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


def _known(value: float | None) -> str:
    return "" if value is None else percent(value)
