"""The columns of a sweep's points, as people see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.planning.sweep.columns import DEFAULTS
from osfmodel.show.tables import Column, column
from osfmodel.show.tables.plans import three_digits
from osfmodel.show.tables.scale import amount

Record: TypeAlias = Mapping[str, Any]


def _of(key: str, head: str, write: Callable[[Any], str] = str) -> Column[Record]:
    return column(key, head, lambda record: record[key], write)


def _band(record: Record) -> str | None:
    """Both ends of the error band against the prediction."""
    if record["low_s"] is None:
        return None
    below, above = (record[end] / record["step_time_s"] - 1 for end in ("low_s", "high_s"))
    return f"{below:+.0%} {above:+.0%}"


def _yes(value: Any) -> str:
    return "yes" if value else "no"


POINTS: tuple[Column[Record], ...] = (
    _of("workload", "workload"),
    _of("cluster", "cluster"),
    _of("workers", "GPUs"),
    _of("plan", "plan"),
    _of("batch_size", "batch"),
    _of("global_batch", "global batch"),
    _of("accumulate", "micro-batches"),
    _of("compression", "compression"),
    _of("compute", "compute"),
    _of("bandwidth", "bandwidth"),
    _of("latency", "latency"),
    _of("effects", "effects"),
    _of("tp", "TP"),
    _of("pp", "PP"),
    _of("cp", "CP"),
    _of("ep", "EP"),
    _of("price", "price", amount),
    _of("step_time_s", "step", show_predicted_time),
    column("low_s", "error band", _band, str),
    _of("samples_per_s", "samples/s", amount),
    _of("tokens_per_s", "tokens/s", amount),
    _of("scaling_factor", "scaling", three_digits),
    _of("mfu", "MFU", show_share),
    _of("peak_memory_bytes", "memory", show_bytes),
    _of("fits", "fits", _yes),
    _of("cost_per_hour", "per hour", amount),
    _of("training_hours", "hours", amount),
    _of("cost", "cost", amount),
    _of("error", "error"),
)
"""Columns of a point."""


def shown_columns(points: Sequence[Record]) -> list[Column[Record]]:
    """The columns in which points differ, and those of results that are not empty."""

    def says(key: str) -> bool:
        found = {record[key] for record in points}
        return len(found) > 1 if key in DEFAULTS else found != {None}

    tokens = any(record["tokens_per_s"] is not None for record in points)
    hidden = {"samples_per_s"} if tokens else set()
    found = [one for one in POINTS if one.key not in hidden and says(str(one.key))]
    return found if found and found[0].key in DEFAULTS else [POINTS[0], *found]


def common_words(points: Sequence[Record], shown: Sequence[Column[Record]]) -> str:
    """The values that all points have, in words, but for defaults and those in columns."""
    keys = {one.key for one in shown}
    said = [one for one in POINTS if one.key not in keys and one.key in DEFAULTS]
    found = [one for one in said if points[0][str(one.key)] not in (None, DEFAULTS[str(one.key)])]
    return ", ".join(f"{one.head} {one.shown(points[0])}" for one in found)


INFLUENCES: tuple[Column[Any], ...] = (
    column("column", None, lambda one: one.column),
    column("sobol_first", None, lambda one: one.alone),
    column("sobol_total", None, lambda one: one.together),
    column("largest_over_smallest", None, lambda one: one.ratio),
)
"""Keys of the influence of a column of the grid."""
SHARES: tuple[Column[Record], ...] = (
    _of("column", "column"),
    _of("sobol_first", "alone", show_share),
    _of("sobol_total", "with others", show_share),
    _of("largest_over_smallest", "largest / smallest", "{:.3g}".format),
)
"""The same for people."""
