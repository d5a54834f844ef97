"""``osf tune``"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from osfmodel.cli.app import OneOf, emit, output_options, parse_workers
from osfmodel.cli.options import target_option
from osfmodel.cli.options.subject import Subject, load_subject, subject_options
from osfmodel.cli.tune_live import live_options, refuse_mixtures, tune_live_command
from osfmodel.cli.tune_memory import memory_options, refuse_other_options, tune_memory_command
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.plan import Objective
from osfmodel.entities.units import parse_bytes
from osfmodel.planning.launch import SNIPPETS
from osfmodel.planning.predictions import SIZED
from osfmodel.planning.tuning import Tuning, tune
from osfmodel.show.documents.results import Lines, Tuned
from osfmodel.solve import Limits
from osfmodel.targets import CONFIG_TARGETS


@click.command(name="tune")
@subject_options(cluster_required=False)
@click.option("--workers", metavar="N[,N...|A..B]", help="Several counts: one configuration for all of them.")
@target_option("Framework, or runtime: any plan.")
@click.option("--max-bucket", metavar="SIZE", help="Largest bucket, for example 64MiB.")
@click.option("--max-buckets", type=int, metavar="K", help="Most buckets.")
@click.option(
    "--host-lead", metavar="F|F..G", help="How many times as fast as the device the host submits work (horovod)."
)
@click.option("--channels", type=click.IntRange(1, 64), default=1, metavar="K", help="Collectives in flight (runtime).")
@click.option("--forward-overlap", is_flag=True, help="A layer's forward waits for its own gradient only (runtime).")
@click.option("--split", is_flag=True, help="Reduce-scatter in backward, all-gather before the forward (runtime).")
@click.option(
    "--lines",
    type=OneOf(SNIPPETS),
    help="Print other lines for the plan: how to launch it, or NCCL's choices for its messages.",
)
@memory_options
@live_options
@output_options
def tune_command(
    subject: Subject,
    workers: str,
    target: str,
    max_bucket: str | None,
    max_buckets: int | None,
    host_lead: str | None,
    channels: int,
    forward_overlap: bool,
    split: bool,
    lines: str | None,
    style: str | None,
    as_json: bool,
    output: str | None,
    **others: Any,
) -> None:
    """Find the settings that make a framework carry out the best plan, and print the lines to paste.

    Needs --cluster and --workers. With --live FOLDER, under torchrun, it measures the cluster (unless given) and the
    model (WORKLOAD may be PACKAGE.MODULE:FACTORY, as for osf profile), trains under the default and the tuned plan, and
    keeps the better.

    -o FILE writes what its name says: the framework's settings where it ends as files of these do (ddp.py, horovod.env,
    deepspeed.json), else the plan and its times (.json, .yaml, .csv). --format decides between the two.

    With --memory SIZE it looks for the batch size, and for what to keep, recompute, release and, with --sparse, send
    sparsely, that train most samples per second within SIZE: a plan for osf.execute.

    \b
    Example:
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --for ddp
      osf tune resnet50-v100 --cluster v100-10gbe --workers 8..64 --for horovod
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --for runtime --forward-overlap -o plan.json
      osf tune resnet50-memory --cluster v100-10gbe --workers 16 --memory 4GiB -o plan.json
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --lines slurm -o job.sh
      torchrun --nproc-per-node 4 -m osfmodel tune my_training:make --live tuned
    """
    ctx = click.get_current_context()
    refuse_mixtures(ctx)
    refuse_other_options(ctx)
    if others["memory"] is not None:
        tune_memory_command(ctx.params)
        return
    limits = Limits(None if max_bucket is None else parse_bytes(max_bucket), max_buckets)
    if others["live"] is not None:
        asked = ctx.get_parameter_source("target") == click.core.ParameterSource.COMMANDLINE
        tune_live_command(ctx.params, limits, not asked or CONFIG_TARGETS[target].executes)
        return
    workload, cluster = load_subject(subject)
    if not workload.gradient_bytes:
        raise DataError(f"no gradient of {workload.name!r} has a size, so that there is nothing to tune: {SIZED}")
    tuning = tune(
        subject.what_if.of_workload(workload, 1),
        cluster,
        parse_workers(workers, cluster),
        target,
        limits,
        Objective(channels, forward_overlap, split),
        _leads(host_lead, target),
    )
    tuning = tuning.under(subject.what_if)
    if lines is not None:
        style = style or ("json" if as_json else "code")
    emit(style, as_json, output, Tuned(tuning, _lines(tuning, lines)))


def _lines(tuning: Tuning, snippet: str | None) -> Lines:
    """Those of the framework, or those asked for with --lines."""
    target = CONFIG_TARGETS[tuning.target]
    if snippet is None:
        written = partial(target.written, tuning.knobs, tuning.workload)
        return Lines(target.endings, written, target.executes)
    text = SNIPPETS[snippet].write(tuning)
    return Lines(target.endings, lambda ending: text, target.executes, other=True)


def _leads(text: str | None, target: str) -> tuple[float, ...] | None:
    """``"2"`` or ``"1..5"``, whose middle counts as well. Raises UsageError."""
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
