"""Axes of pictures; figures, colours and files for what matplotlib draws (the extra ``plot`` installs it)."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

from osfmodel.entities.errors import DataError, UsageError

STEPS = (1, 2, 5, 10)


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` multiples of 1, 2 or 5 times a power of ten in the interval; its start if it is empty."""
    if not high > low:
        return [low]
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in STEPS if step * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def decade_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers on a logarithmic axis: whole decades; in a narrow one also 2 and 5 times as much, or even steps."""
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = _in_decades(low, high, factors)
        if most / 2 <= len(ticks) <= most:
            return ticks
    ticks = _in_decades(low, high, (1,))
    if len(ticks) > most:
        return ticks[:: math.ceil(len(ticks) / most)]
    return even_ticks(low, high, most)


def time_unit(end: float) -> tuple[str, float]:
    """The unit for times up to ``end`` seconds, and how many of it make a second."""
    return next(((unit, factor) for unit, factor in (("s", 1.0), ("ms", 1e3)) if end * factor >= 2), ("µs", 1e6))


def _in_decades(low: float, high: float, factors: tuple[int, ...]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [float(f"{factor}e{power}") for power in powers for factor in factors]
    return [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


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
