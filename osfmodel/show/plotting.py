"""Figures, colours and files for everything that matplotlib draws (the extra ``plot`` installs it)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from osfmodel.entities.errors import DataError, UsageError

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#999933")


def figure_of(inches: tuple[float, float], constrained: bool = True) -> Any:
    """An empty figure without a window. Raises UsageError if matplotlib is missing."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "osfmodel"
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained" if constrained else None)


def require_matplotlib() -> None:
    """Raise UsageError if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UsageError("pictures as files need matplotlib: python -m pip install matplotlib")


def save(figure: Any, path: str) -> None:
    """Write the figure, the same bytes for the same picture. Raises DataError if that fails."""
    try:
        undated = {"Date": None} if path.lower().endswith(".svg") else None
        figure.savefig(path, dpi=150, bbox_inches="tight", metadata=undated)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def finish(axes: Any, legend: str = "best") -> None:
    """Add a grid and a legend, at a place by matplotlib's name for it."""
    axes.grid(True, axis="y", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False, loc=legend)
    plain(axes)


def plain(axes: Any) -> None:
    """Remove the frame lines that carry no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
