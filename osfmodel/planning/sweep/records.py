"""The record of a point: its values, and what is predicted for it, flat, with units in its keys."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import current_thread, main_thread

from osfmodel.entities.errors import OsfError
from osfmodel.entities.workload import Workload
from osfmodel.planning.predictions import PricedSubjects
from osfmodel.planning.scaling.curve import ScalePoint, TrainingLength
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask
from osfmodel.planning.sweep.columns import DEFAULTS, GIVEN, KEYS, USUAL, Record
from osfmodel.planning.sweep.grid import Batch, Point, groups_of
from osfmodel.planning.what_if import WhatIf, parse_factor

MILLION = 1e6


def records(batch: Batch) -> list[Record]:
    """The record of each point of a batch. An impossible point has an ``error`` and nothing that is predicted."""
    batch = batch if batch.workload is None else batch._replace(workload=_own(batch.workload))
    subjects = PricedSubjects()
    with _seldom_collected():
        return [_record(batch, subjects, key, point) for key, point in batch.points]


def _own(workload: Workload) -> Workload:
    """A workload of the sweep's own: changed ones, which are kept on it, go with the last batch of an equal one."""
    found = _last.get("workload")
    if found != workload:
        found = _last["workload"] = replace(workload)
    return found


_last: dict[str, Workload] = {}


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python look less often for objects in circles: points make many objects, and hardly any circles.

    The threshold is the whole process's: threads leave it as it is.
    """
    if current_thread() is not main_thread():
        yield
        return
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], 100_000) if usual[0] else 0, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _record(batch: Batch, subjects: PricedSubjects, key: int, point: Point) -> Record:
    found: Record = {**dict.fromkeys(KEYS), **point, "point": key, "command": _command(batch, point)}
    if batch.workload is None:
        return found | {"error": batch.error}
    try:
        made = _predicted(batch, subjects, point)
    except OsfError as error:
        return found | {"error": " ".join(str(error).split())}
    return found | _values(made)


def _predicted(batch: Batch, subjects: PricedSubjects, point: Point) -> ScalePoint:
    assert batch.workload is not None
    price = point["price"]
    compute = point["compute"]
    what_if = WhatIf(
        compute=1.0 if compute is None else parse_factor("compute", str(compute)),
        **{name: point[name] for name in ("batch_size", "global_batch", "accumulate", "compression")},  # type: ignore[arg-type]
    )
    options = ScaleOptions(
        plans=(str(point["plan"]),),
        limit=batch.limit,
        what_if=what_if,
        training=TrainingLength(batch.samples, None if price is None else float(price)),
        groups=groups_of(point),
    )
    task = ScaleTask.of(batch.workload, batch.cluster, options, subjects)
    return task.point(batch.workload, int(point["workers"] or 1))


def _values(made: ScalePoint) -> Record:
    """The predicted values, by column."""
    band = made.band
    cost, what = made.cost, "training"
    if cost is None and made.cost_per_hour is not None:
        tokens = made.tokens_per_s
        rate, what = (made.samples_per_s, "million samples") if tokens is None else (tokens, "million tokens")
        cost = None if rate is None else made.cost_per_hour / 3600 * MILLION / rate
    return {
        "batch_size": made.workload.batch_size,
        "step_time_s": made.time,
        "low_s": None if band is None else band.low,
        "high_s": None if band is None else band.high,
        "samples_per_s": made.samples_per_s,
        "tokens_per_s": made.tokens_per_s,
        "scaling_factor": made.scaling_factor,
        "mfu": made.mfu,
        "peak_memory_bytes": None if made.best.peak is None else made.best.peak.bytes,
        "reserved_memory_bytes": made.best.reserved,
        "fits": made.fits,
        "fits_chance": made.best.chance,
        "cost_per_hour": made.cost_per_hour,
        "training_hours": made.hours,
        "cost": cost,
        "cost_of": None if cost is None else what,
    }


OPTION_NAMES = {"batch_size": "batch-size", "global_batch": "global-batch"}
SAID = ("workload", "effects")
"""Columns that a command has in another form."""


def _command(batch: Batch, point: Point) -> str:
    """The command for a point alone."""
    words = ["osf", "scale", str(point["workload"])]
    for name in GIVEN:
        value = point[name]
        if name in SAID or (name != "plan" and value == DEFAULTS[name]):
            continue
        words += [f"--{OPTION_NAMES.get(name, name)}", f"{value:g}" if isinstance(value, float) else str(value)]
    if point["effects"] != USUAL:
        words += [part for one in str(point["effects"]).split() for part in ("--effect", one)]
    if batch.limit is not None:
        words += ["--memory", f"{batch.limit.bytes}B", *_option("optimizer", batch.limit.optimizer)]
    return shlex.join([*words, *_option("samples", batch.samples)])


def _option(name: str, value: str | float | None) -> list[str]:
    return [] if value is None else [f"--{name}", str(value)]
