"""A scaling curve as a picture: the rate of each GPU over the number of GPUs, with the error band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint
from osfmodel.show.plotting import COLOURS, figure_of, finish, save


class RateAt(NamedTuple):
    """The rate of each GPU at a number of workers, and the ends of its error band, which are the rate without one."""

    workers: int
    strategy: str
    rate: float
    low: float
    high: float


def rates(points: Sequence[ScalePoint]) -> list[RateAt]:
    """The rates of the points; the strategy of one that does not fit is said so."""
    found = []
    for point in points:
        rate, band = point.rate_per_gpu, point.band
        below, above = (0.0, 0.0) if band is None else (band.below, band.above)
        name = f"{point.best.name}{' (does not fit)' * (point.fits is False)}"
        found.append(RateAt(point.workers, name, rate, rate / (1 + above), rate / (1 + below)))
    return found


def by_strategy(found: Sequence[RateAt]) -> dict[str, list[RateAt]]:
    """The rates of each strategy, in the order in which these first appear."""
    own: dict[str, list[RateAt]] = {}
    for one in found:
        own.setdefault(one.strategy, []).append(one)
    return own


def unit_of(curve: ScaleCurve) -> str:
    """The unit of the rates."""
    first = curve.points[0]
    each = "tokens" if first.workload.sample_tokens else "samples" if first.samples else "steps"
    return f"{each}/s of each GPU"


def plot_scale(curve: ScaleCurve, path: str) -> None:
    """Write the picture. Raises UsageError where matplotlib is missing, DataError where it cannot be written."""
    figure = figure_of((8.0, 4.5))
    axes = figure.subplots()
    found = rates(curve.points)
    counts = [one.workers for one in found]
    banded = [one for one in found if one.high > one.low]
    if banded:
        axes.vlines([one.workers for one in banded], [one.low for one in banded], [one.high for one in banded],
                    color=COLOURS[5], linewidth=5, alpha=0.6, label="90 % error band")  # fmt: skip
    axes.plot(counts, [one.rate for one in found], color="#999999", linewidth=1.2)
    for number, (name, own) in enumerate(by_strategy(found).items()):
        axes.plot([one.workers for one in own], [one.rate for one in own], marker="osD^"[number % 4],
                  color=COLOURS[number % len(COLOURS)], label=name, linestyle="none")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts], fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(0, None)
    changes = f"\nwith {curve.changes}" if curve.changes else ""
    axes.set(xlabel="GPUs", ylabel=unit_of(curve), title=f"{curve.workload.name} on {curve.cluster.name}{changes}")
    finish(axes, "lower left")
    save(figure, path)
