"""Pictures (needs matplotlib, which the extra ``plot`` installs)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osfmodel.check import Checked
from osfmodel.errors import DataError, UsageError

SUFFIXES = (".png", ".svg")
BAND = 0.1
"""Half the width of the grey band, as a fraction of the measured time."""
FEW = 100
"""Sources with fewer runs get outlines, so that they do not drown in the others."""
MANY = 8
"""From so many sources on the legend is small, so that it stays beside the points."""
DECADES = 100
"""From this ratio of its ends on an axis has numbers at whole decades only."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#999933")
MARKERS = "oDs^vPX*"


def plot_check(checked: Sequence[Checked], path: str) -> None:
    """Predicted against measured iteration time of every run that nothing was fitted on, one colour per source.

    Ratios (rows without a regime) are left out: they are no times. Raises UsageError for another suffix
    than .png or .svg, or where matplotlib is missing.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path!r}: the name must end in {' or '.join(SUFFIXES)}")
    figure, axes = _figure()
    low, high = _diagonal(axes, checked)
    shown = sorted((one for one in checked if _points(one)), key=lambda one: -one.n)  # small sources on top
    for number, one in enumerate(shown):
        measured, predicted = zip(*_points(one), strict=True)
        label = f"{one.source} ({len(measured)} runs, median error {one.median_abs_error:.1%})"
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        outline = {"linewidths": 0.5, "edgecolors": "black"} if one.n < FEW else {"linewidths": 0, "alpha": 0.55}
        axes.scatter(measured, predicted, s=18, label=label, zorder=2, **style, **outline)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    _label_ticks(axes, decades=high / low > DECADES)
    axes.set(xlabel="measured iteration time (s)", ylabel="predicted iteration time (s)")
    axes.legend(loc="upper left", fontsize=8 if len(shown) < MANY else 7, frameon=False)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if path.endswith(".svg") else None)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _label_ticks(axes: Any, decades: bool) -> None:
    """Numbers as people write them; on a short axis at 2 and 5 of a decade, too."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1,) if decades else (1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def _points(one: Checked) -> list[tuple[float, float]]:
    """(measured, predicted) of the rows that count and are times."""
    return [
        (row.measured, row.predicted)
        for row in one.rows
        if row.predicted is not None and row.counts and row.regime is not None
    ]


def _figure() -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError:
        raise UsageError("--plot needs matplotlib: python -m pip install matplotlib") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "osfmodel"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 7))
    return figure, figure.subplots()


def _diagonal(axes: Any, checked: Sequence[Checked]) -> tuple[float, float]:
    """The line of perfect prediction and a band around it; the range of both axes."""
    values = [value for one in checked for point in _points(one) for value in point] or [0.1, 1.0]
    low, high = min(values) / 1.3, max(values) * 1.3
    axes.plot([low, high], [low, high], color="#444444", linewidth=1, zorder=1)
    below, above = [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)]
    axes.fill_between([low, high], below, above, color="#eeeeee", label=f"within {BAND:.0%}", zorder=0)
    return low, high
