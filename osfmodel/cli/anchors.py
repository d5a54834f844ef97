"""Measured steps on the command line: in words, from a trainer's log, or from a CSV file of runs."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from osfmodel.cli.app import warn
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files.profiles import plain_text, read
from osfmodel.entities.units import AMOUNTS, parse_time
from osfmodel.formats.reading import logged_run
from osfmodel.formats.source_text import Text
from osfmodel.planning.scaling.curve import Anchor

RATE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kMG]?)\s*(tok|tokens|samples)/s(/gpu)?", re.IGNORECASE)
COUNTS = ("workers", "gpus", "n_gpus", "world_size")
"""Columns of the number of GPUs."""
STEPS: Mapping[str, tuple[str, float]] = {
    "step_s": ("s", 1.0),
    "step_time_s": ("s", 1.0),
    "step_ms": ("s", 1e-3),
    "step_time_ms": ("s", 1e-3),
    "tokens_per_s": ("tokens/s", 1.0),
    "tokens_per_s_per_gpu": ("tokens/s/gpu", 1.0),
    "tokens_per_gpu_per_s": ("tokens/s/gpu", 1.0),
    "samples_per_s": ("samples/s", 1.0),
    "throughput_samples_per_s": ("samples/s", 1.0),
}
"""Columns of a step or its rate, the first that is there: unit and factor."""
ACCUMULATED = ("accumulate", "grad_accumulation", "micro_batches")
BATCHES = ("batch_size", "microbatch_samples")


def anchors_in(texts: Iterable[str]) -> tuple[Anchor, ...]:
    """The anchors of all options. Raises UsageError, and DataError for a file."""
    return tuple(anchor for text in texts for anchor in _anchors(text))


def _anchors(text: str) -> Iterator[Anchor]:
    if os.path.isfile(text):
        yield from runs_in(Path(text))
        return
    yield parse_anchor(text)


def parse_anchor(text: str) -> Anchor:
    """``64=0.61s``, ``64=5762tok/s/gpu``, ``64=210samples/s`` or ``64=FILE``. Raises UsageError.

    ``,accumulate=8`` and ``,batch=2`` may follow, where the measured step had others than are asked about.
    """
    form = f"--anchor {text!r}: write N=TIME, N=RATE or N=FILE, such as 64=0.61s, 64=5762tok/s/gpu or 64=210samples/s"
    match = re.fullmatch(r"\s*([1-9][0-9]{0,8})\s*=\s*(.+?)\s*((?:,\s*(?:accumulate|batch)=[1-9][0-9]{0,8}\s*)*)", text)
    if match is None:
        raise UsageError(f"{form}; or give a CSV file of runs")
    workers, said = int(match[1]), match[2]
    own = {word.strip(): int(value) for word, _, value in (one.partition("=") for one in match[3].split(",") if one)}
    if os.path.isfile(said):
        run = logged_run(Path(said), lambda told: warn(f"{said}: {told}"))
        if run.workers not in (None, workers):
            raise UsageError(f"--anchor {text!r}: {said} is of {run.workers} GPUs: write {run.workers}={said}")
        return Anchor(workers, run.value, run.unit, own.get("accumulate"), own.get("batch"))
    rate = RATE.fullmatch(said)
    try:
        value = parse_time(said) if rate is None else float(rate[1]) * AMOUNTS[rate[2]]
    except UsageError as error:
        raise UsageError(f"{form} ({error}, and no file is called so)") from None
    if not value > 0:
        raise UsageError(f"{form} (it must be above 0)")
    unit = "s"
    if rate is not None:
        each = "samples" if rate[3].lower() == "samples" else "tokens"
        unit = f"{each}/s{(rate[4] or '').lower()}"
    return Anchor(workers, value, unit, own.get("accumulate"), own.get("batch"))


def runs_in(path: Path) -> tuple[Anchor, ...]:
    """The runs of a CSV file, a row each. Raises DataError, with the path, for rows that say no step."""

    def decoded(content: bytes) -> tuple[Anchor, ...]:
        try:
            return tuple(_rows(Text(path.name, plain_text(content))))
        except (UnicodeDecodeError, csv.Error):
            raise DataError("is not a CSV file") from None

    return read(path, decoded)


def _rows(text: Text) -> Iterator[Anchor]:
    for number, row in text.rows():
        count = text.whole(number, row[text.column(number, row, COUNTS)])
        name = text.column(number, row, tuple(STEPS))
        unit, factor = STEPS[name]
        value = text.number(number, row[name]) * factor
        if not (count and value):
            raise text.fault(number, ",".join(row.values()), "has no GPUs, or no step")
        yield Anchor(count, value, unit, _whole(text, number, row, ACCUMULATED), _whole(text, number, row, BATCHES))


def _whole(text: Text, number: int, row: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The value of an optional column."""
    said = next((row[name] for name in names if row.get(name)), "")
    return (text.whole(number, said) or None) if said else None
