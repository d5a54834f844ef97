"""The command ``osf memory``."""

from __future__ import annotations

from dataclasses import replace

import click

from osfmodel.cli.app import OneOf, emit, output_options
from osfmodel.cli.groups import READ, GroupedCommand
from osfmodel.cli.options import Subject, load_subject, parse_workers, plan_files, plan_option, subject_options
from osfmodel.cost.clusters import pricing_of
from osfmodel.counting import load_workload
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import caveat, memory_of
from osfmodel.engine.optimizers import OPTIMIZERS
from osfmodel.entities.batches import FIXED_SHARE, at_batch
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import DDP, KEEPERS, LOCAL, RUNTIME
from osfmodel.entities.modules import unsharded
from osfmodel.entities.units import parse_room
from osfmodel.planning.cautions import UNPADDED, unpadded
from osfmodel.show.memory import MemoryPredicted
from osfmodel.solve.room import shortfall
from osfmodel.targets.named_plans import called, make_plan, named_plan


@click.command(name="memory", cls=GroupedCommand)
@subject_options(cluster_required=False)
@click.option("--workers", metavar="N", help="Worker count; with --cluster. Default: a single worker.")
@plan_option("Named plan or plan file; repeatable.")
@click.option(
    "--keeper",
    type=OneOf(KEEPERS),
    help="Executor whose gradient storage is assumed. Default: ddp for plans that it can run, else runtime.",
)
@click.option("--optimizer", type=OneOf(OPTIMIZERS), help="Optimizer; default: the profile's.")
@click.option("--batch-size", type=int, metavar="B", help="Samples per worker. Default: that of the profile.")
@click.option("--communicator", metavar="SIZE", help="Buffer size per communicator (one per channel).")
@click.option("--memory", metavar="SIZE", help="Memory of a GPU (16GiB): which plans do not fit, and what helps.")
@click.option("--also", metavar="FILE", type=READ, help="A profile of the same model at another batch size.")
@output_options
def memory_command(
    subject: Subject,
    workers: str | None,
    plan_names: tuple[str, ...],
    keeper: str | None,
    optimizer: str | None,
    batch_size: int | None,
    communicator: str | None,
    memory: str | None,
    also: str | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Predict the memory of a training step of WORKLOAD under each plan: the peak, when it is, and who owns it.

    WORKLOAD is a profile made by osf profile, which measures the memory of layers. Without --cluster: a single GPU.

    \b
    Example:
      osf memory resnet50-memory --batch-size 64
      osf memory resnet50-memory --cluster v100-10gbe --workers 16 --plan ddp --plan optimal
      osf memory resnet50-memory --cluster v100-10gbe --workers 16 --plan ddp --plan fsdp2 --memory 2.7GiB
    """
    alone = subject.cluster_name is None
    if alone != (workers is None):
        missing, given = ("--cluster NETWORK", "--workers") if alone else ("--workers N", "--cluster")
        raise UsageError(f"give {missing} with {given}, or leave {given} out for a single worker")
    if alone and plan_names:
        raise UsageError("--plan depends on the network: give --cluster and --workers, or leave --plan out")
    if alone and communicator is not None:
        raise UsageError("--communicator: a single worker has none: give --cluster and --workers, or leave it out")
    if subject.what_if.words:
        what = subject.what_if
        raise UsageError(f"what is kept with {what.words} is not known here: leave {what.options} out")
    workload, cluster = load_subject(replace(subject, cluster_name=subject.cluster_name or "ring:1us,100GB/s"))
    counts = [1] if workers is None else parse_workers(workers, cluster)
    if len(counts) > 1:
        raise UsageError(f"--workers {workers}: give one count, such as --workers {counts[-1]}")
    if batch_size is not None:
        workload = at_batch(workload, batch_size, None if also is None else load_workload(also), FIXED_SHARE)
    elif also is not None:
        raise UsageError("--also is for --batch-size B: give it, or leave --also out")
    pricing = pricing_of(cluster, counts[0], workload)
    kept = parse_room(communicator or "0B")
    room = None if memory is None else parse_room(memory)
    memories, times, lacking = {}, {}, {}
    said: list[str] = []
    names = dict.fromkeys(plan_names or ("ddp",))
    files = plan_files(names, workload)
    for name in names:
        if name in files:
            label, plan = name, files[name].at(counts[0])
            paid = pricing.for_plan(plan)
        else:
            label, entry = called(name), named_plan(name)
            paid = pricing.for_rules(entry.objective, entry.executor)
            plan = make_plan(name, workload, paid)
        timeline = predict_timeline(workload, plan, paid)
        executor = LOCAL if workers is None else DDP if DDP.carries(plan.plain) else RUNTIME
        label = "a single worker" if workers is None else label
        memories[label] = memory_of(workload, plan, timeline, counts[0], keeper or executor.name, optimizer, kept)
        times[label] = timeline.iteration_time
        said += [UNPADDED for _ in unpadded(workload, plan)]
        said += unsharded(workload, plan)
        if room is not None and memories[label].peak.bytes > room:
            lacking[label] = shortfall(memories[label].peak, plan, room)
    where = "" if alone else f" on {cluster.name}, {how_many(counts[0], 'worker')}"
    notes = (caveat(kept), *dict.fromkeys(said))
    predicted = MemoryPredicted(workload.name, workload.batch_size, memories, times, notes, where, room, lacking)
    emit(style, as_json, output, predicted)
