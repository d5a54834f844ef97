"""The pictures of a report as PNG or SVG (needs matplotlib, which the extra ``plot`` installs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.units import show_time
from osfmodel.ledger.results import Checked
from osfmodel.show.pictures import Curve, Pictures
from osfmodel.show.pictures.coarse import coarse
from osfmodel.show.pictures.curves import Scaling, Sweep
from osfmodel.show.pictures.gantt import KINDS, Gantt, kinds_of
from osfmodel.show.pictures.scatter import Cloud, Scatter, scatter
from osfmodel.show.pictures.ticks import time_unit

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
            axes.broken_barh(spot, (place - 0.4, tall), facecolors=WIRE if bar.sends else FILLS[bar.look], **edge)
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


SUFFIXES = (".png", ".svg")


BAND = 0.1
"""Half the width of the grey band, as a fraction of the measured time."""


FEW = 100
"""Sources with fewer runs get outlines, so that they do not drown in the others."""


MANY = 8
"""From so many sources on the legend is small, so that it stays beside the points."""


LONGEST = 70
"""Characters of a line of the legend."""


DECADES = 100
"""From this ratio of its ends on an axis has numbers at whole decades only."""


COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#999933")


MARKERS = "oDs^vPX*"


def plot_check(checked: Sequence[Checked], path: str) -> None:
    """Predicted against measured iteration time of every run that nothing was fitted on, one colour per source.

    Runs under their own figures are hollow and said to be no predictions.
    Raises UsageError for another suffix than .png or .svg, or where matplotlib is missing.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path!r}: the name must end in {' or '.join(SUFFIXES)}")
    figure = figure_of((7, 7), constrained=False)
    show_scatter(figure.subplots(), scatter(checked))
    save(figure, path)


def show_scatter(axes: Any, picture: Scatter, inside: bool = True) -> None:
    """The clouds around a diagonal, on which prediction and measurement agree; the legend inside, or below."""
    low, high = _diagonal(axes, picture)
    for number, cloud in enumerate(picture.clouds):
        measured, predicted = zip(*cloud.points, strict=True)
        marker = MARKERS[number % len(MARKERS)]
        style = _style(cloud, COLOURS[number % len(COLOURS)])
        label = fill(f"{cloud.name} ({cloud.runs})", LONGEST, break_long_words=False, break_on_hyphens=False)
        axes.scatter(measured, predicted, s=18, label=label, zorder=2, marker=marker, **style)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    _label_ticks(axes, decades=high / low > DECADES)
    axes.set(xlabel="measured iteration time (s)", ylabel="predicted iteration time (s)")
    place: dict[str, Any] = {} if inside else {"bbox_to_anchor": (0.4, -0.2)}
    size = 8 if len(picture.clouds) < MANY and inside else 7
    axes.legend(loc="upper left" if inside else "upper center", fontsize=size, frameon=False, **place)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)


def _style(cloud: Cloud, colour: str) -> dict[str, Any]:
    """Hollow where the runs are no predictions."""
    if cloud.own:
        return {"facecolors": "none", "edgecolors": colour, "linewidths": 1}
    if len(cloud.points) < FEW:
        return {"color": colour, "edgecolors": "black", "linewidths": 0.5}
    return {"color": colour, "linewidths": 0, "alpha": 0.55}


def save(figure: Any, path: str) -> None:
    """Write it, the same bytes for the same picture. Raises DataError where that fails."""
    try:
        undated = {"Date": None} if path.lower().endswith(".svg") else None
        figure.savefig(path, dpi=150, bbox_inches="tight", metadata=undated)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _label_ticks(axes: Any, decades: bool) -> None:
    """Numbers as people write them; on a short axis at 2 and 5 of a decade, too."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1,) if decades else (1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def require_matplotlib() -> None:
    """Raise UsageError where it is missing."""
    if find_spec("matplotlib") is None:
        raise UsageError("pictures as files need matplotlib: python -m pip install matplotlib")


def figure_of(inches: tuple[float, float], constrained: bool = True) -> Any:
    """An empty figure that no window shows. Raises UsageError where matplotlib is missing."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "osfmodel"
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained" if constrained else None)


def _diagonal(axes: Any, picture: Scatter) -> tuple[float, float]:
    """The line of perfect prediction and a band around it; the range of both axes."""
    low, high = picture.ends[0] / 1.3, picture.ends[1] * 1.3
    axes.plot([low, high], [low, high], color="#444444", linewidth=1, zorder=1)
    below, above = [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)]
    axes.fill_between([low, high], below, above, color="#eeeeee", label=f"within {BAND:.0%}", zorder=0)
    return low, high
