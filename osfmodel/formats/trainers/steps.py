"""Steps that a trainer logged: their time or rate, its spread, and what the log says of batch and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import UNKNOWN, Measurement
from osfmodel.formats.source_text import Hints, Text, require_workers

WARMING = 10
"""One line in so many, and at least the first, is of the warm-up: compilation, first allocations, caches."""
FEWEST = 3
"""Lines from which on a warm-up is left out."""


class LoggedRun(NamedTuple):
    """The lines of a log after the warm-up.

    trainer: its name
    values:  of each line, in ``unit``
    unit:    "s", "samples/s" or "tokens/s/gpu"
    seconds: of a step, of each line; empty where the log does not tell
    batch:   samples of all GPUs in a step; None where the log does not tell
    warm_ups: lines left out
    """

    trainer: str
    values: tuple[float, ...]
    unit: str
    seconds: tuple[float, ...]
    batch: int | None = None
    warm_ups: int = 0

    @property
    def value(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half of what lies between the quartiles, over the median: steps of one run."""
        ordered = sorted(self.values)
        return (ordered[3 * (len(ordered) - 1) // 4] - ordered[(len(ordered) - 1) // 4]) / 2 / self.value


def run_of(
    trainer: str, values: Sequence[float], unit: str, seconds: Sequence[float] = (), batch: int | None = None
) -> LoggedRun:
    """The lines without the warm-up. Raises DataError if there are none above zero."""
    if not values or not min(values) > 0:
        raise DataError(f"is a log of {trainer} without the time or rate of a step: give one of a longer run")
    left = max(1, len(values) // WARMING) if len(values) >= FEWEST else 0
    times = tuple(values if unit == "s" else seconds)
    return LoggedRun(trainer, tuple(values[left:]), unit, times[left:] if len(times) > left else times, batch, left)


def measurement_of(run: LoggedRun, text: Text, hints: Hints) -> list[Measurement]:
    """The run as a measurement. Raises DataError where steps have no times, or nobody says the workers."""
    if not run.seconds:
        raise DataError(f"is a log of {run.trainer} that has rates and no times of steps: give it as --anchor N=FILE")
    conditions = {"executor": run.trainer, "spread": f"{run.spread:.4f}"}
    if run.batch is not None:
        conditions["global_batch"] = str(run.batch)
    if hints.batch_size:
        conditions["batch_size"] = str(hints.batch_size)
    workers = require_workers(None, hints)
    source = text.source(f"{run.trainer}, {run.warm_ups} lines of warm-up left out")
    pairs = tuple(conditions.items())
    return [Measurement(UNKNOWN, UNKNOWN, UNKNOWN, workers, run.seconds, run.warm_ups, pairs, source)]
