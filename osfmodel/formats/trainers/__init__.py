"""Logs that trainers write: the steps of a run, or its rate and spread, and what they say of batch and GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import NamedTuple

from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import LOGGED, SPREAD, UNKNOWN, Measurement
from osfmodel.formats.source_text import Hints, Text, require_workers

WARMING = 10
"""One line in so many, and at least the first, is of the warm-up: compilation, first allocations, caches."""
CUT = "is cut off, as the file ends in it: left out"


class LoggedRun(NamedTuple):
    """The lines of a log after the warm-up.

    trainer: its name
    values:  of each line, in ``unit``
    unit:    "s", "samples/s", "samples/s/gpu", "tokens/s" or "tokens/s/gpu"
    seconds: of a step, of each line; empty where the log does not tell
    batch:   samples of all GPUs in a step; None where the log does not tell
    warm_ups: lines left out as warm-up
    workers: GPUs; None where the log does not tell
    logged:  lines with a step, those left out among them
    """

    trainer: str
    values: tuple[float, ...]
    unit: str
    seconds: tuple[float, ...]
    batch: int | None = None
    warm_ups: int = 0
    workers: int | None = None
    logged: int = 1

    @property
    def value(self) -> float:
        """The median."""
        return median(self.values)


def quartile_spread(values: Sequence[float]) -> float:
    """Half of what lies between the quartiles, over the median: of steps of one run."""
    if len(values) < 2:
        return 0.0
    first, middle, last = quantiles(values, n=4, method="inclusive")
    return (last - first) / 2 / middle


def whole_lines(text: Text) -> Text:
    """``text`` without a last line that has no end, as a file has that was cut, or is being written; it is told."""
    start, _, rest = text.content.rpartition("\n")
    if not (start and rest.strip()):
        return text
    text.remark(start.count("\n") + 2, rest, CUT)
    return replace(text, content=f"{start}\n")


def logged_lines(text: Text, *steps: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """(number, line); a last line that has no end comes without its last word, as its figure may be cut.

    If none of ``steps`` is found in it then, that is told.
    """
    held = None
    for one in text.lines():
        if held is not None:
            yield held
        held = one
    if held is None or text.content.endswith(("\n", "\r")):
        yield from () if held is None else (held,)
        return
    number, line = held
    sure = line.rstrip().rpartition(" ")[0]
    if not any(step.search(sure) for step in steps):
        text.remark(number, line, CUT)
    yield number, sure


def run_of(
    trainer: str,
    values: Sequence[float],
    unit: str,
    seconds: Sequence[float] = (),
    batch: int | None = None,
    workers: int | None = None,
    logged: int | None = None,
) -> LoggedRun:
    """The lines without the warm-up. Raises DataError if none is left that is above zero."""
    if not values or not min(values) > 0:
        raise DataError(f"is a log of {trainer} without the time or rate of a step: give one of a longer run")
    if len(values) == 1:
        raise DataError(f"is a log of {trainer} with one step, which is warm-up: give one of a longer run")
    left = max(1, len(values) // WARMING)
    times = tuple(values if unit == "s" else seconds)
    kept = times[left:] if len(times) > left else times
    return LoggedRun(trainer, tuple(values[left:]), unit, kept, batch, left, workers, logged or len(values))


def measurement_of(run: LoggedRun, text: Text, hints: Hints) -> list[Measurement]:
    """The run as a measurement. Raises DataError where steps have no times, or nobody says the workers."""
    batch, workers = run.batch, run.workers if (run.workers or 0) > 1 else None
    seconds = run.seconds
    if not seconds and run.unit.startswith("samples"):
        each = hints.batch_size and hints.batch_size * (
            1 if run.unit.endswith("/gpu") else require_workers(workers, hints)
        )
        seconds = tuple(each / value for value in run.values) if each else ()
    if not seconds:
        more = " and --batch-size B" if run.unit.startswith("samples") else ""
        either = f"give --workers N{more}, or it" if more else "give it"
        raise DataError(f"is a log of {run.trainer} that has rates and no times of steps: {either} as --anchor N=FILE")
    conditions = {"executor": run.trainer, LOGGED: str(run.logged)}
    if len(seconds) > 1:
        conditions[SPREAD] = f"{quartile_spread(seconds):.4f}"
    if batch is not None:
        conditions["global_batch"] = str(batch)
    if hints.batch_size:
        conditions["batch_size"] = str(hints.batch_size)
    source = text.source(f"{run.trainer}, {run.warm_ups} lines of warm-up left out")
    pairs = tuple(conditions.items())
    workers = require_workers(workers, hints)
    return [Measurement(UNKNOWN, UNKNOWN, UNKNOWN, workers, seconds, run.warm_ups, pairs, source)]
