"""DeepSpeed's throughput timer: samples per second of all GPUs, every few steps."""

from __future__ import annotations

import re

from osfmodel.formats.source_text import Text
from osfmodel.formats.trainers.steps import LoggedRun, logged_lines, run_of

RATE = re.compile(r"\bCurrSamplesPerSec ?= {0,8}([0-9]{1,15}(?:\.[0-9]{1,18})?)")


def sniff(head: str) -> bool:
    """Whether a line has the timer's rate."""
    return RATE.search(head) is not None


def log(text: Text) -> LoggedRun:
    """The rates of the lines. Raises DataError."""
    rates: list[float] = []
    for number, line in logged_lines(text, RATE):
        if (found := RATE.search(line)) is not None:
            rates.append(text.number(number, found[1]))
            text.limit(number, len(rates))
    return run_of("deepspeed", rates, "samples/s")
