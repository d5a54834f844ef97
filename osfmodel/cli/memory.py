"""The command ``osf memory``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import click

from osfmodel.cli.app import OneOf, emit, output_options
from osfmodel.cli.groups import READ, GroupedCommand, OptionGroup
from osfmodel.cli.options import (
    Subject,
    load_subject,
    parse_workers,
    plan_files,
    plan_option,
    remedies_command,
    subject_options,
)
from osfmodel.cost.clusters import pricing_of
from osfmodel.counting import in_words, load_workload
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.remarks import remarks
from osfmodel.counting.training import FULL
from osfmodel.counting.words import parse_words
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import Memory, caveat, memory_of, peak_as_known, reserved_as_known
from osfmodel.engine.optimizers import OPTIMIZERS
from osfmodel.entities.batches import FIXED_SHARE, at_batch
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_bytes
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import DDP, KEEPERS, LOCAL, RUNTIME
from osfmodel.entities.modules import unsharded
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import parse_room
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import UNPADDED, unpadded
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask
from osfmodel.planning.scaling.strategies import NEAR, chance_of_room, compiled, room_of, shorter
from osfmodel.show.memory import MemoryPredicted
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import YES, reserved_of, setup_of, shortfall, verdict_of
from osfmodel.targets.named_plans import called, make_plan, named_plan

ALONE = "ring:1us,100GB/s"
"""A network for a single worker, which needs none."""
GROUPS = OptionGroup("Parallelism inside a replica")


class HeldPlan(NamedTuple):
    """A plan with the memory of its step, seconds of it, how to get the bytes that PyTorch's allocator reserves, and
    those at the peak of another workload."""

    plan: Plan
    memory: Memory
    time: float
    workload: Workload
    simulated: Callable[[], int]
    held: Callable[[Workload], int]


class KeptBytes(NamedTuple):
    """Assumptions on memory beside the plan: executor of the gradients, optimizer, bytes of each communicator."""

    keeper: str | None
    optimizer: str | None
    communicator: int

    def of(self, workload: Workload, plan: Plan, timeline: Timeline, workers: int, keeper: str) -> HeldPlan:
        """The memory of a step; ``keeper``: unless one was asked for."""
        asked = (plan, timeline, workers, self.keeper or keeper, self.optimizer)
        memory = memory_of(workload, *asked, self.communicator)
        simulated = partial(reserved_as_known, workload, *asked)

        def held(other: Workload) -> int:
            return peak_as_known(other, *asked, self.communicator).bytes

        return HeldPlan(plan, memory, timeline.iteration_time, workload, simulated, held)


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
@click.option("--memory", metavar="SIZE", help="Of a GPU (16GiB). Default: what CUDA and NCCL leave of it.")
@GROUPS.option("--tp", type=int, default=1, metavar="N", help="Tensor parallelism.")
@GROUPS.option("--cp", type=int, default=1, metavar="N", help="Context parallelism.")
@GROUPS.option("--pp", type=int, default=1, metavar="N", help="Pipeline stages; --accumulate: micro-batches.")
@GROUPS.option("--ep", type=int, default=1, metavar="N", help="Expert parallelism.")
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
    tp: int,
    cp: int,
    pp: int,
    ep: int,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Predict the memory of a training step of WORKLOAD under each plan: the peak, when it is, and who owns it.

    WORKLOAD is a profile made by osf profile, which measures the memory of layers. Of a model in words it is
    counted. Without --cluster: a single GPU.

    \b
    Example:
      osf memory resnet50-memory --batch-size 64
      osf memory resnet50-memory --cluster v100-10gbe --workers 16 --plan ddp --plan optimal
      osf memory resnet50-memory --cluster v100-10gbe --workers 16 --plan ddp --plan fsdp2 --memory 2.7GiB
      osf memory llama3-8b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 16 --plan fsdp2 --tp 2
    """
    alone = subject.cluster_name is None
    if alone != (workers is None):
        missing, given = ("--cluster NETWORK", "--workers") if alone else ("--workers N", "--cluster")
        raise UsageError(f"give {missing} with {given}, or leave {given} out for a single worker")
    if alone and plan_names:
        raise UsageError("--plan depends on the network: give --cluster and --workers, or leave --plan out")
    if alone and communicator is not None:
        raise UsageError("--communicator: a single worker has none: give --cluster and --workers, or leave it out")
    groups = Parallelism(tensor=tp, context=cp, pipeline=pp, expert=ep)
    if alone and groups != Parallelism():
        raise UsageError(f"{groups.words}: a single worker has no groups: give --cluster and --workers")
    several = not alone and (groups != Parallelism() or subject.what_if.accumulate > 1)
    what = replace(subject.what_if, accumulate=1) if several else subject.what_if
    if what.words:
        raise UsageError(f"what is kept with {what.words} is not known here: leave {what.options} out")
    workload, cluster = load_subject(replace(subject, cluster_name=subject.cluster_name or ALONE))
    counts = [1] if workers is None else parse_workers(workers, cluster)
    if len(counts) > 1:
        raise UsageError(f"--workers {workers}: give one count, such as --workers {counts[-1]}")
    assumed = KeptBytes(keeper, optimizer, parse_room(communicator or "0B"))
    names = tuple(dict.fromkeys(plan_names or ("ddp",)))
    if several:
        what = replace(subject.what_if, batch_size=batch_size)
        if groups != Parallelism():
            workload = replica_workload(subject.workload_name, cluster, groups)
        found = dict(
            _in_replicas(workload, cluster, counts[0], ScaleOptions(names, None, what, groups=groups), assumed)
        )
        workload = workload if batch_size is None else replace(workload, batch_size=batch_size)
    else:
        if batch_size is not None:
            workload = at_batch(workload, batch_size, None if also is None else load_workload(also), FIXED_SHARE)
        elif also is not None:
            raise UsageError("--also is for --batch-size B: give it, or leave --also out")
        found = dict(_under_plans(workload, cluster, None if workers is None else counts[0], names, assumed))
    limit = MemoryLimit(parse_room(memory)) if memory is not None else _room(workload, groups)
    reserved, chances, lacking = _judged(found, limit, (tp, cp, pp), workload)
    where = "" if alone else f" on {cluster.name}, {how_many(counts[0], 'worker')}"
    where += f" with {what.words}" * bool(what.words) + f" with {groups.words}" * (groups != Parallelism())
    said = [UNPADDED for one in found.values() if unpadded(workload, one.plan)]
    said += [sentence for one in found.values() for sentence in unsharded(workload, one.plan)]
    said += remarks(workload.name) if in_words(workload.name) else ()
    fits = {name: verdict_of(chance) for name, chance in chances.items()}
    said += [_either(name, found[name]) for name, one in fits.items() if one != YES and in_words(workload.name)]
    sure = alone or set(fits.values()) <= {YES}
    if optimizer is not None and limit is not None:  # osf scale takes an optimizer beside a limit only
        memory = show_bytes(limit.bytes).replace(" ", "")
    options = {"--batch-size": batch_size, "--memory": memory, "--optimizer": optimizer}
    predicted = MemoryPredicted(
        workload.name,
        workload.batch_size,
        {name: one.memory for name, one in found.items()},
        {name: one.time for name, one in found.items()},
        (caveat(assumed.communicator), *dict.fromkeys(filter(None, said))),
        where,
        None if limit is None else limit.bytes,
        lacking,
        reserved,
        chances,
        fits,
        "" if sure else remedies_command(subject, counts[0], options, groups.words),
    )
    emit(style, as_json, output, predicted)


def _either(name: str, one: HeldPlan) -> str:
    """A remark where words that state no stack may mean either of two; "" where they do not."""
    other = compiled(one.workload)
    if other is one.workload:
        return ""
    each = f"eager blocks hold {show_bytes(one.memory.peak.bytes)}, compiled ones {show_bytes(one.held(other))}"
    return f"the words name no stack: with {name} {each}, and the chance is the mean of both; stack=eager tells which"


def _judged(
    found: Mapping[str, HeldPlan], limit: MemoryLimit | None, within: tuple[int, int, int], workload: Workload
) -> tuple[dict[str, int], dict[str, float], dict[str, str]]:
    """By plan: bytes that PyTorch reserves, the chance that a GPU has room for them, and what is lacking."""
    profiled = workload.fixed_share is None
    setups = {name: setup_of(profiled, within, one.plan.strategy) for name, one in found.items()}
    usual = {name: reserved_of(one.memory.peak.bytes, setups[name]) for name, one in found.items()}
    repeated = in_words(workload.name) and parse_words(workload.name).setting.checkpointing == FULL
    least = math.inf if limit is None else NEAR * limit.bytes
    reserved = usual | {name: one.simulated() for name, one in found.items() if one.memory.peak.bytes >= least}
    chances, lacking = {}, {}
    for name, one in found.items():
        if limit is not None:
            chances[name] = chance_of_room(one.workload, one.memory.peak.bytes, limit.bytes, setups[name], one.held)
            needs = (one.memory.peak, one.plan, limit.bytes, repeated, reserved[name], workload.batch_size)
            lacking[name] = shortfall(*needs)
    return reserved, chances, lacking


def expected_memory(
    name: str, cluster_name: str | None, workers: str | None, plan: str | None
) -> tuple[str, Mapping[str, int]]:
    """(words, bytes by owner at the peak) of a step of the workload as named; without a cluster, of a single worker.

    Raises UsageError for options that lack one another.
    """
    if len({cluster_name is None, workers is None}) > 1 or (plan is not None and workers is None):
        raise UsageError("--expected takes --cluster, --workers and --plan together, or none of them for a single GPU")
    workload, cluster = load_subject(Subject(name, cluster_name or ALONE))
    counts = [None] if workers is None else parse_workers(workers, cluster)
    if len(counts) > 1:
        raise UsageError(f"--workers {workers}: give one count, such as --workers {counts[-1]}")
    ((label, held),) = _under_plans(workload, cluster, counts[0], (plan or "ddp",), KeptBytes(None, None, 0))
    return f"{workload.name}, {label}", held.memory.peak.held


def _room(workload: Workload, groups: Parallelism) -> MemoryLimit | None:
    """The memory of the GPU that words name."""
    return room_of(workload, groups) if in_words(workload.name) else None


def _under_plans(
    workload: Workload, cluster: Cluster, workers: int | None, names: tuple[str, ...], assumed: KeptBytes
) -> Iterator[tuple[str, HeldPlan]]:
    """The memory of the plans, named or in files; without a number of workers that of a single one."""
    count = workers or 1
    pricing = pricing_of(cluster, count, workload)
    files = plan_files(dict.fromkeys(names), workload)
    for name in names:
        if name in files:
            label, plan = name, files[name].at(count)
            paid = pricing.for_plan(plan)
        else:
            label, entry = called(name), named_plan(name)
            paid = pricing.for_rules(entry.objective, entry.executor)
            plan = make_plan(name, workload, paid)
        timeline = predict_timeline(workload, plan, paid)
        executor = LOCAL if workers is None else DDP if DDP.carries(plan.plain) else RUNTIME
        held = assumed.of(workload, plan, timeline, count, executor.name)
        yield "a single worker" if workers is None else label, held


def _in_replicas(
    workload: Workload, cluster: Cluster, workers: int, options: ScaleOptions, assumed: KeptBytes
) -> Iterator[tuple[str, HeldPlan]]:
    """The memory of named plans with groups inside a replica, or micro-batches, as ``osf scale`` predicts them."""
    ranks = options.groups.ranks(workers)
    for row in ScaleTask.of(workload, cluster, options).point(workload, workers).rows:
        plan, timeline = shorter(row.prediction)
        executor = DDP if DDP.carries(plan.plain) else RUNTIME
        held = assumed.of(row.prediction.bound.question.workload, plan, timeline, ranks, executor.name)
        yield row.name, held._replace(time=row.time)
