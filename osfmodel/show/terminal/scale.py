"""A scaling curve on a terminal: a table, and a bar for each number of workers with its error band."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from osfmodel.entities.display import show_share
from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint
from osfmodel.show.tables.scale import amount, combination_columns, curve_title, told_columns
from osfmodel.show.terminal.charts import chart_width
from osfmodel.show.terminal.tables import print_fitting, show_title

LEFT_OUT = ("per hour", "memory", "samples/s", "MFU")
"""Columns to leave out on a narrow terminal, the first one first."""
MARGIN = 30


def show_scale(console: Console, curve: ScaleCurve, answers: Sequence[str] = ()) -> None:
    """Print the table, the bars, the strategies in a sentence, the answers to questions, and the notes."""
    if curve.combinations:
        columns = combination_columns(curve.combinations)
        show_title(console, f"{curve.workload.name} on {curve.cluster.name}: all combinations (best: the one to take)")
        strategy = [one.key for one in columns].index("strategy")
        print_fitting(console, columns, curve.combinations, words=(strategy, -1), leave_out=LEFT_OUT)
        console.print()
    show_title(console, curve_title(curve))
    points = list(curve.points)
    print_fitting(console, told_columns(points), points, words=(1,), leave_out=LEFT_OUT)
    console.print()
    _show_bars(console, points)
    console.print(curve.turns, style="bold", markup=False)
    if curve.anchored is not None:
        console.print(
            f"Computation takes {curve.anchored:.3g} times as long as counted or profiled, by the anchor.", markup=False
        )
    full = {point.best.peak.bytes: point for point in points if point.fits is False and point.best.peak is not None}
    if full and curve.limit is not None:
        least = full[min(full)]
        console.print(f"On {least.workers} GPUs {least.lacking(curve.limit.bytes)}.", markup=False)
    for answer in answers:
        console.print(answer, style="bold", markup=False)
    for note in curve.notes:
        console.print(f"Note: {note}.", markup=False)


def _show_bars(console: Console, points: list[ScalePoint]) -> None:
    """A bar for the rate of each GPU, against the best, with the error band as a line."""
    rates = [(point, point.rate_per_gpu) for point in points]
    if len(rates) < 2:
        return
    unit = "tokens" if points[0].workload.sample_tokens else "samples" if points[0].samples else "steps"
    most = max(rate * (1 if point.band is None else 1 / (1 + point.band.below)) for point, rate in rates)
    width = chart_width(console, MARGIN)
    first = rates[0][1]
    console.print(
        f"{unit.capitalize()}/s of each GPU, with the error band; against {rates[0][0].workers} GPUs", style="bold"
    )
    for point, rate in rates:
        full = round(rate / most * width)
        row = Text(f"{point.workers:>7}  ")
        if point.band is None:
            row.append("░" * full + " " * (width - full), style="cyan")
        else:
            low, high = (round(rate / (1 + part) / most * width) for part in (point.band.above, point.band.below))
            row.append("█" * min(low, full), style="cyan")
            row.append("▒" * max(0, full - low), style="cyan")
            row.append("─" * max(0, high - full))
            row.append(" " * max(0, width - max(high, full)))
        console.print(row.append(f" {amount(rate):>6} {show_share(rate / first):>6}"))
    console.print()
