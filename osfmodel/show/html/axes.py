"""Plots on a page: scales, axes, lines, markers and legends.

Widths are in percent, so that they fit any page, heights and text in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from osfmodel.show.html.markup import Markup, element, percent
from osfmodel.show.pictures.ticks import decade_ticks, even_ticks

HEIGHT, TOP, BOTTOM = 240, 12, 44
"""Pixels: of a plot's height, above it, and below it for its axis."""
ACROSS, UP = 6, 5
"""Maximum number of ticks on the horizontal and on the vertical axis."""
SHAPES = ("circle", "square", "diamond", "triangle")
"""Shapes of markers, so that lines differ by more than colour."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: ``place`` maps a value to a fraction between 0 and 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 for the low end, 1 for the high end; values beyond the ends are extrapolated."""
        if not self.high > self.low:
            return 0.5
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round numbers on the scale, at most ``most``."""
        return decade_ticks(self.low, self.high, most) if self.logarithmic else even_ticks(self.low, self.high, most)


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale, the positions and texts of its numbers, and its title."""

    scale: Scale
    ticks: Sequence[float]
    write: Callable[[float], str]
    title: str


def plot(across: Axis, up: Axis, drawn: Sequence[Markup], title: str, description: str) -> Markup:
    """A plot with ``drawn`` on it; its parts are placed by :meth:`Scale.place` and :func:`down`."""
    grid = []
    for tick in up.ticks:
        y = down(up.scale.place(tick))
        grid.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
    for tick in across.ticks:
        x = percent(across.scale.place(tick))
        grid.append(element("line", x1=x, x2=x, y1=TOP + HEIGHT, y2=TOP + HEIGHT + 4, class_="tick"))
        grid.append(element("text", across.write(tick), x=x, y=TOP + HEIGHT + 18, class_="across"))
    grid.append(element("text", across.title, x="50%", y=TOP + HEIGHT + 38, class_="across title"))
    numbers = [element("text", up.write(tick), x="100%", y=down(up.scale.place(tick)) + 4) for tick in up.ticks]
    chart = element(
        "svg", element("title", title), element("desc", description), *grid, *drawn, width="100%",
        height=TOP + HEIGHT + BOTTOM, role="group", aria_label=f"{title}. {description}", class_="plot",
    )  # fmt: skip
    margin = element("svg", *numbers, width="100%", height=TOP + HEIGHT + BOTTOM, class_="up", aria_hidden="true")
    head = element("div", up.title, class_="uptitle", aria_hidden="true")
    return head + element("div", margin, chart, class_="axes")


def curve(points: Sequence[tuple[float, float]], across: Axis, up: Axis, style: str) -> Markup:
    """A line through the points (x, y); it stretches with the plot, but its stroke does not."""
    places = " ".join(
        f"{1000 * across.scale.place(x):.5g},{HEIGHT - HEIGHT * up.scale.place(y):.5g}" for x, y in points
    )
    line = element("polyline", points=places, class_=f"line {style}", vector_effect="non-scaling-stroke")
    return element(
        "svg", line, x="0", y=TOP, width="100%", height=HEIGHT, viewBox=f"0 0 1000 {HEIGHT}",
        preserveAspectRatio="none", class_="stretch",
    )  # fmt: skip


def mark(x: float, y: float, shape: str, style: str, say: str | None) -> Markup:
    """A marker at (x, y), parts of the plot; with ``say`` a pointer or the keyboard can reach it."""
    drawn = element("path", d=_SHAPES[shape], class_=f"mark {style}")
    box = element("svg", drawn, x=percent(x), y=down(y), width=1, height=1, class_="stretch")
    if say is None:
        return box
    return element("g", box, class_="point", tabindex="0", role="img", aria_label=say, data_say=say)


_SHAPES = {
    "circle": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    "square": "M-4-4H4V4H-4Z",
    "diamond": "M0-5.5L5.5 0L0 5.5L-5.5 0Z",
    "triangle": "M0-5L5 4H-5Z",
    "dot": "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0Z",
}


def key(entries: Sequence[tuple[str, str | None, str]]) -> Markup:
    """A legend of lines: (style, marker or None, words)."""
    items = []
    for style, shape, words in entries:
        line = element("line", x1=0, x2=28, y1=8, y2=8, class_=f"line {style}")
        marker = (
            [element("path", d=_SHAPES[shape], transform="translate(14 8)", class_=f"mark {style}")] if shape else []
        )
        parts = [*marker] if style.startswith("cloud") else [line, *marker]
        items.append(element("li", element("svg", *parts, width=28, height=16, aria_hidden="true"), words))
    return element("ul", *items, class_="legend")


def level(value: float, up: Axis, style: str) -> Markup:
    """A horizontal line across the plot."""
    y = down(up.scale.place(value))
    return element("line", x1="0", x2="100%", y1=y, y2=y, class_=f"line {style}")


def down(part: float) -> float:
    """The pixel at a fraction of the height, counted from the bottom."""
    return TOP + HEIGHT * (1 - part)
