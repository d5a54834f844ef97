"""Megatron-LM's DistributedDataParallel: ``--ddp-bucket-size``, one limit in parameters.

The rule of Megatron (megatron/core/distributed/param_and_grad_buffer.py, read, and run on the CPU with megatron-core
0.16.1): it walks the parameters in the reverse of the order in which they are defined, those of each dtype by
themselves, and closes a bucket as soon as it holds at least the limit; with ``--overlap-grad-reduce`` a bucket is sent
when all of its gradients are there. Without, everything is one bucket. The limit is max(40 M, 1 M times the workers)
where none is given; ``--ddp-num-buckets`` sets it to the parameters divided by that number, rounded down. With
``--use-distributed-optimizer`` each tensor begins at a multiple of 64 elements, which counts for the limit; the step is
then that of the strategy ``distributed-optimizer``, with ``--overlap-param-gather`` as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.executors import MEGATRON, MEGATRON_DEGREES, PRECISION, RECOMPUTED
from osfmodel.entities.filling import Closes, fill_by_dtype
from osfmodel.entities.modules import DISTRIBUTED_OPTIMIZER, in_one_micro_batch
from osfmodel.entities.plan import Objective, Plan, grouped_plan
from osfmodel.entities.rounding import least
from osfmodel.entities.savings import OPTIMIZER
from osfmodel.entities.workload import Gradients, Workload
from osfmodel.solve.caps import AT_LEAST, best_cap_elements, cap_forming, in_elements
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, answer
from osfmodel.targets.target import (
    Accumulation,
    Conversion,
    JobSettings,
    Launch,
    SettingsText,
    SizeKnob,
    Target,
    exact_or,
    require_plain,
)

LEAST_DEFAULT, PER_WORKER = 40_000_000, 1_000_000
ALIGNED = 64
"""Elements to whose multiples tensors are aligned under the distributed optimizer."""
TRIED, SMALLEST = 16, 64
"""Sizes that a search tries, evenly spread in proportion, and the part of all parameters that the least of them is."""
MOST_BUCKETS = 1000
"""Largest ``--ddp-num-buckets`` to try for the same buckets."""


@dataclass(frozen=True, slots=True)
class MegatronKnobs:
    """Minimum parameters in a bucket, None for Megatron's default, and how they are sent.

    overlap:     whether buckets are sent during backward
    distributed: whether each rank updates a shard, and gathers parameters in the next forward
    job:         batch, sequence, checkpointing and other parallelism; None if they are not known
    offload:     what the host has: the distributed optimizer, or nothing
    """

    bucket_elements: int | None = None
    overlap: bool = True
    distributed: bool = False
    job: JobSettings | None = None
    offload: tuple[str, ...] = ()


def to_plan(knobs: MegatronKnobs, workload: Workload, pricing: Pricing) -> Plan:
    """The plan of Megatron's buckets; without overlap one bucket per dtype, after backward."""
    size = knobs.bucket_elements or max(LEAST_DEFAULT, PER_WORKER * pricing.workers)
    elements = in_elements(workload.gradients)
    if knobs.distributed:
        return replace(grouped_plan(workload, aligned_layout(elements, size)), strategy=DISTRIBUTED_OPTIMIZER)
    groups = AT_LEAST.layout(elements, size if knobs.overlap else sum(elements.sizes) + 1)
    return grouped_plan(workload, groups)


def exact(plan: Plan, workload: Workload) -> MegatronKnobs:
    """The size that forms exactly this plan. Raises PlanError if none does."""
    require_plain(plan, workload, "Megatron")
    if not plan.buckets:
        return MegatronKnobs()
    order = {name: position for position, name in enumerate(workload.gradients.names)}
    groups = [[order[block.layer] for block in bucket.blocks] for bucket in plan.buckets]
    cap = cap_forming(groups, in_elements(workload.gradients), AT_LEAST)
    if cap is None or grouped_plan(workload, groups) != plan:
        raise PlanError("no --ddp-bucket-size makes Megatron form this plan")
    return MegatronKnobs(cap)


def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> MegatronKnobs:
    """The size with the earliest end of communication. Raises PlanError if the plan needs an executor."""
    require_plain(plan, workload, "Megatron")
    cap = best_cap_elements(workload, pricing.cost(), AT_LEAST, limits)
    if cap is None:
        raise PlanError(limits.unmet("--ddp-bucket-size"))
    return MegatronKnobs(cap)


def exact_distributed(plan: Plan, workload: Workload) -> MegatronKnobs:
    """The size with which the distributed optimizer forms exactly this plan. Raises PlanError if none does."""
    if plan.strategy != DISTRIBUTED_OPTIMIZER:
        require_plain(plan, workload, "Megatron")
        raise PlanError("Megatron's distributed optimizer updates shards: this plan updates all on every rank")
    plan.require_valid(workload)
    plan, elements = in_one_micro_batch(plan), in_elements(workload.gradients)
    order = {name: position for position, name in enumerate(elements.names)}
    groups = [[order[block.layer] for block in bucket.blocks] for bucket in plan.buckets]
    for size in (*(_end(group, elements.sizes) for group in groups), sum(elements.sizes) * ALIGNED + 1):
        if replace(grouped_plan(workload, aligned_layout(elements, size)), strategy=DISTRIBUTED_OPTIMIZER) == plan:
            return MegatronKnobs(size, distributed=True)
    raise PlanError("no --ddp-bucket-size makes Megatron's distributed optimizer form this plan")


def _end(group: Sequence[int], sizes: Sequence[int]) -> int:
    """Elements of a bucket, each tensor at a multiple of ALIGNED."""
    end = 0
    for item in group:
        end = -(-end // ALIGNED) * ALIGNED + sizes[item]
    return end


def best_distributed(workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> MegatronKnobs:
    """The size of the fastest step among the default and TRIED others. Raises PlanError if none keeps the limits."""
    whole = sum(in_elements(workload.gradients).sizes)
    sizes = sorted({max(round(whole / SMALLEST ** (step / (TRIED - 1))), 1) for step in range(TRIED)}, reverse=True)
    options = [MegatronKnobs(size, distributed=True) for size in (None, *sizes)]
    kept = [one for one in options if limits == Limits() or limits.allow(to_plan(one, workload, pricing))]
    if not kept:
        raise PlanError(limits.unmet("--ddp-bucket-size"))
    return least(kept, lambda one: predict_timeline(workload, to_plan(one, workload, pricing), pricing).iteration_time)


def nearest_distributed(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> MegatronKnobs:
    """The size of the fastest step. Raises PlanError if the plan needs an executor."""
    if plan.strategy == DISTRIBUTED_OPTIMIZER:
        plan.require_valid(workload)
    else:
        require_plain(plan, workload, "Megatron")
    return best_distributed(workload, pricing, limits)


def solve_distributed(question: Question) -> Solution:
    """The plan of the fastest size."""
    workload, pricing = question.workload, question.pricing
    return answer(question, to_plan(best_distributed(workload, pricing, question.limits), workload, pricing))


def distributed_caveats(workload: Workload) -> tuple[str, ...]:
    """Assumptions of a prediction for the distributed optimizer."""
    return (
        "Megatron with --overlap-grad-reduce and --overlap-param-gather, gradients ready in the reverse order of "
        "definition, and one set of optimizer shards over all workers",
    )


def caveats(workload: Workload) -> tuple[str, ...]:
    """Assumptions of the buckets and times."""
    return (
        "Megatron with --overlap-grad-reduce, gradients ready in the reverse order of definition, all-reduces: "
        "--use-distributed-optimizer scatters and gathers instead: --for distributed-optimizer",
    )


def config(knobs: MegatronKnobs) -> dict[str, Any]:
    """Megatron's arguments by name; the size in parameters."""
    shards = {"use_distributed_optimizer": True, "overlap_param_gather": True} if knobs.distributed else {}
    shards |= dict.fromkeys(ON_HOST, True) if knobs.offload else {}
    size = {"ddp_bucket_size": knobs.bucket_elements}
    return {**_of_job(knobs), **shards, "overlap_grad_reduce": knobs.overlap, **size}


ON_HOST = ("optimizer_cpu_offload", "use_precision_aware_optimizer")
"""Arguments for an optimizer on the host; Megatron asks for the second with the first."""


def _of_job(knobs: MegatronKnobs) -> dict[str, Any]:
    """The arguments of the whole job; a tensor group shares the tokens between matrices."""
    job = knobs.job
    if job is None:
        return {}
    found: dict[str, Any] = {MEGATRON_DEGREES[kind]: size for kind, size in job.groups}
    found |= dict.fromkeys(UNEVEN, True) if job.blocks % _parts(job) else {}
    found |= {"sequence_parallel": True} if "tensor" in job.sizes else {}
    found |= {"tp_comm_overlap": True} if job.overlap else {}
    found |= {"micro_batch_size": job.batch, "global_batch_size": job.whole}
    found |= {} if job.sequence is None else {"seq_length": job.sequence}
    return found | RECOMPUTED.get(job.checkpointing, {}) | PRECISION.get(job.dtype, {})


UNEVEN = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""Arguments with which the embedding and the head count as a block each."""


def _parts(job: JobSettings) -> int:
    """Parts into which the pipeline divides the blocks: chunks of all stages."""
    return job.sizes.get("pipeline", 1) * job.sizes.get("chunks", 1)


def refusal(blocks: int, stages: int, chunks: int, micro_batches: int) -> str:
    """Why Megatron refuses a pipeline, and what to give in its place; "" for one that it runs."""
    parts = stages * chunks
    if blocks % parts and (blocks + 2) % parts:
        return (
            f"Megatron divides {blocks} blocks, or {blocks + 2} with embedding and head, evenly, and not by {parts}: "
            "give another --pp or --vpp"
        )
    if chunks > 1 and micro_batches % stages:
        return (
            f"Megatron interleaves {stages} stages for a multiple of {stages} micro-batches, and there are "
            f"{micro_batches}: give another --global-batch or --accumulate, or --vpp 1"
        )
    return ""


def in_job(knobs: MegatronKnobs, job: JobSettings) -> MegatronKnobs:
    """The settings of a whole job. Raises UsageError for a pipeline that Megatron refuses."""
    stages, chunks = (job.sizes.get(kind, 1) for kind in ("pipeline", "chunks"))
    if said := refusal(job.blocks, stages, chunks, job.micro_batches):
        raise UsageError(said)
    return replace(knobs, job=job)


def flags(knobs: MegatronKnobs) -> str:
    """The arguments on a command line."""
    size = "" if knobs.bucket_elements is None else f" --ddp-bucket-size {knobs.bucket_elements}"
    shards = "--use-distributed-optimizer --overlap-param-gather " * knobs.distributed
    shards += "".join(f"--{name.replace('_', '-')} " for name in ON_HOST) * bool(knobs.offload)
    groups = "".join(
        f"--{name.replace('_', '-')} {'' if value is True else f'{value} '}" for name, value in _of_job(knobs).items()
    )
    return f"{groups}{shards}{'--overlap-grad-reduce' * knobs.overlap}{size}".strip()


def render(knobs: MegatronKnobs, workload: Workload) -> str:
    """The flags, and the number of buckets that does the same, if there is one."""
    if knobs.distributed:
        return DISTRIBUTED.format(name=workload.name, flags=flags(knobs))
    return TEMPLATE.format(
        name=workload.name,
        flags=flags(knobs),
        buckets=_by_number(knobs, workload),
        aligned=_aligned(knobs, workload),
    )


def aligned_layout(elements: Gradients, limit: int) -> list[list[int]]:
    """The buckets, as positions, if each tensor begins at a multiple of ALIGNED elements."""
    closes = Closes(full=lambda end, number: end >= limit, start=lambda end: -(-end // ALIGNED) * ALIGNED)
    closed, opened = fill_by_dtype(elements, elements.sizes, closes)
    return closed + sorted(opened)


def _by_number(knobs: MegatronKnobs, workload: Workload) -> str:
    """The number of buckets that sets a size which forms the same ones, in words."""
    elements = in_elements(workload.gradients)
    total, wanted = sum(elements.sizes), AT_LEAST.layout(elements, knobs.bucket_elements or LEAST_DEFAULT)
    for number in range(1, min(total, MOST_BUCKETS) + 1):
        if AT_LEAST.layout(elements, total // number) == wanted:
            return f"--ddp-num-buckets {number} forms the same buckets; give one of the two."
    return "No --ddp-num-buckets forms the same buckets."


def _aligned(knobs: MegatronKnobs, workload: Workload) -> str:
    """A phrase on whether the distributed optimizer forms other buckets."""
    elements, size = in_elements(workload.gradients), knobs.bucket_elements or LEAST_DEFAULT
    same = aligned_layout(elements, size) == AT_LEAST.layout(elements, size)
    return (
        "forms the same buckets" if same else "forms other buckets, since tensors begin at multiples of 64 parameters"
    )


def accumulate(text: str, ending: str, count: int) -> str:
    """The flags with a note on the batch sizes, which set the number of micro-batches."""
    if "--global-batch-size" in text:
        return text + f"# These batch sizes make {count} micro-batches a step.\n"
    return text + (
        f"# The plan is for {count} micro-batches a step, sent with the last: give --global-batch-size\n"
        f"# {count} times --micro-batch-size times the data-parallel workers.\n"
    )


TEMPLATE = """\
# Megatron-LM settings for {name}. The size is in parameters, not bytes.
{flags}
# {buckets}
# --use-distributed-optimizer {aligned}.
"""

DISTRIBUTED = """\
# Megatron-LM settings for {name}. The size is in parameters, not bytes.
{flags}
"""
_OBJECTIVE = Objective(strategy=DISTRIBUTED_OPTIMIZER)
_SUMMARY = "Megatron-LM's distributed optimizer with its default bucket size, both collectives overlapped"

TARGET = Target(
    summary="Megatron-LM with its default bucket size, max(40 M, 1 M times the workers) parameters",
    convert=Conversion(default_knobs=MegatronKnobs, from_plan=exact_or(exact, nearest), to_plan=to_plan, exact=exact),
    text=SettingsText(
        config=config,
        render=render,
        ending=".args",
        caveats=caveats,
        accumulation=Accumulation(accumulate),
        in_job=in_job,
    ),
    launch=Launch(
        arguments=flags,
        script="train.py is your script of Megatron's, such as pretrain_gpt.py; its other arguments go where these are",
    ),
    size=SizeKnob(
        "--ddp-bucket-size",
        MegatronKnobs,
        lambda workload, cost: best_cap_elements(workload, cost, AT_LEAST),
        elements=True,
    ),
)

SHARDED = Target(
    summary=_SUMMARY,
    convert=Conversion(
        default_knobs=partial(MegatronKnobs, distributed=True),
        from_plan=exact_or(exact_distributed, nearest_distributed),
        to_plan=to_plan,
        exact=exact_distributed,
    ),
    text=SettingsText(
        config=config,
        render=render,
        ending=".args",
        caveats=distributed_caveats,
        accumulation=Accumulation(accumulate),
        in_job=in_job,
        offloads=(OPTIMIZER,),
    ),
    launch=TARGET.launch,
    size=SizeKnob("--ddp-bucket-size", partial(MegatronKnobs, distributed=True), elements=True),
    executor=MEGATRON,
    objective=_OBJECTIVE,
    limits=(),
    rule=PlanRule(solve_distributed, _SUMMARY, objective=_OBJECTIVE, executor=MEGATRON),
)
