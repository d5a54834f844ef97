"""What a person sees: tables on a terminal. Data in, rich renderables out; nothing here computes a prediction."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from osfmodel.economics import Economics, knee
from osfmodel.predict import Comparison
from osfmodel.tune import Tuning
from osfmodel.units import show_bytes, show_time


def _table(console: Console, title: str, *columns: str) -> Table:
    """An empty table under its title, which is printed at once so that a narrow table does not wrap it."""
    console.print(title, style="bold", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def show_comparison(console: Console, comparison: Comparison) -> None:
    """The plans side by side at one worker count."""
    workload = comparison.workload
    plural = "s" if comparison.workers > 1 else ""
    table = _table(
        console,
        f"{workload.name} on {comparison.cluster.name}, {comparison.workers} worker{plural}",
        "plan", "buckets", "iteration", "scaling factor", "exposed", "above bound",
    )  # fmt: skip
    for prediction in comparison.predictions:
        table.add_row(
            prediction.name,
            str(len(prediction.plan.buckets)),
            show_time(prediction.iteration_time),
            f"{prediction.timeline.scaling_factor:.3f}",
            show_time(max(prediction.timeline.exposed_communication, 0)),
            f"{max(prediction.gap, 0):.1%}",
        )
    console.print(table)
    console.print(
        f"One worker alone: {show_time(workload.compute_time)}. Lower bound for any schedule: "
        f"{show_time(comparison.lower_bound)}. Gradients: {show_bytes(workload.gradient_bytes)} in "
        f"{len(workload.gradients)} tensors."
    )


def show_sweep(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Scaling factor and iteration time of every plan at every worker count."""
    first = comparisons[0]
    columns = [prediction.name for prediction in first.predictions]
    title = f"{first.workload.name} on {first.cluster.name}: iteration time and scaling factor"
    table = _table(console, title, "workers", *columns, "bound")
    for comparison in comparisons:
        cells = [
            f"{show_time(prediction.iteration_time)}  {prediction.timeline.scaling_factor:.3f}"
            for prediction in comparison.predictions
        ]
        table.add_row(str(comparison.workers), *cells, show_time(comparison.lower_bound))
    console.print(table)
    console.print(f"One worker alone: {show_time(first.workload.compute_time)}.")


def show_economics(console: Console, plan: str, rows: Sequence[Economics], currency: str = "cost") -> None:
    """Time to train and cost, and where more workers stop paying."""
    priced = rows[0].cost is not None
    table = _table(
        console, f"Training with plan {plan}", "workers", "hours", "GPU hours", *([currency] if priced else [])
    )
    for row in rows:
        cost = [] if row.cost is None else [f"{row.cost:,.2f}"]
        table.add_row(str(row.workers), f"{row.hours:,.4g}", f"{row.gpu_hours:,.4g}", *cost)
    console.print(table)
    if len(rows) > 1:
        turn = knee(rows)
        rule = "the next step raises GPU hours by a larger part than it cuts the time"
        console.print(f"Knee: {turn} workers ({rule})." if turn else "Knee: not reached; every step listed still pays.")


def show_tuning(console: Console, tuning: Tuning) -> None:
    """The verdict, the times, and the lines to paste."""
    table = _table(
        console,
        f"{tuning.workload.name} on {tuning.cluster.name} for {tuning.target}",
        "workers", "default", "tuned", "best plan", "lower bound", "gap", "gain",
    )  # fmt: skip
    for outcome in tuning.outcomes:
        times = (outcome.default_time, outcome.tuned_time, outcome.optimal_time, outcome.lower_bound)
        gap, gain = f"{max(outcome.gap, 0):.1%}", f"{outcome.gain:.1%}"
        table.add_row(str(outcome.workers), *map(show_time, times), gap, gain)
    console.print(table)
    console.print(tuning.verdict, style="bold", markup=False)
    sizes = [bucket.size for bucket in tuning.plan.buckets]
    if sizes:
        console.print(f"{len(sizes)} buckets: {', '.join(map(show_bytes, sizes))}.")
    for note in tuning.notes:
        console.print(f"Note: {note}.", markup=False)
    console.print()
    console.print(tuning.rendered, markup=False, highlight=False, soft_wrap=True)


def show_list(console: Console, kind: str, rows: Sequence[dict[str, object]]) -> None:
    """One entry per row; ``name`` is never cut."""
    columns = list(rows[0]) if rows else ["name"]
    console.print(kind, style="bold", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=column in ("name", "workers"), overflow="fold")
    for row in rows:
        table.add_row(*["" if row[column] is None else str(row[column]) for column in columns])
    console.print(table, highlight=False)
