"""Lightning's metrics.csv: steps by ThroughputMonitor's clock, by times of steps that a module logs, or by rates.

CSVLogger writes a row for each call that logs, with the columns of all others empty. ThroughputMonitor has
``train/time``, seconds since the training began without validation, ``train/batches`` and ``train/samples`` of one GPU,
and, once its window is full, ``train/device/samples_per_sec`` and the like; those without ``device`` are of all GPUs,
and left out with one. DeviceStatsMonitor has no times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Text, columns_of
from osfmodel.formats.trainers.steps import LoggedRun, run_of, whole_lines

PLACE = r"(?:.*[/.-])?"
"""A logger's prefix, a stage, or both, before a metric's name."""
OTHERS = re.compile(r"(?:.*[/._-])?(?:val|valid|validate|validation|test|predict|eval)[/._-]")
"""Names of other stages than training."""
STEP = re.compile(PLACE + r"(?:train_)?(?:step|iter|iteration|batch)_?time(?:_(s|ms|us|ns))?(?:_step)?")
CLOCK = re.compile(PLACE + r"time(?:_step)?")
BATCHES, SAMPLES = re.compile(PLACE + "batches"), re.compile(PLACE + "samples")
RATE = re.compile(PLACE + r"(batches|samples|items|tokens)_per_sec(?:ond)?")
OF_DEVICE = re.compile(r"(?:.*[/.-])?device[/._-]")
UNITS = {None: 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
RATES: Mapping[tuple[str, bool], str] = {
    ("samples", False): "samples/s", ("samples", True): "samples/s/gpu", ("tokens", True): "tokens/s/gpu",
    ("items", True): "tokens/s/gpu", ("tokens", False): "tokens/s", ("items", False): "tokens/s",
}  # fmt: skip
"""Rates by (what is counted, whether of each GPU), the first that is there; ThroughputMonitor calls tokens items."""
ADVICE = "is Lightning's CSV without times: add the callback ThroughputMonitor to the Trainer, or log step_time_s"
LARGEST = 1e9
"""Number from which there are no GPUs, nor samples in a step."""

Column = Sequence[tuple[int, float]]
"""(step, value) of each row that has one."""


def sniff(head: str) -> bool:
    """Whether it is a CSV file with the columns of a logger of Lightning: step, and epoch or a rate of Throughput."""
    columns = {name.lower() for name in columns_of(head)}
    known = "epoch" in columns or any(RATE.fullmatch(name) and OF_DEVICE.match(name) for name in columns)
    return "step" in columns and "," in head.partition("\n")[0] and known


def log(text: Text) -> LoggedRun:
    """The times of steps, else between two rows of the clock, else rates. Raises DataError."""
    columns = _columns(whole_lines(text))
    times = {name: rows for name, rows in columns.items() if STEP.fullmatch(name.lower())}
    if len(times) > 1:
        raise DataError(f"has several times of a step ({', '.join(times)}), which may differ in unit: leave one")
    for name, rows in times.items():
        match = STEP.fullmatch(name.lower())
        return run_of("lightning", [value * UNITS[match and match[1]] for _, value in rows], "s")
    batches, samples = (_first(columns, pattern) for pattern in (BATCHES, SAMPLES))
    clock = _first(columns, CLOCK)
    if clock and not (batches or all(before < after for (_, before), (_, after) in pairwise(clock))):
        return run_of("lightning", [value for _, value in clock], "s")
    rates = _rates(columns)
    if clock:
        world = _world(rates)
        each = _slopes(samples)
        batch = _count(median(each) * world) if world and each else None
        return run_of("lightning", _slopes(clock), "s", batch=batch, workers=world, logged=len(clock))
    for key, unit in RATES.items():
        if key in rates:
            return run_of("lightning", [value for _, value in rates[key]], unit)
    if alone := rates.get(("batches", True)):
        return run_of("lightning", [1 / value for _, value in alone if value], "s")
    raise DataError(ADVICE)


def _columns(text: Text) -> dict[str, list[tuple[int, float]]]:
    """The columns that tell times or rates of training, those with values."""
    found: dict[str, list[tuple[int, float]]] = {}
    wanted: list[str] | None = None
    kinds = (STEP, CLOCK, BATCHES, SAMPLES, RATE)
    for number, row in text.rows():
        if wanted is None:
            names = [name for name in row if not OTHERS.match(name.lower())]
            wanted = [name for name in names if any(kind.fullmatch(name.lower()) for kind in kinds)]
        for name in wanted:
            if said := row[name].strip():
                step = text.whole(number, row[text.column(number, row, ("step",))])
                found.setdefault(name, []).append((step, text.number(number, said)))
    return found


def _first(columns: Mapping[str, Column], pattern: re.Pattern[str]) -> Column:
    return next((rows for name, rows in columns.items() if pattern.fullmatch(name.lower())), ())


def _rates(columns: Mapping[str, Column]) -> dict[tuple[str, bool], Column]:
    found: dict[tuple[str, bool], Column] = {}
    for name, rows in columns.items():
        if match := RATE.fullmatch(name.lower()):
            found.setdefault((match[1], OF_DEVICE.match(name.lower()) is not None), rows)
    return found


def _slopes(rows: Column) -> list[float]:
    """The increase a step between each two rows; none where a second training began anew."""
    return [(b - a) / (n - m) for (m, a), (n, b) in pairwise(rows) if n > m and b > a]


def _world(rates: Mapping[tuple[str, bool], Column]) -> int | None:
    """The number of GPUs: a rate of all over that of one; None before the window is full."""
    alone = rates.get(("samples", True))
    if not alone:
        return None
    every = rates.get(("samples", False))
    return 1 if not every else _count(every[-1][1] / (alone[-1][1] or 1))


def _count(value: float) -> int | None:
    """The whole number that is nearest; None for none that can be meant."""
    return round(value) or None if value < LARGEST else None
