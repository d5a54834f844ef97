"""Iteration time over the bucket size limit, in every form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from osfmodel.entities.display import show_predicted_time
from osfmodel.planning.report import SizeCurve
from osfmodel.show.html.axes import ACROSS, UP, Axis, Scale, curve, key, level, mark, plot
from osfmodel.show.html.markup import Markup, element, figure_words, folded, table
from osfmodel.show.pictures.ticks import decade_ticks, time_unit
from osfmodel.show.plotting import COLOURS, finish
from osfmodel.show.terminal.charts import HEIGHT, chart_width

EIGHTHS = " ▁▂▃▄▅▆▇█"


def show_sizes(console: Any, limits: SizeCurve) -> None:
    """Draw iteration time as columns over the logarithm of the limit, from the bound up; mark the best limit."""
    margin = 10
    width = min(chart_width(console, margin), len(limits.caps) * 2)
    lowest = show_predicted_time(limits.best_time)
    title = f"Iteration time over {limits.setting}; best {limits.words(limits.best_cap)}: {lowest}"
    console.print(
        f"{title}; {limits.target} by default: {show_predicted_time(limits.default)}", style="bold", markup=False
    )
    first, last = math.log(limits.caps[0]), math.log(limits.caps[-1])
    span = (last - first) or 1.0
    logs = [math.log(cap) for cap in limits.caps]
    nearest = [
        min(range(len(logs)), key=lambda i, at=first + span * (column + 0.5) / width: abs(logs[i] - at))  # type: ignore[misc]
        for column in range(width)
    ]
    times = [limits.times[place] for place in nearest]
    low, high = min(*times, limits.bound) * 0.98, max(times)
    levels = [round(HEIGHT * 8 * (time - low) / ((high - low) or 1)) for time in times]
    best = min(int((logs[limits.best] - first) / span * width), width - 1)
    for row in reversed(range(HEIGHT)):
        label = show_predicted_time(high) if row == HEIGHT - 1 else show_predicted_time(low) if row == 0 else ""
        cells = "".join(EIGHTHS[min(max(level - 8 * row, 0), 8)] for level in levels)
        console.print(f"{label:>{margin - 1}} {cells}".rstrip(), markup=False)
    console.print(" " * (margin + best) + "↑ best", markup=False)
    left, right = limits.words(limits.caps[0]), limits.words(limits.caps[-1])
    console.print(" " * margin + left + right.rjust(max(width - len(left), len(right) + 1)), markup=False)


def draw_sizes(axes: Any, limits: SizeCurve) -> None:
    """Draw iteration time over one limit for all buckets."""
    name, whole = limits.unit
    caps = [cap / whole for cap in limits.caps]
    unit, factor = time_unit(max(*limits.times, limits.default))
    axes.plot(
        caps, [time * factor for time in limits.times], color=COLOURS[0], linewidth=1.4, label="one limit for all"
    )
    best = f"best: {limits.words(limits.best_cap)}"
    axes.plot(
        [caps[limits.best]], [limits.best_time * factor], "o", color=COLOURS[0], markeredgecolor="black", label=best
    )
    axes.axhline(
        limits.default * factor, color=COLOURS[3], linestyle="--", linewidth=1.2, label=f"{limits.target} by default"
    )
    axes.axhline(limits.bound * factor, color="black", linestyle=(0, (5, 4)), linewidth=1, label="bound")
    axes.set_xscale("log")
    axes.set(xlabel=f"{limits.setting} ({name})", ylabel=f"iteration time ({unit})")
    axes.xaxis.set_major_formatter("{x:g}")
    finish(axes)


def size_plot(limits: SizeCurve) -> Markup:
    """A plot of iteration time over one limit for all buckets, with the best limit and the framework's default."""
    name, unit_size = limits.unit
    across_scale = Scale(limits.caps[0] / unit_size, limits.caps[-1] / unit_size, True)
    ticks = decade_ticks(across_scale.low, across_scale.high, ACROSS)
    across = Axis(across_scale, ticks, lambda tick: f"{tick:g}", f"{limits.setting} ({name})")
    low, high = min(*limits.times, limits.bound), max(*limits.times, limits.default)
    room = (high / low) ** 0.08
    unit, factor = time_unit(high)
    scale = Scale(low / room * factor, max(high * room, low * 1.02) * factor, True)
    up = Axis(scale, scale.ticks(UP), lambda tick: f"{tick:g}", f"iteration time ({unit})")
    points = [(cap / unit_size, time * factor) for cap, time in zip(limits.caps, limits.times, strict=True)]
    drawn = [
        level(limits.bound * factor, up, "bound"),
        level(limits.default * factor, up, "s0"),
        curve(points, across, up, "s1"),
    ]
    for place, (cap, time) in enumerate(points):
        if place % 4 == 0 and place != limits.best:
            drawn.append(mark(across_scale.place(cap), scale.place(time), "dot", "s1", _cap_words(limits, place)))
    best = points[limits.best]
    words = f"Best: {_cap_words(limits, limits.best)}"
    drawn.append(mark(across_scale.place(best[0]), scale.place(best[1]), "circle", "best", words))
    return plot(across, up, drawn, "Iteration time over bucket size", f"{words}. The table below has every value.")


def size_key(limits: SizeCurve) -> Markup:
    """The legend of the plot."""
    unbeaten = f"no schedule by the rules of {limits.target} is faster at these prices"
    return key([
        ("s1", None, "one limit for all buckets"),
        ("best", "circle", f"best: {limits.words(limits.best_cap)}, {show_predicted_time(limits.best_time)}"),
        ("s0", None, f"{limits.target} by default: {show_predicted_time(limits.default)}"),
        ("bound", None, f"{unbeaten}: {show_predicted_time(limits.bound)}"),
    ])  # fmt: skip


def _limit(value: float) -> str:
    """A limit with four digits, whatever they are."""
    return f"{value:#.4g}".rstrip(".")


def _cap_words(limits: SizeCurve, place: int) -> str:
    buckets = limits.buckets[place]
    return (
        f"{limits.words(limits.caps[place])}: {show_predicted_time(limits.times[place])} in "
        f"{buckets} bucket{'' if buckets == 1 else 's'}"
    )


def sizes(limits: SizeCurve) -> Iterable[Markup]:
    """Plot, legend and table of iteration time over bucket size, for a page."""
    words = f"The best {limits.setting} is {limits.words(limits.best_cap)}. Point at the curve for other sizes."
    yield element("figure", size_plot(limits), figure_words(words))
    yield size_key(limits)
    name, unit = limits.unit
    rows = [
        (_limit(cap / unit), show_predicted_time(time), str(count), "best" if place == limits.best else "")
        for place, (cap, time, count) in enumerate(zip(limits.caps, limits.times, limits.buckets, strict=True))
    ]
    every = table("One limit for all buckets", (f"limit ({name})", "iteration", "buckets", ""), rows, "figures")
    yield folded("Bucket sizes as a table", every)
