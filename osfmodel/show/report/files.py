"""The pictures of a report as files (PNG or SVG by matplotlib, Chrome trace), and as characters on a terminal.

The extra ``plot`` installs matplotlib. ui.perfetto.dev and chrome://tracing open the trace. Format: "Trace Event
Format", object form. One process per plan and per measured step, one thread per stream; each bar is a complete event
(``ph`` X) with times in microseconds; ``args`` hold bytes, bucket and layers. On a terminal characters differ without
colour, and a picture is as wide as the terminal is.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from typing import Any

from osfmodel.entities.display import show_predicted_time
from osfmodel.entities.files import documents
from osfmodel.entities.numbers import plain_sum
from osfmodel.show.picture import even_ticks, figure_of, plain, save, time_unit
from osfmodel.show.report import Pictures, coarse
from osfmodel.show.report.curves import CURVES
from osfmodel.show.report.gantt import KINDS, Bar, Gantt, Lane, kinds_of
from osfmodel.show.terminal import chart_width

FILLS = {
    "forward": "#8cc5ea",
    "backward": "#3d87c0",
    "compute": "#3d87c0",
    "update": "#33a17f",
    "copy": "#b86f9b",
    "spread": "#b86f9b",
    "input": "#8a8f9c",
    "other": "#5fb3b8",
}
"""Colours of KINDS; adjacent ones also differ in lightness."""
WIRE = "#f0b133"
WIDTH, LANE, TALL = 10.0, 0.36, 3.6
"""Inches: of the figure, of a lane, and of the row of curves."""
NUMBERED = 0.03
"""Minimum width of a bar that carries its number, as a fraction of the picture."""
EDGED = 0.01
"""Minimum width of a bar with a white edge, which would cover a narrower one."""


def plot_pictures(pictures: Pictures, path: str) -> None:
    """Draw the default, tuned, traced and measured iterations above each other, and the curves below.

    Raises UsageError where matplotlib is missing, DataError where the file cannot be written.
    """
    gantts = [coarse(gantt) for gantt in pictures.main]
    rows = [LANE * (len(gantt.lanes) + 2.2) for gantt in gantts]
    figure = figure_of((WIDTH, plain_sum(rows) + TALL + 0.9))
    grid = figure.add_gridspec(len(rows) + 1, len(pictures.curves), height_ratios=[*rows, TALL])
    longest = max(gantt.end for gantt in gantts)
    for row, gantt in enumerate(gantts):
        draw_gantt(figure.add_subplot(grid[row, :]), gantt, longest)
    for column, curve in enumerate(pictures.curves):
        CURVES[type(curve)].axes(figure.add_subplot(grid[-1, column]), curve)
    figure.suptitle(pictures.report.title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.legend(handles=_patches(gantts), loc="outside lower left", ncols=8, fontsize=8, frameon=False)
    save(figure, path)


def draw_gantt(axes: Any, gantt: Gantt, longest: float) -> None:
    """Draw lanes over time, from the top down; a bar is as high as it is busy, its exposed parts are hatched."""
    from matplotlib.patheffects import withStroke

    unit, factor = time_unit(longest)
    for place, lane in enumerate(reversed(gantt.lanes)):
        for bar in lane.bars:
            spot = [(bar.start * factor, bar.duration * factor)]
            edge = {"edgecolor": "white", "lw": 0.3 if bar.duration > EDGED * longest else 0}
            tall = 0.8 * bar.coverage  # as high as it is busy
            axes.broken_barh(spot, (place - 0.4, tall), facecolors=WIRE if bar.sends else FILLS[bar.look], **edge)
            parts = [(start * factor, (end - start) * factor) for start, end in bar.exposed]
            axes.broken_barh(parts, (place - 0.4, 0.8), facecolors="none", edgecolor="#7a2e00", hatch="////", lw=0)
            if bar.sends and bar.bucket is not None and bar.duration > NUMBERED * longest:
                middle = (bar.start + bar.end) / 2 * factor
                said = axes.text(
                    middle, place, str(bar.bucket + 1), ha="center", va="center", fontsize=9, weight="bold"
                )
                said.set_path_effects([withStroke(linewidth=7, foreground=WIRE)])  # readable on the hatch
    if gantt.alone is not None:
        axes.axvline(gantt.alone * factor, color="black", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(gantt.lanes)), [lane.name for lane in reversed(gantt.lanes)])
    axes.set(xlim=(0, longest * factor), ylim=(-0.6, len(gantt.lanes) - 0.4))
    words = f"{'measured, ' if gantt.measured else ''}{gantt.name}: {gantt.shown(gantt.end)}"
    axes.set_title(f"{words}, {gantt.shown(gantt.exposed_time)} exposed", loc="left", fontsize=10)
    axes.set_xlabel(unit, loc="right", labelpad=-10, fontsize=8)
    plain(axes)


def _patches(gantts: Sequence[Gantt]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=FILLS[kind], label=KINDS[kind]) for kind in kinds_of(gantts)]
    patches.append(Patch(facecolor=WIRE, label="collective"))
    patches.append(Patch(facecolor=WIRE, edgecolor="#7a2e00", hatch="////", linewidth=0, label="exposed"))
    return [*patches, Line2D([], [], color="black", linestyle=":", linewidth=1, label="a single worker ends")]


MICROSECONDS = 1e6
NANOSECONDS = 1e9
THREADS = 1000
"""Thread numbers reserved for each process, so that they are unique; Perfetto takes 0 for the process itself."""


def encoded(pictures: Pictures, packed: bool, version: str) -> bytes:
    """The trace as JSON, ``packed`` with gzip or not; the same bytes for the same pictures."""
    text = documents.encode(document(pictures, version)).encode()
    return gzip.compress(text, mtime=0) if packed else text


def document(pictures: Pictures, version: str) -> dict[str, Any]:
    """The JSON-ready trace: the default's process first, measured steps behind the predictions."""
    events: list[dict[str, Any]] = []
    for number, gantt in enumerate((*pictures.predicted, *pictures.measured), start=1):
        events += _process(gantt, number)
    report = pictures.report
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "written_by": f"osfmodel {version}",
            "workload": report.workload.name,
            "cluster": report.comparison.cluster.name,
            "workers": report.comparison.workers,
            "options": dict(report.inputs),
        },
    }


def _process(gantt: Gantt, pid: int) -> list[dict[str, Any]]:
    kind = "measured" if gantt.measured else "predicted"
    events = [
        _about("process_name", pid, 0, name=f"{kind}: {gantt.name}, {gantt.shown(gantt.end)}"),
        _about("process_labels", pid, 0, labels=kind),
        _about("process_sort_index", pid, 0, sort_index=pid),
    ]
    for tid, lane in enumerate(gantt.lanes, start=THREADS * pid):
        events.append(_about("thread_name", pid, tid, name=lane.name))
        events.append(_about("thread_sort_index", pid, tid, sort_index=tid))
        events += [_event(bar, pid, tid) for bar in lane.bars]
    return events


def _about(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _event(bar: Bar, pid: int, tid: int) -> dict[str, Any]:
    start, end = round(bar.start * NANOSECONDS), round(bar.end * NANOSECONDS)
    return {
        "name": _name(bar),
        "cat": bar.kind,
        "ph": "X",
        "ts": _microseconds(start),
        "dur": _microseconds(end - start),
        "pid": pid,
        "tid": tid,
        "args": _args(bar),
    }


def _microseconds(nanoseconds: int) -> float:
    """The smallest number of microseconds that is not rounded down: Perfetto cuts off fractions of a nanosecond."""
    found = nanoseconds / 1000
    return found if found * 1000 >= nanoseconds else math.nextafter(found, math.inf)


def _name(bar: Bar) -> str:
    if not bar.sends:
        return f"{bar.kind} {bar.layers[0]}" if bar.layers else bar.kind
    return bar.kind if bar.bucket is None else f"{bar.kind} {bar.bucket + 1}"


def _args(bar: Bar) -> dict[str, Any]:
    """The known properties of a bar; times in microseconds, like the trace's own."""
    known: dict[str, Any] = {"bytes": bar.bytes, "layers": list(bar.layers) or None}
    if bar.sends:
        known["bucket"] = None if bar.bucket is None else bar.bucket + 1
        known["ready_us"] = None if bar.ready is None else bar.ready * MICROSECONDS
        known["exposed_us"] = bar.exposed_time * MICROSECONDS
        known["bytes_per_s"] = bar.rate
    return {name: value for name, value in known.items() if value is not None}


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
