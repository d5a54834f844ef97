"""The pictures of a report as PNG or SVG (needs matplotlib, which the extra ``plot`` installs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osfmodel.picture import Curve, Pictures
from osfmodel.picture.coarse import coarse
from osfmodel.picture.curves import Scaling, Sweep
from osfmodel.picture.gantt import KINDS, Gantt, kinds_of
from osfmodel.picture.scatter import Scatter
from osfmodel.plot import COLOURS, figure_of, save, show_scatter
from osfmodel.ticks import time_unit
from osfmodel.units import show_time

FILLS = {
    "forward": "#8cc5ea",
    "backward": "#3d87c0",
    "compute": "#3d87c0",
    "update": "#33a17f",
    "copy": "#b86f9b",
    "spread": "#b86f9b",
    "input": "#8a8f9c",
}
"""Colours of KINDS; adjacent ones also differ in lightness."""
WIRE = "#f0b133"
WIDTH, LANE, TALL = 10.0, 0.36, 3.6
"""Inches: of the figure, of a lane, and of the row of curves."""
NUMBERED = 0.03
"""Part of the width from which a bar carries its number."""


EDGED = 0.01
"""The same for a white edge, which would cover narrow bars."""


def plot_pictures(pictures: Pictures, path: str) -> None:
    """The default, the tuned, the traced and the measured iterations above each other, and the curves below.

    Raises UsageError where matplotlib is missing, DataError where the file cannot be written.
    """
    gantts = [coarse(gantt) for gantt in pictures.main]
    rows = [LANE * (len(gantt.lanes) + 2.2) for gantt in gantts]
    figure = figure_of((WIDTH, sum(rows) + TALL + 0.9))
    grid = figure.add_gridspec(len(rows) + 1, len(pictures.curves), height_ratios=[*rows, TALL])
    longest = max(gantt.end for gantt in gantts)
    for row, gantt in enumerate(gantts):
        draw_gantt(figure.add_subplot(grid[row, :]), gantt, longest)
    for column, curve in enumerate(pictures.curves):
        CURVES[type(curve)](figure.add_subplot(grid[-1, column]), curve)
    figure.suptitle(pictures.title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.legend(handles=_patches(gantts), loc="outside lower left", ncols=8, fontsize=8, frameon=False)
    save(figure, path)


def draw_gantt(axes: Any, gantt: Gantt, longest: float) -> None:
    """Lanes from the top down over time; bars are as high as they are busy, exposed parts are hatched."""
    unit, factor = time_unit(longest)
    for place, lane in enumerate(reversed(gantt.lanes)):
        for bar in lane.bars:
            spot = [(bar.start * factor, bar.duration * factor)]
            edge = {"edgecolor": "white", "lw": 0.3 if bar.duration > EDGED * longest else 0}
            tall = 0.8 * bar.coverage  # as high as it is busy
            axes.broken_barh(spot, (place - 0.4, tall), facecolors=WIRE if bar.sends else FILLS[bar.kind], **edge)
            parts = [(start * factor, (end - start) * factor) for start, end in bar.exposed]
            axes.broken_barh(parts, (place - 0.4, 0.8), facecolors="none", edgecolor="#7a2e00", hatch="////", lw=0)
            if bar.sends and bar.bucket is not None and bar.duration > NUMBERED * longest:
                middle = (bar.start + bar.end) / 2 * factor
                box = {"facecolor": WIRE, "edgecolor": "none", "pad": 1}
                axes.text(middle, place, str(bar.bucket + 1), ha="center", va="center", fontsize=8, bbox=box)
    if gantt.alone is not None:
        axes.axvline(gantt.alone * factor, color="black", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(gantt.lanes)), [lane.name for lane in reversed(gantt.lanes)])
    axes.set(xlim=(0, longest * factor), ylim=(-0.6, len(gantt.lanes) - 0.4))
    words = f"{'measured, ' if gantt.measured else ''}{gantt.name}: {show_time(gantt.end)}"
    axes.set_title(f"{words}, {show_time(gantt.exposed_time)} exposed", loc="left", fontsize=10)
    axes.set_xlabel(unit, loc="right", labelpad=-10, fontsize=8)
    _plain(axes)


def _patches(gantts: Sequence[Gantt]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=FILLS[kind], label=KINDS[kind]) for kind in kinds_of(gantts)]
    patches.append(Patch(facecolor=WIRE, label="collective"))
    patches.append(Patch(facecolor=WIRE, edgecolor="#7a2e00", hatch="////", linewidth=0, label="exposed"))
    return [*patches, Line2D([], [], color="black", linestyle=":", linewidth=1, label="one worker alone ends")]


def draw_scaling(axes: Any, curve: Scaling) -> None:
    """Scaling factor over workers."""
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
    _finish(axes)


def draw_sweep(axes: Any, sweep: Sweep) -> None:
    """Iteration time over one limit for all buckets."""
    name, whole = sweep.unit
    caps = [cap / whole for cap in sweep.caps]
    unit, factor = time_unit(max(*sweep.times, sweep.default))
    axes.plot(caps, [time * factor for time in sweep.times], color=COLOURS[0], linewidth=1.4, label="one limit for all")
    best = f"best: {sweep.words(sweep.best_cap)}"
    axes.plot(
        [caps[sweep.best]], [sweep.best_time * factor], "o", color=COLOURS[0], markeredgecolor="black", label=best
    )
    axes.axhline(
        sweep.default * factor, color=COLOURS[3], linestyle="--", linewidth=1.2, label=f"{sweep.target} by default"
    )
    axes.axhline(sweep.bound * factor, color="black", linestyle=(0, (5, 4)), linewidth=1, label="lower bound")
    axes.set_xscale("log")
    axes.set(xlabel=f"{sweep.setting} ({name})", ylabel=f"iteration time ({unit})")
    axes.xaxis.set_major_formatter("{x:g}")
    _finish(axes)


def draw_scatter(axes: Any, picture: Scatter) -> None:
    """Predicted over measured time, the legend below, as narrow as it is here."""
    show_scatter(axes, picture, inside=False)
    _plain(axes)


CURVES: Mapping[type[Curve], Callable[[Any, Any], None]] = {
    Scaling: draw_scaling,
    Sweep: draw_sweep,
    Scatter: draw_scatter,
}
"""What draws each type of curve."""


def _finish(axes: Any) -> None:
    axes.grid(True, axis="y", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
