"""The options of ``osf scale`` as the library takes them; measured steps in words, from a log or a CSV file of runs."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osfmodel.cli.app import warn
from osfmodel.counting.groups import Parallelism
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files.profiles import plain_text, read
from osfmodel.entities.units import AMOUNTS, parse_amount, parse_part, parse_room, parse_time
from osfmodel.entities.workload import Workload
from osfmodel.planning.scaling.curve import Anchor, TrainingLength
from osfmodel.planning.scaling.goals import Goals
from osfmodel.planning.scaling.scale import ScaleOptions
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit
from osfmodel.targets.named_plans import named_plan

if TYPE_CHECKING:
    from osfmodel.formats.source_text import Text

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
        from osfmodel.formats.reading import logged_run  # every format, not loaded for others

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
    from osfmodel.formats.source_text import Text  # with every format

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


REQUIRED = ("cluster_name", "workers")
"""Parameters that only a job's file can make up for."""
HOUR = 3600
"""Seconds from which --target-time is of the whole training, if its length is known; no step takes so long."""


def require_of_workloads(asked: Mapping[str, Any]) -> None:
    """Raise UsageError, or what click raises, for options that only a job's file goes with or without."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in REQUIRED and not ctx.params[param.name]:
            raise click.MissingParameter(ctx=ctx, param=param)
    if asked["model"] is not None:
        raise UsageError("--model is for the file of a job: leave --model out")


def options_of(
    what_if: WhatIf, workload: Workload, price: float | None, asked: Mapping[str, Any], groups: Parallelism
) -> ScaleOptions:
    """The options of one combination."""
    for name in asked["plan_names"]:
        if name.endswith(".json") or os.path.isfile(name):
            raise UsageError(f"--plan {name}: osf scale compares named plans only: name a plan, or osf predict it")
        named_plan(name)
    found = ScaleOptions(
        what_if=replace(what_if, global_batch=asked["global_batch"]),
        limit=_limit(asked["memory"], asked["optimizer"]),
        training=TrainingLength(_length(workload, asked["tokens"], asked["samples"]), price),
        anchor=tuple(anchor for text in asked["anchors"] for anchor in _anchors(text)) or None,
        groups=groups,
    )
    names = tuple(dict.fromkeys(asked["plan_names"]))
    return replace(found, plans=names) if names else found


def _limit(memory: str | None, optimizer: str | None) -> MemoryLimit | None:
    if memory is None and optimizer is not None:
        raise UsageError("--optimizer goes with --memory: give --memory SIZE, or leave --optimizer out")
    return None if memory is None else MemoryLimit(parse_room(memory), optimizer)


def _length(workload: Workload, tokens: str | None, samples: str | None) -> float | None:
    """Samples of the whole training."""
    each = workload.sample_tokens
    if tokens is not None and samples is not None:
        raise UsageError("--tokens and --samples both say how long the training is: give one of them")
    if tokens is not None and each is None:
        raise UsageError(
            f"--tokens: {workload.name!r} does not say how many tokens a sample has: leave it out and give --samples"
        )
    if tokens is not None and each is not None:
        return parse_amount("--tokens", tokens) / each
    return None if samples is None else parse_amount("--samples", samples)


def _factor(text: str) -> float:
    try:
        return parse_part(text)
    except ValueError:
        raise UsageError(f"--target-scaling {text!r}: write a number such as 0.9 or 90%") from None


def goals_of(asked: Mapping[str, Any]) -> Goals:
    """The goals that are asked for."""
    time, rate, budget = asked["target_time"], asked["target_tokens_per_s"], asked["budget"]
    seconds = None if time is None else parse_time(time)
    whole = seconds is not None and seconds >= HOUR and (asked["tokens"] or asked["samples"])
    return Goals(
        None if asked["target_scaling"] is None else _factor(asked["target_scaling"]),
        None if whole else seconds,
        None if rate is None else parse_amount("--target-tokens-per-s", rate),
        None if budget is None else parse_amount("--budget", budget),
        seconds / HOUR if whole and seconds else None,
    )
