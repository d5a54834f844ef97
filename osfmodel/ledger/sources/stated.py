"""Runs as their sources state them, for recipes that find the pace of computation themselves (``anchored``)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.targets.named_plans import make_plan


class StatedRun(NamedTuple):
    """A run as its source states it.

    series: runs whose GPUs compute at one pace, whatever the micro-batch and their number
    order:  its place in the series: the first is fitted
    build:  seconds for 10^12 floating-point operations -> the computation of a micro-batch
    plan:   (workload, prices, micro-batches) -> the plan of a step
    micro_batches: of a step
    alike:  whether they are all alike, each beginning when the one before has ended
    """

    series: Hashable
    order: tuple[int, ...]
    build: Callable[[float], Workload]
    plan: Callable[[Workload, Pricing, int], Plan]
    micro_batches: int
    alike: bool


Settings = Callable[[Sequence[Measurement]], Sequence["StatedRun | str"]]
"""(runs) -> the setting of each, or the reason why it cannot be predicted."""


def fsdp(name: str) -> Callable[[Workload, Pricing, int], Plan]:
    """(workload, prices, micro-batches) -> the named plan, which gathers and reduces in each micro-batch."""

    def plan(workload: Workload, pricing: Pricing, micro_batches: int) -> Plan:
        made = make_plan(name, workload, pricing)
        assert made.sharding is not None
        return replace(made, sharding=replace(made.sharding, micro_batches=micro_batches))

    return plan
