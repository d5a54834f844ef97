"""Tables on a terminal. Data in, rich renderables out; nothing here computes a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osfmodel.engine.bands import NEAREST, Band
from osfmodel.entities.display import how_many, listed, show_bytes, show_predicted_time
from osfmodel.entities.plan import REPLICATED, SPLIT, Objective, Plan
from osfmodel.entities.units import show_sizes
from osfmodel.planning.results import Bound, Comparison, Prediction, Tuning
from osfmodel.show.tables import Column, headed, texts
from osfmodel.show.tables.plans import (
    EVERY,
    OUTCOMES,
    PLANS,
    RATE,
    PlanRow,
    band_text,
    comparison_title,
    plan_rows,
    tuning_title,
    varied,
)
from osfmodel.show.terminal.tables import empty_table, fits, print_fitting, show_title

MOST_COLUMNS = 4
"""Maximum number of plans for which a sweep has a column each."""
LEFT_OUT = ("samples/s", "exposed", "buckets", "batch of each", "speed-up", "vs bound", "bound")
"""Columns to leave out on a narrow terminal, the first one first."""


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print the plans side by side at one worker count."""
    workload = comparison.workload
    show_title(console, comparison_title(comparison))
    columns = _with_bands((*PLANS, RATE) if workload.batch_size else PLANS, [comparison])
    print_fitting(console, columns, plan_rows(comparison), leave_out=LEFT_OUT)
    console.print(
        f"{_alone(comparison)} Bound for any schedule at these prices"
        f"{_bounds(comparison)}. Gradients: {show_bytes(workload.gradient_bytes)} in "
        f"{how_many(len(workload.gradients), 'tensor')}."
    )
    _show_executors(console, comparison.predictions)
    _show_caveats(console, [comparison])
    _show_bands(console, [prediction.band for prediction in comparison.predictions])


def _alone(comparison: Comparison) -> str:
    """The time to which scaling factors are relative, in a sentence."""
    if comparison.what_if.global_batch is None:
        return f"Single-worker time: {show_predicted_time(comparison.workload.compute_time)}."
    whole = comparison.predictions[0].alone * comparison.workers
    return f"Single-worker time with the whole global batch: {show_predicted_time(whole)}."


def _bounds(comparison: Comparison) -> str:
    """The bound for one set of rules; for several, each bound with its rules, and its plans if rules are alike."""
    bounds = comparison.bounds
    if len(bounds) == 1 and bounds[0].plan is None:
        return f": {show_predicted_time(bounds[0].value)}"
    found: dict[str, dict[str, list[str]]] = {}
    for bound in bounds:
        names = [one.name for one in comparison.predictions if one.bound == bound]
        found.setdefault(_rules(bound), {}).setdefault(show_predicted_time(bound.value), []).extend(names)
    return " with " + "; with ".join(
        f"{words}: "
        + ", ".join(time if len(times) == 1 else f"{time} ({', '.join(names)})" for time, names in times.items())
        for words, times in found.items()
    )


def _show_executors(console: Console, predictions: Sequence[Prediction]) -> None:
    """Print which plans no stock framework runs, and under which rules."""
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


def _show_bands(console: Console, bands: Sequence[Band | None]) -> None:
    """Print the meaning and the sources of the error bands."""
    known = [band for band in bands if band is not None]
    if known:
        sources = {source for band in known for source in band.sources}
        kinds = " or ".join(dict.fromkeys(band.kind.removesuffix(NEAREST) for band in known))
        console.print(
            f"Error band: holds nine in ten runs, learned from runs on {kinds} ({how_many(len(sources), 'source')}).",
            markup=False,
        )


def _widths(bands: Sequence[Band | None]) -> str:
    """The narrowest and the widest band."""
    known = sorted({band.half_width: band_text(band) for band in bands if band is not None}.items())
    ends = dict.fromkeys(text for _, text in (known[:1] + known[-1:]))
    return " to ".join(ends)


def _show_caveats(console: Console, comparisons: Sequence[Comparison]) -> None:
    predictions = [prediction for comparison in comparisons for prediction in comparison.predictions]
    said = dict.fromkeys(caveat for prediction in predictions for caveat in prediction.caveats)
    for caveat in said:
        console.print(f"Note: {caveat}.", markup=False)
    if not any(prediction.finished.ours for prediction in predictions):
        console.print("No error bands: predictions of this engine were not compared with measured runs.", markup=False)


def show_sweep(console: Console, plans: Sequence[Sequence[PlanRow]]) -> None:
    """Print scaling factor and iteration time of every plan at every worker count; with many plans a row each."""
    first = plans[0][0].comparison
    where = f"{first.cluster.name}{varied(first.what_if)}"
    show_title(console, f"{first.workload.name} on {where}: iteration time and scaling factor")
    across = _side_by_side(plans)
    if len(first.predictions) > MOST_COLUMNS or not fits(console, across):
        heads = ("plan", "workers", "iteration", "scaling factor", "vs bound", "error band")
        _print_by_plan(console, plans, heads)
    else:
        console.print(across)
    _show_below_sweep(console, [rows[0].comparison for rows in plans])


def _by_plan(plans: Sequence[Sequence[PlanRow]]) -> list[PlanRow]:
    """Rows ordered by plan: the first plan at every worker count, then the second."""
    return [row for rows in zip(*plans, strict=True) for row in rows]


def _print_by_plan(console: Console, plans: Sequence[Sequence[PlanRow]], heads: Sequence[str]) -> None:
    columns = _with_bands(headed(EVERY, *heads), [rows[0].comparison for rows in plans])
    print_fitting(console, columns, _by_plan(plans), leave_out=LEFT_OUT)


def _with_bands(columns: Sequence[Column[PlanRow]], comparisons: Sequence[Comparison]) -> list[Column[PlanRow]]:
    """The columns, without that of error bands if no prediction has one."""
    known = any(prediction.band for comparison in comparisons for prediction in comparison.predictions)
    return [column for column in columns if known or column.key != "error_band"]


def _side_by_side(plans: Sequence[Sequence[PlanRow]]) -> Table:
    """A table with a column for each plan."""
    columns = headed(EVERY, "iteration", "scaling factor")
    heads = ["workers", *(escape(row.prediction.name) for row in plans[0]), "bound"]
    known = any(row.prediction.band for rows in plans for row in rows)
    heads += ["error band"] if known else []
    table = empty_table(heads, words=())
    for rows in plans:
        cells = ["  ".join(texts(columns, row)) for row in rows]
        bands = _widths([row.prediction.band for row in rows])
        one = rows[0].comparison
        table.add_row(str(one.workers), *cells, show_predicted_time(one.lower_bound), *([bands] if known else []))
    return table


def show_scaling(console: Console, plans: Sequence[Sequence[PlanRow]]) -> None:
    """Print the gain from more workers, by plan: batch of each, throughput, speed-up over one worker, efficiency."""
    first = plans[0][0].comparison
    kind = "weak" if first.what_if.global_batch is None else "strong"
    show_title(console, f"{first.workload.name} on {first.cluster.name}{varied(first.what_if)}: {kind} scaling")
    heads = ("plan", "workers", "batch of each", "iteration", "samples/s", "speed-up", "scaling factor", "error band")
    _print_by_plan(console, plans, heads)
    _show_below_sweep(console, [rows[0].comparison for rows in plans])


def _show_below_sweep(console: Console, comparisons: Sequence[Comparison]) -> None:
    console.print(_alone(comparisons[0]))
    _show_executors(console, comparisons[0].predictions)
    _show_caveats(console, comparisons)
    _show_bands(console, [prediction.band for one in comparisons for prediction in one.predictions])


def show_buckets(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print the bucket sizes of each plan in the order in which they are sent; once if worker counts share them."""
    for number, first in enumerate(comparisons[0].predictions):
        workers: dict[tuple[int, ...], list[str]] = {}
        for comparison in comparisons:
            sizes = comparison.predictions[number].bucket_bytes
            workers.setdefault(sizes, []).append(str(comparison.workers))
        for sizes, counts in workers.items():
            where = f" with {', '.join(counts)} workers" if len(workers) > 1 else ""
            listed = show_sizes(sizes) if sizes else ""
            console.print(f"{first.name}{where}: {how_many(len(sizes), 'bucket')}{listed}.", markup=False)


def show_economics(console: Console, plans: Sequence[Sequence[PlanRow]], knees: Mapping[str, int | None]) -> None:
    """Print time to train and cost of every plan at every worker count, and the last count that pays."""
    first = plans[0][0]
    batch, shared = first.comparison.workload.batch_size, first.comparison.what_if.global_batch
    size = f"{batch} per worker (more workers, fewer iterations)" if shared is None else f"{shared} for all workers"
    priced = first.paid is not None and first.paid.cost is not None
    console.print()
    show_title(console, f"Training time and cost, batch of {size}")
    heads = ("plan", "workers", "speed-up", "hours", "GPU hours", *(["cost"] if priced else []))
    _print_by_plan(console, plans, heads)
    if len(plans) > 1:
        spots: dict[int | None, list[str]] = {}
        for plan, turn in knees.items():
            spots.setdefault(turn, []).append(plan)
        found = "; ".join(
            f"{'beyond these counts' if turn is None else how_many(turn, 'worker')} for {listed(plans)}"
            for turn, plans in sorted(spots.items(), key=lambda spot: spot[0] or float("inf"))
        )
        console.print(
            f"Sweet spot: {found}. Beyond it, the next step raises GPU hours by a larger percentage than it cuts the "
            "time (for a doubling: less than 1.5 times as fast).",
            markup=False,
        )


def show_tuning(console: Console, tuning: Tuning, executes: bool) -> None:
    """Print the verdict, the times, and the lines to paste; ``executes``: whether the plan is for our executor."""
    show_title(console, tuning_title(tuning))
    print_fitting(console, OUTCOMES, tuning.outcomes, leave_out=LEFT_OUT)
    console.print(tuning.verdict, style="bold", markup=False)
    sizes = [bucket.size for bucket in tuning.plan.buckets]
    if sizes:
        console.print(f"{how_many(len(sizes), 'bucket')}{show_sizes(sizes)}.")
    for remark in tuning.remarks:
        console.print(f"Note: {remark}.", markup=False)
    _show_bands(console, [outcome.band for outcome in tuning.outcomes])
    console.print()
    if not tuning.improvement:
        console.print("To print the settings anyway: --format code")
    elif executes:
        console.print(f"For osf.execute ({describe(tuning.plan)}): -o plan.json writes the plan.", markup=False)
    else:
        console.print(tuning.rendered, markup=False, soft_wrap=True)
