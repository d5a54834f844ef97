"""The curves of a report: each as a plot with its legend and its table, under a heading of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from osfmodel.entities.units import show_time
from osfmodel.show.html.axes import ACROSS, HEIGHT, SHAPES, TOP, UP, Axis, Scale, curve, down, key, level, mark, plot
from osfmodel.show.html.markup import Markup, element, figure_words, folded, percent, table
from osfmodel.show.pictures import BEST, TUNED, Curve
from osfmodel.show.pictures.curves import Scaling, Sweep
from osfmodel.show.pictures.scatter import Scatter
from osfmodel.show.pictures.ticks import decade_ticks, even_ticks, time_unit

MOST_POINTS = 250
"""Points of a source that are drawn: more hide each other. They are taken evenly out of their order."""


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


def scaling_key(curve_: Scaling) -> Markup:
    """Its legend."""
    words = {TUNED: f"{TUNED} for {curve_.chosen} workers, the same at every count"}
    best = {BEST: f"{BEST}, another plan at each count"}
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
    """Iteration time over the limit of all buckets, with the best one and the framework's default."""
    name, unit_size = sweep.unit
    across_scale = Scale(sweep.caps[0] / unit_size, sweep.caps[-1] / unit_size, True)
    ticks = decade_ticks(across_scale.low, across_scale.high, ACROSS)
    across = Axis(across_scale, ticks, lambda tick: f"{tick:g}", f"{sweep.setting} ({name})")
    low, high = min(*sweep.times, sweep.bound), max(*sweep.times, sweep.default)
    room = (high / low) ** 0.08
    unit, factor = time_unit(high)
    scale = Scale(low / room * factor, max(high * room, low * 1.02) * factor, True)
    up = Axis(scale, scale.ticks(UP), lambda tick: f"{tick:g}", f"iteration time ({unit})")
    points = [(cap / unit_size, time * factor) for cap, time in zip(sweep.caps, sweep.times, strict=True)]
    drawn = [
        level(sweep.bound * factor, up, "bound"),
        level(sweep.default * factor, up, "s0"),
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
        ("best", "circle", f"best: {sweep.words(sweep.best_cap)}, {show_time(sweep.best_time)}"),
        ("s0", None, f"{sweep.target} by default: {show_time(sweep.default)}"),
        ("bound", None, f"no schedule by the rules of {sweep.target} is faster: {show_time(sweep.bound)}"),
    ])  # fmt: skip


def _cap_words(sweep: Sweep, place: int) -> str:
    buckets = sweep.buckets[place]
    return (
        f"{sweep.words(sweep.caps[place])}: {show_time(sweep.times[place])} in "
        f"{buckets} bucket{'' if buckets == 1 else 's'}"
    )


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
            drawn.append(_dot(number, percent(x), down(y), 2.5))
    words = "; ".join(f"{cloud.name}: {cloud.runs}" for cloud in picture.clouds)
    return plot(across, up, drawn, "Predicted over measured iteration time", words)


def scatter_key(picture: Scatter) -> Markup:
    """Its legend."""
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


def workers(curve_: Scaling) -> Iterable[Markup]:
    """Scaling factors over worker counts."""
    place = curve_.counts.index(curve_.chosen)
    factors = ", ".join(f"{line.name} {line.factors[place]:.3f}" for line in curve_.lines)
    words = f"Scaling factors at {curve_.chosen} workers: {factors}, no schedule above {curve_.bounds[place]:.3f}."
    yield element("figure", scaling_plot(curve_), figure_words(words))
    yield scaling_key(curve_)
    heads = ("workers", *(line.name for line in curve_.lines), "bound")
    rows = [
        (str(count), *(f"{show_time(line.times[place])}, {line.factors[place]:.3f}" for line in curve_.lines),
         f"{curve_.bounds[place]:.3f}")
        for place, count in enumerate(curve_.counts)
    ]  # fmt: skip
    yield folded("Workers as a table", table("Iteration time and scaling factor", heads, rows))


def sizes(sweep: Sweep) -> Iterable[Markup]:
    """Iteration time over bucket size."""
    words = f"The best {sweep.setting} is {sweep.words(sweep.best_cap)}. Point at the curve for other sizes."
    yield element("figure", sweep_plot(sweep), figure_words(words))
    yield sweep_key(sweep)
    name, unit = sweep.unit
    rows = [
        (f"{cap / unit:.4g}", show_time(time), str(count), "best" if place == sweep.best else "")
        for place, (cap, time, count) in enumerate(zip(sweep.caps, sweep.times, sweep.buckets, strict=True))
    ]
    every = table("One limit for all buckets", (f"limit ({name})", "iteration", "buckets", ""), rows)
    yield folded("Bucket sizes as a table", every)


def evidence(picture: Scatter) -> Iterable[Markup]:
    """Predicted over measured time of all runs of the sources of the error band."""
    yield element("figure", scatter_plot(picture))
    yield scatter_key(picture)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page: its id, its heading, and what makes its content out of a curve."""

    key: str
    title: str
    content: Callable[[Any], Iterable[Markup]]


CURVES: Mapping[type[Curve], Section] = {
    Scaling: Section("workers", "More workers", workers),
    Sweep: Section("sizes", "Bucket size", sizes),
    Scatter: Section("evidence", "Runs of the sources of the error band", evidence),
}
"""The section of each type of curve."""
