"""The job config of torchtitan for FSDP2 and HSDP: degrees, resharding and types.

torchtitan groups as its ``apply_fsdp`` does: each module in front of the blocks by itself, each block, and all modules
behind the blocks together, which the policy ``default`` does not free after forward. Types are bfloat16 and float32
unless the config says otherwise. The step is FSDP2's (``fully-sharded``, ``hybrid-sharded``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import DataError, PlanError, UsageError
from osfmodel.entities.executors import CONVERTERS, FSDP, TITAN_DEGREES
from osfmodel.entities.modules import FULLY_SHARDED, SHARDED, around, blocks, module_of, wrapped
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.rounding import least
from osfmodel.entities.savings import OPTIMIZER
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.sharded_bounds import replicas_in
from osfmodel.solve.solution import MEMORY, Limits, MemoryLimit, PlanRule, Question, Solution, answer
from osfmodel.solve.verdicts import peak_within, shortfall
from osfmodel.targets.target import (
    PLACEHOLDER_PRICES,
    Accumulation,
    Conversion,
    JobSettings,
    Launch,
    SettingsText,
    Target,
    exact_or,
    require_plain,
)

DEFAULT, ALWAYS, NEVER = "default", "always", "never"
"""Policies of ``fsdp_reshard_after_forward``."""


@dataclass(frozen=True, slots=True)
class TitanKnobs:
    """Settings of torchtitan's data parallelism.

    reshard:  DEFAULT, ALWAYS or NEVER
    replicas: ``data_parallel_replicate_degree``
    gather_dtype, reduce_dtype: ``mixed_precision_param`` and ``mixed_precision_reduce``
    job:      batch, sequence, checkpointing and other parallelism; None if they are not known
    offload:  what the host has: the optimizer, and with it parameters and gradients, or nothing
    """

    reshard: str = DEFAULT
    replicas: int = 1
    gather_dtype: str = "bfloat16"
    reduce_dtype: str = "float32"
    job: JobSettings | None = None
    offload: tuple[str, ...] = ()


def to_plan(knobs: TitanKnobs, workload: Workload, pricing: Pricing) -> Plan:
    """The plan of the groups that torchtitan makes. Raises DataError for a workload without names of modules."""
    if workload.grain:
        raise DataError(
            f"the layers of {workload.name!r} are {workload.grain}s of a trace without names, and torchtitan groups "
            "modules by name: profile the model with osf profile"
        )
    freed, own = knobs.reshard != NEVER, blocks(workload)
    front, behind = _around(workload, own)
    groups = [ParameterGroup((name,), freed) for name in (*front, *own)]
    if behind:
        groups.append(ParameterGroup(behind, knobs.reshard == ALWAYS))
    return wrapped(workload, groups, Sharding((), knobs.replicas, knobs.gather_dtype, knobs.reduce_dtype))


def _around(workload: Workload, own: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules in front of the blocks ``own``, and those behind them; parameters of the model itself are in none."""
    front: dict[str, None] = {}
    behind: dict[str, None] = {}
    begun, held = False, frozenset(own)
    for name in (layer.name for layer in workload.layers if layer.gradient_bytes and own):
        if not held.isdisjoint(around(name)):
            begun = True
        elif module_of(name) != name:
            (behind if begun else front)[module_of(name)] = None
    return tuple(name for name in front if name not in behind), tuple(behind)


def exact(plan: Plan, workload: Workload) -> TitanKnobs:
    """The settings that form exactly this plan. Raises PlanError if none do."""
    if plan.sharding is None or plan.strategy not in SHARDED:
        require_plain(plan, workload, "torchtitan")
        raise PlanError("torchtitan's FSDP shards parameters: this plan replicates them")
    plan.require_valid(workload)
    rules = plan.sharding
    for reshard in (DEFAULT, ALWAYS, NEVER):
        knobs = TitanKnobs(reshard, rules.replicas, rules.gather_dtype, rules.reduce_dtype)
        if to_plan(knobs, workload, PLACEHOLDER_PRICES) == plan:
            return knobs
    raise PlanError("no settings of torchtitan form this plan")


def best(workload: Workload, pricing: Pricing, room: MemoryLimit | None = None) -> TitanKnobs:
    """The fastest of one replica and one per host; the default if none is faster.

    Groups are freed as by default; within a limit on memory by any policy whose step fits. Raises PlanError if none
    does.
    """
    policies = (DEFAULT,) if room is None else (DEFAULT, NEVER, ALWAYS)
    times, levels = {}, {}
    for count in dict.fromkeys((1, replicas_in(pricing))):
        for policy in policies:
            knobs = TitanKnobs(policy, count)
            plan = to_plan(knobs, workload, pricing)
            timeline = predict_timeline(workload, plan, pricing)
            times[knobs] = timeline.iteration_time
            if room is not None:
                levels[knobs] = peak_within(room, workload, plan, timeline, pricing.workers)
    if room is None:
        return least(times, lambda one: times[one])
    fitting = [one for one in times if levels[one].bytes <= room.bytes]
    if not fitting:
        smallest = least(levels, lambda one: levels[one].bytes)
        plan = to_plan(smallest, workload, pricing)
        needs = shortfall(levels[smallest], plan, room.bytes, batch=workload.batch_size)
        raise PlanError(f"{workload.name!r} does not fit: fsdp_reshard_after_forward = {smallest.reshard!r} {needs}")
    return least(fitting, lambda one: times[one])


def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> TitanKnobs:
    """The fastest settings. Raises PlanError if the plan needs an executor."""
    if plan.sharding is None:
        require_plain(plan, workload, "torchtitan")
    plan.require_valid(workload)
    return best(workload, pricing, limits.memory)


def solve(question: Question) -> Solution:
    """The plan of the fastest settings."""
    workload, pricing = question.workload, question.pricing
    return answer(question, to_plan(best(workload, pricing, question.limits.memory), workload, pricing))


def caveats(workload: Workload) -> tuple[str, ...]:
    """Assumptions of a prediction for torchtitan."""
    return (
        "torchtitan gathers in bfloat16 and reduces in float32 by default; times of computation are those of the "
        "profile, whatever its type",
    )


def config(knobs: TitanKnobs) -> dict[str, Any]:
    """The tables of the job config."""
    types = {"mixed_precision_param": knobs.gather_dtype, "mixed_precision_reduce": knobs.reduce_dtype}
    job = knobs.job
    sizes = {} if job is None else job.sizes
    found: dict[str, Any] = {
        "parallelism": {
            "data_parallel_replicate_degree": knobs.replicas,
            "data_parallel_shard_degree": -1,
            "fsdp_reshard_after_forward": knobs.reshard,
            **{TITAN_DEGREES[kind]: size for kind, size in sizes.items()},
        },
        "training": {
            **{key: dtype for key, dtype in types.items() if dtype},
            **({"enable_cpu_offload": True} if knobs.offload else {}),
        },
    }
    if job is None:
        return found
    if job.overlap:
        found["parallelism"]["enable_async_tensor_parallel"] = True
    if "pipeline" in sizes:
        found["parallelism"]["pipeline_parallel_microbatch_size"] = job.batch
    batch = job.batch * (job.micro_batches if "pipeline" in sizes else 1)
    found["training"] |= {"local_batch_size": batch, "global_batch_size": job.whole}
    found["training"] |= {} if job.sequence is None else {"seq_len": job.sequence}
    by_operator = {"selective_ac_option": "op"} if job.checkpointing == "selective" else {}
    found["activation_checkpoint"] = {"mode": job.checkpointing, **by_operator}
    found |= {"compile": {"enable": True}} if job.stack == "compile" else {}
    if job.dtype in CONVERTERS:
        kind, settings = CONVERTERS[job.dtype]
        found |= {
            "model": {"converters": [f"quantize.linear.{kind}"]},
            "quantize": {"linear": {kind: {**settings, "filter_fqns": ["output"]}}},
        }
    return found


def in_job(knobs: TitanKnobs, job: JobSettings) -> TitanKnobs:
    """The settings of a whole job. Raises UsageError for an interleaved pipeline."""
    if "chunks" in job.sizes:
        raise UsageError("--for torchtitan has no settings for --vpp: give --for megatron, or --layout vpp=1")
    return replace(knobs, job=job)


def _tables(name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of a job config with their values; those inside others by their whole names."""
    if own := {key: value for key, value in values.items() if not isinstance(value, dict)}:
        yield name, own
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _tables(f"{name}.{key}".removeprefix("."), value)


def render(knobs: TitanKnobs, workload: Workload) -> str:
    """Tables of TOML to merge into a job config."""
    lines = [f"# torchtitan settings for {workload.name}; -1 shards between all other ranks."]
    for table, values in _tables("", config(knobs)):
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "".join(f"{line}\n" for line in lines)


def accumulate(text: str, ending: str, count: int) -> str:
    """The tables with a note on the batch sizes, which set the number of micro-batches."""
    if "global_batch_size" in text:
        return text + f"# These batch sizes make {count} micro-batches a step.\n"
    return text + (
        f"# The plan is for {count} micro-batches a step, gathered and reduced in each: give global_batch_size\n"
        f"# {count} times local_batch_size times the data-parallel ranks.\n"
    )


_SUMMARY = "torchtitan's FSDP2 with its default policy: bfloat16 gathered, float32 reduced"
_OBJECTIVE = Objective(strategy=FULLY_SHARDED)
TARGET = Target(
    summary=_SUMMARY,
    convert=Conversion(
        default_knobs=TitanKnobs, from_plan=exact_or(exact, nearest), to_plan=to_plan, exact=exact, unpriced=True
    ),
    text=SettingsText(
        config=config,
        render=render,
        ending=".toml",
        caveats=caveats,
        accumulation=Accumulation(accumulate),
        in_job=in_job,
        offloads=(OPTIMIZER,),
    ),
    launch=Launch(script="your job config, merged with what this command writes without --lines (-o settings.toml)"),
    executor=FSDP,
    objective=_OBJECTIVE,
    limits=(MEMORY,),
    rule=PlanRule(solve, _SUMMARY, objective=_OBJECTIVE, executor=FSDP),
)
