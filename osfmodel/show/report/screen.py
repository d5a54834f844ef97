"""Pictures on a terminal: characters that differ without colour, as wide as the terminal is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from osfmodel.entities.display import show_predicted_time
from osfmodel.entities.rounding import plain_sum
from osfmodel.show.picture import even_ticks, time_unit
from osfmodel.show.report import Pictures, coarse
from osfmodel.show.report.curves import CURVES
from osfmodel.show.report.gantt import KINDS, Bar, Gantt, Lane, kinds_of
from osfmodel.show.terminal import chart_width

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
"""Character and colour of each of KINDS."""
HIDDEN, EXPOSED = ("▄", "yellow"), ("█", "red")
"""Character and colour of communication: overlapped, and exposed."""


def show_pictures(console: Any, pictures: Pictures) -> None:
    """Print the default and the tuned iteration, each plan asked for, the measured ones, and the curves."""
    console.print(pictures.report.title, style="bold", markup=False)
    console.print(pictures.report.verdict, markup=False)
    gantts = [coarse(gantt) for gantt in pictures.main]
    for gantt in gantts:
        console.print()
        show_gantt(console, gantt, max(gantt.end for gantt in gantts))
    for why in pictures.report.why:
        console.print(f"What limits the traced job: {why}", markup=False)
    for doubt in pictures.report.doubts:
        console.print(doubt, style="bold", markup=False)
    _legend(console, gantts)
    console.print()
    _show_plans(console, pictures)
    for curve in pictures.curves:
        console.print()
        CURVES[type(curve)].terminal(console, curve)


def show_gantt(console: Any, gantt: Gantt, end: float) -> None:
    """Print lanes of characters over ``end`` seconds; a collective begins with its bucket's number, if that fits."""
    from rich.text import Text

    margin = max(len(lane.name) for lane in gantt.lanes) + 1
    width = chart_width(console, margin)
    buckets = len(gantt.collectives)
    words = f"{gantt.name}{' (measured)' if gantt.measured else ''}: {gantt.shown(gantt.end)}, "
    words += f"{buckets} collective{'s' if buckets != 1 else ''}, {gantt.shown(gantt.exposed_time)} exposed"
    console.print(words, style="bold", markup=False)
    for lane in gantt.lanes:
        row = Text(f"{lane.name:<{margin}}")
        for glyph, colour in _cells(lane, width, end):
            row.append(glyph, style=colour)
        console.print(row)
    console.print(" " * margin + _axis(width, end), markup=False)


def _cells(lane: Lane, width: int, end: float) -> list[tuple[str, str]]:
    """A character and a colour for each column: those of its longest part, if it is busy for a third or more.

    A collective begins with its number.
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
    alone = plain_sum(_overlap(start, end, left, right) for start, end in bar.exposed)
    return EXPOSED if 2 * alone >= _overlap(bar.start, bar.end, left, right) else HIDDEN


def _number(cells: list[tuple[str, str]], text: str, first: int, last: int) -> None:
    if last - first > len(text):
        for place, character in enumerate(text, start=first):
            cells[place] = (character, "bold")


def _axis(width: int, end: float) -> str:
    """Times below their columns, as far as they fit; the last one has the unit and ends with the chart."""
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
    """Print a bar for each plan, computation and exposed communication, with a mark at the bound."""
    from rich.text import Text

    predictions = pictures.report.comparison.predictions
    bound = pictures.report.bound
    margin = max(len(one.name) for one in predictions) + 1
    width = chart_width(console, margin + 12)
    longest = max(one.iteration_time for one in predictions)
    console.print("Iteration time of each plan", style="bold")
    for one in predictions:
        computing = min(one.timeline.compute_time, one.iteration_time)
        first = round(computing / longest * width)
        whole = max(round(one.iteration_time / longest * width), first)
        row = Text(f"{one.name:<{margin}}")
        row.append(GLYPHS["backward"][0] * first, style="blue").append(EXPOSED[0] * (whole - first), style="red")
        console.print(row.append(f" {show_predicted_time(one.iteration_time)}"))
    place = margin + min(round(bound / longest * width), width - 1)
    rules = f"the rules of {pictures.report.default.name}"
    words = f"no schedule by {rules} is faster at these prices: {show_predicted_time(bound)}"
    fits = place + len(words) + 2 < console.width
    console.print(" " * place + f"↑ {words}" if fits else f"{words} ↑".rjust(place + 1), markup=False)
