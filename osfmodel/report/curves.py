"""Curves and clouds of points as SVG: widths in percent, so that they fit any page, heights and text in pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from osfmodel.picture import Pictures
from osfmodel.picture.curves import Scaling, Sweep
from osfmodel.picture.scatter import Scatter
from osfmodel.report.markup import Markup, element, percent
from osfmodel.ticks import decade_ticks, even_ticks, time_unit
from osfmodel.units import MIB, show_bytes, show_time

HEIGHT, TOP, BOTTOM = 240, 12, 44
"""Pixels of a plot, above it, and below it for its axis."""
ACROSS, UP = 6, 5
"""Most ticks of either axis."""
SHAPES = ("circle", "square", "diamond", "triangle")
"""Markers, so that lines differ by more than colour."""
MOST_POINTS = 250
"""Points of a source that are drawn: more hide each other. They are taken evenly out of their order."""
LONGEST = 13
"""Characters of a plan's name beside its bar; the table has all."""
PLANS_LANE = 26
"""Height of a plan's bar in the comparison of plans, in pixels."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: ``place`` maps a value to a part between 0 and 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end, also beyond."""
        if not self.high > self.low:
            return 0.5
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round numbers."""
        return decade_ticks(self.low, self.high, most) if self.logarithmic else even_ticks(self.low, self.high, most)


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale, where its numbers are, how they are written, and what is measured along it."""

    scale: Scale
    ticks: Sequence[float]
    write: Callable[[float], str]
    title: str


def plot(across: Axis, up: Axis, drawn: Sequence[Markup], title: str, description: str) -> Markup:
    """Axes with ``drawn`` on them; positions of that are from :func:`at`."""
    grid = []
    for tick in up.ticks:
        y = _y(up.scale.place(tick))
        grid.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
    for tick in across.ticks:
        x = percent(across.scale.place(tick))
        grid.append(element("line", x1=x, x2=x, y1=TOP + HEIGHT, y2=TOP + HEIGHT + 4, class_="tick"))
        grid.append(element("text", across.write(tick), x=x, y=TOP + HEIGHT + 18, class_="across"))
    grid.append(element("text", across.title, x="50%", y=TOP + HEIGHT + 38, class_="across title"))
    numbers = [element("text", up.write(tick), x="100%", y=_y(up.scale.place(tick)) + 4) for tick in up.ticks]
    chart = element(
        "svg", element("title", title), element("desc", description), *grid, *drawn, width="100%",
        height=TOP + HEIGHT + BOTTOM, role="group", aria_label=f"{title}. {description}", class_="plot",
    )  # fmt: skip
    margin = element("svg", *numbers, width="100%", height=TOP + HEIGHT + BOTTOM, class_="up", aria_hidden="true")
    head = element("div", up.title, class_="uptitle", aria_hidden="true")
    return head + element("div", margin, chart, class_="axes")


def curve(points: Sequence[tuple[float, float]], across: Axis, up: Axis, style: str) -> Markup:
    """A line through (x, y); drawn in a box that stretches, with a stroke that does not."""
    places = " ".join(
        f"{1000 * across.scale.place(x):.5g},{HEIGHT - HEIGHT * up.scale.place(y):.5g}" for x, y in points
    )
    line = element("polyline", points=places, class_=f"line {style}", vector_effect="non-scaling-stroke")
    return element(
        "svg", line, x="0", y=TOP, width="100%", height=HEIGHT, viewBox=f"0 0 1000 {HEIGHT}",
        preserveAspectRatio="none", class_="stretch",
    )  # fmt: skip


def mark(x: float, y: float, shape: str, style: str, say: str | None) -> Markup:
    """A marker at parts of the plot; with words it can be pointed at and reached by the keyboard."""
    drawn = element("path", d=_SHAPES[shape], class_=f"mark {style}")
    box = element("svg", drawn, x=percent(x), y=_y(y), width=1, height=1, class_="stretch")
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
        parts = [*marker] if style == "cloud" else [line, *marker]
        items.append(element("li", element("svg", *parts, width=28, height=16, aria_hidden="true"), words))
    return element("ul", *items, class_="legend")


def scaling_plot(curve_: Scaling) -> Markup:
    """Scaling factor over workers, with the bound."""
    across = Axis(
        Scale(curve_.counts[0], curve_.counts[-1], True), _counts(curve_), lambda tick: f"{tick:g}", "workers"
    )
    top = max(1.0, *(factor for line in curve_.lines for factor in line.factors))
    up = Axis(Scale(0, top), even_ticks(0, top, UP), lambda tick: f"{tick:.1f}", "scaling factor (1: perfect)")
    drawn = [_chosen(curve_, across)]
    drawn.append(curve(list(zip(curve_.counts, curve_.bounds, strict=True)), across, up, "bound"))
    for number, line in enumerate(curve_.lines):
        drawn.append(curve(list(zip(curve_.counts, line.factors, strict=True)), across, up, f"s{number}"))
        for count, factor, time in zip(curve_.counts, line.factors, line.times, strict=True):
            figures = f"{show_time(time)}, scaling factor {factor:.3f}, speed-up {factor * count:.4g}"
            say = f"{line.name}, {count} workers: {figures}"
            drawn.append(mark(across.scale.place(count), up.scale.place(factor), SHAPES[number % 4], f"s{number}", say))
    return plot(across, up, drawn, "Scaling factor over workers", "The table below has every value.")


def scaling_key(curve_: Scaling, tuned: str) -> Markup:
    """Its legend; ``tuned``: the plan that is the same one at every count."""
    words = {tuned: f"{tuned} for {curve_.chosen} workers, the same at every count"}
    best = {"optimal": "optimal, another plan at each count"}
    entries = [
        (f"s{number}", SHAPES[number % 4], (words | best).get(line.name, line.name))
        for number, line in enumerate(curve_.lines)
    ]
    return key([*entries, ("bound", None, f"no schedule by the rules of {curve_.lines[0].name} can pass this")])


def _counts(curve_: Scaling) -> list[float]:
    """Some of the worker counts, so that their numbers do not touch."""
    step = math.ceil(len(curve_.counts) / 8)
    return [float(count) for count in curve_.counts[::step]]


def _chosen(curve_: Scaling, across: Axis) -> Markup:
    x = percent(across.scale.place(curve_.chosen))
    return element("line", x1=x, x2=x, y1=TOP, y2=TOP + HEIGHT, class_="chosen")


def sweep_plot(sweep: Sweep) -> Markup:
    """Iteration time over the limit of all buckets, with the best one and DDP's default."""
    across_scale = Scale(sweep.caps[0] / MIB, sweep.caps[-1] / MIB, True)
    ticks = decade_ticks(across_scale.low, across_scale.high, ACROSS)
    across = Axis(across_scale, ticks, lambda tick: f"{tick:g}", "bucket_cap_mb: one limit for all buckets (MiB)")
    low, high = min(*sweep.times, sweep.bound), max(*sweep.times, sweep.default)
    room = (high / low) ** 0.08
    unit, factor = time_unit(high)
    scale = Scale(low / room * factor, max(high * room, low * 1.02) * factor, True)
    up = Axis(scale, scale.ticks(UP), lambda tick: f"{tick:g}", f"iteration time ({unit})")
    points = [(cap / MIB, time * factor) for cap, time in zip(sweep.caps, sweep.times, strict=True)]
    drawn = [
        _level(sweep.bound * factor, up, "bound"),
        _level(sweep.default * factor, up, "s0"),
        curve(points, across, up, "s1"),
    ]
    for place, (cap, time) in enumerate(points):
        if place % 4 == 0 and place != sweep.best:
            drawn.append(mark(across_scale.place(cap), scale.place(time), "dot", "s1", _cap_words(sweep, place)))
    best = points[sweep.best]
    words = f"Best: {_cap_words(sweep, sweep.best)}"
    drawn.append(mark(across_scale.place(best[0]), scale.place(best[1]), "circle", "best", words))
    return plot(across, up, drawn, "Iteration time over bucket size", f"{words}. The table below has every value.")


def sweep_key(sweep: Sweep) -> Markup:
    """Its legend."""
    return key([
        ("s1", None, "one limit for all buckets"),
        ("best", "circle", f"best: {sweep.best_cap / MIB:.4g} MiB, {show_time(sweep.best_time)}"),
        ("s0", None, f"DDP's default, 1 MiB and then 25 MiB: {show_time(sweep.default)}"),
        ("bound", None, f"no schedule by DDP's rules is faster: {show_time(sweep.bound)}"),
    ])  # fmt: skip


def _cap_words(sweep: Sweep, place: int) -> str:
    buckets = sweep.buckets[place]
    return (
        f"{show_bytes(sweep.caps[place])}: {show_time(sweep.times[place])} in "
        f"{buckets} bucket{'' if buckets == 1 else 's'}"
    )


def _level(value: float, up: Axis, style: str) -> Markup:
    y = _y(up.scale.place(value))
    return element("line", x1="0", x2="100%", y1=y, y2=y, class_=f"line {style}")


def scatter_plot(picture: Scatter) -> Markup:
    """Predicted over measured time; on the diagonal they agree."""
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
            drawn.append(_dot(number, percent(x), _y(y), 2.5))
    words = "; ".join(_cloud_words(cloud.source, len(cloud.points), cloud.median_abs_error) for cloud in picture.clouds)
    return plot(across, up, drawn, "Predicted over measured iteration time", words)


def scatter_key(picture: Scatter) -> Markup:
    """Its legend."""
    items = []
    for number, cloud in enumerate(picture.clouds):
        dot = _dot(number, "8", 8.0, 4.0)
        words = _cloud_words(cloud.source, len(cloud.points), cloud.median_abs_error)
        items.append(element("li", element("svg", dot, width=16, height=16, aria_hidden="true"), words))
    return element("ul", *items, class_="legend")


def _dot(number: int, x: str, y: float, size: float) -> Markup:
    """A point of a source: discs, squares and rings by turns, so that sources differ by more than colour."""
    if number % 3 == 1:
        box = {"x": x, "y": y - size, "width": 2 * size, "height": 2 * size, "transform": f"translate({-size:g} 0)"}
        return element("rect", **box, class_=f"cloud c{number % 6}")
    ring = " ring" if number % 3 == 2 else ""
    return element("circle", cx=x, cy=y, r=size, class_=f"cloud c{number % 6}{ring}")


def _cloud_words(source: str, count: int, error: float | None) -> str:
    return f"{source}: {count} runs" + ("" if error is None else f", median error {error:.1%}")


def plans_plot(pictures: Pictures) -> Markup:
    """A bar for each plan: computation, what communication adds, and a line at the bound."""
    predictions = pictures.comparison.predictions
    longest = max(one.iteration_time for one in predictions)
    rows, names = [], []
    for place, one in enumerate(predictions):
        y, first = 2 + place * PLANS_LANE, min(one.timeline.compute_time, one.iteration_time)
        say = f"{one.name}: {show_time(one.iteration_time)}, {show_time(one.iteration_time - first)} of it exposed"
        bars = [element("rect", x="0", y=y, width=percent(first / longest), height=18, class_="bar backward")]
        rest = {"x": percent(first / longest), "y": y, "width": percent((one.iteration_time - first) / longest)}
        bars += [element("rect", **rest, height=18, class_=style) for style in ("fill", "exposed")]
        rows.append(element("g", *bars, role="img", aria_label=say, tabindex="0", data_say=say, class_="point"))
        names.append(element("text", _short(one.name), x="0", y=y + 14))
        names.append(element("text", show_time(one.iteration_time), x="100%", y=y + 14, class_="right"))
    tall = 4 + len(predictions) * PLANS_LANE
    at = percent(pictures.bound / longest)
    rows.append(element("line", x1=at, x2=at, y1=0, y2=tall - 4, class_="line bound"))
    label = "Iteration time of each plan: computation, and what communication adds"
    chart = element("svg", element("title", label), *rows, width="100%", height=tall, role="group", aria_label=label)
    margin = element("svg", *names, width="100%", height=tall, class_="plannames", aria_hidden="true")
    return element("div", margin, chart, class_="plans")


def _short(name: str) -> str:
    """Its end, where it is long: a file's name says more than its folder."""
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]


def _y(part: float) -> float:
    return TOP + HEIGHT * (1 - part)
