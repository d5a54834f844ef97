"""Named plans as the trainer of a stack runs them, where that is not as their own framework does.

nanotron keeps a float32 sum of gradients (``Stack.twice``). With ZeRO-1 it leaves DDP out and all-reduces the sum in
one message after backward, and gathers parameters as lists of the ranks' parts, each of which is launched as a copy of
its own; without, buckets of DDP are filled by bytes in the type of computation, and their float32
sums are sent (nanotron.trainer, optim.gradient_accumulator and optim.zero, read).
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.counting.groups import Parallelism
from osfmodel.counting.kernels import LAUNCHED
from osfmodel.counting.roofline import PARAMETERS
from osfmodel.counting.stacks import STACKS
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.planning.predictions import Given
from osfmodel.planning.scaling.replicas import in_stages
from osfmodel.solve.caps import DDP_LIMITS
from osfmodel.solve.solution import PlanRule, planner_of
from osfmodel.targets import ddp, deepspeed
from osfmodel.targets.named_plans import named_plan


def as_run(name: str, groups: Parallelism, stack: str) -> Given:
    """The named plan as the replicas of a stack run it; ``stack`` is "" for a workload that is not in words."""
    rule = named_plan(name)
    if not stack or not STACKS[stack].twice or name not in _SUMMED or not isinstance(rule, PlanRule):
        return in_stages(name, groups)
    make = _SUMMED[name]
    return name, rule._replace(solve=planner_of(lambda workload, pricing: make(workload)))


def _summed_zero(workload: Workload) -> Plan:
    """The plan of ZeRO-1 with one float32 message after backward; with float32 weights its buffers are DeepSpeed's."""
    knobs = deepspeed.DeepSpeedKnobs()
    whole = deepspeed.DeepSpeedKnobs(max(1, workload.gradient_bytes), reduce_dtype=PARAMETERS)
    plan = deepspeed.to_plan(whole, workload)
    assert plan.sharding is not None
    buffer = knobs.elements // _narrower(workload)
    return replace(plan, sharding=replace(plan.sharding, buffer=buffer, part_time=LAUNCHED))


def _summed_ddp(workload: Workload) -> Plan:
    """DDP's plan with buckets that are as large in the type of computation as others are in float32."""
    return ddp.to_plan(ddp.DdpKnobs(tuple(_narrower(workload) * limit for limit in DDP_LIMITS)), workload)


def _narrower(workload: Workload) -> int:
    """Elements of the type of computation that are as large as one in float32."""
    return element_bytes(PARAMETERS) // element_bytes(workload.computed_in or PARAMETERS)


_SUMMED = {"zero-1": _summed_zero, "ddp": _summed_ddp}
