"""``osf tune --live``: what the command line adds to the steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osfmodel.cli.app import OneOf, line, parse_limit, print_text, teller
from osfmodel.cli.options.subject import WHAT_IF
from osfmodel.entities.errors import UsageError
from osfmodel.entities.units import show_time
from osfmodel.runtime.job.ranks import Voice, place_of, require_torch, together
from osfmodel.runtime.training.factories import is_factory
from osfmodel.solve import Limits
from osfmodel.targets import CONFIG_TARGETS

if TYPE_CHECKING:
    from osfmodel.runtime.live import Live

ONLY_LIVE = ("known_workload", "scale", "iterations", "repeat", "backend", "timeout")
NOT_LIVE = {
    "workers": "it is the number of ranks",
    "cost_model": "the cluster is measured",
    "effects": "the cluster is measured",
    **dict.fromkeys(WHAT_IF, "it trains for real, with what there is"),
    "channels": "rules that only the executor knows are tried by themselves",
    "forward_overlap": "rules that only the executor knows are tried by themselves",
    "split": "it tries all-reduces only",
    "lines": "files go to FOLDER",
    "style": "files go to FOLDER",
    "as_json": "files go to FOLDER",
    "output": "files go to FOLDER",
}
"""Options that --live does not take, and why."""


def live_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--live and what goes with it."""
    for option in (
        click.option("--timeout", default="60s", metavar="TIME", help="Live: for meeting and each collective (60s)."),
        click.option("--backend", type=OneOf(["gloo", "nccl"]), help="Live: default nccl with a GPU, else gloo."),
        click.option("--repeat", type=click.IntRange(1), default=3, metavar="R", help="Live: turns per plan (3)."),
        click.option("--iterations", type=click.IntRange(1), default=20, metavar="N", help="Live: in each turn (20)."),
        click.option("--scale", type=float, default=1.0, metavar="X", help="Live: replay computation X times as slow."),
        click.option(
            "--workload", "known_workload", metavar="FILE", help="Live: the profile of the model of FACTORY, if known."
        ),
        click.option(
            "--live", metavar="FOLDER", help="Under torchrun: measure, tune, train, keep the better; files to FOLDER."
        ),
    ):
        command = option(command)
    return command


def refuse_mixtures(ctx: click.Context) -> None:
    """Raise UsageError for options that do not go with --live, or only with it; MissingParameter as click does."""
    given = [name for name in ctx.params if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE]
    spelled = {param.name: max(param.opts, key=len) for param in ctx.command.params}
    live = ctx.params["live"]
    if live is not None:
        for name in given:
            if name in NOT_LIVE:
                raise UsageError(f"{spelled[name]} does not go with --live: {NOT_LIVE[name]}")
        if not CONFIG_TARGETS[ctx.params["target"]].live:
            raise UsageError(f"--for {ctx.params['target']} does not go with --live, which trains with PyTorch alone")
        return
    for name in given:
        if name in ONLY_LIVE:
            raise UsageError(f"{spelled[name]} is for --live FOLDER")
    for param in ctx.command.params:
        if param.name in ("cluster_name", "workers") and ctx.params[param.name] is None:
            raise click.MissingParameter(ctx=ctx, param=param)


def tune_live_command(params: dict[str, Any], limits: Limits, executor: bool) -> None:
    """Run it on this rank, and show on rank 0 what came of it; ``executor``: consider plans of the executor, too."""
    _require_sensible(params)
    seconds = parse_limit(params["timeout"])
    require_torch("osf tune --live")
    from osfmodel.runtime import live
    from osfmodel.runtime.live import session
    from osfmodel.runtime.training import TrainingSettings

    asked = session.TuneRequest(
        params["workload_name"],
        params["live"],
        params["cluster_name"],
        params["known_workload"],
        params["scale"],
        limits,
        seconds,
        executor,
    )
    place = place_of(os.environ, "tune --live", least=2).on(params["backend"])
    settings = TrainingSettings(params["iterations"], params["repeat"])
    voice = Voice(teller(place.rank == 0), line)
    found = together(place, seconds, partial(live.tune_live, asked, settings, place, voice))
    if found is not None:
        print_text(_shown(found, asked.folder))


def _require_sensible(params: dict[str, Any]) -> None:
    """Everything that can be said before anyone meets."""
    subject, scale = params["workload_name"], params["scale"]
    if not 0 < scale < 1e6:
        raise UsageError(f"--scale {scale}: write a factor above 0, such as 8 or 0.5")
    if is_factory(subject) and scale != 1:
        raise UsageError("--scale is for replays: a model takes the time that it takes")
    if params["known_workload"] and not is_factory(subject):
        raise UsageError("--workload is the profile of a model: a replay has its WORKLOAD already")
    folder = Path(params["live"])
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--live {folder}: there is a file of that name, and a folder is needed")


def _shown(found: Live, folder: str) -> str:
    """Predicted and measured of both plans, the verdict, and the lines to paste."""
    (outcome,) = found.tuning.outcomes
    choice = found.choice
    plans = [
        ("default", outcome.default_time, choice.default_time, [*choice.default, *choice.again]),
        ("tuned", outcome.tuned_time, choice.tuned_time, choice.tuned),
    ]
    if found.executed is not None:
        plans.append(("executor", found.executed.outcomes[0].tuned_time, choice.executed_time, choice.executed))
    rows = [("", "predicted", "measured", "speed-up predicted", "measured", "turns")]
    for name, predicted, measured, turns in plans:
        speed_ups = f"{outcome.default_time / predicted:.3f}", f"{choice.default_time / measured:.3f}"
        span = f"{len(turns)} from {show_time(min(turns))} to {show_time(max(turns))}"
        rows.append((name, show_time(predicted), show_time(measured), *speed_ups, span))
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    table = "".join(f"{line}\n" for line in lines)
    return f"{table}\n{choice.verdict}\nPlan, lines to paste and evidence are in {folder}.\n\n{found.lines}"
