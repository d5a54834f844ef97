"""Pictures on a terminal: characters that are told apart without colour, as wide as the terminal is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osfmodel.entities.units import show_time
from osfmodel.show.pictures import Curve, Pictures
from osfmodel.show.pictures.coarse import coarse
from osfmodel.show.pictures.curves import Scaling, Sweep
from osfmodel.show.pictures.gantt import KINDS, Bar, Gantt, Lane, kinds_of
from osfmodel.show.pictures.scatter import Scatter
from osfmodel.show.pictures.ticks import even_ticks, time_unit

GLYPHS = {
    "forward": ("░", "blue"),
    "backward": ("▒", "blue"),
    "compute": ("▒", "blue"),
    "update": ("▓", "green"),
    "copy": ("▓", "magenta"),
    "spread": ("▓", "magenta"),
    "input": ("▓", "magenta"),
    "other": ("▓", "cyan"),
}
"""What stands for each of KINDS, and its colour."""
HIDDEN, EXPOSED = ("▄", "yellow"), ("█", "red")
"""What stands for communication beside computation, and without."""
LEAST, MOST = 12, 160
"""Columns of a chart."""
HEIGHT = 9
"""Rows of a curve."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
MARKS = "ox+*#@%&"
"""One for each source of measured runs."""


def show_pictures(console: Any, pictures: Pictures) -> None:
    """The default and the tuned iteration, each plan asked for, the measured ones, and the curves."""
    console.print(pictures.title, style="bold", markup=False)
    console.print(pictures.verdict, markup=False)
    gantts = [coarse(gantt) for gantt in pictures.main]
    for gantt in gantts:
        console.print()
        show_gantt(console, gantt, max(gantt.end for gantt in gantts))
    for why in pictures.why:
        console.print(f"What limits the traced job: {why}", markup=False)
    for doubt in pictures.doubts:
        console.print(doubt, style="bold", markup=False)
    _legend(console, gantts)
    console.print()
    _show_plans(console, pictures)
    for curve in pictures.curves:
        console.print()
        CURVES[type(curve)](console, curve)


def show_gantt(console: Any, gantt: Gantt, end: float) -> None:
    """Lanes of characters over ``end`` seconds; a bucket's number where its collective begins, as far as it fits."""
    from rich.text import Text

    margin = max(len(lane.name) for lane in gantt.lanes) + 1
    width = _width(console, margin)
    buckets = len(gantt.collectives)
    words = f"{gantt.name}{' (measured)' if gantt.measured else ''}: {show_time(gantt.end)}, "
    words += f"{buckets} collective{'s' if buckets != 1 else ''}, {show_time(gantt.exposed_time)} exposed"
    console.print(words, style="bold", markup=False)
    for lane in gantt.lanes:
        row = Text(f"{lane.name:<{margin}}")
        for glyph, colour in _cells(lane, width, end):
            row.append(glyph, style=colour)
        console.print(row)
    console.print(" " * margin + _axis(width, end), markup=False)


def _cells(lane: Lane, width: int, end: float) -> list[tuple[str, str]]:
    """A character and a colour for each column: its longest part's, where it is busy for a third or more.

    At the start of a collective stands its number.
    """
    cells: list[tuple[str, str]] = [(" ", "")] * width
    longest, busy = [0.0] * width, [0.0] * width
    column = end / width
    for bar in lane.bars:
        for place in range(int(bar.start / column), min(math.ceil(bar.end / column), width)):
            part = bar.coverage * _overlap(bar.start, bar.end, place * column, (place + 1) * column)
            busy[place] += part
            if part > longest[place]:
                longest[place] = part
                cells[place] = _glyph(bar, place * column, (place + 1) * column)
    cells = [cell if part >= column / 3 else (" ", "") for cell, part in zip(cells, busy, strict=True)]
    for bar in lane.bars:
        if bar.sends and bar.bucket is not None:
            _number(cells, str(bar.bucket + 1), round(bar.start / column), math.floor(bar.end / column))
    return cells


def _overlap(start: float, end: float, left: float, right: float) -> float:
    return max(0.0, min(end, right) - max(start, left))


def _glyph(bar: Bar, left: float, right: float) -> tuple[str, str]:
    if not bar.sends:
        return GLYPHS[bar.look]
    alone = sum(_overlap(start, end, left, right) for start, end in bar.exposed)
    return EXPOSED if 2 * alone >= _overlap(bar.start, bar.end, left, right) else HIDDEN


def _number(cells: list[tuple[str, str]], text: str, first: int, last: int) -> None:
    if last - first > len(text):
        for place, character in enumerate(text, start=first):
            cells[place] = (character, "bold")


def _axis(width: int, end: float) -> str:
    """Times below their columns, as far as they fit; the last one has its unit, and ends where the chart does."""
    row, free = [" "] * (width + 1), width + 1
    unit, factor = time_unit(end)
    ticks = even_ticks(0, end * factor, max(2, width // 10))
    for tick in reversed(ticks):
        last = tick == ticks[-1]
        text = f"{tick:g}" + (f" {unit}" if last else "")
        place = round(tick / (end * factor) * width)
        first = max(0, min(place, free - len(text))) if last else place
        if first + len(text) <= free:
            row[first : first + len(text)] = text
            free = first - 1
    return "".join(row).rstrip()


def _legend(console: Any, gantts: Sequence[Gantt]) -> None:
    from rich.text import Text

    line = Text()
    for kind in kinds_of(gantts):
        line.append(GLYPHS[kind][0], style=GLYPHS[kind][1]).append(f" {KINDS[kind]}   ")
    line.append(HIDDEN[0], style=HIDDEN[1]).append(" communication, hidden   ")
    line.append(EXPOSED[0], style=EXPOSED[1]).append(" exposed: nothing computes meanwhile")
    console.print(line)


def _show_plans(console: Any, pictures: Pictures) -> None:
    """A bar for each plan, computation and what communication adds, and a mark at the bound."""
    from rich.text import Text

    predictions = pictures.comparison.predictions
    bound = pictures.bound
    margin = max(len(one.name) for one in predictions) + 1
    width = _width(console, margin + 12)
    longest = max(one.iteration_time for one in predictions)
    console.print("Iteration time of each plan", style="bold")
    for one in predictions:
        computing = min(one.timeline.compute_time, one.iteration_time)
        first = round(computing / longest * width)
        whole = max(round(one.iteration_time / longest * width), first)
        row = Text(f"{one.name:<{margin}}")
        row.append(GLYPHS["backward"][0] * first, style="blue").append(EXPOSED[0] * (whole - first), style="red")
        console.print(row.append(f" {show_time(one.iteration_time)}"))
    place = margin + min(round(bound / longest * width), width - 1)
    words = f"no schedule by the rules of {pictures.default.name} is faster: {show_time(bound)}"
    fits = place + len(words) + 2 < console.width
    console.print(" " * place + f"↑ {words}" if fits else f"{words} ↑".rjust(place + 1), markup=False)


def show_scaling(console: Any, curve: Scaling) -> None:
    """A bar for each plan and worker count, from 0 to a scaling factor of 1; the bound is a stroke."""
    from rich.text import Text

    margin = 9 + max(len(line.name) for line in curve.lines)
    width = _width(console, margin + 18)
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
            console.print(row.append(f" {factor:.3f} {factor * count:8.4g}x"))


def _bar(part: float, width: int) -> str:
    """A horizontal bar in half columns."""
    halves = round(2 * part * width)
    return "█" * (halves // 2) + "▌" * (halves % 2)


def show_sweep(console: Any, sweep: Sweep) -> None:
    """Columns: iteration time over the logarithm of the limit, from the bound up; the best limit is marked below."""
    margin = 10
    width = min(_width(console, margin), len(sweep.caps) * 2)
    title = f"Iteration time over {sweep.setting}; best {sweep.words(sweep.best_cap)}: {show_time(sweep.best_time)}"
    console.print(f"{title}; {sweep.target} by default: {show_time(sweep.default)}", style="bold", markup=False)
    first, last = math.log(sweep.caps[0]), math.log(sweep.caps[-1])
    span = (last - first) or 1.0
    logs = [math.log(cap) for cap in sweep.caps]
    nearest = [
        min(range(len(logs)), key=lambda i, at=first + span * (column + 0.5) / width: abs(logs[i] - at))  # type: ignore[misc]
        for column in range(width)
    ]
    times = [sweep.times[place] for place in nearest]
    low, high = min(*times, sweep.bound) * 0.98, max(times)
    levels = [round(HEIGHT * 8 * (time - low) / ((high - low) or 1)) for time in times]
    best = min(int((logs[sweep.best] - first) / span * width), width - 1)
    for row in reversed(range(HEIGHT)):
        label = show_time(high) if row == HEIGHT - 1 else show_time(low) if row == 0 else ""
        cells = "".join(EIGHTHS[min(max(level - 8 * row, 0), 8)] for level in levels)
        console.print(f"{label:>{margin - 1}} {cells}".rstrip(), markup=False)
    console.print(" " * (margin + best) + "↑ best", markup=False)
    left, right = sweep.words(sweep.caps[0]), sweep.words(sweep.caps[-1])
    console.print(" " * margin + left + right.rjust(max(width - len(left), len(right) + 1)), markup=False)


def show_scatter(console: Any, picture: Scatter) -> None:
    """Measured to the right, predicted upwards, both over the logarithm; dots are where they agree."""
    low, high = (math.log(value) for value in picture.ends)
    span = (high - low) or 1.0
    height, width = 2 * HEIGHT, min(4 * HEIGHT + 4, _width(console, 10))
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


CURVES: Mapping[type[Curve], Callable[[Any, Any], None]] = {
    Scaling: show_scaling,
    Sweep: show_sweep,
    Scatter: show_scatter,
}
"""What draws each type of curve."""


def _width(console: Any, margin: int) -> int:
    return int(min(max(console.width - margin - 1, LEAST), MOST))
