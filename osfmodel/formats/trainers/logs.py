"""Logs of trainers: lines of DeepSpeed, Megatron-LM, NeMo and torchtitan; trainer_state.json; Lightning's metrics.csv.

Lightning's CSVLogger writes a row for each call that logs, with the columns of all others empty. ThroughputMonitor has
``train/time``, seconds since the training began without validation, ``train/batches`` and ``train/samples`` of one GPU,
and, once its window is full, ``train/device/samples_per_sec`` and the like; those without ``device`` are of all GPUs,
and left out with one. DeviceStatsMonitor has no times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Text, columns_of, parse
from osfmodel.formats.trainers import LoggedRun, logged_lines, run_of, whole_lines

SAMPLES = re.compile(r"\bCurrSamplesPerSec ?= {0,8}([0-9]{1,15}(?:\.[0-9]{1,18})?)")


def sniff_deepspeed(head: str) -> bool:
    """Whether a line has the rate of DeepSpeed's throughput timer."""
    return SAMPLES.search(head) is not None


def deepspeed(text: Text) -> LoggedRun:
    """The rates of the lines: samples per second of all GPUs, every few steps. Raises DataError."""
    rates: list[float] = []
    for number, line in logged_lines(text, SAMPLES):
        if (found := SAMPLES.search(line)) is not None:
            rates.append(text.number(number, found[1]))
            text.limit(number, len(rates))
    return run_of("deepspeed", rates, "samples/s")


NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,12})?(?:[eE][+-]?[0-9]{1,3})?)"
MEGATRON = re.compile(r"elapsed time per iteration \(ms\): {0,8}" + NUMBER)
NEMO = re.compile(r"train_step_timing in s ?[:=] {0,8}" + NUMBER)
BATCH = re.compile(r"global[ _]batch[ _]size ?[:=] {0,8}([0-9]{1,12})\b")


def sniff_megatron(head: str) -> bool:
    """Whether a line has the time of an iteration, as Megatron-LM or NeMo writes it."""
    return MEGATRON.search(head) is not None or NEMO.search(head) is not None


def megatron(text: Text) -> LoggedRun:
    """The times of the lines of Megatron-LM or NeMo, and the samples of all GPUs in a step. Raises DataError."""
    times: list[float] = []
    batch = None
    units: set[float] = set()
    for number, line in logged_lines(text, MEGATRON, NEMO):
        for form, unit in ((MEGATRON, 1e-3), (NEMO, 1.0)):
            if (found := form.search(line)) is not None:
                times.append(text.number(number, found[1]) * unit)
                text.limit(number, len(times))
                units.add(unit)
                if len(units) > 1:
                    raise text.fault(
                        number, line, "has its step in another unit than lines before: give each log alone"
                    )
        if (size := BATCH.search(line)) is not None:
            batch = text.whole(number, size[1]) or None
    return run_of("megatron", times, "s", batch=batch)


COLOUR = re.compile("\x1b\\[[0-9;]{0,20}m")
STEP = re.compile(r"\bstep: {0,8}([0-9]{1,12})\b")
TOKENS = re.compile(r"\btps: {0,8}([0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?)")
TIME = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2} ([0-9]{2}):([0-9]{2}):([0-9]{2}),([0-9]{3})\b")
"""The time of day; a step over midnight is left out."""
RANK = re.compile(r"^\[rank ?([0-9]{1,9})\]")


def sniff_torchtitan(head: str) -> bool:
    """Whether a line has the step, the loss and tokens per second, as torchtitan writes them."""
    return any("loss: " in line and STEP.search(line) and TOKENS.search(line) for line in _plain(head).splitlines())


def _plain(text: str) -> str:
    return COLOUR.sub("", text)


def torchtitan(text: Text) -> LoggedRun:
    """The tokens per second of a GPU of the first rank that writes, and seconds of a step between two lines.

    Raises DataError.
    """
    rates: list[float] = []
    times: list[tuple[int, float]] = []
    writer = None
    for number, raw in logged_lines(text, TOKENS):
        line = _plain(raw)
        step, rate = STEP.search(line), TOKENS.search(line)
        rank = RANK.match(line)
        if step is None or rate is None:
            continue
        who = rank[1] if rank else ""
        writer = who if writer is None else writer
        if who != writer:
            continue
        rates.append(text.number(number, rate[1].replace(",", "")))
        text.limit(number, len(rates))
        if (when := TIME.search(line)) is not None:
            times.append((int(step[1]), _seconds(when)))
    return run_of("torchtitan", rates, "tokens/s/gpu", _slopes(times))


def _seconds(when: re.Match[str]) -> float:
    hours, minutes, seconds, thousandths = map(int, when.groups())
    return hours * 3600 + minutes * 60 + seconds + thousandths / 1e3


def sniff_trainer_state(head: str) -> bool:
    """Whether it is a JSON object with a history of logs and a global step, as Hugging Face's trainer_state.json."""
    return head.lstrip().startswith("{") and '"log_history"' in head and '"global_step"' in head


def trainer_state(text: Text) -> LoggedRun:
    """The mean step of the whole training, evaluations included. Raises DataError."""
    document = parse(text)
    history = document.get("log_history")
    if not isinstance(history, list):
        raise DataError("log_history is not a list")
    last: Mapping[str, Any] = next(
        (one for one in reversed(history) if isinstance(one, dict) and "train_runtime" in one), {}
    )
    runtime = _number(last, "train_runtime")
    steps = _number(last, "step") if "step" in last else _number(document, "global_step")
    if not (runtime and steps):
        raise DataError("has no train_runtime with its steps: it is written when the training ends")
    seconds = runtime / steps
    rate = _number(last, "train_samples_per_second")
    batch = round(rate * seconds) or None if rate else None
    return LoggedRun("trainer", (seconds,), "s", (seconds,), batch)


def _number(row: Mapping[str, Any], key: str) -> float:
    """A number above 0 and below 10^15; 0.0 for one that is not there. Raises DataError for anything else."""
    value = row.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise DataError(f"{key} is {str(value)[:40]}: a number is needed")
    return float(value)


PLACE = r"(?:.*[/.-])?"
"""A logger's prefix, a stage, or both, before a metric's name."""
OTHERS = re.compile(r"(?:.*[/._-])?(?:val|valid|validate|validation|test|predict|eval)[/._-]")
"""Names of other stages than training."""
STEP_TIME = re.compile(PLACE + r"(?:train_)?(?:step|iter|iteration|batch)_?time(?:_(s|ms|us|ns))?(?:_step)?")
CLOCK = re.compile(PLACE + r"time(?:_step)?")
BATCH_COUNT, SAMPLE_COUNT = re.compile(PLACE + "batches"), re.compile(PLACE + "samples")
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


def sniff_lightning(head: str) -> bool:
    """Whether it is a CSV file with the columns of a logger of Lightning: step, and epoch or a rate of Throughput."""
    columns = {name.lower() for name in columns_of(head)}
    known = "epoch" in columns or any(RATE.fullmatch(name) and OF_DEVICE.match(name) for name in columns)
    return "step" in columns and "," in head.partition("\n")[0] and known


def lightning(text: Text) -> LoggedRun:
    """The times of steps, else between two rows of the clock, else rates. Raises DataError."""
    columns = _columns(whole_lines(text))
    times = {name: rows for name, rows in columns.items() if STEP_TIME.fullmatch(name.lower())}
    if len(times) > 1:
        raise DataError(f"has several times of a step ({', '.join(times)}), which may differ in unit: leave one")
    for name, rows in times.items():
        match = STEP_TIME.fullmatch(name.lower())
        return run_of("lightning", [value * UNITS[match and match[1]] for _, value in rows], "s")
    batches, samples = (_first(columns, pattern) for pattern in (BATCH_COUNT, SAMPLE_COUNT))
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
    kinds = (STEP_TIME, CLOCK, BATCH_COUNT, SAMPLE_COUNT, RATE)
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
