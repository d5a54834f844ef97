"""Predicted over measured times of runs: as data, and in every form of a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import fill
from types import MappingProxyType
from typing import Any

from osfmodel.entities.display import how_many, show_time
from osfmodel.entities.errors import UsageError
from osfmodel.ledger.results import Checked
from osfmodel.show.page import UP, Axis, Markup, Scale, curve, down, element, percent, plot
from osfmodel.show.picture import COLOURS, figure_of, plain, save
from osfmodel.show.terminal import CURVE_ROWS, chart_width


@dataclass(frozen=True, slots=True)
class Cloud:
    """Runs of one source that were not fitted on: (measured, predicted) in seconds, at least one.

    ``own``: whether each prediction was put together from the figures of the very run.
    """

    source: str
    points: tuple[tuple[float, float], ...]
    own: bool = False

    @property
    def median_abs_error(self) -> float:
        """Median magnitude of predicted / measured - 1."""
        return median(abs(predicted / measured - 1) for measured, predicted in self.points)

    @property
    def name(self) -> str:
        """The source's name, marked if its errors say nothing about predictions."""
        return f"{self.source}, self-consistency, no prediction" if self.own else self.source

    @property
    def runs(self) -> str:
        """Number of runs and their median error."""
        return f"{how_many(len(self.points), 'run')}, median error {self.median_abs_error:.1%}"


@dataclass(frozen=True, slots=True)
class Scatter:
    """Clouds of points, the largest first, so that small ones are drawn on top."""

    clouds: tuple[Cloud, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest time; (0.1, 1) without points."""
        values = [value for cloud in self.clouds for point in cloud.points for value in point] or [0.1, 1.0]
        return min(values), max(values)


def scatter(checked: Iterable[Checked]) -> Scatter:
    """Clouds of the runs of the ledger or of a file. Ratios (rows that are no times) are left out: they are not times.

    Runs predicted from their own figures, which are not predictions, are a separate cloud.
    """
    clouds = [Cloud(one.source, _points(one, own), own) for one in checked for own in (False, True)]
    return Scatter(tuple(sorted((cloud for cloud in clouds if cloud.points), key=lambda cloud: -len(cloud.points))))


def _points(one: Checked, own: bool) -> tuple[tuple[float, float], ...]:
    """(Measured, predicted) of runs as used, or of rows that count and are times: those that are ``own``, or others."""
    if one.used and not own:
        return tuple((row.judged.measured, row.judged.predicted) for row in one.used)
    return tuple(
        (row.measured, row.predicted)
        for row in one.rows
        if row.predicted is not None and row.counts and row.is_time and row.own == own
    )


MARKS = "ox+*#@%&"
"""Marks on a terminal, one for each source of measured runs."""
MARKERS = "oDs^vPX*"
"""Marks in a picture, one for each source."""
BAND = 0.1
"""Half the width of the grey band, as a fraction of the measured time."""
FEW = 100
"""Number of runs below which a source's marks get outlines, so that they stay visible."""
MANY = 8
"""Number of sources from which the legend is small, so that it stays beside the points."""
LONGEST = 70
"""Maximum characters in a line of the legend."""
DECADES = 100
"""Ratio of the ends of an axis from which it has numbers at whole decades only."""
MOST_POINTS = 250
"""Maximum points of a source on a page, taken evenly out of their order: more would hide each other."""


def show_scatter(console: Any, picture: Scatter) -> None:
    """Draw measured times to the right and predicted ones upwards, both logarithmic; dots mark where they agree."""
    low, high = (math.log(value) for value in picture.ends)
    span = (high - low) or 1.0
    height, width = 2 * CURVE_ROWS, min(4 * CURVE_ROWS + 4, chart_width(console, 10))
    grid = [[" "] * width for _ in range(height)]
    for place in range(width):
        grid[min(int(place / width * height), height - 1)][place] = "."
    for number, cloud in enumerate(picture.clouds):
        for measured, predicted in cloud.points:
            right, up = ((math.log(value) - low) / span for value in (measured, predicted))
            grid[min(int(up * height), height - 1)][min(int(right * width), width - 1)] = MARKS[number % len(MARKS)]
    console.print("Predicted over measured iteration time: all runs of the sources of the error band", style="bold")
    for cells in reversed(grid):
        console.print("  " + "".join(cells).rstrip(), markup=False)
    console.print(
        f"  both from {show_time(picture.ends[0])} to {show_time(picture.ends[1])}; dots: equal", markup=False
    )
    for number, cloud in enumerate(picture.clouds):
        console.print(f"  {MARKS[number % len(MARKS)]} {cloud.name}: {cloud.runs}", markup=False)


def draw_scatter(axes: Any, picture: Scatter) -> None:
    """Draw predicted over measured time in a narrow picture, with the legend below."""
    show_in_axes(axes, picture, inside=False)
    plain(axes)


def show_in_axes(axes: Any, picture: Scatter, inside: bool = True) -> None:
    """Draw the clouds around the diagonal of perfect predictions; the legend inside the axes, or below."""
    low, high = _diagonal(axes, picture)
    for number, cloud in enumerate(picture.clouds):
        measured, predicted = zip(*cloud.points, strict=True)
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]  # no colour with the same mark twice
        style = _style(cloud, COLOURS[number % len(COLOURS)])
        label = fill(f"{cloud.name} ({cloud.runs})", LONGEST, break_long_words=False, break_on_hyphens=False)
        axes.scatter(measured, predicted, s=18, label=label, zorder=2, marker=marker, **style)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    _label_ticks(axes, decades=high / low > DECADES)
    axes.set(xlabel="measured iteration time (s)", ylabel="predicted iteration time (s)")
    place: dict[str, Any] = {} if inside else {"bbox_to_anchor": (0.4, -0.2)}
    size = 8 if len(picture.clouds) < MANY and inside else 7 if len(picture.clouds) < 2 * MANY else 5.5
    axes.legend(loc="upper left" if inside else "upper center", fontsize=size, frameon=False, **place)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)


def _style(cloud: Cloud, colour: str) -> dict[str, Any]:
    """Style of a cloud's marks; hollow if the runs are not predictions."""
    if cloud.own:
        return {"facecolors": "none", "edgecolors": colour, "linewidths": 1}
    if len(cloud.points) < FEW:
        return {"color": colour, "edgecolors": "black", "linewidths": 0.5}
    return {"color": colour, "linewidths": 0, "alpha": 0.55}


def _label_ticks(axes: Any, decades: bool) -> None:
    """Label ticks with plain numbers; on a short axis also at 2 and 5 times a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1,) if decades else (1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def _diagonal(axes: Any, picture: Scatter) -> tuple[float, float]:
    """Draw the line of perfect prediction and a band around it; return the range of both axes."""
    low, high = picture.ends[0] / 1.3, picture.ends[1] * 1.3
    axes.plot([low, high], [low, high], color="#444444", linewidth=1, zorder=1)
    below, above = [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)]
    axes.fill_between([low, high], below, above, color="#eeeeee", label=f"within {BAND:.0%}", zorder=0)
    return low, high


def scatter_plot(picture: Scatter) -> Markup:
    """A plot of predicted over measured time; on the diagonal they agree."""
    low, high = picture.ends
    scale = Scale(low / 1.3, high * 1.3, True)
    ticks = scale.ticks(UP)
    across = Axis(scale, ticks, lambda tick: f"{tick:g}", "measured iteration time (s)")
    up = Axis(scale, ticks, lambda tick: f"{tick:g}", "predicted iteration time (s)")
    drawn = [curve([(scale.low, scale.low), (scale.high, scale.high)], across, up, "bound")]
    for number, cloud in enumerate(picture.clouds):
        step = math.ceil(len(cloud.points) / MOST_POINTS)
        for measured, predicted in cloud.points[::step]:
            x, y = scale.place(measured), scale.place(predicted)
            drawn.append(_dot(number, percent(x), down(y), 2.5))
    words = "; ".join(f"{cloud.name}: {cloud.runs}" for cloud in picture.clouds)
    return plot(across, up, drawn, "Predicted over measured iteration time", words)


def scatter_key(picture: Scatter) -> Markup:
    """The legend of the plot."""
    items = []
    for number, cloud in enumerate(picture.clouds):
        dot = _dot(number, "8", 8.0, 4.0)
        mark = element("svg", dot, width=16, height=16, aria_hidden="true")
        items.append(element("li", mark, f"{cloud.name}: {cloud.runs}"))
    return element("ul", *items, class_="legend")


def _dot(number: int, x: str, y: float, size: float) -> Markup:
    """A point of a source: discs, squares and rings by turns, so that sources differ by more than colour."""
    if number % 3 == 1:
        box = {"x": x, "y": y - size, "width": 2 * size, "height": 2 * size, "transform": f"translate({-size:g} 0)"}
        return element("rect", **box, class_=f"cloud c{number % 6}")
    ring = " ring" if number % 3 == 2 else ""
    return element("circle", cx=x, cy=y, r=size, class_=f"cloud c{number % 6}{ring}")


def evidence(picture: Scatter) -> Iterable[Markup]:
    """Plot and legend of the runs behind the error band, for a page."""
    yield element("figure", scatter_plot(picture))
    yield scatter_key(picture)


SUFFIXES = (".png", ".svg")


def plot_check(checked: Iterable[Checked], path: str, found: Mapping[float, float] = MappingProxyType({})) -> None:
    """Plot predicted against measured iteration time as used, one colour per source, and the coverage of error bands.

    Runs predicted from their own figures are hollow, since they are not predictions. ``found`` is the
    coverage that was found by the one that is stated.
    Raises UsageError for a suffix other than .png or .svg, or where matplotlib is missing.
    """
    plot_scatter(scatter(checked), path, found)


def plot_scatter(picture: Scatter, path: str, found: Mapping[float, float] = MappingProxyType({})) -> None:
    """Plot clouds of runs, and coverage where some was ``found``. Raises as :func:`plot_check`."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path!r}: the name must end in {' or '.join(SUFFIXES)}")
    figure = figure_of((12 if found else 7, 7), constrained=bool(found))
    axes = figure.subplots(1, 2) if found else [figure.subplots()]
    show_in_axes(axes[0], picture)
    if found:
        show_reliability(axes[1], found)
    save(figure, path)


def show_reliability(axes: Any, found: Mapping[float, float]) -> None:
    """Draw the coverage that was found over the one that bands state, each source weighing the same."""
    stated, covered = zip(*sorted(found.items()), strict=True)
    axes.plot([0.4, 1], [0.4, 1], color="#444444", linewidth=1, label="as stated")
    axes.plot(stated, covered, color="#3d87c0", marker="o", label="found, sources held out")
    axes.set(xlim=(0.4, 1), ylim=(0.4, 1), aspect="equal")
    axes.set(xlabel="stated part of runs inside the band", ylabel="found part (mean over sources)")
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    plain(axes)
