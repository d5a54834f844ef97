"""DeepSpeed ZeRO stages 1 and 2: ``reduce_bucket_size``, one bound in elements on what is reduced at once.

The rule of DeepSpeed (deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8, read, and run over gloo with 1 and 2 ranks):
with ``overlap_comm``, and with stage 2 in any case, each gradient that is ready is copied into the bucket of its dtype;
one that would bring it above the bound makes it be sent first, and one above the bound by itself is sent alone. Without
``overlap_comm`` stage 1 sends after backward, in the order in which parameters are defined; that is the default. Each
bucket is one all-reduce, also with ``reduce_scatter``, which is the default, but that a tensor above the bound is then
sent in pieces where it spans the partitions of several ranks; so ``reduce_scatter`` is switched off in what is written
here. The step is that of the strategies ``zero-1`` and ``zero-2``: parameters are gathered after the update.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.executors import DEEPSPEED
from osfmodel.entities.modules import ZERO, as_defined
from osfmodel.entities.plan import Objective, Plan, grouped_plan
from osfmodel.entities.rounding import least
from osfmodel.entities.sharding import BUCKET_ELEMENTS, ParameterGroup, Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import AT_MOST, best_cap_elements, bounded_layout, cap_forming, in_elements
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, answer, planner_of
from osfmodel.targets.deepspeed_file import LAUNCH, file_of, settings
from osfmodel.targets.target import (
    Conversion,
    SizeKnob,
    Target,
    exact_or,
    ignoring_prices,
    in_types,
    require_plain,
)

OVERLAP = "overlap"
TRIED, SMALLEST = 16, 64
"""Bounds that a search tries, evenly spread in proportion, and the part of all parameters that the least of them is."""


@dataclass(frozen=True, slots=True)
class DeepSpeedKnobs:
    """Settings of ZeRO's stages 1 and 2.

    elements: most elements in a bucket
    overlap:  whether a bucket is reduced while backward goes on
    gather_dtype, reduce_dtype: types in which parameters are gathered and gradients reduced; "" as Sharding says
    offload:  what the host has: the optimizer, or nothing
    """

    elements: int = BUCKET_ELEMENTS
    overlap: bool = False
    stage: int = 1
    gather_dtype: str = ""
    reduce_dtype: str = ""
    offload: tuple[str, ...] = ()

    @property
    def in_backward(self) -> bool:
        """Whether buckets are sent during backward."""
        return self.overlap or self.stage > 1


def to_plan(knobs: DeepSpeedKnobs, workload: Workload) -> Plan:
    """The plan of the buckets that DeepSpeed forms."""
    plan = _buckets(knobs, workload)
    groups = (ParameterGroup(reshard=False),) * len(plan.buckets)
    rules = Sharding(
        groups,
        gather_dtype=knobs.gather_dtype,
        reduce_dtype=knobs.reduce_dtype,
        asynchronous=knobs.overlap,
        buffer=knobs.elements,
    )
    typed = rules.typed(workload.computed_in, workload.computed_in)
    return replace(plan, strategy=ZERO[knobs.stage - 1], sharding=typed)


def _buckets(knobs: DeepSpeedKnobs, workload: Workload) -> Plan:
    elements = in_elements(workload.gradients)
    if knobs.in_backward:
        return grouped_plan(workload, bounded_layout(elements, knobs.elements))
    place = {name: number for number, name in enumerate(elements.names)}
    order = [place[name] for name in as_defined(elements.names[::-1])]
    columns = {name: tuple(getattr(elements, name)[i] for i in order) for name in ("names", "sizes", "dtypes")}
    groups = bounded_layout(replace(elements, **columns), knobs.elements)
    after = workload.forward_time + workload.backward_time
    return grouped_plan(workload, [[order[i] for i in group] for group in groups], [after] * len(groups))


def exact_of(stage: int) -> Callable[[Plan, Workload], DeepSpeedKnobs]:
    """A function (plan, workload) -> settings of this stage that form exactly this plan; PlanError if none do."""

    def exact(plan: Plan, workload: Workload) -> DeepSpeedKnobs:
        if plan.strategy != ZERO[stage - 1]:
            require_plain(plan, workload, "DeepSpeed")
            raise PlanError(f"stage {stage} of ZeRO shards the optimizer's state, and this plan does not")
        plan.require_valid(workload)
        rules = plan.sharding or Sharding(())
        known = partial(DeepSpeedKnobs, stage=stage, gather_dtype=rules.gather_dtype, reduce_dtype=rules.reduce_dtype)
        order = {name: position for position, name in enumerate(workload.gradients.names)}
        groups = [[order[block.layer] for block in bucket.blocks] for bucket in plan.buckets]
        caps = [rules.buffer] if rules.buffer else [BUCKET_ELEMENTS, *(_caps(groups, workload) if groups else ())]
        for knobs in (known(cap, overlap) for overlap in (False, True) for cap in caps):
            made = to_plan(knobs, workload)
            if plan.sharding is None and not knobs.overlap:
                made = replace(made, sharding=None)
            if plan == made:
                return knobs
        raise PlanError("no reduce_bucket_size makes DeepSpeed form this plan")

    return exact


def _caps(groups: Sequence[Sequence[int]], workload: Workload) -> list[int]:
    """Bounds that may form a plan, during backward or in the order of definition."""
    elements = in_elements(workload.gradients)
    sizes = [sum(elements.sizes[i] for i in group) for group in groups]
    fused = [size for group, size in zip(groups, sizes, strict=True) if len(group) > 1]
    forming = cap_forming(groups, elements, AT_MOST)
    return list(dict.fromkeys([*(() if forming is None else (forming,)), max(sizes), max(fused, default=1)]))


def best(workload: Workload, pricing: Pricing, stage: int, limits: Limits = Limits()) -> DeepSpeedKnobs:
    """The settings of the fastest step: the default, or a bound with ``overlap_comm``.

    Tried are TRIED bounds, and the one whose communication would end first if nothing waited. Raises PlanError if none
    keeps the limits.
    """
    whole = sum(in_elements(workload.gradients).sizes)
    caps = {max(round(whole / SMALLEST ** (step / (TRIED - 1))), 1) for step in range(TRIED)}
    caps |= {best_cap_elements(workload, pricing.cost(), AT_MOST, limits) or 1}
    overlapping = [DeepSpeedKnobs(cap, True, stage) for cap in sorted(caps, reverse=True)]
    options = [DeepSpeedKnobs(stage=stage), *overlapping]
    kept = [knobs for knobs in options if limits == Limits() or limits.allow(to_plan(knobs, workload))]
    if not kept:
        raise PlanError(limits.unmet("reduce_bucket_size"))
    return least(kept, lambda knobs: predict_timeline(workload, to_plan(knobs, workload), pricing).iteration_time)


def nearest_of(stage: int) -> Callable[[Plan, Workload, Pricing, Limits], DeepSpeedKnobs]:
    """A function (plan, workload, pricing, limits) -> the fastest settings; PlanError if the plan needs an executor."""

    def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> DeepSpeedKnobs:
        if plan.strategy in ZERO:
            plan.require_valid(workload)
        else:
            require_plain(plan, workload, "DeepSpeed")
        return best(workload, pricing, stage, limits)

    return nearest


def rule_of(name: str) -> PlanRule:
    """The rule of ``zero-2:2e8,overlap``: most elements of a bucket, ``overlap`` or both. Raises UsageError."""
    stage, _, said = name.partition(":")
    sizes = [part for part in said.split(",") if part != OVERLAP]
    found = re.fullmatch(r"[0-9]{1,12}(e[0-9])?", sizes[0]) if len(sizes) == 1 else None
    elements = BUCKET_ELEMENTS if not sizes else int(float(found[0])) if found else 0
    if elements < 1 or said.count(OVERLAP) > 1:
        raise UsageError(f"plan {name!r}: write {stage}:ELEMENTS, {OVERLAP} or both, such as {stage}:2e8,{OVERLAP}")
    knobs = DeepSpeedKnobs(elements, OVERLAP in said, ZERO.index(stage) + 1)
    during = ", reduced while backward goes on" if knobs.overlap else ""
    return PlanRule(
        planner_of(lambda workload, pricing: to_plan(knobs, workload)),
        f"DeepSpeed ZeRO stage {knobs.stage} with reduce_bucket_size {elements:,}{during}",
        caveats, Objective(strategy=ZERO[knobs.stage - 1]), on_request=True, executor=DEEPSPEED, unpriced=True,
    )  # fmt: skip


def planner_for(stage: int) -> Callable[[Question], Solution]:
    """The plan of the fastest settings of a stage."""

    def solve(question: Question) -> Solution:
        knobs = best(question.workload, question.pricing, stage, question.limits)
        return answer(question, to_plan(knobs, question.workload))

    return solve


def caveats(workload: Workload) -> tuple[str, ...]:
    """A warning from users about small bounds."""
    return (
        "users saw training converge worse with small buckets (deepspeedai/DeepSpeed issue 6351, open): compare losses",
    )


def config(knobs: DeepSpeedKnobs) -> dict[str, Any]:
    """The settings in DeepSpeed's JSON; sizes in elements."""
    zero = {
        "stage": knobs.stage,
        "reduce_bucket_size": knobs.elements,
        "allgather_bucket_size": BUCKET_ELEMENTS,
        "overlap_comm": knobs.overlap,
        "contiguous_gradients": True,
        "reduce_scatter": False,
    }
    return settings(zero, knobs.gather_dtype, knobs.reduce_dtype, knobs.offload)


def _words(knobs: DeepSpeedKnobs, workload: Workload) -> dict[str, Any]:
    """The values of the comments."""
    buckets = to_plan(knobs, workload).buckets
    return {"name": workload.name, "count": len(buckets), "tensors": len(workload.gradients)}


TEMPLATE = """\
# DeepSpeed settings for {name}: {count} buckets for {tensors} gradient tensors.
# DeepSpeed reads this file as it is (Hjson); -o FILE.json leaves these lines out, as others want it. Merge with yours.
# reduce_bucket_size is in elements, not bytes; two buffers of that many elements are kept with overlap_comm.
# allgather_bucket_size has no effect where torch gathers into one tensor, as it does since 1.13.
# Users saw training converge worse with small buckets (github.com/deepspeedai/DeepSpeed/issues/6351): compare losses
# with those of the default, 500000000, before you keep it.
{document}
"""


def _target(stage: int, default: str) -> Target:
    objective = Objective(strategy=ZERO[stage - 1])
    summary = f"DeepSpeed ZeRO stage {stage} with its default bound, 500 M elements, {default}"
    return Target(
        summary=summary,
        convert=Conversion(
            default_knobs=partial(DeepSpeedKnobs, stage=stage),
            from_plan=exact_or(exact_of(stage), nearest_of(stage)),
            to_plan=ignoring_prices(to_plan),
            exact=exact_of(stage),
            complete=in_types(),
            unpriced=True,
        ),
        text=file_of(config, TEMPLATE, _words, caveats),
        launch=LAUNCH,
        size=SizeKnob(
            "reduce_bucket_size",
            lambda count: DeepSpeedKnobs(count, overlap=True, stage=stage),
            lambda workload, cost: best_cap_elements(workload, cost, AT_MOST),
            elements=True,
        ),
        executor=DEEPSPEED,
        objective=objective,
        limits=(),
        rule=PlanRule(planner_for(stage), summary, objective=objective, executor=DEEPSPEED),
    )


TARGET = _target(1, "reduced after backward")
SECOND = _target(2, "reduced during backward, which waits for each reduction")
