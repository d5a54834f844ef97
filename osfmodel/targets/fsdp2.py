"""PyTorch FSDP2 and HSDP: the modules that ``fully_shard`` groups, and how far ahead they are gathered.

By default each block is a group, as nearly everybody wraps: the members of the outermost lists of modules
(``entities.modules.blocks``); all other parameters are the root's. Groups are freed after forward and gathered again in
backward; the root is kept. The step is that of the strategy ``fully-sharded`` (torch 2.13); HSDP's is that of
``hybrid-sharded``: by default each node is a replica, so that parameters are gathered inside nodes, and only the shards
of gradients are all-reduced between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import DataError, PlanError, UsageError
from osfmodel.entities.executors import FSDP
from osfmodel.entities.modules import FULLY_SHARDED, HYBRID_SHARDED, blocks, inside, wrapped
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.sharding import Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.search.sharded import AHEAD, groups_for, replicas_in
from osfmodel.solve.solution import Limits, PlanRule, planner_of
from osfmodel.targets.target import (
    PLACEHOLDER_PRICES,
    Accumulation,
    Conversion,
    SettingsText,
    Target,
    exact_or,
    require_plain,
)


@dataclass(frozen=True, slots=True)
class FsdpKnobs:
    """Settings of FSDP2.

    groups:   modules of each group, in forward order; None for one group per block
    forward_prefetch, backward_prefetch: groups gathered ahead; 0 and 1 are what FSDP2 does without lists
    replicas: sets of ranks that each hold all parameters; None for one per host
    reshard:  whether groups are freed after forward
    gather_dtype, reduce_dtype: types in which parameters are gathered and gradients reduced; "" as Sharding says
    """

    groups: tuple[tuple[str, ...], ...] | None = None
    forward_prefetch: int = AHEAD[0][0]
    backward_prefetch: int = AHEAD[0][1]
    replicas: int | None = 1
    reshard: bool = True
    gather_dtype: str = ""
    reduce_dtype: str = ""


def to_plan(knobs: FsdpKnobs, workload: Workload, pricing: Pricing) -> Plan:
    """A bucket per group, and one for the root if it has parameters; each dtype gets its own.

    Raises DataError for a workload from a trace without module names: there is nothing to group.
    """
    names = _per_block(_named(workload)) if knobs.groups is None else knobs.groups
    ahead = (knobs.forward_prefetch, knobs.backward_prefetch)
    groups = [replace(group, reshard=knobs.reshard) for group in groups_for(names, ahead)]
    replicas = replicas_in(pricing) if knobs.replicas is None else knobs.replicas
    return wrapped(workload, groups, Sharding((), replicas, knobs.gather_dtype, knobs.reduce_dtype))


def _named(workload: Workload) -> Workload:
    """The workload. Raises DataError if its layers have no names of modules."""
    if workload.grain:
        raise DataError(
            f"the layers of {workload.name!r} are {workload.grain}s of a trace without names, and FSDP2 groups "
            "modules by name: profile the model with osf profile"
        )
    return workload


def _per_block(workload: Workload) -> tuple[tuple[str, ...], ...]:
    return tuple((name,) for name in blocks(workload))


def exact(plan: Plan, workload: Workload) -> FsdpKnobs:
    """The settings that form exactly this plan, without replicas. Raises PlanError if none do."""
    knobs = any_exact(plan, workload)
    if knobs.replicas != 1:
        raise PlanError("FSDP2 shards between all ranks: for replicas ask hsdp")
    return knobs


def any_exact(plan: Plan, workload: Workload) -> FsdpKnobs:
    """The settings that form exactly this plan, with its replicas. Raises PlanError if none do."""
    if plan.sharding is None:
        require_plain(plan, workload, "FSDP2")
        raise PlanError("FSDP2 shards parameters: this plan replicates them")
    plan.require_valid(workload)
    groups = [group for group in plan.sharding.groups if group.modules]
    names = tuple(dict.fromkeys(group.modules for group in groups))
    ahead = (groups[0].forward_prefetch, groups[0].backward_prefetch) if groups else AHEAD[0]
    rules, reshard = plan.sharding, bool(groups[0].reshard) if groups else True
    each = None if names == _per_block(workload) else names
    knobs = FsdpKnobs(each, *ahead, rules.replicas, reshard, rules.gather_dtype, rules.reduce_dtype)
    if to_plan(knobs, workload, PLACEHOLDER_PRICES) != plan:
        raise PlanError("no grouping of modules makes FSDP2 form this plan")
    return knobs


def nearest_of(replicas: int | None) -> Callable[[Plan, Workload, Pricing, Limits], FsdpKnobs]:
    """A function (plan, workload, pricing, limits) -> settings with so many replicas, as near to the plan as they come.

    They put blocks in the groups in which their last gradients are in the plan, or each in one, if that is faster. It
    raises PlanError if the plan needs an executor.
    """

    def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> FsdpKnobs:
        if plan.sharding is None:
            require_plain(plan, workload, "FSDP2")
        options = (FsdpKnobs(replicas=replicas), FsdpKnobs(_alike(plan, workload), replicas=replicas))
        plans = [to_plan(knobs, workload, pricing) for knobs in options]
        each, alike = (predict_timeline(workload, one, pricing).iteration_time for one in plans)
        return options[alike < each]

    return nearest


def _alike(plan: Plan, workload: Workload) -> tuple[tuple[str, ...], ...]:
    """Runs of blocks whose last gradients share a bucket."""
    last = {}
    for number, bucket in enumerate(plan.buckets):
        for block in bucket.blocks:
            for module in blocks(workload):
                if inside(block.layer, module):
                    last[module] = number
    return tuple(tuple(names) for _, names in groupby(blocks(workload), last.get))


from_plan = exact_or(exact, nearest_of(replicas=1))


def caveats(workload: Workload) -> tuple[str, ...]:
    """Limits of a prediction for FSDP2."""
    notes = [
        "FSDP2 gathers and reduces in the type of the profile unless the plan says otherwise; copies into and out of "
        "messages take no time unless the cluster states copy_in and copy_out"
    ]
    if workload.gradients.names and not blocks(workload):
        notes.append("no module of this profile is a numbered block, so that the whole model is one group")
    if len(set(workload.gradients.dtypes)) > 1:
        notes.append("FSDP2 refuses groups of parameters of several types: cast the model to one first")
    return tuple(notes)


FSDP2, HSDP = "fsdp2:", "hsdp:"
"""Prefixes of plans with settings: ``fsdp2:2,keep``, ``hsdp:bf16,reduce=fp32,ahead=2``."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Short names of types."""
OPTIONS = "blocks in each group, keep (reshard_after_forward=False), ahead=N, bf16, fp16 or fp32, reduce=TYPE"


def choice_of(name: str) -> tuple[int, FsdpKnobs]:
    """Blocks in each group, and the other settings of ``fsdp2:2,keep``. Raises UsageError for others than OPTIONS."""
    blocks_each, found = 1, FsdpKnobs(replicas=None if name.startswith(HSDP) else 1)
    for word in map(str.strip, name.partition(":")[2].split(",")):
        key, _, value = word.partition("=")
        number = int(value or key) if re.fullmatch("[0-9]{1,6}", value or key) else 0
        if number and not value:
            blocks_each = number
        elif number and key == "ahead":
            found = replace(found, forward_prefetch=number, backward_prefetch=number)
        elif key == "reduce" and value in DTYPES:
            found = replace(found, reduce_dtype=DTYPES[value])
        elif word in DTYPES:
            found = replace(found, gather_dtype=DTYPES[word])
        elif word == "keep":
            found = replace(found, reshard=False)
        else:
            raise UsageError(f"plan {name!r}: {word!r} is no setting of it: give any of {OPTIONS}")
    return blocks_each, found


def rule_of(name: str) -> PlanRule:
    """The rule of ``fsdp2:2,keep`` or ``hsdp:bf16``. Raises UsageError for a malformed name."""
    size, chosen = choice_of(name)

    def make(workload: Workload, pricing: Pricing) -> Plan:
        names = blocks(_named(workload))
        rows = tuple(names[start : start + size] for start in range(0, len(names), size))
        return to_plan(replace(chosen, groups=rows), workload, pricing)

    target, called = (HYBRID, "HSDP") if chosen.replicas is None else (TARGET, "FSDP2")
    return PlanRule(
        planner_of(make), f"PyTorch {called} with the settings {name.partition(':')[2]}", caveats, target.objective,
        executor=FSDP, unpriced=target.convert.unpriced,
    )  # fmt: skip


def config(knobs: FsdpKnobs) -> dict[str, Any]:
    """The groups as module names; null for one per block."""
    return {
        "groups": None if knobs.groups is None else [list(group) for group in knobs.groups],
        "reshard_after_forward": knobs.reshard,
        "forward_prefetch": knobs.forward_prefetch,
        "backward_prefetch": knobs.backward_prefetch,
        "replicas": "one per node" if knobs.replicas is None else knobs.replicas,
        "param_dtype": knobs.gather_dtype or None,
        "reduce_dtype": knobs.reduce_dtype or None,
    }


def render(knobs: FsdpKnobs, workload: Workload) -> str:
    """Python to paste after the code that makes the model."""
    groups = _per_block(workload) if knobs.groups is None else knobs.groups
    hybrid = knobs.replicas != 1
    replicas = 'ranks // int(os.environ["LOCAL_WORLD_SIZE"])' if knobs.replicas is None else knobs.replicas
    mesh = MESH.format(replicas=replicas) if hybrid else ""
    lists = "".join(
        PREFETCH.format(direction=direction, behind=behind, depth=depth)
        for direction, behind, depth, default in (
            ("forward", "number + 1 : number + 1 + {depth}", knobs.forward_prefetch, AHEAD[0][0]),
            ("backward", "max(0, number - {depth}) : number][::-1", knobs.backward_prefetch, AHEAD[0][1]),
        )
        for behind in [behind.format(depth=depth)]
        if depth != default
    )
    types = {"param_dtype": knobs.gather_dtype, "reduce_dtype": knobs.reduce_dtype}
    stated = ", ".join(f"{key}=torch.{dtype}" for key, dtype in types.items() if dtype)
    given = ", mesh=mesh" * hybrid + ", mp_policy=policy" * bool(stated)
    policy = POLICY.format(types=stated) if stated else ""
    return TEMPLATE.format(
        name=workload.name, groups=grouped_text(groups), mesh=policy + mesh, given=given, lists=lists,
        reshard=knobs.reshard, then="gathered again in backward" if knobs.reshard else "kept until backward",
        freed="freed" if knobs.reshard else "not freed",
    )  # fmt: skip


def grouped_text(groups: Sequence[Sequence[str]]) -> str:
    """Groups as lines of Python that make lists of names, runs of numbered modules as one expression each."""
    lines = []
    for _, alike in groupby(groups, lambda group: (len(group), _stem(group[0]) if len(group) == 1 else "")):
        several = list(alike)
        single = [group[0] for group in several]
        if len(several[0]) == 1 and (text := _run(single, each="[{}]")):
            lines.append(f"    *({text}),")
        else:
            lines += [f"    [{run}]," if (run := _run(group)) else f"    {list(group)}," for group in several]
    return "".join(f"{line}\n" for line in lines)


def _stem(name: str) -> str:
    return name.rstrip("0123456789")


def _run(names: Sequence[str], each: str = "{}") -> str:
    """A comprehension over three or more modules with consecutive numbers, of ``each``; "" if they are not."""
    stem, numbers = _stem(names[0]), [re.search(r"\d*$", name)[0] for name in names]  # type: ignore[index]
    if len(names) < 3 or any(_stem(name) != stem for name in names) or "" in numbers or "%" in stem:
        return ""
    first = int(numbers[0])
    if numbers != [str(first + place) for place in range(len(names))]:
        return ""
    name = each.format(f'"{stem}%d" % i')
    return f"{name} for i in range({first}, {first + len(names)})"


def accumulating(text: str, ending: str, count: int) -> str:
    """Lines that accumulate, after those that shard the model."""
    return text + ACCUMULATED.format(count=count)


ACCUMULATED = """
# The plan is for {count} micro-batches a step, sent with the last: train with this instead of a backward in each step.
def train_step(batches, loss_of, optimizer):  # {count} micro-batches; loss_of(batch) calls the model
    optimizer.zero_grad()
    for number, batch in enumerate(batches, 1):
        model.set_requires_gradient_sync(number == {count})  # before, gradients are added up, whole
        model.set_reshard_after_backward(number == {count})  # before, parameters stay, and are gathered once
        (loss_of(batch) / {count}).backward()
    optimizer.step()
"""
MESH = """
import os

from torch.distributed.device_mesh import init_device_mesh

ranks = int(os.environ["WORLD_SIZE"])  # as torchrun sets it
replicas = {replicas}
mesh = init_device_mesh("cuda", (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard"))
"""
POLICY = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

policy = MixedPrecisionPolicy({types})
"""
PREFETCH = """\
for number, names in enumerate(groups):
    ahead = [model.get_submodule(name) for group in groups[{behind}] for name in group[:1]]
    for name in names:
        model.get_submodule(name).set_modules_to_{direction}_prefetch(ahead)
"""
TEMPLATE = """\
# FSDP2 groups for {name}: each is {freed} after forward and {then}.
# Modules not listed stay in the root group.
from torch.distributed.fsdp import fully_shard
{mesh}
groups = [
{groups}]
for names in groups:
    fully_shard([model.get_submodule(name) for name in names], reshard_after_forward={reshard}{given})
fully_shard(model{given})
{lists}"""

TARGET = Target(
    summary="PyTorch FSDP2 with one group per block, gathered again in backward",
    convert=Conversion(default_knobs=FsdpKnobs, from_plan=from_plan, to_plan=to_plan, exact=exact, unpriced=True),
    text=SettingsText(config=config, render=render, caveats=caveats, accumulation=Accumulation(accumulating)),
    executor=FSDP,
    objective=Objective(strategy=FULLY_SHARDED),
)
HYBRID = Target(
    summary="PyTorch HSDP: FSDP2 with a replica on each node, one group per block",
    convert=Conversion(
        default_knobs=partial(FsdpKnobs, replicas=None),
        from_plan=exact_or(any_exact, nearest_of(replicas=None)),
        to_plan=to_plan,
        exact=any_exact,
    ),
    text=TARGET.text,
    executor=FSDP,
    objective=Objective(strategy=HYBRID_SHARDED),
)
