"""Predicted over measured times of runs, in every form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from textwrap import fill
from typing import Any

from osfmodel.entities.display import show_time
from osfmodel.show.html.axes import UP, Axis, Scale, curve, down, plot
from osfmodel.show.html.markup import Markup, element, percent
from osfmodel.show.pictures.scatter import Cloud, Scatter
from osfmodel.show.plotting import COLOURS, plain
from osfmodel.show.terminal.charts import HEIGHT, chart_width

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
    height, width = 2 * HEIGHT, min(4 * HEIGHT + 4, chart_width(console, 10))
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
