"""DeepSpeed ZeRO stage 3: buckets of gradients, and the limits by which parameters are fetched ahead and kept.

The step is that of the strategy ``zero-3``; buckets are those of stage 2, sent during backward. All limits are elements
of parameters (deepspeed/runtime/zero/config.py of 0.19.8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import PlanError
from osfmodel.entities.executors import DEEPSPEED
from osfmodel.entities.modules import ZERO_3
from osfmodel.entities.plan import Objective, Plan, grouped_plan
from osfmodel.entities.rounding import least
from osfmodel.entities.sharding import BUCKET_ELEMENTS, Fetching, ParameterGroup, Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import bounded_layout, in_elements
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, answer
from osfmodel.targets.deepspeed_file import LAUNCH, file_of, settings
from osfmodel.targets.target import Conversion, Target, exact_or, ignoring_prices, in_types, require_plain

BUCKET_PARTS, FETCHED_PARTS = (1, 4, 16, 64), (1, 3, 10, 30, 100, 300)
"""Parts of all parameters that a search tries as bounds of a bucket, and of what is fetched ahead."""
KEPT = (100_000, 10_000_000, 0)
"""Thresholds of persistent parameters that a search tries; the first is the default."""
LARGEST_KEPT = 0.02
"""Largest part of all parameters that a search lets stay on every rank."""


@dataclass(frozen=True, slots=True)
class ZeroThreeKnobs:
    """Settings of ZeRO's stage 3.

    elements: most elements in a bucket of gradients
    overlap:  whether collectives run beside computation
    fetching: limits by which parameters are fetched and kept
    gather_dtype, reduce_dtype: types in which parameters are gathered and gradients reduced; "" as Sharding says
    offload:  what the host has: the optimizer, or nothing
    """

    elements: int = BUCKET_ELEMENTS
    overlap: bool = True
    fetching: Fetching = Fetching()
    gather_dtype: str = ""
    reduce_dtype: str = ""
    offload: tuple[str, ...] = ()


def to_plan(knobs: ZeroThreeKnobs, workload: Workload) -> Plan:
    """The plan of the buckets that DeepSpeed forms, with the limits of its fetches."""
    plan = grouped_plan(workload, bounded_layout(in_elements(workload.gradients), knobs.elements))
    rules = Sharding(
        (ParameterGroup(),) * len(plan.buckets), 1, knobs.gather_dtype, knobs.reduce_dtype, asynchronous=knobs.overlap,
        buffer=knobs.elements, fetching=knobs.fetching,
    )  # fmt: skip
    return replace(plan, strategy=ZERO_3, sharding=rules.typed(workload.computed_in, workload.computed_in))


def exact(plan: Plan, workload: Workload) -> ZeroThreeKnobs:
    """The settings that form exactly this plan. Raises PlanError if none do."""
    if plan.strategy != ZERO_3:
        require_plain(plan, workload, "DeepSpeed")
        raise PlanError("stage 3 of ZeRO shards parameters: this plan replicates them")
    plan.require_valid(workload)
    rules = plan.sharding or Sharding(())
    knobs = ZeroThreeKnobs(
        rules.buffer or BUCKET_ELEMENTS, rules.asynchronous, rules.fetching or Fetching(), rules.gather_dtype,
        rules.reduce_dtype,
    )  # fmt: skip
    if to_plan(knobs, workload) != plan:
        raise PlanError("no settings of stage 3 form this plan")
    return knobs


def best(workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> ZeroThreeKnobs:
    """The settings of the fastest step among the defaults and those that the search tries, one after the other.

    First what is fetched ahead, then the bucket, then what stays. Raises PlanError if no bucket keeps the limits.
    """
    chosen, sizes = ZeroThreeKnobs(), in_elements(workload.gradients).sizes
    whole = sum(sizes)
    few = [most for most in KEPT if sum(size for size in sizes if size <= most) <= LARGEST_KEPT * whole]
    for name, options in (
        ("prefetch", [max(1, whole // part) for part in FETCHED_PARTS]),
        ("elements", [max(1, whole // part) for part in BUCKET_PARTS]),
        ("persistent", few),
    ):
        tried = [chosen]
        for one in options:
            limit = {name: one}
            changed: Any = limit if name == "elements" else {"fetching": replace(chosen.fetching, **limit)}
            tried.append(replace(chosen, **changed))
        kept = [one for one in tried if limits == Limits() or limits.allow(to_plan(one, workload))]
        if kept:
            chosen = least(kept, lambda one: predict_timeline(workload, to_plan(one, workload), pricing).iteration_time)
    if limits != Limits() and not limits.allow(to_plan(chosen, workload)):
        raise PlanError(limits.unmet("reduce_bucket_size"))
    return chosen


def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> ZeroThreeKnobs:
    """The fastest settings. Raises PlanError if the plan needs an executor."""
    if plan.strategy == ZERO_3:
        plan.require_valid(workload)
    else:
        require_plain(plan, workload, "DeepSpeed")
    return best(workload, pricing, limits)


def solve(question: Question) -> Solution:
    """The plan of the fastest settings."""
    return answer(question, to_plan(best(question.workload, question.pricing, question.limits), question.workload))


def caveats(workload: Workload) -> tuple[str, ...]:
    """Assumptions of a prediction for stage 3."""
    return (
        "DeepSpeed's host is taken to run ahead of the GPU, so that all-gathers wait for no computation; modules "
        "without parameters of their own that the profile does not list are not called here",
    )


def config(knobs: ZeroThreeKnobs) -> dict[str, Any]:
    """The settings in DeepSpeed's JSON; sizes in elements."""
    limits = knobs.fetching
    zero = {
        "stage": 3,
        "reduce_bucket_size": knobs.elements,
        "overlap_comm": knobs.overlap,
        "contiguous_gradients": True,
        "stage3_prefetch_bucket_size": limits.prefetch,
        "stage3_param_persistence_threshold": limits.persistent,
        "stage3_max_live_parameters": limits.live,
        "stage3_max_reuse_distance": limits.reuse,
    }
    if limits.most_persistent != Fetching().most_persistent:
        zero["stage3_model_persistence_threshold"] = limits.most_persistent
    return settings(zero, knobs.gather_dtype, knobs.reduce_dtype, knobs.offload)


TEMPLATE = """\
# DeepSpeed settings for {name}, ZeRO stage 3. All sizes are in elements of parameters, not bytes.
# DeepSpeed reads this file as it is (Hjson); -o FILE.json leaves these lines out, as others want it. Merge with yours.
# A buffer of reduce_bucket_size elements is allocated whole. Parameters up to stage3_param_persistence_threshold stay
# on every rank; each is gathered by itself after the step.
{document}
"""

_SUMMARY = "DeepSpeed ZeRO stage 3 with its default limits"
_OBJECTIVE = Objective(strategy=ZERO_3)
TARGET = Target(
    summary=_SUMMARY,
    convert=Conversion(
        default_knobs=ZeroThreeKnobs,
        from_plan=exact_or(exact, nearest),
        to_plan=ignoring_prices(to_plan),
        exact=exact,
        complete=in_types(),
        unpriced=True,
    ),
    text=file_of(config, TEMPLATE, lambda knobs, workload: {"name": workload.name}, caveats),
    launch=LAUNCH,
    executor=DEEPSPEED,
    objective=_OBJECTIVE,
    limits=(),
    rule=PlanRule(solve, _SUMMARY, objective=_OBJECTIVE, executor=DEEPSPEED),
)
