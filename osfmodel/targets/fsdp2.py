"""PyTorch FSDP2 and HSDP: the modules that ``fully_shard`` groups, and how far ahead they are gathered.

By default each block is a group, as nearly everybody wraps: the members of the outermost lists of modules
(``entities.modules.blocks``); all other parameters are the root's. Groups are freed after forward and gathered again in
backward; the root is kept. The step is that of the strategy ``fully-sharded`` (torch 2.13); HSDP's is that of
``hybrid-sharded``: by default each node is a replica, so that parameters are gathered inside nodes, and only the shards
of gradients are all-reduced between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.alike import form_of, kept
from osfmodel.entities.compression import types_of
from osfmodel.entities.errors import DataError, PlanError
from osfmodel.entities.executors import FSDP
from osfmodel.entities.modules import FULLY_SHARDED, HYBRID_SHARDED, blocks, inside, wrapped
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.savings import OPTIMIZER
from osfmodel.entities.sharding import EACH, LAST, LAST_KEPT, SHARDS_EACH, Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.search.group_search import groups_for
from osfmodel.solve.sharded_bounds import AHEAD, replicas_in
from osfmodel.solve.solution import BUCKET_LIMITS, MEMORY, Limits, PlanRule, planner_of
from osfmodel.targets.fsdp2_knobs import FsdpKnobs, choice_of, is_part, modules_of, unknown_setting
from osfmodel.targets.fsdp2_lines import accumulation, config, render
from osfmodel.targets.target import (
    PLACEHOLDER_PRICES,
    Conversion,
    SettingsText,
    Target,
    exact_or,
    in_types,
    require_plain,
)


def to_plan(knobs: FsdpKnobs, workload: Workload, pricing: Pricing) -> Plan:
    """A bucket per group, and one for the root if it has parameters; each dtype gets its own.

    Raises DataError for a workload from a trace without module names: there is nothing to group.
    """
    replicas = replicas_in(pricing) if knobs.replicas is None else knobs.replicas
    key = (workload.name, workload.grain, form_of(workload), knobs, replicas)
    return kept(_plans, key, lambda: _plan(knobs, workload, replicas))


_plans: dict[Any, Plan] = {}
"""Plans of the last settings of the last workloads."""


def _plan(knobs: FsdpKnobs, workload: Workload, replicas: int) -> Plan:
    names = _per_block(_named(workload)) if knobs.groups is None else knobs.groups
    ahead = (knobs.forward_prefetch, knobs.backward_prefetch)
    whole = [place for place, freed in enumerate(knobs.freed(len(names))) if not freed]
    rules = Sharding(
        groups=(),
        replicas=replicas,
        gather_dtype=knobs.gather_dtype,
        reduce_dtype=knobs.reduce_dtype,
        reduce_inputs=knobs.inputs,
        separate=knobs.separate,
    )
    return wrapped(workload, groups_for(names, ahead, whole), rules.typed(*types_of(workload)))


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
    freed = {group.modules: bool(group.reshard) for group in groups}
    names = tuple(freed)
    rules, each = plan.sharding, None if names == _per_block(workload) else names
    reshard = tuple(freed.values()) if len(set(freed.values())) > 1 else all(freed.values())
    forward, backward = (groups[0].forward_prefetch, groups[0].backward_prefetch) if groups else AHEAD[0]
    knobs = FsdpKnobs(
        groups=each,
        forward_prefetch=forward,
        backward_prefetch=backward,
        replicas=rules.replicas,
        reshard=reshard,
        gather_dtype=rules.gather_dtype,
        reduce_dtype=rules.reduce_dtype,
        inputs=rules.reduce_inputs,
        separate=rules.separate,
    )
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
    types = "gathers and reduces in the type of the profile"
    if types_of(workload)[0]:
        types = "gathers in {} and reduces in {}".format(*types_of(workload))
    notes = [
        f"FSDP2 {types} unless the plan says otherwise; copies into and out of messages take no time unless the "
        "cluster states copy_in and copy_out"
    ]
    if workload.gradients.names and not blocks(workload):
        notes.append("no module of this profile is a numbered block, so that the whole model is one group")
    if len(set(workload.gradients.dtypes)) > 1:
        notes.append("FSDP2 refuses groups of parameters of several types: cast the model to one first")
    return tuple(notes)


def rule_of(name: str) -> PlanRule:
    """The rule of ``fsdp2:2,keep``, ``fsdp2:layers.0-3;layers.4-7`` or ``hsdp:bf16``. Raises UsageError otherwise."""
    size, parts, chosen = choice_of(name)

    def make(workload: Workload, pricing: Pricing) -> Plan:
        names = blocks(_named(workload))
        for part in (part for row in parts for part in row):
            if not re.search(r"[.*?\[]", part) and not is_part(part, workload):
                raise unknown_setting(name, part)
        rows = modules_of(parts, workload) or tuple(names[start : start + size] for start in range(0, len(names), size))
        return to_plan(replace(chosen, groups=rows), workload, pricing)

    target, called = (HYBRID, "HSDP") if chosen.replicas is None else (TARGET, "FSDP2")
    return PlanRule(
        planner_of(make), f"PyTorch {called} with the settings {name.partition(':')[2]}", caveats, target.objective,
        executor=FSDP, unpriced=target.convert.unpriced,
    )  # fmt: skip


SIZED = (BUCKET_LIMITS[0], MEMORY)
"""Limits that the search for groups keeps."""
TARGET = Target(
    summary="PyTorch FSDP2 with one group per block, gathered again in backward",
    convert=Conversion(
        default_knobs=FsdpKnobs,
        from_plan=from_plan,
        to_plan=to_plan,
        exact=exact,
        complete=in_types("float32"),
        unpriced=True,
    ),
    text=SettingsText(
        config=config,
        render=render,
        caveats=caveats,
        accumulation=accumulation(EACH, LAST, LAST_KEPT),
        offloads=(OPTIMIZER,),
    ),
    executor=FSDP,
    objective=Objective(strategy=FULLY_SHARDED),
    limits=SIZED,
)
HYBRID = Target(
    summary="PyTorch HSDP: FSDP2 with a replica on each node, one group per block",
    convert=Conversion(
        default_knobs=partial(FsdpKnobs, replicas=None),
        from_plan=exact_or(any_exact, nearest_of(replicas=None)),
        to_plan=to_plan,
        exact=any_exact,
        complete=in_types("float32"),
    ),
    text=replace(TARGET.text, accumulation=accumulation(EACH, SHARDS_EACH, LAST, LAST_KEPT)),
    executor=FSDP,
    objective=Objective(strategy=HYBRID_SHARDED),
    limits=SIZED,
)
