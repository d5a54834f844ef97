"""Scaling factor over workers, in every form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from osfmodel.entities.display import show_predicted_time
from osfmodel.planning.report import BEST, TUNED, Scaling
from osfmodel.show.html.axes import HEIGHT, SHAPES, TOP, UP, Axis, Scale, curve, key, mark, plot
from osfmodel.show.html.markup import Markup, element, figure_words, folded, percent, table
from osfmodel.show.pictures.ticks import even_ticks
from osfmodel.show.plotting import COLOURS, finish
from osfmodel.show.tables.plans import times
from osfmodel.show.terminal.charts import chart_width


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
