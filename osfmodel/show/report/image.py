"""The pictures of a report as PNG or SVG (needs matplotlib, which the extra ``plot`` installs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osfmodel.entities.rounding import plain_sum
from osfmodel.show.picture import figure_of, plain, save, time_unit
from osfmodel.show.report.curves import CURVES
from osfmodel.show.report.gantt import KINDS, Gantt, kinds_of
from osfmodel.show.report.pictures import Pictures, coarse

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
