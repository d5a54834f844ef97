"""Pictures (needs matplotlib, which the extra ``plot`` installs)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

from osfmodel.check import Checked
from osfmodel.errors import DataError, UsageError
from osfmodel.picture.scatter import Cloud, Scatter, scatter

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
