"""The command line of ``osf tune --memory``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from osfmodel.cli.app import OneOf, emit
from osfmodel.cli.groups import READ, RULES, OptionGroup, is_given
from osfmodel.cli.options import parse_workers
from osfmodel.cli.options.subject import Subject, load_subject
from osfmodel.counting import load_workload
from osfmodel.engine.optimizers import OPTIMIZERS
from osfmodel.entities.batches import FIXED_SHARE, at_batch
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.units import parse_part, parse_room
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import MemoryLimit
from osfmodel.targets import CONFIG_TARGETS, no_memory

DENSITY = "1%"
"""Default for --density: the smallest fraction of a layer's entries that is sent."""
MEMORY = OptionGroup(
    "Within a memory budget",
    switch="--memory SIZE",
    without={
        "--lines": "its plan is for osf.execute",
        "--max-buckets": "it plans without limits on buckets",
        RULES.heading: "it plans for one channel and a barrier",
    },
)
SPARSE = OptionGroup(MEMORY.heading, switch="--sparse")


def memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --memory and its options."""
    for option in (
        SPARSE.option(
            "--mirror",
            is_flag=True,
            help="Keep unsent updates in a second copy of the weights instead of a residual (SGD).",
        ),
        SPARSE.option("--density", metavar="FRACTION", help="Smallest fraction of a layer to send (1%)."),
        MEMORY.option("--sparse", is_flag=True, help="Layers may send their largest entries only; changes training."),
        MEMORY.option("--no-release", is_flag=True, help="Keep gradients until the update, for clipping."),
        MEMORY.option("--communicator", metavar="SIZE", help="Buffer size per communicator (one per channel)."),
        MEMORY.option("--also", metavar="FILE", type=READ, help="A profile of the same model at another batch size."),
        MEMORY.option("--optimizer", type=OneOf(OPTIMIZERS), help="Optimizer; default: the profile's."),
        MEMORY.option("--batch-size", type=int, metavar="B", help="Samples per worker; default: the fastest."),
        MEMORY.option("--memory", metavar="SIZE", help="Batch size and plan that train fastest within SIZE (16GiB)."),
    ):
        command = option(command)
    return command


def require_executor(ctx: click.Context) -> None:
    """Raise UsageError if --for names a framework instead of the executor."""
    if is_given(ctx, "target") and not CONFIG_TARGETS[ctx.params["target"]].executes:
        raise UsageError(no_memory(ctx.params["target"]))


def memory_limit(params: Mapping[str, Any]) -> MemoryLimit | None:
    """The limit of --memory, for targets that do not recompute, release or send sparsely; None if not given.

    Raises UsageError for options of these.
    """
    if params["memory"] is None:
        return None
    for name in ("sparse", "no_release", "mirror"):
        if params[name]:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} works only with osf.execute: leave it out, or --for {RUNTIME.name}")
    return MemoryLimit(parse_room(params["memory"]), params["optimizer"], parse_room(params["communicator"] or "0B"))


def at_asked_batch(workload: Workload, params: Mapping[str, Any]) -> Workload:
    """The workload at the batch size of --batch-size. Raises UsageError for --also without it."""
    also, size = params["also"], params["batch_size"]
    if size is None:
        if also is not None:
            raise UsageError("--also is for --batch-size B: give it, or leave --also out")
        return workload
    return at_batch(workload, size, None if also is None else load_workload(also), FIXED_SHARE)


def tune_memory_command(subject: Subject, params: Mapping[str, Any]) -> None:
    """Find the plan and print it."""
    from osfmodel.planning.memory.budget import MemoryBudget
    from osfmodel.planning.memory.search import tune_memory
    from osfmodel.show.documents.memory import MemoryTuned  # not loaded where osf tune tunes something else

    if subject.what_if.words:
        raise UsageError(
            f"--memory takes the profile and the network as they are: leave {subject.what_if.options} out, or name a "
            "sharded target with --for"
        )
    if params["max_bucket"] is not None:
        raise UsageError("--max-bucket does not work with --memory: it plans without limits on buckets")
    workload, cluster = load_subject(subject)
    counts = parse_workers(params["workers"], cluster)
    if len(counts) > 1:
        said = params["workers"]
        raise UsageError(f"--workers {said}: --memory plans for one worker count, such as --workers {counts[-1]}")
    demand = MemoryBudget(
        parse_room(params["memory"]),
        params["optimizer"],
        parse_density(params["density"] or DENSITY) if params["sparse"] else None,
        params["batch_size"],
        not params["no_release"],
        params["mirror"],
        parse_room(params["communicator"] or "0B"),
    )
    other = None if params["also"] is None else load_workload(params["also"])
    tuning = tune_memory(workload, cluster, counts[0], demand, other)
    sized = {**params, "batch_size": tuning.after.batch_size}
    emit(params["style"], params["as_json"], params["output"], MemoryTuned(tuning, tuned_options(subject, sized)))


def tuned_options(subject: Subject, params: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide the workload and the cluster of a tuning, for predictions of its plan."""
    return {**subject.options, **{name: params[name] for name in ("batch_size", "also") if params[name] is not None}}


def parse_density(text: str) -> float:
    """Parse ``1%`` or ``0.01``. Raises UsageError."""
    try:
        return parse_part(text)
    except ValueError:
        raise UsageError(f"--density {text!r}: write a fraction of the entries, such as 1% or 0.01") from None
