"""The command ``osf tune``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from osfmodel.cli.app import OneOf, emit, output_options
from osfmodel.cli.groups import LIMITS, OUTPUT, RULES, GroupedCommand, is_given
from osfmodel.cli.options import ANY, parse_workers, target_option
from osfmodel.cli.options.subject import Subject, load_subject, subject_options
from osfmodel.cli.tune_live import live_options, tune_live_command
from osfmodel.cli.tune_memory import (
    at_asked_batch,
    memory_limit,
    memory_options,
    require_executor,
    tune_memory_command,
    tuned_options,
)
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.plan import REPLICATED, SPLIT, Objective
from osfmodel.entities.units import parse_room
from osfmodel.planning.cautions import SIZED
from osfmodel.planning.results import Tuning
from osfmodel.planning.tuning.launch import SNIPPETS
from osfmodel.planning.tuning.tune import tune
from osfmodel.show.documents.results import Lines, Tuned
from osfmodel.solve.solution import MEMORY, Limits
from osfmodel.targets import CONFIG_TARGETS


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
@memory_options
@live_options
@OUTPUT.option(
    "--lines",
    type=OneOf(SNIPPETS),
    help="Print other lines for the plan: how to launch it, or NCCL's choices for its messages.",
)
@output_options
def tune_command(subject: Subject, **asked: Any) -> None:
    """Find the settings that make a framework run the best plan, and print the lines to paste.

    Needs --cluster and --workers, but for --live. -o ddp.py, horovod.env or deepspeed.json writes the settings; -o
    plan.json, .yaml or .csv writes the plan and its times. --format decides between the two.

    --for any compares DDP, ZeRO-1, ZeRO-2, FSDP2 and HSDP at each worker count up to N, by step time and, with --memory
    SIZE, by what fits, and prints the settings of the one to take.

    --memory SIZE also looks for the batch size, and for what to recompute, release and send sparsely, that train most
    samples per second within SIZE: a plan for osf.execute. With --for fsdp2, hsdp or torchtitan it keeps groups between
    forward and backward, as many as fit.

    --live FOLDER, under torchrun, measures the cluster (unless given) and the model (WORKLOAD may be
    PACKAGE.MODULE:FACTORY, as for osf profile), trains under the default and the tuned plan, and keeps the better.

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
        from osfmodel.cli.tune_any import require_for_any, tune_any_command  # not loaded for one target

        require_for_any(ctx)
        tune_any_command(subject, asked)
    elif asked["memory"] is not None and MEMORY not in CONFIG_TARGETS[asked["target"]].limits:
        require_executor(ctx)
        tune_memory_command(subject, asked)
    else:
        _tune(subject, asked)


def _limits(asked: Mapping[str, Any]) -> Limits:
    most = asked["max_bucket"]
    limited = asked["target"] in CONFIG_TARGETS and MEMORY in CONFIG_TARGETS[asked["target"]].limits
    memory = memory_limit(asked) if limited else None
    return Limits(None if most is None else parse_room(most), asked["max_buckets"], memory)


def _tune(subject: Subject, asked: Mapping[str, Any]) -> None:
    """Tune a framework on the predicted times, and print the result."""
    limits, target, lines = _limits(asked), asked["target"], asked["lines"]
    workload, cluster = load_subject(subject)
    if limits.memory is not None:
        workload = at_asked_batch(workload, asked)
    if not workload.gradient_bytes:
        raise DataError(f"no gradient of {workload.name!r} has a size, so that there is nothing to tune: {SIZED}")
    tuning = tune(
        subject.what_if.of_workload(workload, 1),
        cluster,
        parse_workers(asked["workers"], cluster),
        target,
        limits,
        Objective(asked["channels"], asked["forward_overlap"], SPLIT if asked["split"] else REPLICATED),
        _leads(asked["host_lead"], target),
    ).under(subject.what_if)
    style, as_json = asked["style"], asked["as_json"]
    if lines is not None:
        style = style or ("json" if as_json else "code")
    emit(style, as_json, asked["output"], Tuned(tuning, tuned_lines(tuning, lines), tuned_options(subject, asked)))


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
