"""BytePS: ``BYTEPS_PARTITION_BYTES`` and ``BYTEPS_SCHEDULING_CREDIT``: tensors cut in pieces, sent one by one.

The rule of BytePS (byteps/common of bytedance/byteps: global.cc, operations.cc, scheduled_queue.cc, and its plugin;
read, not run: it needs CUDA to build): the partition, 4096000 bytes by default, is rounded up to a multiple of the page
size times the GPUs of a machine. Each tensor is cut into pieces of so many bytes and a rest; nothing is fused. They go
in the order in which gradients are ready; with a credit of k, those nearest the input first, while the pieces under way
are at most k partitions. ``step`` waits for all of them: a barrier. Prices are those of the cluster's all-reduce, for
BytePS's push to servers and pull from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.rounding import least, within
from osfmodel.entities.workload import Workload
from osfmodel.solve.bounds import messages_bound
from osfmodel.solve.solution import Limits
from osfmodel.targets.target import (
    PLACEHOLDER_PRICES,
    Accumulation,
    Conversion,
    Launch,
    SettingsText,
    SizeKnob,
    Target,
    exact_or,
    require_plain,
)

PAGE = 4096
"""Bytes of a page of memory; partitions are rounded up to multiples of it."""
DEFAULT_PARTITION = 4_096_000
CREDITS = (None, 1, 2, 4, 8)
"""Credits to try, in partitions; None is BytePS's default, which sends as gradients become ready."""
FEWEST_PIECES = 4096
"""Largest number of partitions in all gradients; smaller partitions are not tried."""


@dataclass(frozen=True, slots=True)
class BytePsKnobs:
    """Maximum bytes of a piece, before rounding up, and maximum number of partitions in flight by priority."""

    partition: int = DEFAULT_PARTITION
    credit: int | None = None


def to_plan(knobs: BytePsKnobs, workload: Workload, pricing: Pricing) -> Plan:
    """The plan of pieces, in ready order or, with a credit, by priority."""
    partition = _rounded(knobs.partition, pricing.per_host)
    gradients = list(zip(workload.gradients.names, workload.gradients.sizes, strict=True))
    if knobs.credit is None:
        return Plan(workload.name, tuple(_pieces(gradients, partition)))
    return Plan(workload.name, tuple(_pieces(gradients[::-1], partition)), credit=knobs.credit * partition)


def _rounded(partition: int, per_host: int) -> int:
    step = PAGE * per_host
    return -(-partition // step) * step


def _pieces(gradients: Iterable[tuple[str, int]], partition: int) -> Iterable[Bucket]:
    for name, size in gradients:
        for start in range(0, size, partition):
            yield Bucket((Block(name, start, min(partition, size - start)),))


def exact(plan: Plan, workload: Workload) -> BytePsKnobs:
    """The settings that form exactly this plan on machines of one GPU. Raises PlanError if none do."""
    plan.require_valid(workload)
    longest = max((bucket.size for bucket in plan.buckets), default=DEFAULT_PARTITION)
    partition = _rounded(longest, 1)
    credit = None if plan.credit is None else plan.credit // partition
    if credit != 0:
        knobs = BytePsKnobs(partition, credit)
        if to_plan(knobs, workload, PLACEHOLDER_PRICES) == plan:
            return knobs
    raise PlanError("BytePS sends tensors one by one, cut at multiples of a partition: it cannot form this plan")


def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> BytePsKnobs:
    """The fastest partition, of powers of two, with one of CREDITS. Raises PlanError if the plan needs an executor."""
    require_plain(plan, workload, "BytePS")
    return _fastest(_Same(workload, pricing), limits)


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A workload and prices, equal where they are the same objects."""

    workload: Workload
    pricing: Pricing

    def __hash__(self) -> int:
        return hash((id(self.workload), id(self.pricing)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.workload is other.workload and self.pricing is other.pricing


@lru_cache(maxsize=4)
def _fastest(case: _Same, limits: Limits) -> BytePsKnobs:
    """The fastest settings, whatever plan was asked for; kept, since a search asks for many plans."""
    tried = [BytePsKnobs(partition, credit) for partition in _partitions(case.workload, limits) for credit in CREDITS]
    plans = {knobs: to_plan(knobs, case.workload, case.pricing) for knobs in tried or [BytePsKnobs()]}
    bounds = {knobs: _alone(plan, case.workload, case.pricing) for knobs, plan in plans.items()}
    times = dict.fromkeys(plans, inf)
    for knobs in sorted(plans, key=bounds.__getitem__):
        if bounds[knobs] <= within(min(times.values())):  # else its messages alone take longer
            times[knobs] = predict_timeline(case.workload, plans[knobs], case.pricing).iteration_time
    return least(times, times.__getitem__)


def _alone(plan: Plan, workload: Workload, pricing: Pricing) -> float:
    return messages_bound(workload, pricing, plan.objective, [bucket.size for bucket in plan.buckets])


def _partitions(workload: Workload, limits: Limits) -> list[int]:
    """Partition sizes to try: the default, and powers of two pages from about the largest tensor down."""
    largest = max(workload.gradients.sizes, default=PAGE)
    least = workload.gradient_bytes // FEWEST_PIECES
    found = [DEFAULT_PARTITION, *(size for power in range(32) if least <= (size := PAGE << power) < 2 * largest)]
    most = limits.max_bucket_bytes
    return [size for size in found if most is None or size <= most]


def caveats(workload: Workload) -> tuple[str, ...]:
    """Assumptions of a prediction for BytePS."""
    return (
        "BytePS as read, not run: one piece at a time, each at the price of an all-reduce. Its servers, copies to the "
        "host and pulls beside pushes are not in these times",
    )


def config(knobs: BytePsKnobs) -> dict[str, Any]:
    """Environment variables, in bytes and partitions."""
    credit = {} if knobs.credit is None else {"BYTEPS_SCHEDULING_CREDIT": str(knobs.credit)}
    return {"env": {"BYTEPS_PARTITION_BYTES": str(knobs.partition), **credit}}


def render(knobs: BytePsKnobs, workload: Workload) -> str:
    """An environment file."""
    return TEMPLATE.format(
        name=workload.name,
        partition=show_bytes(knobs.partition),
        order="as gradients become ready" if knobs.credit is None else "those nearest the input first",
        lines="\n".join(f"{key}={value}" for key, value in config(knobs)["env"].items()),
    )


def accumulate(text: str, ending: str, count: int) -> str:
    """The environment file with what the optimizer is to be told in Python."""
    return text + PASSES.format(count=count)


PASSES = """
# The plan is for {count} micro-batches a step, sent with the last. In Python:
# optimizer = bps.DistributedOptimizer(
#     optimizer, named_parameters=model.named_parameters(), backward_passes_per_step={count})
# For each step call backward {count} times on loss / {count}, then step() and zero_grad() once.
"""
TEMPLATE = """\
# BytePS settings for {name}: pieces of {partition}, {order}.
# Bytes (rounded up to a multiple of 4096 times the GPUs of a machine); credit in partitions, unset: no priorities.
{lines}
"""

TARGET = Target(
    summary="BytePS with its default partition, 4096000 bytes, each piece by itself as it becomes ready",
    convert=Conversion(default_knobs=BytePsKnobs, from_plan=exact_or(exact, nearest), to_plan=to_plan, exact=exact),
    text=SettingsText(
        config=config,
        render=render,
        ending=".env",
        caveats=caveats,
        accumulation=Accumulation(accumulate, lambda count: {"backward_passes_per_step": count}),
    ),
    launch=Launch(
        launcher="bpslaunch does, beside a scheduler and servers, with the environment that -o byteps.env writes "
        "without --lines"
    ),
    size=SizeKnob("BYTEPS_PARTITION_BYTES", BytePsKnobs),
)
