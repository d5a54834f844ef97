"""torchtitan's log: a line each few steps with tokens per second of a GPU, and when it was written."""

from __future__ import annotations

import re
from itertools import pairwise

from osfmodel.formats.source_text import Text
from osfmodel.formats.trainers.steps import LoggedRun, logged_lines, run_of

COLOUR = re.compile("\x1b\\[[0-9;]{0,20}m")
STEP = re.compile(r"\bstep: {0,8}([0-9]{1,12})\b")
RATE = re.compile(r"\btps: {0,8}([0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?)")
TIME = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2} ([0-9]{2}):([0-9]{2}):([0-9]{2}),([0-9]{3})\b")
"""The time of day; a step over midnight is left out."""
RANK = re.compile(r"^\[rank ?([0-9]{1,9})\]")


def sniff(head: str) -> bool:
    """Whether a line has the step, the loss and tokens per second, as torchtitan writes them."""
    return any("loss: " in line and STEP.search(line) and RATE.search(line) for line in _plain(head).splitlines())


def _plain(text: str) -> str:
    return COLOUR.sub("", text)


def log(text: Text) -> LoggedRun:
    """The rates of the first rank that writes, and seconds of a step between two lines. Raises DataError."""
    rates: list[float] = []
    times: list[tuple[int, float]] = []
    writer = None
    for number, raw in logged_lines(text, RATE):
        line = _plain(raw)
        step, rate = STEP.search(line), RATE.search(line)
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
