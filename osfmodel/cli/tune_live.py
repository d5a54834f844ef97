"""The command line of ``osf tune --live``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osfmodel.cli.app import OneOf, line, parse_limit, print_text, teller
from osfmodel.cli.groups import OUTPUT, PRICES, READ, RULES, WHAT_IF, WRITTEN, OptionGroup, require_inputs_kept
from osfmodel.cli.options import Subject
from osfmodel.entities.display import show_time
from osfmodel.entities.errors import UsageError
from osfmodel.solve.solution import Limits
from osfmodel.targets import CONFIG_TARGETS

if TYPE_CHECKING:
    from osfmodel.planning.results import Outcome
    from osfmodel.runtime.live import Live
    from osfmodel.runtime.live.session import Choice

LIVE = OptionGroup(
    "Measured live, under torchrun",
    switch="--live FOLDER",
    without={
        "--memory": "it trains with the batch size that it is given",
        "--workers": "it is the number of ranks",
        "--split": "it tries all-reduces only",
        "--host-lead": "it trains with PyTorch alone",
        PRICES.heading: "the cluster is measured",
        WHAT_IF.heading: "it trains for real, with what there is",
        RULES.heading: "rules that only the executor knows are tried by themselves",
        OUTPUT.heading: "files go to FOLDER",
    },
)


def live_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --live and its options."""
    for option in (
        LIVE.option(
            "--timeout", default="60s", metavar="TIME", help="Time limit for start-up and for each collective (60s)."
        ),
        LIVE.option(
            "--backend",
            type=OneOf(["gloo", "nccl"]),
            help="Backend; default: nccl with a GPU, else gloo.",
        ),
        LIVE.option("--repeat", type=click.IntRange(1), default=3, metavar="R", help="Turns per plan (3)."),
        LIVE.option(
            "--iterations", type=click.IntRange(1), default=20, metavar="N", help="Measured iterations per turn (20)."
        ),
        LIVE.option("--scale", type=float, default=1.0, metavar="X", help="Replay computation X times as slow."),
        LIVE.option("--workload", "known_workload", metavar="FILE", type=READ, help="The model's profile, if known."),
        LIVE.option("--live", metavar="FOLDER", type=WRITTEN, help="Tune, train, keep the better; files to FOLDER."),
    ):
        command = option(command)
    return command


def tune_live_command(subject: Subject, params: Mapping[str, Any], limits: Limits, executor: bool) -> None:
    """Tune live on this rank and show the result on rank 0; with ``executor``, also try the executor's plans."""
    if not CONFIG_TARGETS[params["target"]].live:
        raise UsageError(f"--for {params['target']} does not work with --live, which trains with PyTorch alone")
    _require_sensible(subject.workload_name, params)
    seconds = parse_limit(params["timeout"])
    from osfmodel.runtime.job import Voice, place_of, require_torch, together

    require_torch("osf tune --live")
    from osfmodel.runtime import live
    from osfmodel.runtime.live import session
    from osfmodel.runtime.training import TrainingSettings

    names = (live.TUNED, live.EXECUTED_PLAN, live.RUNS, live.PLAN, live.CONFIG)
    require_inputs_kept([Path(params["live"]) / name for name in names])
    asked = session.TuneRequest(
        subject.workload_name,
        params["live"],
        subject.cluster_name,
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


def _require_sensible(subject: str, params: Mapping[str, Any]) -> None:
    """Raise UsageError for contradictory options, before any rank waits for another."""
    from osfmodel.runtime.training.factories import is_factory

    scale = params["scale"]
    if not 0 < scale < 1e6:
        raise UsageError(f"--scale {scale}: write a factor above 0, such as 8 or 0.5")
    if is_factory(subject) and scale != 1:
        raise UsageError("--scale is for replays: a model takes the time that it takes")
    if params["known_workload"] and not is_factory(subject):
        raise UsageError("--workload is the profile of a model: a replay has its WORKLOAD already")
    folder = Path(params["live"])
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--live {folder}: there is a file of that name, and a folder is needed")


def _gain(outcome: Outcome, choice: Choice) -> str:
    """The promised gain beside the measured one, with the intervals that there are."""
    chance, measured = outcome.chance, choice.gain_interval
    promised = f" ({chance.low:.1%} to {chance.high:.1%})" if chance else ""
    shown = f" ({measured[0]:.1%} to {measured[1]:.1%} by {len(choice.tuned)} repeats)" if measured else ""
    return f"Gain over the default: promised {outcome.gain:.1%}{promised}, measured {choice.gain:.1%}{shown}."


def _shown(found: Live, folder: str) -> str:
    """Predicted and measured times of the plans, the verdict, and the lines to paste."""
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
    where = f"Plan, lines to paste and evidence are in {folder}."
    return f"{table}\n{_gain(outcome, choice)}\n{choice.verdict}\n{where}\n\n{found.lines}"
