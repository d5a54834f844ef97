"""DeepSpeed ZeRO stages 1 and 2: ``reduce_bucket_size``, one bound in elements on what is reduced at once.

The rule of DeepSpeed (deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8, read, and run over gloo with 1 and 2 ranks):
with ``overlap_comm`` each gradient that is ready is copied into the bucket of its dtype; one that would bring it above
the bound makes it be sent first, and one above the bound by itself is sent alone. Without ``overlap_comm`` stage 1
sends after backward, in the order in which parameters are defined; that is the default. Each bucket is one all-reduce,
also with ``reduce_scatter``, which is the default, but that a tensor above the bound is then sent in pieces where it
spans the partitions of several ranks; so ``reduce_scatter`` is switched off in what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.errors import PlanError
from osfmodel.entities.modules import ZERO
from osfmodel.entities.plan import REPLICATED, Plan, grouped_plan
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import AT_MOST, best_cap_elements, bounded_layout, cap_forming, in_elements
from osfmodel.solve.solution import Limits
from osfmodel.targets.target import (
    Accumulation,
    Conversion,
    Launch,
    SettingsText,
    SizeKnob,
    Target,
    exact_or,
    ignoring_prices,
    require_plain,
)

DEFAULT_ELEMENTS = 500_000_000


@dataclass(frozen=True, slots=True)
class DeepSpeedKnobs:
    """Maximum elements in a bucket, and whether buckets are sent during backward."""

    elements: int = DEFAULT_ELEMENTS
    overlap: bool = False


def to_plan(knobs: DeepSpeedKnobs, workload: Workload) -> Plan:
    """The plan of the buckets that ZeRO stage 1 forms."""
    elements = in_elements(workload.gradients)
    if knobs.overlap:
        return grouped_plan(workload, bounded_layout(elements, knobs.elements))
    columns = {name: getattr(elements, name)[::-1] for name in ("names", "sizes", "dtypes")}
    groups = bounded_layout(replace(elements, **columns), knobs.elements)
    last = len(elements) - 1
    after = workload.forward_time + workload.backward_time
    return grouped_plan(workload, [[last - i for i in group] for group in groups], [after] * len(groups))


def exact(plan: Plan, workload: Workload) -> DeepSpeedKnobs:
    """The knobs that form exactly this plan, or its buckets if it is one of ZeRO. Raises PlanError if none do."""
    plan = replace(plan, strategy=REPLICATED) if plan.strategy in ZERO and plan.sharding is None else plan
    require_plain(plan, workload, "DeepSpeed")
    order = {name: position for position, name in enumerate(workload.gradients.names)}
    groups = [[order[block.layer] for block in bucket.blocks] for bucket in plan.buckets]
    if not groups:
        return DeepSpeedKnobs()
    tried = [DeepSpeedKnobs(), *_overlapping(groups, workload), *_after(groups, workload)]
    for knobs in tried:
        if to_plan(knobs, workload) == plan:
            return knobs
    raise PlanError("no reduce_bucket_size makes DeepSpeed form this plan")


def _overlapping(groups: Sequence[Sequence[int]], workload: Workload) -> list[DeepSpeedKnobs]:
    cap = cap_forming(groups, in_elements(workload.gradients), AT_MOST)
    return [] if cap is None else [DeepSpeedKnobs(cap, overlap=True)]


def _after(groups: Sequence[Sequence[int]], workload: Workload) -> list[DeepSpeedKnobs]:
    """Bounds that may form a plan in the order of definition."""
    elements = in_elements(workload.gradients)
    sizes = [sum(elements.sizes[i] for i in group) for group in groups]
    fused = [size for group, size in zip(groups, sizes, strict=True) if len(group) > 1]
    return [DeepSpeedKnobs(cap) for cap in dict.fromkeys([max(sizes), max(fused, default=1)])]


def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> DeepSpeedKnobs:
    """The reduce_bucket_size whose communication ends first. Raises PlanError if the plan needs an executor."""
    require_plain(plan, workload, "DeepSpeed")
    cap = best_cap_elements(workload, pricing.cost(), AT_MOST, limits)
    if cap is None:
        raise PlanError(limits.unmet("reduce_bucket_size"))
    return DeepSpeedKnobs(cap, overlap=True)


def caveats(workload: Workload) -> tuple[str, ...]:
    """Parts that a prediction leaves out, and a warning from users about small bounds."""
    return (
        "DeepSpeed gathers the updated parameters after each step, which is not in these times (osf predict --plan "
        "zero-1 counts it) and does not depend on reduce_bucket_size",
        "users saw training converge worse with small buckets (deepspeedai/DeepSpeed issue 6351, open): compare losses",
    )


def config(knobs: DeepSpeedKnobs) -> dict[str, Any]:
    """The settings in DeepSpeed's JSON; sizes in elements."""
    zero = {
        "stage": 1,
        "reduce_bucket_size": knobs.elements,
        "overlap_comm": knobs.overlap,
        "contiguous_gradients": True,
        "reduce_scatter": False,
    }
    return {"zero_optimization": zero}


def render(knobs: DeepSpeedKnobs, workload: Workload) -> str:
    """A configuration file: DeepSpeed reads Hjson, so that comments are allowed."""
    return TEMPLATE.format(
        name=workload.name,
        count=len(to_plan(knobs, workload).buckets),
        tensors=len(workload.gradients),
        document=json.dumps(config(knobs), indent=2),
    )


def plain(knobs: DeepSpeedKnobs, workload: Workload) -> str:
    """The configuration without comments, for readers of plain JSON."""
    return json.dumps(config(knobs), indent=2) + "\n"


def accumulate(text: str, ending: str, count: int) -> str:
    """The configuration with ``gradient_accumulation_steps``; with stage 1 only the last micro-step sends."""
    return text.replace('{\n  "zero_', f'{{\n  "gradient_accumulation_steps": {count},\n  "zero_', 1)


TEMPLATE = """\
# DeepSpeed settings for {name}: {count} buckets for {tensors} gradient tensors.
# DeepSpeed reads this file as it is (Hjson); -o FILE.json leaves these lines out, as others want it. Merge with yours.
# reduce_bucket_size is in elements, not bytes; two buffers of that many elements are kept with overlap_comm.
# Stage 2 forms the same buckets, in every micro-step. allgather_bucket_size changes nothing before the update.
# Users saw training converge worse with small buckets (github.com/deepspeedai/DeepSpeed/issues/6351): compare losses
# with those of the default, 500000000, before you keep it.
{document}
"""

TARGET = Target(
    summary="DeepSpeed ZeRO stage 1 with its default bound, 500 M elements, after backward",
    convert=Conversion(
        default_knobs=DeepSpeedKnobs,
        from_plan=exact_or(exact, nearest),
        to_plan=ignoring_prices(to_plan),
        exact=exact,
        unpriced=True,
    ),
    text=SettingsText(
        config=config,
        render=render,
        ending=".hjson",
        files={".json": plain},
        caveats=caveats,
        accumulation=Accumulation(accumulate, lambda count: {"gradient_accumulation_steps": count}),
    ),
    launch=Launch(
        arguments=lambda knobs: "--deepspeed --deepspeed_config deepspeed.json",
        script="deepspeed.json: your file, merged with what this command writes without --lines (-o settings.json)",
    ),
    size=SizeKnob(
        "reduce_bucket_size",
        lambda count: DeepSpeedKnobs(count, overlap=True),
        lambda workload, cost: best_cap_elements(workload, cost, AT_MOST),
        elements=True,
    ),
)
