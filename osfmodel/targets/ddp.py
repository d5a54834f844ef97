"""PyTorch DistributedDataParallel.

What DDP does (torch/nn/parallel/distributed.py and c10d reducer.cpp, checked by running torch 2.13): it walks the
gradients in the order in which they became ready and closes a bucket as soon as it holds *at least* its limit, so a
tensor is never cut and a limit is a lower bound; the last limit of the list repeats. Each dtype is walked separately
with the same list of limits. One all-reduce per bucket, launched strictly in order. Without arguments the limits are
1 MiB, then 25 MiB; ``bucket_cap_mb`` alone sets one limit for all; ``bucket_cap_mb_list`` (torch 2.13) sets each, which
makes every plan of whole tensors in ready order exact.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osfmodel.cost import Cost
from osfmodel.errors import PlanError
from osfmodel.plan import Plan, grouped_plan
from osfmodel.targets.ddp_caps import CapSearch, search_caps
from osfmodel.targets.target import Target
from osfmodel.units import show_bytes
from osfmodel.workload import Gradients, Workload

MIB = 2**20
DEFAULT_LIMITS = (1 * MIB, 25 * MIB)


@dataclass(frozen=True, slots=True)
class DdpKnobs:
    """Bucket limits in bytes, and what to fall back to on a torch without ``bucket_cap_mb_list``.

    ``limits`` None stands for DDP without arguments.
    """

    limits: tuple[int, ...] | None = None
    fallback: CapSearch | None = None


def bucket_layout(gradients: Gradients, limits: Sequence[int]) -> list[list[int]]:
    """The buckets that DDP forms, as positions in ready order: its rule, exactly."""
    buckets: list[list[int]] = []
    open_buckets: dict[str, list[int]] = {}
    held: dict[str, int] = {}
    closed: dict[str, int] = {}
    for i, (size, dtype) in enumerate(zip(gradients.sizes, gradients.dtypes, strict=True)):
        bucket = open_buckets.setdefault(dtype, [])
        bucket.append(i)
        held[dtype] = held.get(dtype, 0) + size
        if held[dtype] >= limits[min(closed.get(dtype, 0), len(limits) - 1)]:
            buckets.append(open_buckets.pop(dtype))
            held[dtype] = 0
            closed[dtype] = closed.get(dtype, 0) + 1
    return buckets + list(open_buckets.values())


def realise(knobs: DdpKnobs, workload: Workload, cost: Cost) -> Plan:
    """The plan that DDP forms with these limits."""
    return grouped_plan(workload, bucket_layout(workload.gradients, knobs.limits or DEFAULT_LIMITS))


def project(plan: Plan, workload: Workload, cost: Cost) -> DdpKnobs:
    """Limits that make DDP form ``plan``: the size of each bucket.

    With several dtypes, the k-th limit serves the k-th bucket of each, so the smallest of their sizes is taken;
    :func:`realise` tells what comes of it. Raises PlanError for a plan that DDP cannot approach: cut tensors,
    several channels, communication across the barrier.
    """
    if plan.channels > 1 or plan.forward_overlap or plan.split:
        raise PlanError(
            "DDP sends one bucket at a time and waits for all before the update: this plan needs an executor"
        )
    plan.require_valid(workload)
    order = {name: position for position, name in enumerate(workload.gradients.names)}
    dtypes = dict(zip(workload.gradients.names, workload.gradients.dtypes, strict=True))
    per_dtype: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    for bucket in plan.buckets:
        for block in bucket.blocks:
            dtype, position = dtypes[block.layer], order[block.layer]
            if dtype != dtypes[bucket.blocks[0].layer]:
                raise PlanError(f"a bucket mixes {dtype} with another type at {block.layer!r}, which DDP never does")
            if position <= last.get(dtype, -1):
                raise PlanError(f"DDP sends whole tensors in ready order: {block.layer!r} is out of order or cut")
            last[dtype] = position
        per_dtype.setdefault(dtypes[bucket.blocks[0].layer], []).append(bucket.size)
    count = max((len(sizes) for sizes in per_dtype.values()), default=0)
    limits = tuple(min(sizes[k] for sizes in per_dtype.values() if k < len(sizes)) for k in range(count))
    return DdpKnobs(limits or None, search_caps(workload, cost) if limits else None)


def config(knobs: DdpKnobs) -> dict[str, Any]:
    """Keyword arguments of DistributedDataParallel, and under "fallback" those for a torch without the list."""
    if knobs.limits is None:
        return {}
    kwargs: dict[str, Any] = {"bucket_cap_mb_list": [limit / MIB for limit in knobs.limits]}
    if knobs.fallback is not None:
        first, cap = knobs.fallback.pair
        kwargs["fallback"] = {
            "bucket_cap_mb": knobs.fallback.cap / MIB,
            "bucket_cap_mb_whole": knobs.fallback.whole_mib,
            "first_and_cap": {"first_bucket_bytes": first, "bucket_cap_mb": cap / MIB},
            "first_and_cap_exhaustive": knobs.fallback.pair_exhaustive,
        }
    return kwargs


def render(knobs: DdpKnobs, workload: Workload) -> str:
    """Python to paste where the model is wrapped; it finds out what the installed torch can do."""
    if knobs.limits is None or knobs.fallback is None:
        return "model = torch.nn.parallel.DistributedDataParallel(model)  # DDP's defaults are the best plan here\n"
    caps = textwrap.fill(
        ", ".join(repr(limit / MIB) for limit in knobs.limits), 88, initial_indent="    ", subsequent_indent="    "
    )
    first, cap = knobs.fallback.pair
    single = knobs.fallback.cap
    return TEMPLATE.format(
        name=workload.name,
        tensors=len(workload.gradients),
        total=show_bytes(workload.gradient_bytes),
        count=len(knobs.limits),
        caps=caps,
        first=first,
        pair_cap=cap / MIB,
        single_mib=single / MIB,
        whole_mib=knobs.fallback.whole_mib,
    )


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
elif "bucket_bytes_cap_default" in inspect.getsource(DDP.__init__):  # one cap for all buckets: the best one
    ddp_kwargs = {{"bucket_cap_mb": {single_mib!r}}}
else:  # older: the first bucket has a cap of its own
    dist._DEFAULT_FIRST_BUCKET_BYTES = {first}
    ddp_kwargs = {{"bucket_cap_mb": {pair_cap!r}}}

model = DDP(model, **ddp_kwargs)  # plain PyTorch; add device_ids=[...] as usual

# The same elsewhere, in the place of the line above:
# Lightning:   Trainer(strategy=DDPStrategy(**ddp_kwargs))
# Accelerate:  handler = DistributedDataParallelKwargs()
#              handler.to_kwargs = lambda: ddp_kwargs
#              accelerator = Accelerator(kwargs_handlers=[handler])
# Hugging Face Trainer takes one whole number for all buckets; the best is  --ddp_bucket_cap_mb {whole_mib}
"""

TARGET = Target(DdpKnobs, project, realise, config, render)
