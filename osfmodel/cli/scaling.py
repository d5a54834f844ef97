"""The options of ``osf scale`` as the library takes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from osfmodel.cli.anchors import anchors_in
from osfmodel.counting.groups import Parallelism
from osfmodel.entities.errors import UsageError
from osfmodel.entities.units import parse_amount, parse_part, parse_room, parse_time
from osfmodel.entities.workload import Workload
from osfmodel.planning.scaling.curve import TrainingLength
from osfmodel.planning.scaling.goals import Goals
from osfmodel.planning.scaling.scale import ScaleOptions
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit
from osfmodel.targets.named_plans import named_plan

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
        anchor=anchors_in(asked["anchors"]) or None,
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
