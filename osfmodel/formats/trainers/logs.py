"""Logs of trainers: lines of DeepSpeed, of Megatron-LM and NeMo, of torchtitan; Hugging Face's trainer_state.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Text, parse
from osfmodel.formats.trainers.steps import LoggedRun, logged_lines, run_of

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
    gaps = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(times) if n > m and b > a]
    return run_of("torchtitan", rates, "tokens/s/gpu", gaps)


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
    runtime, steps = _number(last, "train_runtime"), _number(last if "step" in last else document, _key(last))
    if not (runtime and steps):
        raise DataError("has no train_runtime with its steps: it is written when the training ends")
    seconds = runtime / steps
    rate = _number(last, "train_samples_per_second")
    batch = round(rate * seconds) or None if rate else None
    return LoggedRun("trainer", (seconds,), "s", (seconds,), batch)


def _key(last: Mapping[str, Any]) -> str:
    return "step" if "step" in last else "global_step"


def _number(row: Mapping[str, Any], key: str) -> float:
    """A number above 0 and below 10^15; 0.0 for one that is not there. Raises DataError for anything else."""
    value = row.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise DataError(f"{key} is {str(value)[:40]}: a number is needed")
    return float(value)
