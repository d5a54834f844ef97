"""The files of a report: pictures as PNG or SVG (needs matplotlib, which the extra ``plot`` installs), Chrome trace.

ui.perfetto.dev and chrome://tracing open the trace. Format: "Trace Event Format", object form. One process per plan
and per measured step, one thread per stream; each bar is a complete event (``ph`` X) with times in microseconds;
``args`` hold bytes, bucket and layers.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from typing import Any

from osfmodel.entities.files import documents
from osfmodel.entities.rounding import plain_sum
from osfmodel.show.picture import figure_of, plain, save, time_unit
from osfmodel.show.report import Pictures, coarse
from osfmodel.show.report.curves import CURVES
from osfmodel.show.report.gantt import KINDS, Bar, Gantt, kinds_of

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
