"""Megatron-LM's log and NeMo's: the time of a step, and the samples of all GPUs in it."""

from __future__ import annotations

import re

from osfmodel.formats.source_text import Text
from osfmodel.formats.trainers.steps import LoggedRun, logged_lines, run_of

NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,12})?(?:[eE][+-]?[0-9]{1,3})?)"
MEGATRON = re.compile(r"elapsed time per iteration \(ms\): {0,8}" + NUMBER)
NEMO = re.compile(r"train_step_timing in s ?[:=] {0,8}" + NUMBER)
BATCH = re.compile(r"global[ _]batch[ _]size ?[:=] {0,8}([0-9]{1,12})\b")


def sniff(head: str) -> bool:
    """Whether a line has the time of an iteration, as one of them writes it."""
    return MEGATRON.search(head) is not None or NEMO.search(head) is not None


def log(text: Text) -> LoggedRun:
    """The times of the lines. Raises DataError."""
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
