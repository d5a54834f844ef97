"""``osf tune --memory``: what the command line adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from osfmodel.cli.app import OneOf, emit, parse_workers
from osfmodel.cli.options.subject import WHAT_IF, Subject, load_subject
from osfmodel.engine.optimizers import OPTIMIZERS
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.files import profiles
from osfmodel.entities.units import parse_part, parse_room
from osfmodel.targets import CONFIG_TARGETS

ONLY_MEMORY = ("sparse", "density", "mirror", "optimizer", "batch_size", "also", "no_release", "communicator")
DENSITY = "1%"
"""The least part of a layer's entries that is sent, where nobody says."""
PLANNED = ("live", "lines", "max_bucket", "max_buckets", "host_lead", "channels", "forward_overlap", "split")
NOT_MEMORY = {
    **dict.fromkeys(PLANNED, "which plans for one channel and a barrier"),
    **dict.fromkeys(WHAT_IF, "which takes the profile and the network as they are"),
}
"""Options that --memory does not take, and why."""


def memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--memory and what goes with it."""
    for option in (
        click.option("--no-release", is_flag=True, help="Memory: keep gradients until the update, for clipping."),
        click.option("--communicator", metavar="SIZE", help="Memory: what the library keeps for each communicator."),
        click.option("--also", metavar="FILE", help="Memory: a profile of the same model at another batch size."),
        click.option("--batch-size", type=int, metavar="B", help="Memory: samples per worker; default: the fastest."),
        click.option("--optimizer", type=OneOf(OPTIMIZERS), help="Memory: if not that of the profile."),
        click.option("--mirror", is_flag=True, help="Memory: what is not sent in mirror weights (SGD), no residual."),
        click.option("--density", metavar="PART", help="Memory: the least part that --sparse sends of a layer (1%)."),
        click.option(
            "--sparse", is_flag=True, help="Memory: layers may send their largest entries only; changes training."
        ),
        click.option("--memory", metavar="SIZE", help="Batch size and plan that train fastest within SIZE (16GiB)."),
    ):  # fmt: skip
        command = option(command)
    return command


def refuse_other_options(ctx: click.Context) -> None:
    """Raise UsageError for options that do not go with --memory, or only with it."""
    spelled = {param.name: max(param.opts, key=len) for param in ctx.command.params}
    given = {name for name in ctx.params if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE}
    if ctx.params["memory"] is None:
        for name in ONLY_MEMORY:
            if name in given:
                raise UsageError(f"{spelled[name]} is for --memory SIZE")
        return
    for name, reason in NOT_MEMORY.items():
        if name in given:
            raise UsageError(f"{spelled[name]} does not go with --memory, {reason}")
    for name in ("density", "mirror"):
        if name in given and not ctx.params["sparse"]:
            raise UsageError(f"{spelled[name]} is for --sparse")
    if "target" in given and not CONFIG_TARGETS[ctx.params["target"]].executes:
        raise UsageError(
            f"--for {ctx.params['target']} does not go with --memory: only osf.execute (--for {RUNTIME.name}) "
            "releases, recomputes and sends sparsely"
        )


def tune_memory_command(params: dict[str, Any]) -> None:
    """Find the plan and print it."""
    from osfmodel.planning.memory.demand import Demand
    from osfmodel.planning.memory.search import tune_memory
    from osfmodel.show.documents.memory import MemoryTuned  # not loaded where osf tune tunes something else

    workload, cluster = load_subject(Subject.of(params))
    counts = parse_workers(params["workers"], cluster)
    if len(counts) > 1:
        raise UsageError(f"--workers {params['workers']}: --memory plans for one worker count")
    demand = Demand(
        parse_room(params["memory"]),
        params["optimizer"],
        parse_density(params["density"] or DENSITY) if params["sparse"] else None,
        params["batch_size"],
        not params["no_release"],
        params["mirror"],
        parse_room(params["communicator"] or "0B"),
    )
    other = None if params["also"] is None else profiles.load_workload(params["also"])
    tuning = tune_memory(workload, cluster, counts[0], demand, other)
    emit(params["style"], params["as_json"], params["output"], MemoryTuned(tuning))


def parse_density(text: str) -> float:
    """``1%`` or ``0.01``. Raises UsageError."""
    try:
        return parse_part(text)
    except ValueError:
        raise UsageError(f"--density {text!r}: write a part of the entries, such as 1% or 0.01") from None
