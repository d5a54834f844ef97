"""What a person sees: tables on a terminal. Data in, rich renderables out; nothing here computes a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osfmodel.engine.bands import Band
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.units import how_many, show_bytes, show_sizes, show_time
from osfmodel.planning.economics import Economics
from osfmodel.planning.predictions import Bound, Comparison, Prediction
from osfmodel.planning.tuning import Tuning
from osfmodel.planning.what_if import WhatIf
from osfmodel.targets import CONFIG_TARGETS

MOST_COLUMNS = 4
"""Plans up to which a sweep has a column for each."""
ROOMY = 100
"""Characters of a terminal from which plans have their samples per second also where nothing is compared with them."""


def table_under(console: Console, title: str, *columns: str) -> Table:
    """An empty table under its title, which is printed at once so that a narrow table does not wrap it."""
    console.print(title, style="bold", markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def show_comparison(console: Console, comparison: Comparison) -> None:
    """The plans side by side at one worker count."""
    workload = comparison.workload
    where = f"{comparison.cluster.name}{_varied(comparison.what_if)}"
    title = f"{workload.name} on {where}, {how_many(comparison.workers, 'worker')}"
    columns = ("plan", "buckets", "iteration", "scaling factor", "speed-up", "exposed", "above bound", "error band")
    wanted = comparison.what_if.words or console.width >= ROOMY
    rates = ["samples/s"] if workload.batch_size and wanted else []
    table = table_under(console, title, *columns, *rates)
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
            *(_rate(comparison.throughput(prediction)) for _ in rates),
        )
    console.print(table)
    console.print(
        f"{_alone(comparison)} Lower bound for any schedule"
        f"{_bounds(comparison.bounds)}. Gradients: {show_bytes(workload.gradient_bytes)} in "
        f"{how_many(len(workload.gradients), 'tensor')}."
    )
    _show_executors(console, comparison.predictions)
    _show_caveats(console, [comparison])
    _show_bands(console, [prediction.band for prediction in comparison.predictions])


def _alone(comparison: Comparison) -> str:
    """What scaling factors are relative to."""
    if comparison.what_if.global_batch is None:
        return f"One worker alone: {show_time(comparison.workload.compute_time)}."
    whole = comparison.predictions[0].alone * comparison.workers
    return f"One worker alone, with the whole global batch: {show_time(whole)}."


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def _varied(what_if: WhatIf) -> str:
    return f" with {what_if.words}" if what_if.words else ""


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
    again = [f"{how_many(len(plan.recompute), 'segment')} recomputed"] if plan.recompute else []
    released = ["updates as buckets arrive"] if plan.release else []
    mirrored = ["mirror weights"] if plan.mirror else []
    return "".join(f", {words}" for words in (*sent, *mirrored, *released, *again))


def rules_of(objective: Objective) -> str:
    """What a schedule may do, in words."""
    words = [f"{how_many(objective.channels, 'collective')} at a time"]
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
    where = f"{first.cluster.name}{_varied(first.what_if)}"
    title = f"{first.workload.name} on {where}: iteration time and scaling factor"
    if len(first.predictions) > MOST_COLUMNS:
        table = table_under(
            console, title, "plan", "workers", "iteration", "scaling factor", "above bound", "error band"
        )
        for number in range(len(first.predictions)):
            for comparison in comparisons:
                _sweep_row(table, comparison.predictions[number], comparison.workers)
    else:
        columns = [escape(prediction.name) for prediction in first.predictions]
        table = table_under(console, title, "workers", *columns, "bound", "error band")
        for comparison in comparisons:
            cells = [
                f"{show_time(prediction.iteration_time)}  {prediction.scaling_factor:.3f}"
                for prediction in comparison.predictions
            ]
            bands = _widths([prediction.band for prediction in comparison.predictions])
            table.add_row(str(comparison.workers), *cells, show_time(comparison.lower_bound), bands)
    console.print(table)
    _show_below_sweep(console, comparisons)


def show_scaling(console: Console, comparisons: Sequence[Comparison]) -> None:
    """What more workers bring, plan by plan: the batch of each, throughput, speed-up over one worker, efficiency."""
    first = comparisons[0]
    kind = "weak" if first.what_if.global_batch is None else "strong"
    title = f"{first.workload.name} on {first.cluster.name}{_varied(first.what_if)}: {kind} scaling"
    columns = ("workers", "batch of each", "iteration", "samples/s", "speed-up", "scaling factor", "error band")
    table = table_under(console, title, "plan", *columns)
    for number, plan in enumerate(first.predictions):
        for comparison in comparisons:
            one, workers, batch = comparison.predictions[number], comparison.workers, comparison.workload.batch_size
            factor = one.scaling_factor
            times = (show_time(one.iteration_time), _rate(comparison.throughput(one)), f"{factor * workers:.4g}x")
            cells = ("" if batch is None else str(batch), *times, f"{factor:.3f}", _width(one.band))
            table.add_row(escape(plan.name), str(workers), *cells)
    console.print(table)
    _show_below_sweep(console, comparisons)


def _show_below_sweep(console: Console, comparisons: Sequence[Comparison]) -> None:
    console.print(_alone(comparisons[0]))
    _show_executors(console, comparisons[0].predictions)
    _show_caveats(console, comparisons)
    _show_bands(console, [prediction.band for one in comparisons for prediction in one.predictions])


def _sweep_row(table: Table, prediction: Prediction, workers: int) -> None:
    factor, gap = f"{prediction.scaling_factor:.3f}", f"{max(prediction.gap, 0):.1%}"
    time = show_time(prediction.iteration_time)
    table.add_row(escape(prediction.name), str(workers), time, factor, gap, _width(prediction.band))


def show_buckets(console: Console, comparisons: Sequence[Comparison]) -> None:
    """The sizes of each plan's buckets in the order in which they are sent; once where worker counts share them."""
    for number, first in enumerate(comparisons[0].predictions):
        workers: dict[tuple[int, ...], list[str]] = {}
        for comparison in comparisons:
            sizes = tuple(bucket.size for bucket in comparison.predictions[number].plan.buckets)
            workers.setdefault(sizes, []).append(str(comparison.workers))
        for sizes, counts in workers.items():
            where = f" with {', '.join(counts)} workers" if len(workers) > 1 else ""
            listed = show_sizes(sizes) if sizes else ""
            console.print(f"{first.name}{where}: {how_many(len(sizes), 'bucket')}{listed}.", markup=False)


def show_economics(
    console: Console,
    comparisons: Sequence[Comparison],
    money: Sequence[Sequence[Economics]],
    knees: Mapping[str, int | None],
) -> None:
    """Time to train and cost of every plan at every worker count, and where more workers stop paying."""
    batch, shared = comparisons[0].workload.batch_size, comparisons[0].what_if.global_batch
    size = f"{batch} per worker (more workers, fewer iterations)" if shared is None else f"{shared} for all workers"
    title = f"Training time and cost, batch of {size}"
    priced = money[0][0].cost is not None
    console.print()
    table = table_under(
        console, title, "plan", "workers", "speed-up", "hours", "GPU hours", *(["cost"] if priced else [])
    )
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
    title = f"{tuning.workload.name} on {tuning.cluster.name}{_varied(tuning.what_if)} for {tuning.target}"
    columns = ("workers", "default", "tuned", "best plan", "lower bound", "gap", "gain", "error band")
    table = table_under(console, title, *columns)
    for outcome in tuning.outcomes:
        times = (outcome.default_time, outcome.tuned_time, outcome.optimal_time, outcome.lower_bound)
        gap, gain = f"{max(outcome.gap, 0):.1%}", f"{round(outcome.gain, 4) + 0.0:.1%}"
        table.add_row(str(outcome.workers), *map(show_time, times), gap, gain, _width(outcome.band))
    console.print(table)
    console.print(tuning.verdict, style="bold", markup=False)
    sizes = [bucket.size for bucket in tuning.plan.buckets]
    if sizes:
        console.print(f"{how_many(len(sizes), 'bucket')}{show_sizes(sizes)}.")
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
