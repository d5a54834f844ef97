"""Scaling factor over workers, and iteration time over the bucket size limit, in every form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from osfmodel.entities.display import show_predicted_time
from osfmodel.planning.report import BEST, TUNED, Scaling, SizeCurve
from osfmodel.show.checks.scatter import Scatter, draw_scatter, evidence, show_scatter
from osfmodel.show.page import (
    ACROSS,
    HEIGHT,
    SHAPES,
    TOP,
    UP,
    Axis,
    Markup,
    Scale,
    curve,
    element,
    figure_words,
    folded,
    key,
    level,
    mark,
    percent,
    plot,
    table,
)
from osfmodel.show.picture import COLOURS, decade_ticks, even_ticks, finish, time_unit
from osfmodel.show.plans import times
from osfmodel.show.report import Curve
from osfmodel.show.terminal import CURVE_ROWS, chart_width


def show_scaling(console: Any, curve: Scaling) -> None:
    """A bar for each plan and worker count, from 0 to a scaling factor of 1; the bound is a stroke."""
    from rich.text import Text

    margin = 9 + max(len(line.name) for line in curve.lines)
    width = chart_width(console, margin + 18)
    console.print("Scaling factor (1: perfect) and speed-up; │ no schedule passes this", style="bold")
    for place, count in enumerate(curve.counts):
        for number, line in enumerate(curve.lines):
            factor = line.factors[place]
            cells = list(_bar(min(factor, 1), width).ljust(width))
            bound = min(int(curve.bounds[place] * width), width - 1)
            row = Text(f"{count if number == 0 else '':>6}  {line.name:<{margin - 8}}")
            for column, character in enumerate(cells):
                mark = column == bound and character == " "
                row.append("│" if mark else character, style="" if mark else ("cyan", "green")[number % 2])
            console.print(row.append(f" {factor:.3f} {times(factor * count):>9}"))


def _bar(part: float, width: int) -> str:
    """A horizontal bar in half columns."""
    halves = round(2 * part * width)
    return "█" * (halves // 2) + "▌" * (halves % 2)


def draw_scaling(axes: Any, curve: Scaling) -> None:
    """Draw scaling factors over workers on axes of matplotlib."""
    for number, line in enumerate(curve.lines):
        style = {
            "marker": "osD^"[number % 4],
            "color": COLOURS[(3, 0, 2, 4)[number % 4]],
            "linewidth": 1.4,
            "markersize": 4,
        }
        name = f"{line.name} for {curve.chosen}" if line.name == "tuned" else line.name
        axes.plot(curve.counts, line.factors, label=name, linestyle=("--", "-", ":")[number % 3], **style)
    axes.plot(curve.counts, curve.bounds, color="black", linestyle=(0, (5, 4)), linewidth=1, label="no schedule passes")
    axes.axvline(curve.chosen, color="#cccccc", linewidth=1.5, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(curve.counts, [str(count) for count in curve.counts], fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(0, max(1.02, *(factor * 1.02 for line in curve.lines for factor in line.factors)))
    axes.set(xlabel="workers", ylabel="scaling factor")
    finish(axes)


def scaling_plot(curve_: Scaling) -> Markup:
    """A plot of scaling factors over workers, with the bound."""
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
            figures = f"{show_predicted_time(time)}, scaling factor {factor:.3f}, speed-up {times(factor * count)}"
            say = f"{line.name}, {count} workers: {figures}"
            drawn.append(mark(across.scale.place(count), up.scale.place(factor), SHAPES[number % 4], f"s{number}", say))
    return plot(across, up, drawn, "Scaling factor over workers", "The table below has every value.")


def scaling_key(curve_: Scaling) -> Markup:
    """The legend of the plot."""
    words = {TUNED: f"{TUNED} for {curve_.chosen} workers, the same at every count"}
    best = {BEST: f"{BEST}, a different plan at each count"}
    entries = [
        (f"s{number}", SHAPES[number % 4], (words | best).get(line.name, line.name))
        for number, line in enumerate(curve_.lines)
    ]
    return key(
        [*entries, ("bound", None, f"no schedule by the rules of {curve_.lines[0].name} can pass this at these prices")]
    )


def _counts(curve_: Scaling) -> list[float]:
    """Worker counts to label: at most some eight, so that labels do not touch."""
    step = math.ceil(len(curve_.counts) / 8)
    return [float(count) for count in curve_.counts[::step]]


def _chosen(curve_: Scaling, across: Axis) -> Markup:
    x = percent(across.scale.place(curve_.chosen))
    return element("line", x1=x, x2=x, y1=TOP, y2=TOP + HEIGHT, class_="chosen")


def workers(curve_: Scaling) -> Iterable[Markup]:
    """Plot, legend and table of scaling factors over worker counts, for a page."""
    place = curve_.counts.index(curve_.chosen)
    factors = ", ".join(f"{line.name} {line.factors[place]:.3f}" for line in curve_.lines)
    words = f"Scaling factors at {curve_.chosen} workers: {factors}, no schedule above {curve_.bounds[place]:.3f}."
    yield element("figure", scaling_plot(curve_), figure_words(words))
    yield scaling_key(curve_)
    heads = ("workers", *(line.name for line in curve_.lines), "bound")
    rows = [
        (str(count), *(f"{show_predicted_time(line.times[place])}, {line.factors[place]:.3f}" for line in curve_.lines),
         f"{curve_.bounds[place]:.3f}")
        for place, count in enumerate(curve_.counts)
    ]  # fmt: skip
    yield folded("Workers as a table", table("Iteration time and scaling factor", heads, rows))


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
    levels = [round(CURVE_ROWS * 8 * (time - low) / ((high - low) or 1)) for time in times]
    best = min(int((logs[limits.best] - first) / span * width), width - 1)
    for row in reversed(range(CURVE_ROWS)):
        label = show_predicted_time(high) if row == CURVE_ROWS - 1 else show_predicted_time(low) if row == 0 else ""
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


@dataclass(frozen=True, slots=True)
class Drawing:
    """A type of curve, with a drawing function for each form.

    key, title: id and heading of its section of a page
    section:    (curve) -> content of that section
    terminal:   (console, curve), prints it
    axes:       (axes of matplotlib, curve), draws on them
    """

    key: str
    title: str
    section: Callable[[Any], Iterable[Markup]]
    terminal: Callable[[Any, Any], None]
    axes: Callable[[Any, Any], None]


CURVES: Mapping[type[Curve], Drawing] = {
    Scaling: Drawing("workers", "More workers", workers, show_scaling, draw_scaling),
    SizeCurve: Drawing("sizes", "Bucket size", sizes, show_sizes, draw_sizes),
    Scatter: Drawing(
        "evidence",
        "Runs of the sources of the error band",
        evidence,
        show_scatter,
        draw_scatter,
    ),
}
"""The drawing of each type of curve."""
