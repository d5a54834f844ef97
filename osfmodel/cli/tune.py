"""The command ``osf tune``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from osfmodel.cli.app import OneOf, emit, output_options
from osfmodel.cli.groups import LIMITS, OUTPUT, READ, RULES, GroupedCommand, OptionGroup, group_of, is_given
from osfmodel.cli.options import (
    ANY,
    Subject,
    load_subject,
    parse_workers,
    remedies_command,
    subject_options,
    target_option,
)
from osfmodel.cli.tune_live import live_options, tune_live_command
from osfmodel.counting import in_words, load_workload
from osfmodel.engine.optimizers import OPTIMIZERS
from osfmodel.entities.batches import FIXED_SHARE, at_batch
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.plan import REPLICATED, SPLIT, Objective
from osfmodel.entities.units import parse_part, parse_room
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import SIZED
from osfmodel.planning.results import Tuning
from osfmodel.planning.tuning import tune
from osfmodel.planning.tuning.launch import SNIPPETS
from osfmodel.show.document import CODE
from osfmodel.show.tuned import Lines, Tuned
from osfmodel.solve.solution import MEMORY, Limits, MemoryLimit
from osfmodel.targets import CONFIG_TARGETS, no_memory

DENSITY = "1%"
"""Default for --density: the smallest fraction of a layer's entries that is sent."""
BUDGET = OptionGroup(
    "Within a memory budget",
    switch="--memory SIZE",
    without={
        "--lines": "its plan is for osf.execute",
        "--max-buckets": "it plans without limits on buckets",
        RULES.heading: "it plans for one channel and a barrier",
    },
)
SPARSE = OptionGroup(BUDGET.heading, switch="--sparse")


def _memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --memory and its options."""
    for option in (
        SPARSE.option(
            "--mirror",
            is_flag=True,
            help="Keep unsent updates in a second copy of the weights instead of a residual (SGD).",
        ),
        SPARSE.option("--density", metavar="FRACTION", help="Smallest fraction of a layer to send (1%)."),
        BUDGET.option("--sparse", is_flag=True, help="Layers may send their largest entries only; changes training."),
        BUDGET.option("--no-release", is_flag=True, help="Keep gradients until the update, for clipping."),
        BUDGET.option("--communicator", metavar="SIZE", help="Buffer size per communicator (one per channel)."),
        BUDGET.option("--also", metavar="FILE", type=READ, help="A profile of the same model at another batch size."),
        BUDGET.option("--optimizer", type=OneOf(OPTIMIZERS), help="Optimizer; default: the profile's."),
        BUDGET.option("--batch-size", type=int, metavar="B", help="Samples per worker; default: the fastest."),
        BUDGET.option("--memory", metavar="SIZE", help="Batch size and plan that train fastest within SIZE (16GiB)."),
    ):
        command = option(command)
    return command


def _require_executor(ctx: click.Context) -> None:
    """Raise UsageError if --for names a framework instead of the executor."""
    if is_given(ctx, "target") and not CONFIG_TARGETS[ctx.params["target"]].executes:
        raise UsageError(no_memory(ctx.params["target"]))


def _memory_limit(params: Mapping[str, Any]) -> MemoryLimit | None:
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


def _at_asked_batch(workload: Workload, params: Mapping[str, Any]) -> Workload:
    """The workload at the batch size of --batch-size. Raises UsageError for --also without it."""
    also, size = params["also"], params["batch_size"]
    if size is None:
        if also is not None:
            raise UsageError("--also is for --batch-size B: give it, or leave --also out")
        return workload
    return at_batch(workload, size, None if also is None else load_workload(also), FIXED_SHARE)


@click.command(name="tune", cls=GroupedCommand)
@subject_options(cluster_required=False)
@click.option("--workers", metavar="N[,N...|A..B]", help="Several counts: one configuration for all of them.")
@target_option("Framework, or runtime: any plan; or any: DDP, ZeRO, FSDP2 and HSDP compared.", ANY)
@LIMITS.option("--max-bucket", metavar="SIZE", help="Largest bucket, for example 64MiB.")
@LIMITS.option("--max-buckets", type=int, metavar="K", help="Largest number of buckets.")
@RULES.option("--channels", type=click.IntRange(1, 64), default=1, metavar="K", help="Collectives in flight (runtime).")
@RULES.option("--forward-overlap", is_flag=True, help="A layer's forward waits for its own gradient only (runtime).")
@RULES.option("--split", is_flag=True, help="Reduce-scatter in backward, all-gather before the forward (runtime).")
@RULES.option(
    "--host-lead",
    metavar="F|F..G",
    help="Speed at which the host submits work, relative to the device (horovod).",
)
@_memory_options
@live_options
@OUTPUT.option(
    "--lines",
    type=OneOf(SNIPPETS),
    help="Print other lines for the plan: how to launch it, or NCCL's choices for its messages.",
)
@partial(output_options, more=(CODE,))
def tune_command(subject: Subject, **asked: Any) -> None:
    """Find the settings that make a framework run the best plan, and print the lines to paste.

    Needs --cluster and --workers, but for --live. -o ddp.py, horovod.env or deepspeed.json writes the settings; -o
    plan.json, .yaml or .csv writes the plan and its times. --format decides between the two.

    --for any compares DDP, ZeRO-1, ZeRO-2, FSDP2 and HSDP at each worker count up to N, by step time and memory. It
    prints the settings of the one to take. Memory is that of the GPU that WORKLOAD names, or --memory SIZE.

    --memory SIZE finds the plan for osf.execute that trains most samples per second within SIZE: its batch size, and
    what to recompute, release and send sparsely. With --for fsdp2, hsdp or torchtitan it keeps groups between forward
    and backward, as many as fit.

    --live FOLDER, under torchrun, measures the cluster and the model, and trains under the default and the tuned plan.
    It keeps the better. WORKLOAD may be PACKAGE.MODULE:FACTORY, as for osf profile.

    \b
    Example:
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --for ddp
      osf tune resnet50-v100 --cluster v100-10gbe --workers 8..64 --for horovod
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --for runtime --forward-overlap -o plan.json
      osf tune resnet50-memory --cluster v100-10gbe --workers 16 --memory 4GiB -o plan.json
      osf tune resnet50-memory --cluster nccl:v100x8,25Gbps --workers 32 --for any --memory 16GiB
      osf tune resnet50-memory --cluster v100-10gbe --workers 16 --for fsdp2 --memory 2.7GiB
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --lines slurm -o job.sh
      torchrun --nproc-per-node 4 -m osfmodel tune my_training:make --live tuned
    """
    ctx = click.get_current_context()
    if asked["live"] is not None:
        if asked["target"] == ANY:
            raise UsageError(f"--for {ANY} does not work with --live, which trains with PyTorch alone: leave it out")
        executor = not is_given(ctx, "target") or CONFIG_TARGETS[asked["target"]].executes
        tune_live_command(subject, asked, _limits(asked), executor)
        return
    for param in ctx.command.params:
        if param.name in ("cluster_name", "workers") and ctx.params[param.name] is None:
            raise click.MissingParameter(ctx=ctx, param=param)
    if asked["target"] == ANY:
        _require_for_any(ctx)
        _tune_any(subject, asked)
    elif asked["memory"] is not None and MEMORY not in CONFIG_TARGETS[asked["target"]].limits:
        _require_executor(ctx)
        _tune_memory(subject, asked)
    else:
        _tune(subject, asked)


def _limits(asked: Mapping[str, Any]) -> Limits:
    most = asked["max_bucket"]
    limited = asked["target"] in CONFIG_TARGETS and MEMORY in CONFIG_TARGETS[asked["target"]].limits
    memory = _memory_limit(asked) if limited else None
    return Limits(None if most is None else parse_room(most), asked["max_buckets"], memory)


def _tune(subject: Subject, asked: Mapping[str, Any]) -> None:
    """Tune a framework on the predicted times, and print the result."""
    limits, target, lines = _limits(asked), asked["target"], asked["lines"]
    workload, cluster = load_subject(subject)
    if limits.memory is not None:
        workload = _at_asked_batch(workload, asked)
    if not workload.gradient_bytes:
        raise DataError(f"no gradient of {workload.name!r} has a size, so that there is nothing to tune: {SIZED}")
    changed, counts = subject.what_if.of_workload(workload, 1), parse_workers(asked["workers"], cluster)
    objective = Objective(asked["channels"], asked["forward_overlap"], SPLIT if asked["split"] else REPLICATED)

    def tuned(target: str) -> Tuning:
        leads = _leads(asked["host_lead"], target)
        return tune(changed, cluster, counts, target, limits, objective, leads).under(subject.what_if)

    tuning = tuned(target)
    room = None if limits.memory else _room(workload, subject, asked)
    if room is not None:
        from osfmodel.planning.tuning.choosing import misfits  # not loaded where no GPU's memory is known

        said, others = misfits(changed, cluster, tuning, room)
        free = (limits, objective, asked["host_lead"]) == (Limits(), Objective(), None)
        if others and free and not is_given(click.get_current_context(), "target"):
            tuning = tuned(others[0])
            said += f": these are settings of {others[0]}; for those of {target}: --for {target}"
        elif said and not others:
            said += f": {_remedies(subject, counts, asked)}"
        tuning = replace(tuning, warnings=(*tuning.warnings, *([said] if said else [])))
    style, as_json = asked["style"], asked["as_json"]
    if lines is not None:
        style = style or ("json" if as_json else CODE)
    emit(style, as_json, asked["output"], Tuned(tuning, tuned_lines(tuning, lines), _tuned_options(subject, asked)))


def tuned_lines(tuning: Tuning, snippet: str | None = None) -> Lines:
    """The framework's settings, or the lines that --lines asks for."""
    target = CONFIG_TARGETS[tuning.target]
    if snippet is None:
        count = tuning.what_if.accumulate
        written = partial(target.text.written, tuning.knobs, tuning.workload, micro_batches=count, form=tuning.form)
        return Lines(target.text.endings, written, target.executes)
    text = SNIPPETS[snippet].write(tuning)
    return Lines(target.text.endings, lambda ending: text, target.executes, other=True)


def _leads(text: str | None, target: str) -> tuple[float, ...] | None:
    """Parse ``"2"`` or ``"1..5"`` into factors; a range gives its ends and its middle. Raises UsageError."""
    if text is None:
        return None
    if not CONFIG_TARGETS[target].clock:
        raise UsageError(f"--host-lead: what {target} forms does not depend on it; leave it out")
    try:
        ends = [float(part) for part in text.split("..")]
    except ValueError:
        ends = []
    if not 1 <= len(ends) <= 2 or not 1 <= ends[0] <= ends[-1] < 1e6:
        raise UsageError(f"--host-lead {text!r}: write a factor of 1 or more, or a range such as 1..5")
    return (ends[0], (ends[0] * ends[1]) ** 0.5, ends[1]) if len(ends) == 2 else (ends[0],)


def _require_for_any(ctx: click.Context) -> None:
    """Raise UsageError for options that --for any does not know."""
    for param in ctx.command.params:
        limits = group_of(param) in (LIMITS, RULES) or param.name == "lines"
        if limits and is_given(ctx, param.name):
            raise UsageError(
                f"{max(param.opts, key=len)} does not work with --for {ANY}, which compares defaults: "
                "name one target with --for"
            )


def _tune_any(subject: Subject, asked: Mapping[str, Any]) -> None:
    """Compare the strategies, and print the one to take."""
    from osfmodel.planning.tuning.choosing import counts_up_to, tune_any
    from osfmodel.show.tuned import StrategiesTuned  # not loaded where one target is tuned

    workload, cluster = load_subject(subject)
    workload = _at_asked_batch(workload, asked)
    if not workload.gradient_bytes:
        raise DataError(f"no gradient of {workload.name!r} has a size, so that there is nothing to tune: {SIZED}")
    counts = parse_workers(asked["workers"], cluster)
    if len(counts) == 1:
        counts = list(counts_up_to(cluster, counts[0]))
    limit = _memory_limit(asked) or _room(workload, subject, asked)
    made = tune_any(workload, cluster, sorted(counts), limit, subject.what_if)
    if made.last.chosen is None and in_words(workload.name):
        said = f"what fits, and what that costs: {_remedies(subject, counts, asked)}"
        made = replace(made, warnings=(*made.warnings, said))
    emit(asked["style"], asked["as_json"], asked["output"], StrategiesTuned(made, _tuned_options(subject, asked)))


def _remedies(subject: Subject, counts: Sequence[int], asked: Mapping[str, Any]) -> str:
    """The command that has changes with which the same step fits."""
    options = {"--batch-size": "batch_size", "--memory": "memory", "--optimizer": "optimizer"}
    return remedies_command(subject, max(counts), {option: asked[name] for option, name in options.items()})


def _room(workload: Workload, subject: Subject, asked: Mapping[str, Any]) -> MemoryLimit | None:
    """The memory of the GPU that words name; None where it, or what the optimizer keeps, is not known."""
    if not in_words(workload.name):
        return None
    from osfmodel.planning.scaling.strategies import room_of  # not loaded where a profile is tuned

    found = room_of(workload)
    known = workload.state_bytes is not None or asked["optimizer"] is not None
    if found is None or not known or subject.what_if.compression != "none":
        return None
    return replace(found, optimizer=asked["optimizer"])


def _tune_memory(subject: Subject, params: Mapping[str, Any]) -> None:
    """Find the plan and print it."""
    from osfmodel.planning.memory import MemoryBudget
    from osfmodel.planning.memory.search import tune_memory
    from osfmodel.show.memory import MemoryTuned  # not loaded where osf tune tunes something else

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
        _parse_density(params["density"] or DENSITY) if params["sparse"] else None,
        params["batch_size"],
        not params["no_release"],
        params["mirror"],
        parse_room(params["communicator"] or "0B"),
    )
    other = None if params["also"] is None else load_workload(params["also"])
    tuning = tune_memory(workload, cluster, counts[0], demand, other)
    sized = {**params, "batch_size": tuning.after.batch_size}
    emit(params["style"], params["as_json"], params["output"], MemoryTuned(tuning, _tuned_options(subject, sized)))


def _tuned_options(subject: Subject, params: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide the workload and the cluster of a tuning, for predictions of its plan."""
    return {**subject.options, **{name: params[name] for name in ("batch_size", "also") if params[name] is not None}}


def _parse_density(text: str) -> float:
    """Parse ``1%`` or ``0.01``. Raises UsageError."""
    try:
        return parse_part(text)
    except ValueError:
        raise UsageError(f"--density {text!r}: write a fraction of the entries, such as 1% or 0.01") from None
