"""Replicated weights: every worker has all of them and all gradients.

A bucket is one all-reduce (DDP, Horovod); or, split, a reduce-scatter in backward and an all-gather in the order of
the next forward.
"""

from __future__ import annotations

from functools import partial

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program
from osfmodel.engine.strategies.holdings import Holdings
from osfmodel.engine.strategies.lowering import Lowering, Strategy
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload


def lower(workload: Workload, plan: Plan, pricing: Pricing, apart: bool = False) -> Program:
    """The program of a step with one collective per bucket: an all-reduce, or an all-gather of sparse entries."""
    step = Lowering(workload, plan, pricing, apart)
    kinds = ["all_reduce" if bucket.density is None else "all_gather" for bucket in plan.buckets]
    return step.finished([step.send(number, kind) for number, kind in enumerate(kinds)])


STRATEGY = Strategy(
    lower, "all weights and gradients on every worker, an all-reduce a bucket", apart=partial(lower, apart=True)
)


def lower_split(workload: Workload, plan: Plan, pricing: Pricing, apart: bool = False) -> Program:
    """The program of a step with two collectives per bucket; all-gathers are sent as the next forward needs them."""
    step = Lowering(workload, plan, pricing, apart)
    scatters = [step.send(number, "reduce_scatter") for number in range(len(plan.buckets))]
    place = {layer.name: number for number, layer in enumerate(workload.layers)}
    first = [min(place[layer] for layer in step.operations[scatter].layers) for scatter in scatters]
    arrivals = list(scatters)
    for number in sorted(range(len(scatters)), key=first.__getitem__):
        arrivals[number] = step.send(number, "all_gather", (scatters[number],))
    return step.finished(arrivals)


class SplitHoldings(Holdings):
    """The memory of all-reduces, with a shard of each reduced bucket in addition."""

    def gradient_buffers(self) -> int:
        """Bytes of the memory from which gradients are sent, and of the shards."""
        return super().gradient_buffers() + sum(-(-bucket.size // self.workers) for bucket in self.dense())


SPLIT = Strategy(
    lower_split,
    "a reduce-scatter in backward and an all-gather before the next forward",
    SplitHoldings,
    partial(lower_split, apart=True),
)
