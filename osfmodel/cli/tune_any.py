"""The command line of ``osf tune --for any``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from osfmodel.cli.app import emit
from osfmodel.cli.groups import LIMITS, RULES, group_of, is_given
from osfmodel.cli.options import ANY, parse_workers
from osfmodel.cli.options.subject import Subject, load_subject
from osfmodel.cli.tune_memory import at_asked_batch, memory_limit, tuned_options
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.planning.cautions import SIZED


def require_for_any(ctx: click.Context) -> None:
    """Raise UsageError for options that --for any does not know."""
    for param in ctx.command.params:
        limits = group_of(param) in (LIMITS, RULES) or param.name == "lines"
        if limits and is_given(ctx, param.name):
            raise UsageError(
                f"{max(param.opts, key=len)} does not work with --for {ANY}, which compares defaults: "
                "name one target with --for"
            )


def tune_any_command(subject: Subject, asked: Mapping[str, Any]) -> None:
    """Compare the strategies, and print the one to take."""
    from osfmodel.planning.tuning.choosing import counts_up_to, tune_any
    from osfmodel.show.documents.strategies import StrategiesTuned  # not loaded where one target is tuned

    workload, cluster = load_subject(subject)
    workload = at_asked_batch(workload, asked)
    if not workload.gradient_bytes:
        raise DataError(f"no gradient of {workload.name!r} has a size, so that there is nothing to tune: {SIZED}")
    counts = parse_workers(asked["workers"], cluster)
    if len(counts) == 1:
        counts = list(counts_up_to(cluster, counts[0]))
    made = tune_any(workload, cluster, sorted(counts), memory_limit(asked), subject.what_if)
    emit(asked["style"], asked["as_json"], asked["output"], StrategiesTuned(made, tuned_options(subject, asked)))
