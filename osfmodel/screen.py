"""What a person sees: tables on a terminal. Data in, rich renderables out; nothing here computes a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osfmodel.bands import Band
from osfmodel.check import Checked
from osfmodel.economics import Economics
from osfmodel.objective import Objective
from osfmodel.plan import Plan
from osfmodel.predict import Bound, Comparison, Prediction
from osfmodel.side_by_side import Beside
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.tune import Tuning
from osfmodel.units import show_bytes, show_sizes, show_time

HEADINGS = {"gradient_mib": "MiB", "compute_ms": "ms", "batch_size": "batch"}
"""Short headings for a listing: size of the gradients, time of one worker alone, samples per worker."""
MOST_COLUMNS = 4
"""Plans up to which a sweep has a column for each."""
NARROW = 96
"""Characters below which a table leaves out its last columns rather than cutting names."""
SHORT = 44
"""Most characters of a source in a listing; ``osf list KIND NAME`` shows all."""


def _table(console: Console, title: str, *columns: str) -> Table:
    """An empty table under its title, which is printed at once so that a narrow table does not wrap it."""
    console.print(title, style="bold", markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show_comparison(console: Console, comparison: Comparison) -> None:
    """The plans side by side at one worker count."""
    workload = comparison.workload
    title = f"{workload.name} on {comparison.cluster.name}, {_count(comparison.workers, 'worker')}"
    columns = ("plan", "buckets", "iteration", "scaling factor", "speed-up", "exposed", "above bound", "error band")
    table = _table(console, title, *columns)
    for prediction in comparison.predictions:
        timeline = prediction.timeline
        table.add_row(
            escape(prediction.name),
            str(len(prediction.plan.buckets)),
            show_time(prediction.iteration_time),
            f"{prediction.scaling_factor:.3f}",
            f"{prediction.scaling_factor * comparison.workers:.4g}x",
            show_time(max(timeline.exposed_communication, 0)),
            f"{max(prediction.gap, 0):.1%}",
            _width(prediction.band),
        )
    console.print(table)
    console.print(
        f"One worker alone: {show_time(workload.compute_time)}. Lower bound for any schedule"
        f"{_bounds(comparison.bounds)}. Gradients: {show_bytes(workload.gradient_bytes)} in "
        f"{_count(len(workload.gradients), 'tensor')}."
    )
    _show_executors(console, comparison.predictions)
    _show_caveats(console, [comparison])
    _show_bands(console, [prediction.band for prediction in comparison.predictions])


def _bounds(bounds: Sequence[Bound]) -> str:
    """Of one set of rules the bound; of several, each with its rules."""
    if len(bounds) == 1 and bounds[0].plan is None:
        return f": {show_time(bounds[0].value)}"
    return " with " + "; with ".join(f"{_rules(bound)}: {show_time(bound.value)}" for bound in bounds)


def _show_executors(console: Console, predictions: Sequence[Prediction]) -> None:
    """Which plans no stock framework carries out, and under which rules they stand."""
    needing = [prediction for prediction in predictions if not prediction.runs_on]
    rules: dict[str, list[str]] = {}
    for prediction in needing:
        rules.setdefault(describe(prediction.plan), []).append(prediction.name)
    for words, names in rules.items():
        others = [prediction.name for prediction in predictions if prediction.name not in names]
        who = ", ".join(names)
        if len(names) > len(others):
            who = "all" + (f" but {', '.join(others)}" if others else "") if len(names) > 1 else who
        console.print(f"Needs an executor, as no stock framework does it: {who} ({words}).", markup=False)


def _rules(bound: Bound) -> str:
    return rules_of(bound.objective) + ("" if bound.plan is None else _beyond_rules(bound.plan))


def describe(plan: Plan) -> str:
    """The rules of a plan in words."""
    credit = "" if plan.credit is None else f", by priority with a credit of {show_bytes(plan.credit)}"
    return rules_of(plan.objective) + credit + _beyond_rules(plan)


def _beyond_rules(plan: Plan) -> str:
    """What a plan does that changes computation."""
    densities = sorted({bucket.density for bucket in plan.buckets if bucket.density is not None})
    ends = dict.fromkeys(f"{density:.3g}" for density in (*densities[:1], *densities[-1:]))
    sent = [f"{' to '.join(ends)} of tensors sent"] if densities else []
    again = [f"{_count(len(plan.recompute), 'segment')} recomputed"] if plan.recompute else []
    released = ["updates as buckets arrive"] if plan.release else []
    mirrored = ["mirror weights"] if plan.mirror else []
    return "".join(f", {words}" for words in (*sent, *mirrored, *released, *again))


def rules_of(objective: Objective) -> str:
    """What a schedule may do, in words."""
    words = [f"{_count(objective.channels, 'collective')} at a time"]
    words += ["forward before all has arrived"] if objective.forward_overlap else ["a barrier before the update"]
    words += ["reduce-scatter and all-gather apart"] if objective.split else []
    return ", ".join(words)


def _width(band: Band | None) -> str:
    return "" if band is None else f"{'~' if band.nearest else '±'}{band.half_width:.0%}"


def _show_bands(console: Console, bands: Sequence[Band | None]) -> None:
    """What the bands are of."""
    known = [band for band in bands if band is not None]
    if known:
        sources = ", ".join(dict.fromkeys(source for band in known for source in band.sources))
        near = " (~: in the nearest regime that was measured)" if any(band.nearest for band in known) else ""
        console.print(
            f"Error band: nine tenths of measured runs that communicate alike were within it{near}; from {sources}.",
            markup=False,
        )


def _widths(bands: Sequence[Band | None]) -> str:
    """The narrowest and the widest."""
    known = sorted({band.half_width: _width(band) for band in bands if band is not None}.items())
    ends = dict.fromkeys(text for _, text in (known[:1] + known[-1:]))
    return " to ".join(ends)


def _show_caveats(console: Console, comparisons: Sequence[Comparison]) -> None:
    predictions = [prediction for comparison in comparisons for prediction in comparison.predictions]
    said = dict.fromkeys(caveat for prediction in predictions for caveat in prediction.caveats)
    for caveat in said:
        console.print(f"Note: {caveat}.", markup=False)


def show_sweep(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Scaling factor and iteration time of every plan at every worker count, a row each where plans are many."""
    first = comparisons[0]
    title = f"{first.workload.name} on {first.cluster.name}: iteration time and scaling factor"
    if len(first.predictions) > MOST_COLUMNS:
        table = _table(console, title, "plan", "workers", "iteration", "scaling factor", "above bound", "error band")
        for number in range(len(first.predictions)):
            for comparison in comparisons:
                _sweep_row(table, comparison.predictions[number], comparison.workers)
    else:
        columns = [escape(prediction.name) for prediction in first.predictions]
        table = _table(console, title, "workers", *columns, "bound", "error band")
        for comparison in comparisons:
            cells = [
                f"{show_time(prediction.iteration_time)}  {prediction.scaling_factor:.3f}"
                for prediction in comparison.predictions
            ]
            bands = _widths([prediction.band for prediction in comparison.predictions])
            table.add_row(str(comparison.workers), *cells, show_time(comparison.lower_bound), bands)
    console.print(table)
    console.print(f"One worker alone: {show_time(first.workload.compute_time)}.")
    _show_executors(console, first.predictions)
    _show_caveats(console, comparisons)
    _show_bands(console, [prediction.band for one in comparisons for prediction in one.predictions])


def _sweep_row(table: Table, prediction: Prediction, workers: int) -> None:
    factor, gap = f"{prediction.scaling_factor:.3f}", f"{max(prediction.gap, 0):.1%}"
    time = show_time(prediction.iteration_time)
    table.add_row(escape(prediction.name), str(workers), time, factor, gap, _width(prediction.band))


def show_economics(
    console: Console,
    comparisons: Sequence[Comparison],
    money: Sequence[Sequence[Economics]],
    knees: Mapping[str, int | None],
) -> None:
    """Time to train and cost of every plan at every worker count, and where more workers stop paying."""
    batch = comparisons[0].workload.batch_size
    title = f"Training time and cost, batch of {batch} per worker (more workers, fewer iterations)"
    priced = money[0][0].cost is not None
    console.print()
    table = _table(console, title, "plan", "workers", "speed-up", "hours", "GPU hours", *(["cost"] if priced else []))
    for position, prediction in enumerate(comparisons[0].predictions):
        for comparison, rows in zip(comparisons, money, strict=True):
            row, factor = rows[position], comparison.predictions[position].scaling_factor
            cost = [] if row.cost is None else [f"{row.cost:,.2f}"]
            speed_up = f"{factor * row.workers:.4g}x"
            table.add_row(
                escape(prediction.name), str(row.workers), speed_up, f"{row.hours:,.4g}", f"{row.gpu_hours:,.4g}", *cost
            )
    console.print(table)
    if len(comparisons) > 1:
        found = ", ".join(f"{escape(plan)} {turn or 'not reached'}" for plan, turn in knees.items())
        console.print(
            f"Knee: {found}. The knee is where the next step raises GPU hours by a larger part than it cuts the time "
            "(for a doubling: less than 1.5 times as fast)."
        )


def show_tuning(console: Console, tuning: Tuning) -> None:
    """The verdict, the times, and the lines to paste."""
    title = f"{tuning.workload.name} on {tuning.cluster.name} for {tuning.target}"
    columns = ("workers", "default", "tuned", "best plan", "lower bound", "gap", "gain", "error band")
    table = _table(console, title, *columns)
    for outcome in tuning.outcomes:
        times = (outcome.default_time, outcome.tuned_time, outcome.optimal_time, outcome.lower_bound)
        gap, gain = f"{max(outcome.gap, 0):.1%}", f"{round(outcome.gain, 4) + 0.0:.1%}"
        table.add_row(str(outcome.workers), *map(show_time, times), gap, gain, _width(outcome.band))
    console.print(table)
    console.print(tuning.verdict, style="bold", markup=False)
    sizes = [bucket.size for bucket in tuning.plan.buckets]
    if sizes:
        console.print(f"{_count(len(sizes), 'bucket')}{show_sizes(sizes)}.")
    for remark in tuning.remarks:
        console.print(f"Note: {remark}.", markup=False)
    _show_bands(console, [outcome.band for outcome in tuning.outcomes])
    console.print()
    if not tuning.improvement:
        console.print("The lines all the same: --format code.")
    elif CONFIG_TARGETS[tuning.target].executes:
        console.print(f"For osf.execute ({describe(tuning.plan)}): -o plan.json writes the plan.", markup=False)
    else:
        console.print(tuning.rendered, markup=False, soft_wrap=True)


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
    title = "Error of predictions, predicted / measured - 1, on runs that nothing was fitted on"
    table = _table(console, title, *columns[:shown])
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
            console.print(f"{one.source}, fitted: {one.fitted_on}.", markup=False)
        for reason, count in one.reasons.items():
            console.print(f"{one.source}: {_count(count, 'run')} not predicted: {reason}.", markup=False)
        if one.unsteady:
            console.print(f"{one.source}: {_count(one.unsteady, 'run')} not counted: repeats differ too much.")


def _show_runs(console: Console, one: Checked) -> None:
    table = _table(console, one.source, "run", "measured", "predicted", "error", "", "note")
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
    table = _table(console, title, *columns)
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


def show_list(console: Console, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per entry."""
    columns = [
        column for column in (rows[0] if rows else ["name"]) if column not in ("conditions", "licence", "evidence")
    ]
    console.print(kind, style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # Where the terminal is narrow only sources are cut, and only meanings wrap.
        longest = 0 if column in ("source", "meaning") else max((len(_text(row[column])) for row in rows), default=0)
        heading = HEADINGS.get(column, column.replace("_", " "))
        table.add_column(
            heading, no_wrap=column != "meaning", overflow="ellipsis", min_width=max(longest, len(heading))
        )
    for row in rows:
        table.add_row(*[escape(_short(row[key]) if key == "source" else _text(row[key])) for key in columns])
    console.print(table)


def show_entry(console: Console, row: Mapping[str, Any]) -> None:
    """All that is known of one entry, a line each."""
    for column, value in row.items():
        console.print(f"{column.replace('_', ' ')}: {_text(value)}", markup=False, soft_wrap=True)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _short(source: str) -> str:
    """Who published it: what stands before the commit or the path, cut to a line."""
    who = source.partition(" @ ")[0].partition(": ")[0]
    return who if len(who) <= SHORT else who[: SHORT - 1] + "…"
