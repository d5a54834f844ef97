"""Points of a sweep as a picture: one goal over another, with the best points marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from textwrap import wrap
from typing import Any, NamedTuple

from osfmodel.entities.display import brief, how_many, listed
from osfmodel.show.picture import COLOURS, decade_ticks, figure_of, finish, save, time_unit
from osfmodel.show.sweep import POINTS, Record, Swept
from osfmodel.show.table import amount
from osfmodel.show.terminal import CURVE_ROWS, chart_width

MOST = 5000
"""Largest number of points on a page or in a picture."""
TIMES = {"step_time_s": "step", "low_s": "fast end of the error band", "high_s": "slow end of the error band"}
"""Columns in seconds, and their titles on an axis."""
TITLES = {**{str(one.key): str(one.head) for one in POINTS}, **TIMES}
"""Titles of columns on an axis, without their units."""
TICKS = 8
"""Largest number of numbers on an axis of a picture."""
DECADE = 10
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


@dataclass(frozen=True)
class SweptPoints:
    """The points to draw of a sweep.

    whole, failed: number of points of the sweep, and of those without a prediction
    asked:         number of points under the question's condition
    points:        these, in the order of the grid; at most ``MOST``, with the best ones among them
    best:          points that no other beats in all goals, the best in the first goal first
    """

    swept: Swept
    whole: int
    failed: int
    asked: int
    points: Sequence[Record]
    best: Sequence[Record]

    def __repr__(self) -> str:
        return brief(self, f"{self.swept.sweep.name}: {how_many(len(self.points), 'point')}")

    @property
    def goals(self) -> Sequence[str]:
        """The columns in which the best points are best."""
        return list(self.swept.asked.get("best", ()))

    @property
    def left_out(self) -> str:
        """A sentence on the points that are not here; "" if all are."""
        if self.asked <= len(self.points):
            return ""
        there = f"{len(self.points):,} of {self.asked:,} points"
        kept = "the best and the first others" if self.best else "the first"
        more = "" if self.best else "; --best GOAL marks the best of all"
        return f"{there} are here: {kept}. --where CONDITION chooses fewer{more}."

    @property
    def question(self) -> str:
        """The question in words; "" if all points are asked for."""
        where = self.swept.asked.get("where")
        said = [f"points where {where}"] if where else []
        said += [f"best in {listed(self.goals)}"] if self.goals else []
        return "; ".join(said)


def points_of(swept: Swept, holds: Callable[[Any], bool]) -> SweptPoints:
    """The points under a condition, read once; of too many the best, and the first of the others."""
    best = list(islice(swept.points(), MOST)) if "best" in swept.asked else []
    numbers = {record["point"] for record in best}
    whole = failed = asked = 0
    points: list[Record] = []
    room = MOST - len(best)
    for record in swept.sweep:
        whole += 1
        failed += record["error"] is not None
        if not holds(record):
            continue
        asked += 1
        own = record["point"] not in numbers
        if not own or room:
            points.append(record)
            room -= own
    return SweptPoints(swept, whole, failed, asked, points, best)


class Spot(NamedTuple):
    """A point of the picture: its place, in the units of the axes, and its number among the points."""

    x: float
    y: float
    number: int


class PlotAxis(NamedTuple):
    """An axis: a column, its title with the unit, and what its values are multiplied by."""

    key: str
    title: str
    factor: float
    logarithmic: bool


def axes_of(shown: SweptPoints) -> tuple[PlotAxis, PlotAxis, list[Spot]]:
    """The horizontal and the vertical axis, and the points that have a value on both.

    Upwards the first goal, across the second one or the GPUs; the step over GPUs if there is no goal.
    """
    first, second = (*shown.goals, "workers", "workers")[:2] if shown.goals else ("step_time_s", "workers")
    if first == second:
        first = "step_time_s"
    rows = [(number, one[second], one[first]) for number, one in enumerate(shown.points)]
    known = [(number, x, y) for number, x, y in rows if x is not None and y is not None]
    drawn = [shown.points[number] for number, _, _ in known]
    across, up = _measure(second, drawn), _measure(first, drawn)
    return across, up, [Spot(x * across.factor, y * up.factor, number) for number, x, y in known]


def _measure(key: str, records: Sequence[Record]) -> PlotAxis:
    values = [record[key] for record in records]
    low, high = min(values, default=0.0), max(values, default=0.0)
    logarithmic = low > 0 and (high >= DECADE * low or (key == "workers" and high > low))
    unit, factor = "", 1.0
    if key in TIMES:
        unit, factor = time_unit(high)
    elif key == "peak_memory_bytes":
        unit, factor = "GiB", 1 / 2**30
    elif key == "mfu":
        unit, factor = "%", 100.0
    elif key == "cost":
        unit = ", ".join(sorted({record["cost_of"] for record in records if record["cost_of"]}))
    return PlotAxis(key, f"{TITLES[key]} ({unit})" if unit else TITLES[key], factor, logarithmic)


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """The numbers of an axis, with as many digits as tell them apart."""
    for write in (amount, "{:.4g}".format, "{:.6g}".format):
        texts = [write(tick) for tick in ticks]
        if len(set(texts)) == len(texts):
            break
    return texts


def counts_shown(values: Iterable[float], most: int) -> list[float]:
    """At most ``most`` of the numbers of GPUs, evenly taken."""
    counts = sorted(set(values))
    return counts[:: -(-len(counts) // most)]


def best_spots(shown: SweptPoints, spots: Sequence[Spot]) -> list[Spot]:
    """The best points, from left to right."""
    numbers = {record["point"] for record in shown.best}
    return sorted(one for one in spots if shown.points[one.number]["point"] in numbers)


def show_cloud(console: Any, shown: SweptPoints) -> None:
    """Draw the points with characters: the best ones as diamonds, others as dots. Nothing for fewer than two."""
    across, up, spots = axes_of(shown)
    if len({(one.x, one.y) for one in spots}) < 2:
        return
    best = best_spots(shown, spots)
    width = chart_width(console, 10)
    rows = _places([one.y for one in spots], CURVE_ROWS, up.logarithmic)
    columns = _places([one.x for one in spots], width, across.logarithmic)
    marks = {one.number for one in best}
    grid = [[" "] * width for _ in range(CURVE_ROWS)]
    for spot, row, column in sorted(zip(spots, rows, columns, strict=True), key=lambda one: one[0].number in marks):
        grid[row][column] = "◆" if spot.number in marks else "·"
    console.print(f"{up.title} over {across.title}: ◆ best, · others", style="bold", markup=False)
    tops = tick_texts([max(one.y for one in spots), min(one.y for one in spots)])
    for place, cells in enumerate(reversed(grid)):
        label = {0: tops[0], CURVE_ROWS - 1: tops[-1]}.get(place, "")
        console.print(f"{label:>8} {''.join(cells).rstrip()}", markup=False)
    left, right = tick_texts([min(one.x for one in spots), max(one.x for one in spots)])
    console.print(f"{'':9}{left}{right:>{max(width - len(left), 1)}}", markup=False)


def _places(values: Sequence[float], cells: int, logarithmic: bool) -> list[int]:
    """The cell of each value, of so many from the smallest value to the largest."""
    scaled = [math.log(value) if logarithmic else value for value in values]
    low, high = min(scaled), max(scaled)
    return [round((value - low) / ((high - low) or 1.0) * (cells - 1)) for value in scaled]


def plot_sweep(shown: SweptPoints, path: str) -> None:
    """Write the picture. Raises UsageError where matplotlib is missing, DataError where it cannot be written."""
    figure = figure_of((8.0, 4.5))
    axes = figure.subplots()
    across, up, spots = axes_of(shown)
    best = best_spots(shown, spots)
    axes.scatter([one.x for one in spots], [one.y for one in spots], s=14, color=COLOURS[5], linewidths=0,
                 label=how_many(len(spots), "point"))  # fmt: skip
    if best:
        line = "-" if len(shown.goals) == 2 else "none"
        axes.plot([one.x for one in best], [one.y for one in best], marker="D", markersize=6, color=COLOURS[0],
                  markeredgecolor="black", linestyle=line, label="best")  # fmt: skip
    for name, axis in (("x", across), ("y", up)):
        if axis.logarithmic:
            axes.set(**{f"{name}scale": "log"})
        _label_ticks(getattr(axes, f"{name}axis"), axis, [getattr(one, name) for one in spots])
    title = "\n".join([shown.swept.sweep.name, *wrap(shown.question, 90)])
    axes.set(xlabel=across.title, ylabel=up.title)
    axes.set_title(title, parse_math=False)
    finish(axes)
    save(figure, path)


def _label_ticks(drawn: Any, axis: PlotAxis, values: Sequence[float]) -> None:
    """Plain numbers on an axis of matplotlib; the numbers of GPUs themselves."""
    if not values or not (axis.logarithmic or axis.key == "workers"):
        return
    workers = axis.key == "workers"
    ticks = counts_shown(values, TICKS) if workers else decade_ticks(min(values), max(values), TICKS)
    drawn.set_ticks(ticks, tick_texts(ticks))
    drawn.set_ticks([], minor=True)
