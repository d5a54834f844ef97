"""PyTorch FSDP1 (``FullyShardedDataParallel``): wrapped blocks, and the settings by which they are gathered.

By default each block is wrapped (``entities.modules.blocks``); all other parameters are the root's. The step is that of
the strategy ``flat-sharded`` (torch 2.13). Accelerate and Lightning pass the same settings on; both set
``use_orig_params``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.compression import types_of
from osfmodel.entities.dtypes import SHORT_NAMES
from osfmodel.entities.errors import DataError, PlanError
from osfmodel.entities.executors import FSDP
from osfmodel.entities.modules import FLAT_SHARDED, blocks, wrapped
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.rounding import least
from osfmodel.entities.sharding import EACH, LAST, ParameterGroup, Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.sharded_bounds import replicas_in
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, answer
from osfmodel.targets.target import (
    LIGHTNING_ACCUMULATION,
    PLACEHOLDER_PRICES,
    Accumulation,
    Conversion,
    SettingsText,
    Target,
    exact_or,
    in_types,
    require_plain,
)

STRATEGIES = {
    (True, False): "FULL_SHARD", (False, False): "SHARD_GRAD_OP",
    (True, True): "HYBRID_SHARD", (False, True): "_HYBRID_SHARD_ZERO2",
}  # fmt: skip
"""ShardingStrategy, by whether blocks are freed after forward and whether there are replicas."""
PRE, POST, NEVER = "BACKWARD_PRE", "BACKWARD_POST", "None"


@dataclass(frozen=True, slots=True)
class FlatKnobs:
    """Settings of FSDP1.

    modules:  the wrapped modules, in forward order; None for each block
    reshard:  whether they are freed after forward
    backward_prefetch: PRE, POST or NEVER
    limit:    ``limit_all_gathers``
    aligned:  ``use_orig_params``
    replicas: sets of ranks that each hold all parameters; None for one per host
    gather_dtype, reduce_dtype: types in which parameters are gathered and gradients reduced; "" as Sharding says
    """

    modules: tuple[str, ...] | None = None
    reshard: bool = True
    backward_prefetch: str = PRE
    forward_prefetch: bool = False
    limit: bool = True
    aligned: bool = False
    replicas: int | None = 1
    gather_dtype: str = ""
    reduce_dtype: str = ""


def to_plan(knobs: FlatKnobs, workload: Workload, pricing: Pricing) -> Plan:
    """A bucket per wrapped module, and one for the root if it has parameters. Raises DataError without names."""
    if workload.grain:
        raise DataError(
            f"the layers of {workload.name!r} are {workload.grain}s of a trace without names, and FSDP1 wraps modules "
            "by name: profile the model with osf profile"
        )
    ahead, behind = int(knobs.forward_prefetch), int(knobs.backward_prefetch != NEVER)
    names = blocks(workload) if knobs.modules is None else knobs.modules
    groups = [
        ParameterGroup((name,), knobs.reshard, forward_prefetch=ahead, backward_prefetch=behind) for name in names
    ]  # fmt: skip
    rules = Sharding(
        (), replicas_in(pricing) if knobs.replicas is None else knobs.replicas, knobs.gather_dtype, knobs.reduce_dtype,
        late_prefetch=knobs.backward_prefetch == POST, unlimited=not knobs.limit, aligned=knobs.aligned,
    )  # fmt: skip
    plan = wrapped(workload, groups, rules.typed(*types_of(workload)))
    assert plan.sharding is not None
    every = tuple(replace(one, forward_prefetch=ahead, backward_prefetch=behind) for one in plan.sharding.groups)
    return replace(plan, strategy=FLAT_SHARDED, sharding=replace(plan.sharding, groups=every))


def exact(plan: Plan, workload: Workload) -> FlatKnobs:
    """The settings that form exactly this plan. Raises PlanError if none do."""
    if plan.sharding is None or plan.strategy != FLAT_SHARDED:
        require_plain(plan, workload, "FSDP1")
        raise PlanError("FSDP1 shards parameters: this plan replicates them")
    plan.require_valid(workload)
    rules = plan.sharding
    groups = [group for group in rules.groups if group.modules]
    names = tuple(dict.fromkeys(group.modules[0] for group in groups))
    first = rules.groups[0] if rules.groups else ParameterGroup()
    late = POST if rules.late_prefetch else PRE
    knobs = FlatKnobs(
        None if names == blocks(workload) else names, bool(groups[0].reshard) if groups else True,
        late if first.backward_prefetch else NEVER, bool(first.forward_prefetch), not rules.unlimited, rules.aligned,
        rules.replicas, rules.gather_dtype, rules.reduce_dtype,
    )  # fmt: skip
    if to_plan(knobs, workload, PLACEHOLDER_PRICES) != plan:
        raise PlanError("no wrapping of modules makes FSDP1 form this plan")
    return knobs


def best(workload: Workload, pricing: Pricing, aligned: bool) -> FlatKnobs:
    """The fastest of the settings of prefetching; the default unless another one is faster."""
    options = [
        FlatKnobs(backward_prefetch=backward, forward_prefetch=forward, aligned=aligned)
        for forward, backward in product((False, True), (PRE, POST))
    ]
    return least(
        options, lambda one: predict_timeline(workload, to_plan(one, workload, pricing), pricing).iteration_time
    )


def nearest_of(aligned: bool) -> Callable[[Plan, Workload, Pricing, Limits], FlatKnobs]:
    """A function (plan, workload, pricing, limits) -> the fastest settings; PlanError if the plan needs an executor."""

    def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> FlatKnobs:
        if plan.sharding is None:
            require_plain(plan, workload, "FSDP1")
        plan.require_valid(workload)
        return best(workload, pricing, aligned)

    return nearest


def planner_for(aligned: bool) -> Callable[[Question], Solution]:
    """The plan of the fastest settings."""

    def solve(question: Question) -> Solution:
        workload, pricing = question.workload, question.pricing
        return answer(question, to_plan(best(workload, pricing, aligned), workload, pricing))

    return solve


def caveats(workload: Workload) -> tuple[str, ...]:
    """Limits of a prediction for FSDP1."""
    notes = ["FSDP1 gathers and reduces in the type of the profile unless the plan says otherwise"]
    if workload.gradients.names and not blocks(workload):
        notes.append("no module of this profile is a numbered block, so that the whole model is one flat parameter")
    if len(set(workload.gradients.dtypes)) > 1:
        notes.append("FSDP1 refuses flat parameters of several types: cast the model to one first")
    return tuple(notes)


def config(knobs: FlatKnobs) -> dict[str, Any]:
    """The arguments of FullyShardedDataParallel; modules by name, null for each block."""
    types = {"param_dtype": knobs.gather_dtype, "reduce_dtype": knobs.reduce_dtype}
    return {
        "auto_wrap_modules": None if knobs.modules is None else list(knobs.modules),
        "sharding_strategy": STRATEGIES[knobs.reshard, knobs.replicas != 1],
        "backward_prefetch": None if knobs.backward_prefetch == NEVER else knobs.backward_prefetch,
        "forward_prefetch": knobs.forward_prefetch,
        "limit_all_gathers": knobs.limit,
        "use_orig_params": knobs.aligned,
        "mixed_precision": {key: SHORT_NAMES[dtype] for key, dtype in types.items() if dtype} or None,
    }


def arguments(knobs: FlatKnobs, policy: str) -> str:
    """The arguments as Python, one a line; ``policy`` is the one for types."""
    prefetch = knobs.backward_prefetch
    types = {"param_dtype": knobs.gather_dtype, "reduce_dtype": knobs.reduce_dtype}
    stated = ", ".join(f"{key}=torch.{dtype}" for key, dtype in types.items() if dtype)
    lines = [
        "auto_wrap_policy=policy",
        f"sharding_strategy=ShardingStrategy.{STRATEGIES[knobs.reshard, knobs.replicas != 1]}",
        f"backward_prefetch={prefetch if prefetch == NEVER else f'BackwardPrefetch.{prefetch}'}",
        f"forward_prefetch={knobs.forward_prefetch}",
        f"limit_all_gathers={knobs.limit}",
        f"use_orig_params={knobs.aligned}",
        *([f"{policy}=MixedPrecision({stated})"] if stated else []),
    ]
    return "".join(f"    {line},\n" for line in lines)


def names_text(names: Sequence[str]) -> str:
    """Names as lines of a Python list; runs of numbered modules as one expression."""
    lines = []
    for stem, run in groupby(names, lambda name: name.rstrip("0123456789")):
        alike = list(run)
        numbers = [re.search(r"\d*$", name)[0] for name in alike]  # type: ignore[index]
        first = int(numbers[0] or 0)
        if len(alike) > 2 and "%" not in stem and numbers == [str(first + place) for place in range(len(alike))]:
            lines.append(f'    *("{stem}%d" % i for i in range({first}, {first + len(alike)})),')
        else:
            lines += [f"    {name!r}," for name in alike]
    return "".join(f"{line}\n" for line in lines)


def lines_with(made: str) -> Callable[[FlatKnobs, Workload], str]:
    """A function (knobs, workload) -> Python to paste; ``made`` makes the model, or the object that trains it."""
    policy = "mixed_precision_policy" if made == ACCELERATE else "mixed_precision"

    def render(knobs: FlatKnobs, workload: Workload) -> str:
        names = blocks(workload) if knobs.modules is None else knobs.modules
        imports = ["BackwardPrefetch", *(["MixedPrecision"] if knobs.gather_dtype or knobs.reduce_dtype else [])]
        head = "import torch\n" if len(imports) > 1 else ""
        return TEMPLATE.format(
            name=workload.name, freed="freed" if knobs.reshard else "not freed", names=names_text(names), torch=head,
            imports=", ".join(imports), made=made.format(arguments=arguments(knobs, policy)),
        )  # fmt: skip

    return render


TEMPLATE = """\
# FSDP1 settings for {name}: wrapped modules are {freed} after forward; all others stay in the root.
{torch}from functools import partial

from torch.distributed.fsdp import {imports}, ShardingStrategy
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

names = [
{names}]
chosen = {{id(model.get_submodule(name)) for name in names}}
policy = partial(lambda_auto_wrap_policy, lambda_fn=lambda module: id(module) in chosen)
{made}"""
TORCH = """\
from torch.distributed.fsdp import FullyShardedDataParallel

model = FullyShardedDataParallel(
    model,
{arguments})
"""
ACCELERATE = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=1,
{arguments})
accelerator = Accelerator(fsdp_plugin=plugin)  # then accelerator.prepare(model, ...) as usual
"""
LIGHTNING = """\
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy

strategy = FSDPStrategy(  # model: the module inside your LightningModule, made before the Trainer
{arguments})
trainer = Trainer(strategy=strategy)  # add devices=..., num_nodes=... as usual
"""


def accumulating(said: str, text: str, ending: str, count: int) -> str:
    """The lines with a comment on how to accumulate, after those that wrap the model."""
    return text + said.format(count=count)


REDUCED_EACH = """
# The plan is for {count} micro-batches a step, gathered and reduced in each: a forward and a backward for each of
# them, and then the optimizer's step.
"""
REDUCED_LAST = """
# The plan is for {count} micro-batches a step, sent with the last: run the others inside  with model.no_sync():
"""
ACCUMULATION = Accumulation(
    partial(accumulating, REDUCED_EACH),
    forms={
        EACH: (partial(accumulating, REDUCED_EACH), "reducing in each"),
        LAST: (partial(accumulating, REDUCED_LAST), "no_sync"),
    },
)


def accelerate_accumulating(text: str, ending: str, count: int) -> str:
    """The lines with an Accelerator that accumulates inside no_sync."""
    made = "Accelerator(fsdp_plugin=plugin"
    return text.replace(f"{made})", f"{made}, gradient_accumulation_steps={count})")


def accelerate_reducing(text: str, ending: str, count: int) -> str:
    """The lines with an Accelerator that reduces in each micro-batch."""
    made, plugin = "Accelerator(fsdp_plugin=plugin", f"GradientAccumulationPlugin({count}, sync_each_batch=True)"
    imported = "from accelerate.utils import GradientAccumulationPlugin\n\nplugin = "
    text = text.replace("\nplugin = ", imported, 1)
    return text.replace(f"{made})", f"{made}, gradient_accumulation_plugin={plugin})")


IN_ACCUMULATE = {
    LAST: (accelerate_accumulating, "no_sync, as gradient_accumulation_steps does"),
    EACH: (accelerate_reducing, "sync_each_batch=True"),
}


def _target(made: str, summary: str, aligned: bool, accumulation: Accumulation, dialect_of: str = "") -> Target:
    objective = Objective(strategy=FLAT_SHARDED)
    return Target(
        summary=summary,
        convert=Conversion(
            default_knobs=partial(FlatKnobs, aligned=aligned),
            from_plan=exact_or(exact, nearest_of(aligned)),
            to_plan=to_plan,
            exact=exact,
            complete=in_types("float32"),
            unpriced=True,
        ),
        text=SettingsText(config=config, render=lines_with(made), caveats=caveats, accumulation=accumulation),
        executor=FSDP,
        objective=objective,
        limits=(),
        rule=PlanRule(planner_for(aligned), summary, objective=objective, executor=FSDP),
        dialect_of=dialect_of,
    )


TARGET = _target(
    TORCH, "PyTorch FSDP1 with each block wrapped, FULL_SHARD", False, ACCUMULATION
)  # fmt: skip
IN_ACCELERATE = _target(
    ACCELERATE, "Hugging Face Accelerate or Trainer on PyTorch FSDP1", True,
    Accumulation(
        accelerate_accumulating, lambda count: {"gradient_accumulation_steps": count}, forms=IN_ACCUMULATE
    ), "fsdp1",
)  # fmt: skip
IN_LIGHTNING = _target(
    LIGHTNING, "PyTorch Lightning on PyTorch FSDP1", True,
    LIGHTNING_ACCUMULATION, "fsdp1",
)  # fmt: skip
