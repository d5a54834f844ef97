"""PyTorch DistributedDataParallel.

The rule of DDP (torch/nn/parallel/distributed.py and c10d reducer.cpp, checked by running torch 2.13): it walks the
gradients in the order in which they became ready and closes a bucket as soon as it holds *at least* its limit, so a
tensor is never cut and a limit is a lower bound; the last limit of the list repeats. Each dtype is walked separately
with the same list of limits. One all-reduce per bucket, launched strictly in order. Without arguments the limits are
1 MiB, then 25 MiB; ``bucket_cap_mb`` alone sets one limit for all; ``bucket_cap_mb_list`` (torch 2.13) sets each, which
makes every plan of whole tensors in ready order exact. A communication hook that compresses is given a whole bucket, so
limits are of gradients as they are held, not as they are sent.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost
from osfmodel.entities.compression import hook_of
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.rounding import least, ranked, within
from osfmodel.entities.units import MIB, parse_room
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import DDP_LIMITS, CapSearch, best_cap, bucket_layout, search_caps
from osfmodel.solve.solution import Limits, allowed, finish, rank_of
from osfmodel.solve.under_effects import caps_timed
from osfmodel.targets.target import (
    Accumulation,
    Conversion,
    SettingsText,
    SizeKnob,
    Target,
    ignoring_prices,
    require_plain,
)

FACTORS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2.0, 3.0)
"""Factors by which limits are changed in the search for lists that serve several dtypes."""
SPREAD = 1500
"""Number of lists from which that search draws its starts."""
STARTS, ROUNDS, MOST_STEPPED = 6, 3, 8


@dataclass(frozen=True, slots=True)
class DdpKnobs:
    """Bucket limits in bytes, and the fallback for a torch without ``bucket_cap_mb_list``.

    DDP without arguments has the limits 1 MiB, then 25 MiB.
    """

    limits: tuple[int, ...] = DDP_LIMITS
    fallback: CapSearch | None = None


def to_plan(knobs: DdpKnobs, workload: Workload) -> Plan:
    """The plan that DDP forms with these limits."""
    sent = workload.gradients
    return _formed(_Sent(workload.name, sent.names, sent.sizes, sent.dtypes, sent.held, workload), knobs.limits)


@dataclass(frozen=True, slots=True)
class _Sent:
    """All that DDP's buckets depend on, and a workload that has it."""

    name: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    held: tuple[int, ...]
    workload: Workload = field(compare=False)


@lru_cache(maxsize=32)
def _formed(sent: _Sent, limits: tuple[int, ...]) -> Plan:
    """The plan; kept, since a search asks for it at many prices and times."""
    return grouped_plan(sent.workload, bucket_layout(sent.workload.gradients, limits))


def from_plan(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> DdpKnobs:
    """Limits that make DDP form ``plan``: the size of each bucket.

    With several dtypes the k-th limit serves the k-th bucket of each, so most plans cannot be formed exactly; then the
    best list is searched for. Raises PlanError for a plan that DDP cannot approach: cut tensors, several
    channels, communication across the barrier, tensors out of order.
    """
    require_plain(plan, workload, "DDP")
    sizes = list(_sizes_per_dtype(plan, workload).values())
    if len(sizes) < 2:
        return DdpKnobs(_closing(plan, workload)) if sizes else DdpKnobs()
    with suppress(PlanError):
        knobs = exact(plan, workload)
        if allowed(bucket_layout(workload.gradients, knobs.limits), workload.gradients, limits):
            return knobs
    return DdpKnobs(_search_list(sizes, workload, pricing.cost(), limits))


def exact(plan: Plan, workload: Workload) -> DdpKnobs:
    """Limits that form exactly this plan. Raises PlanError if none do.

    A bucket is sent once it reaches its limit; the last bucket of each dtype may stay below and is sent at the end.
    """
    require_plain(plan, workload, "DDP")
    if not plan.buckets:
        return DdpKnobs()
    for left in range(len(set(workload.gradients.dtypes)) + 1):
        knobs = DdpKnobs(_closing(plan, workload, left))
        if to_plan(knobs, workload) == plan:
            return knobs
    raise PlanError("no list of limits makes DDP form this plan")


def _closing(plan: Plan, workload: Workload, left: int = 0) -> tuple[int, ...]:
    """The largest limits that all buckets except the last ``left`` ones reach."""
    count = max(map(len, _sizes_per_dtype(plan, workload).values()))
    closed = replace(plan, buckets=plan.buckets[: len(plan.buckets) - left])
    rows = _sizes_per_dtype(closed, workload).values()
    out_of_reach = sum(workload.gradients.held_sizes) + 1
    return tuple(min((row[k] for row in rows if k < len(row)), default=out_of_reach) for k in range(count))


def _sizes_per_dtype(plan: Plan, workload: Workload) -> dict[str, list[int]]:
    """Bytes of each bucket of a dtype, in plan order. Raises PlanError if tensors are out of order."""
    held = dict(zip(workload.gradients.names, workload.gradients.held_sizes, strict=True))
    order = {name: position for position, name in enumerate(workload.gradients.names)}
    found: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    for bucket in plan.buckets:
        dtype = workload.gradients.dtypes[order[bucket.blocks[0].layer]]
        for block in bucket.blocks:
            if order[block.layer] <= last.get(dtype, -1):
                raise PlanError(f"DDP sends tensors in ready order: {block.layer!r} is out of order")
            last[dtype] = order[block.layer]
        found.setdefault(dtype, []).append(sum(held[block.layer] for block in bucket.blocks))
    return found


def _search_list(sizes: list[list[int]], workload: Workload, cost: Cost, limits: Limits) -> tuple[int, ...]:
    """Limits for several dtypes: the best of the plan's sizes, the default and many lists, improved step by step."""
    gradients = workload.gradients

    @cache
    def value(caps: tuple[int, ...]) -> float:
        groups = bucket_layout(gradients, caps)
        return finish(groups, gradients, cost) if allowed(groups, gradients, limits) else math.inf

    def rank(caps: tuple[int, ...]) -> Any:
        return rank_of(bucket_layout(gradients, caps))

    count = max(map(len, sizes))
    per_bucket = [[row[k] for row in sizes if k < len(row)] for k in range(count)]
    single = search_caps(workload, cost, limits)
    starts = [tuple(map(min, per_bucket)), tuple(map(max, per_bucket)), DDP_LIMITS, *map(tuple, sizes)]
    starts += [] if single is None else [(single.cap,) * min(count, MOST_STEPPED)]
    whole = sum(gradients.held_sizes)
    starts += _spread(whole // 300 + 1, whole)
    best: list[tuple[int, ...]] = []
    for start in ranked(starts, value, rank):
        if len(best) < STARTS and (not best or value(start) > within(value(best[-1]))):
            best.append(start)
    return least((_stepped(start, value) for start in best), value, rank)


def _spread(low: int, high: int) -> list[tuple[int, ...]]:
    """Lists of 2 to 5 limits spread evenly in the logarithm: a Weyl sequence, the same each time."""
    roots = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11)]
    return [
        tuple(int(low * (high / low) ** (n * root % 1)) for root in roots[: 2 + n % 4]) for n in range(1, SPREAD + 1)
    ]


def _stepped(caps: tuple[int, ...], value: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    """Change, double or drop one limit at a time while that helps, for some rounds."""
    for _ in range(ROUNDS):
        before = caps
        for k in range(min(len(caps), MOST_STEPPED)):
            tried = [(*caps[:k], max(1, int(caps[k] * factor)), *caps[k + 1 :]) for factor in FACTORS]
            tried += [(*caps[:k], caps[k], *caps[k:]), (*caps[:k], *caps[k + 1 :]) or caps]
            caps = least([caps, *tried], value)
            if k >= len(caps) - 1:
                break
        if caps == before:
            break
    return caps


def complete(knobs: DdpKnobs, workload: Workload, pricings: Sequence[Pricing], limits: Limits = Limits()) -> DdpKnobs:
    """Add the fallback for an older torch; it does not depend on the plan, so it is searched for once."""
    return replace(knobs, fallback=caps_timed(workload, pricings, limits))


def caveats(workload: Workload) -> tuple[str, ...]:
    """A caveat for mixed dtypes, for which a list of limits cannot form every plan."""
    if len(set(workload.gradients.dtypes)) < 2:
        return ()
    return (
        "DDP walks each dtype by itself with the same limits, so with several dtypes not every plan can be formed. "
        "torch does not say in which order their last buckets are sent",
    )


def config(knobs: DdpKnobs) -> dict[str, Any]:
    """Keyword arguments of DistributedDataParallel, and under "fallback" those for a torch without the list."""
    kwargs: dict[str, Any] = {"bucket_cap_mb_list": [limit / MIB for limit in knobs.limits]}
    if knobs.fallback is not None:
        first, cap = knobs.fallback.pair
        kwargs["fallback"] = {
            "bucket_cap_mb": knobs.fallback.cap / MIB,
            "bucket_cap_mb_whole": knobs.fallback.whole_mib,
            "first_and_cap": {"first_bucket_bytes": first, "bucket_cap_mb": cap / MIB},
            "cap_exhaustive": knobs.fallback.cap_exhaustive,
            "first_and_cap_exhaustive": knobs.fallback.pair_exhaustive,
        }
    return kwargs


def render(knobs: DdpKnobs, workload: Workload) -> str:
    """Python to paste that wraps the model; it checks what the installed torch supports."""
    hook = hook_of(workload)
    return arguments(knobs, workload) + WRAPPED.format(whole=_whole(knobs), hook=f"\n{hook}" if hook else "")


def arguments(knobs: DdpKnobs, workload: Workload) -> str:
    """The Python lines that set ``ddp_kwargs``, without those that wrap the model."""
    caps = textwrap.fill(
        ", ".join(repr(limit / MIB) for limit in knobs.limits), 88, initial_indent="    ", subsequent_indent="    "
    )
    return TEMPLATE.format(
        name=workload.name,
        tensors=len(workload.gradients),
        total=show_bytes(sum(workload.gradients.held_sizes)),
        count=len(to_plan(knobs, workload).buckets),
        caps=caps,
        older=_older(knobs),
    )


def hook_beside(workload: Workload) -> str:
    """Commented lines that register a compression hook on a DDP made elsewhere; "" without compression."""
    lines = hook_of(workload).splitlines()
    return "".join(f"{line}\n" for line in (HOOKED, *(f"#     {line}" for line in lines))) if lines else ""


def _whole(knobs: DdpKnobs) -> str:
    """Words on the best single whole number for all buckets, for a launcher that takes only that."""
    if knobs.limits == DDP_LIMITS:
        return "leave --ddp_bucket_cap_mb out, since these are the defaults"
    whole = knobs.fallback and knobs.fallback.whole_mib
    return f"the best is  --ddp_bucket_cap_mb {whole}" if whole else "none satisfies the limits given"


def _older(knobs: DdpKnobs) -> str:
    """The branches for a torch without the list."""
    fallback = knobs.fallback
    if knobs.limits == DDP_LIMITS or fallback is None:
        why = "" if fallback else "no single cap satisfies the limits given; "
        return f"else:  # older: {why}DDP's defaults\n    ddp_kwargs = {{}}"
    first, cap = fallback.pair
    tried = "" if fallback.pair_exhaustive else " (of those tried)"
    return OLDER.format(single_mib=fallback.cap / MIB, first=first, pair_cap=cap / MIB, tried=tried)


def accumulate(text: str, ending: str, count: int) -> str:
    """Lines that accumulate, after those that wrap the model."""
    for plain in ("Trainer(strategy=DDPStrategy(**ddp_kwargs)", "Accelerator(kwargs_handlers=[handler]"):
        setting = "accumulate_grad_batches" if plain.startswith("Trainer") else "gradient_accumulation_steps"
        text = text.replace(f"{plain})", f"{plain}, {setting}={count})")
    return text + ACCUMULATED.format(count=count)


ACCUMULATED = """
# The plan is for {count} micro-batches a step, sent with the last: train with this instead of a backward in each step.
def train_step(batches, loss_of, optimizer):  # {count} micro-batches; loss_of(batch) calls the wrapped model
    optimizer.zero_grad()
    with model.no_sync():  # adds gradients up, and sends nothing
        for batch in batches[:-1]:
            (loss_of(batch) / {count}).backward()
    (loss_of(batches[-1]) / {count}).backward()
    optimizer.step()
"""
HOOKED = (
    "# The plan is for compressed gradients: on the DistributedDataParallel that wraps the model, before it trains,"
)
OLDER = """\
elif "bucket_bytes_cap_default" in inspect.getsource(DDP.__init__):  # one cap for all buckets: the best one
    ddp_kwargs = {{"bucket_cap_mb": {single_mib!r}}}
else:  # older: the first bucket has a cap of its own; the best two{tried}
    dist._DEFAULT_FIRST_BUCKET_BYTES = {first}
    ddp_kwargs = {{"bucket_cap_mb": {pair_cap!r}}}"""
TEMPLATE = """\
# Bucket plan for {name}: {count} buckets for {tensors} gradient tensors, {total}.
# Limits are MiB, in the order in which gradients become ready (backward order); DDP uses them from iteration 2 on.
# Leave DDP_SET_LAST_BUCKET_CAP unset. With find_unused_parameters=True also give static_graph=True: without it
# DDP never rebuilds its buckets in ready order. With torch.compile set torch._dynamo.config.optimize_ddp = False.
import inspect
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

bucket_cap_mb_list = [
{caps},
]
if "bucket_cap_mb_list" in inspect.signature(DDP.__init__).parameters:  # torch 2.13 and later: the exact plan
    ddp_kwargs = {{"bucket_cap_mb_list": bucket_cap_mb_list}}
{older}
"""
WRAPPED = """
model = DDP(model, **ddp_kwargs)  # plain PyTorch; add device_ids=[...] as usual{hook}

# Equivalents (use instead of the line above):
# Lightning:   Trainer(strategy=DDPStrategy(**ddp_kwargs))
# Accelerate:  handler = DistributedDataParallelKwargs()
#              handler.to_kwargs = lambda: ddp_kwargs
#              accelerator = Accelerator(kwargs_handlers=[handler])
# Hugging Face Trainer takes one whole number for all buckets; {whole}
"""

TARGET = Target(
    summary="PyTorch DistributedDataParallel with its default caps, 1 MiB then 25 MiB",
    convert=Conversion(
        default_knobs=DdpKnobs,
        from_plan=from_plan,
        to_plan=ignoring_prices(to_plan),
        exact=exact,
        complete=complete,
        unpriced=True,
    ),
    text=SettingsText(config=config, render=render, caveats=caveats, accumulation=Accumulation(accumulate)),
    size=SizeKnob("bucket_cap_mb", lambda size: DdpKnobs((size,)), best_cap),
    live=True,
    compared=True,
)

CAP = "cap:"
"""Prefix of plan names with one limit for all buckets, as DDP's ``bucket_cap_mb`` sets it."""
BEST_CAP = "cap:best"
"""Name of the plan with the best single limit."""


def single_cap(name: str) -> int | None:
    """The bytes in ``cap:25MiB``, rounded down; None for any other name. Raises UsageError for a bad size."""
    if not name.startswith(CAP) or name == BEST_CAP:
        return None
    try:
        size = parse_room(name.removeprefix(CAP), "25MiB")  # rounded, as commands print it: 13.64 MiB
    except UsageError as error:
        raise UsageError(f"plan {name!r}: {error}") from None
    if size < 1:
        raise UsageError(f"plan {name!r}: a limit is 1 byte or more")
    return size
