"""The result of ``osf predict``: plans at one or several worker counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from osfmodel.engine.bands import Band
from osfmodel.entities.display import how_many, listed, show_bytes, show_predicted_time
from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.entities.plan import REPLICATED
from osfmodel.entities.units import show_sizes
from osfmodel.planning.results import Comparison, Prediction
from osfmodel.show.document import Result
from osfmodel.show.plans import (
    COMPARISONS,
    EVERY,
    LEFT_OUT,
    PAID,
    PLANS,
    RATE,
    PlanRow,
    band_text,
    beyond_rules,
    comparison_title,
    describe,
    plan_rows,
    rules_of,
    show_bands,
    varied,
    what_if_part,
)
from osfmodel.show.table import Column, Sheet, csv_row, headed, json_row, listed_rows, texts
from osfmodel.show.terminal import Console, empty_table, fits, print_fitting, show_notes, show_title

if TYPE_CHECKING:
    from rich.table import Table

    from osfmodel.planning.predictions import TrainingCosts


class Predicted(Result):
    """The result of ``osf predict``; ``costs``: of the whole training, if asked for.

    ``scaling``: whether to show the gain from more workers; ``buckets``: whether to show bucket sizes to a person.
    """

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        costs: TrainingCosts | None = None,
        scaling: bool = False,
        buckets: bool = False,
    ) -> None:
        self.comparisons, self.costs, self.scaling, self.buckets = comparisons, costs, scaling, buckets
        paid = [()] * len(comparisons) if costs is None else costs.rows
        self.plans = [list(plan_rows(*pair)) for pair in zip(comparisons, paid, strict=True)]

    def content(self) -> dict[str, Any]:
        entries = [self._entry(*pair) for pair in zip(self.comparisons, self.plans, strict=True)]
        knees = {} if self.costs is None else {"knee_workers": dict(self.costs.knees)}
        if len(entries) == 1:
            return {**entries[0], **knees}
        return {"sweep": entries, **knees}

    def _entry(self, comparison: Comparison, rows: Sequence[PlanRow]) -> dict[str, Any]:
        what_if = comparison.what_if
        return {
            "schema_version": SCHEMA_VERSION,
            **json_row(COMPARISONS, comparison),
            "lower_bound_s": comparison.lower_bound,
            **what_if_part(what_if),
            **({"scaling": "weak" if what_if.global_batch is None else "strong"} if self.scaling else {}),
            "predictions": [json_row(self._columns(), row) for row in rows],
        }

    def _columns(self) -> tuple[Column[PlanRow], ...]:
        """The columns of a prediction, without unknown ones and those not asked for; the same for all comparisons."""
        first = self.comparisons[0]
        rated = first.workload.batch_size is not None or first.what_if.words or self.scaling
        return (*PLANS, *([RATE] if rated else []), *(PAID if self.costs else ()))

    def rows(self) -> list[dict[str, Any]]:
        columns = self._columns()
        return [
            {**csv_row(COMPARISONS, row.comparison), **csv_row(columns, row)} for rows in self.plans for row in rows
        ]

    def show(self, console: Console) -> None:
        if self.scaling:
            show_scaling(console, self.plans)
        elif len(self.comparisons) == 1:
            show_comparison(console, self.comparisons[0])
        else:
            show_sweep(console, self.plans)
        if self.buckets:
            show_buckets(console, self.comparisons)
        if self.costs is not None:
            show_economics(console, self.plans, self.costs.knees)

    def sheet(self) -> Sheet:
        """The plans at the first worker count."""
        one = self.comparisons[0]
        notes = dict.fromkeys(note for prediction in one.predictions for note in prediction.notes)
        columns = (*PLANS, RATE) if one.workload.batch_size else PLANS
        return Sheet(comparison_title(one), [listed_rows("", columns, self.plans[0])], notes=list(notes))

    def warnings(self) -> list[str]:
        plans: dict[tuple[int, str], list[str]] = {}
        for comparison in self.comparisons:
            for prediction in comparison.predictions:
                for note in prediction.warnings:
                    plans.setdefault((comparison.workers, note), []).append(prediction.name)
        counts: dict[tuple[str, str], list[str]] = {}
        for (workers, note), names in plans.items():
            counts.setdefault((", ".join(names), note), []).append(str(workers))
        return [f"{', '.join(workers)} workers ({names}): {note}" for (names, note), workers in counts.items()]


MOST_COLUMNS = 4
"""Maximum number of plans for which a sweep has a column each."""


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
    show_bands(console, [prediction.band for prediction in comparison.predictions])


def _alone(comparison: Comparison) -> str:
    """The time to which scaling factors are relative, in a sentence."""
    if comparison.what_if.global_batch is None:
        workload = comparison.workload
        update = f", {show_predicted_time(workload.update_time)} of it the update, which sharded workers divide"
        faster = (one for one in comparison.predictions if one.plan.strategy != REPLICATED and one.scaling_factor > 1)
        explained = update if workload.update_time and any(faster) else ""
        return f"Single-worker time: {show_predicted_time(workload.compute_time)}{explained}."
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
        rules = rules_of(bound.objective) + ("" if bound.plan is None else beyond_rules(bound.plan))
        found.setdefault(rules, {}).setdefault(show_predicted_time(bound.value), []).extend(names)
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


def _widths(bands: Sequence[Band | None]) -> str:
    """The narrowest and the widest band."""
    known = sorted({band.half_width: band_text(band) for band in bands if band is not None}.items())
    ends = dict.fromkeys(text for _, text in (known[:1] + known[-1:]))
    return " to ".join(ends)


def _show_caveats(console: Console, comparisons: Sequence[Comparison]) -> None:
    predictions = [prediction for comparison in comparisons for prediction in comparison.predictions]
    said = dict.fromkeys(caveat for prediction in predictions for caveat in prediction.caveats)
    show_notes(console, said)
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


def _print_by_plan(console: Console, plans: Sequence[Sequence[PlanRow]], heads: Sequence[str]) -> None:
    columns = _with_bands(headed(EVERY, *heads), [rows[0].comparison for rows in plans])
    print_fitting(console, columns, [row for rows in zip(*plans, strict=True) for row in rows], leave_out=LEFT_OUT)


def _with_bands(columns: Sequence[Column[PlanRow]], comparisons: Sequence[Comparison]) -> list[Column[PlanRow]]:
    """The columns, without that of error bands if no prediction has one."""
    known = any(prediction.band for comparison in comparisons for prediction in comparison.predictions)
    return [column for column in columns if known or column.key != "error_band"]


def _side_by_side(plans: Sequence[Sequence[PlanRow]]) -> Table:
    """A table with a column for each plan."""
    from rich.markup import escape

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
    show_bands(console, [prediction.band for one in comparisons for prediction in one.predictions])


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
