"""Points of a sweep, and the influences on a goal, in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from osfmodel.entities.display import how_many, show_bytes, show_predicted_time, show_share
from osfmodel.planning.sweep import DEFAULTS
from osfmodel.planning.sweep.influences import Influences
from osfmodel.planning.sweep.results import Sweep
from osfmodel.show.document import Result
from osfmodel.show.plans import three_digits
from osfmodel.show.table import Column, Sheet, amount, column, json_row, listed_rows
from osfmodel.show.terminal import Console, print_fitting, show_title

Record: TypeAlias = Mapping[str, Any]


def _of(key: str, head: str, write: Callable[[Any], str] = str) -> Column[Record]:
    return column(key, head, lambda record: record[key], write)


def _band(record: Record) -> str | None:
    """Both ends of the error band against the prediction."""
    if record["low_s"] is None:
        return None
    below, above = (record[end] / record["step_time_s"] - 1 for end in ("low_s", "high_s"))
    return f"{below:+.0%} {above:+.0%}"


POINTS: tuple[Column[Record], ...] = (
    _of("workload", "workload"),
    _of("cluster", "cluster"),
    _of("workers", "GPUs"),
    _of("plan", "plan"),
    _of("batch_size", "batch"),
    _of("global_batch", "global batch"),
    _of("accumulate", "micro-batches"),
    _of("compression", "compression"),
    _of("compute", "compute"),
    _of("bandwidth", "bandwidth"),
    _of("latency", "latency"),
    _of("effects", "effects"),
    _of("tp", "TP"),
    _of("pp", "PP"),
    _of("cp", "CP"),
    _of("ep", "EP"),
    _of("price", "price", amount),
    _of("step_time_s", "step", show_predicted_time),
    column("low_s", "error band", _band, str),
    _of("samples_per_s", "samples/s", amount),
    _of("tokens_per_s", "tokens/s", amount),
    _of("scaling_factor", "scaling", three_digits),
    _of("mfu", "MFU", show_share),
    _of("peak_memory_bytes", "memory", show_bytes),
    _of("fits", "fits"),
    _of("cost_per_hour", "per hour", amount),
    _of("training_hours", "hours", amount),
    _of("cost", "cost", amount),
    _of("error", "error"),
)
"""Columns of a point."""


def shown_columns(points: Sequence[Record]) -> list[Column[Record]]:
    """The columns in which points differ, and those of results that are not empty."""

    def says(key: str) -> bool:
        found = {record[key] for record in points}
        return len(found) > 1 if key in DEFAULTS else found != {None}

    tokens = any(record["tokens_per_s"] is not None for record in points)
    hidden = {"samples_per_s"} if tokens else set()
    found = [one for one in POINTS if one.key not in hidden and says(str(one.key))]
    return found if found and found[0].key in DEFAULTS else [POINTS[0], *found]


def common_words(points: Sequence[Record], shown: Sequence[Column[Record]]) -> str:
    """The values that all points have, in words, but for defaults and those in columns."""
    keys = {one.key for one in shown}
    said = [one for one in POINTS if one.key not in keys and one.key in DEFAULTS]
    found = [one for one in said if points[0][str(one.key)] not in (None, DEFAULTS[str(one.key)])]
    return ", ".join(f"{one.head} {one.shown(points[0])}" for one in found)


INFLUENCES: tuple[Column[Any], ...] = (
    column("column", None, lambda one: one.column),
    column("sobol_first", None, lambda one: one.alone),
    column("sobol_total", None, lambda one: one.together),
    column("largest_over_smallest", None, lambda one: one.ratio),
)
"""Keys of the influence of a column of the grid."""
SHARES: tuple[Column[Record], ...] = (
    _of("column", "column"),
    _of("sobol_first", "alone", show_share),
    _of("sobol_total", "with others", show_share),
    _of("largest_over_smallest", "largest / smallest", "{:.3g}".format),
)
"""The same for people."""

SHOWN = 20
"""Largest number of points that people are shown, unless they ask for the best."""


class Swept(Result):
    """Points of a sweep, and the influences on a goal.

    asked:      the questions, JSON-ready
    points:     () -> the records that are asked for; the best come whole, others as a long list
    influences: None if not asked for
    chart:      draws the points on a console; None for none
    """

    def __init__(
        self,
        sweep: Sweep,
        asked: Mapping[str, Any],
        points: Callable[[], Iterable[Record]],
        influences: Influences | None = None,
        chart: Callable[[Any], None] | None = None,
    ) -> None:
        self.sweep, self.asked, self.points, self.chart = sweep, asked, points, chart
        self.goal = None if influences is None else influences.goal
        self.remarks = [] if influences is None else influences.remarks
        self.influences = None if influences is None else [json_row(INFLUENCES, one) for one in influences.columns]

    def content(self) -> dict[str, Any]:
        influences = {} if self.influences is None else {"influences": {"goal": self.goal, "columns": self.influences}}
        return {
            "grid": self.sweep.name,
            **self.asked,
            **influences,
            "points": list(self.points()),
            "notes": [*self.sweep.remarks, *self.remarks],
        }

    def rows(self) -> list[dict[str, Any]]:
        return [dict(one) for one in self.points()] if self.influences is None else self.influences

    def show(self, console: Console) -> None:
        if "best" in self.asked:
            show_points(console, list(self.points()))
            if self.chart is not None:
                self.chart(console)
        elif self.influences is None:
            points = list(islice(self.points(), SHOWN + 1))
            show_points(console, points[:SHOWN])
            if len(points) > SHOWN:
                console.print(f"The first {SHOWN}: --best GOAL shows the best, --format csv all.", markup=False)
        if self.influences is not None:
            show_influences(console, str(self.goal), self.influences)
        failed = [record["error"] is not None for record in self.sweep]
        console.print(f"{how_many(len(failed), 'point')}, {sum(failed)} without a prediction", markup=False)

    def sheet(self) -> Sheet:
        """The points that are asked for."""
        points = list(self.points())
        columns = shown_columns(points) if points else []
        common = common_words(points, columns) if points else ""
        title = f"{self.sweep.name}: {how_many(len(points), 'point')}{f', {common}' if common else ''}"
        return Sheet(title, [listed_rows("", columns, points)], notes=self.sweep.remarks)

    def warnings(self) -> list[str]:
        return self.remarks


LEFT_OUT = ("error", "per hour", "MFU", "batch", "memory", "samples/s", "error band")
"""Columns to leave out on a narrow terminal, the first one first."""


def show_points(console: Console, points: Sequence[Record]) -> None:
    """Print a row for each point, and the reasons of those that cannot be predicted."""
    if not points:
        console.print("No point is like that.", markup=False)
        return
    columns = shown_columns(points)
    if common := common_words(points, columns):
        show_title(console, common)
    print_fitting(console, columns, list(points), words=(0, 1), leave_out=LEFT_OUT)
    for reason in dict.fromkeys(record["error"] for record in points if record["error"]):
        console.print(f"No prediction: {reason}", markup=False)


def show_influences(console: Console, goal: str, rows: Sequence[Record]) -> None:
    """Print how much of the variance of a goal each column explains."""
    show_title(console, f"Parts of the variance of ln({goal})")
    print_fitting(console, SHARES, list(rows), words=(0,))
