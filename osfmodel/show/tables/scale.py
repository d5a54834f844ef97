"""The columns of a scaling curve: the best strategy at each number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint
from osfmodel.show.tables import Column, column
from osfmodel.show.tables.plans import band_text, band_value, half_width, three_digits
from osfmodel.show.tables.strategies import FITS_WORDS


def amount(value: float) -> str:
    """A rate or a price in three digits, such as ``7.73k`` or ``12.5M``; below a thousand as it is."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


POINT: tuple[Column[ScalePoint], ...] = (
    column("workers", "GPUs", lambda point: point.workers),
    column("strategy", "strategy", lambda point: point.best.name),
    column("step_time_s", "step", lambda point: point.time, show_predicted_time),
    Column(
        "error_band",
        "error band",
        lambda point: band_value(point.band),
        lambda point: band_text(point.band) or "none",
        flat=half_width,
    ),
    column("samples_per_s", "samples/s", lambda point: point.samples_per_s, amount),
    column("tokens_per_s", "tokens/s", lambda point: point.tokens_per_s, amount),
    column(
        "tokens_per_s_per_gpu",
        "per GPU",
        lambda point: point.rate_per_gpu if point.tokens_per_s is not None else None,
        amount,
    ),
    column("mfu", "MFU", lambda point: point.mfu, show_share),
    column("scaling_factor", "scaling", lambda point: point.scaling_factor, three_digits),
    column(
        "peak_memory_bytes",
        "memory",
        lambda point: None if point.best.peak is None else point.best.peak.bytes,
        show_bytes,
    ),
    column("fits", "fits", lambda point: point.fits, FITS_WORDS.__getitem__),
    column("cost_per_hour", "per hour", lambda point: point.cost_per_hour, amount),
    column("training_hours", "hours", lambda point: point.hours, amount),
    column("training_cost", "cost", lambda point: point.cost, amount),
)
"""Columns of a point."""
OPTIONS: tuple[Column[ScalePoint], ...] = (
    column("tp", "TP", lambda point: point.groups.tensor),
    column("cp", "CP", lambda point: point.groups.context),
    column("pp", "PP", lambda point: point.groups.pipeline),
    column("ep", "EP", lambda point: point.groups.expert),
    column("batch_size", "batch", lambda point: point.workload.batch_size),
)
COMBINATION = (*POINT, *OPTIONS, column("best", "", lambda point: point.taken, {True: "best", False: ""}.__getitem__))
"""Columns of a combination of options."""
EMPTY = tuple(one.key for one in POINT if one.key not in ("workers", "strategy", "step_time_s", "error_band"))
"""Keys of columns that people do not see where no point has a value."""


def curve_title(curve: ScaleCurve) -> str:
    """The workload, the cluster, and what was changed."""
    return f"{curve.workload.name} on {curve.cluster.name}{f' with {curve.changes}' if curve.changes else ''}"


def combination_columns(points: Sequence[ScalePoint]) -> list[Column[ScalePoint]]:
    """The columns of combinations that say something: of options those that differ."""
    differing = [one for one in OPTIONS if len({one.value(point) for point in points}) > 1]
    workers, *others = (replace(one, only=None) for one in told_columns(points))
    return [workers, *differing, *others, COMBINATION[-1]]


def told_columns(points: Sequence[ScalePoint]) -> list[Column[ScalePoint]]:
    """The columns that say something: of rates those of tokens, if samples have tokens, and none that is empty."""
    tokens = any(point.tokens_per_s is not None for point in points)
    hidden = {"samples_per_s"} if tokens else set()
    if all(point.fits is not False for point in points):
        hidden.add("fits")
    return [
        one
        for one in POINT
        if one.key not in hidden and (one.key not in EMPTY or any(one.value(point) is not None for point in points))
    ]
