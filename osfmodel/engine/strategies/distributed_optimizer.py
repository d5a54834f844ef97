"""Distributed optimizer (Megatron-Core): weights and gradients whole, the optimizer's state and update in shards.

The step with ``--overlap-grad-reduce`` and ``--overlap-param-gather``, from one update to the next: the bucket that
forward needs first is gathered as the step starts, each other one as forward waits for the one before it; its
reduce-scatter is issued once its gradients are ready, and each rank updates its shard when all of them have ended. All
collectives share one communicator, whatever the channels of the plan. Both kinds are launched in the background, over
gloo as well (``async_op``, megatron-core 0.16.1, read, not run). Parameters and gradients live in buffers, so that
nothing is copied. Of several micro-batches, the first gathers and the last reduces.

In a buffer each parameter begins at a multiple of 64 elements, and each bucket ends at a multiple of the least common
one of the ranks and 128 (``optimizer/param_layout.py``). Of a plan's sharding, dtypes and micro-batches count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.optimizers import moments_bytes, offloaded
from osfmodel.engine.program import COMPUTE, Hold, Operation, Program
from osfmodel.engine.strategies.holdings import BUCKETS, COMMUNICATORS, STATE, WEIGHTS, Holdings
from osfmodel.engine.strategies.lowering import GatheringStep, Strategy, require_only, require_whole
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.sharding import Sharding, share_of
from osfmodel.entities.workload import Layer, Workload

START, END = 64, 128
"""The start of a parameter, and the end of a bucket, are padded to multiples of so many elements."""


def padded_elements(layers: Sequence[Layer], ranks: int) -> int:
    """Elements of a bucket of ``layers`` in its buffer."""
    end = 0
    for layer in layers:
        end = _padded(end, START) + layer.elements
    return _padded(end, math.lcm(ranks, END))


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class Buffers:
    """The buffers of parameters and gradients of a plan."""

    def __init__(self, workload: Workload, plan: Plan, ranks: int) -> None:
        self.layers, self.ranks = {layer.name: layer for layer in workload.layers}, ranks
        self.rules = plan.sharding or Sharding(())

    def gathered_bytes(self, bucket: Bucket) -> int:
        """Bytes of the parameters of a bucket, as they are gathered and computed with."""
        return self._bytes(bucket, self.rules.gather_dtype)

    def reduced_bytes(self, bucket: Bucket) -> int:
        """Bytes of the gradients of a bucket, as they are kept and reduced."""
        return self._bytes(bucket, self.rules.reduce_dtype or self.rules.gather_dtype)

    def master_bytes(self, bucket: Bucket) -> int:
        """Bytes of a rank's shard of a bucket's parameters in their own dtype, if they are gathered in another."""
        own = self._bytes(bucket, "") // self.ranks
        return own if self.rules.gather_dtype not in ("", self._dtype(bucket)) else 0

    def _bytes(self, bucket: Bucket, dtype: str) -> int:
        layers = [self.layers[block.layer] for block in bucket.blocks]
        return padded_elements(layers, self.ranks) * element_bytes(dtype or self._dtype(bucket))

    def _dtype(self, bucket: Bucket) -> str:
        return self.layers[bucket.blocks[0].layer].dtype


class OptimizerStep(GatheringStep):
    """A program under construction; ``buffers`` say what its collectives carry."""

    def __init__(self, workload: Workload, plan: Plan, pricing: Pricing) -> None:
        """Begin with forward and backward, of each micro-batch."""
        self.buffers = Buffers(workload, plan, pricing.workers)
        free = replace(pricing.effects, copy_in=0, copy_out=0, fusion_copy=0)
        super().__init__(workload, replace(plan, channels=1), replace(pricing, effects=free))

    def _compute(self) -> None:
        self.gathering_forward(())
        self._backward()
        for _ in range(1, self.buffers.rules.micro_batches):
            super()._compute()

    def padded_bytes(self, number: int, kind: str) -> int:
        """Bytes of the collective ``kind`` of a bucket."""
        of = self.buffers.gathered_bytes if kind == "all_gather" else self.buffers.reduced_bytes
        return of(self.plan.buckets[number])


def lower(workload: Workload, plan: Plan, pricing: Pricing) -> Program:
    """The program of a step, from the end of one update to that of the next."""
    _require_runnable(workload, plan)
    step = OptimizerStep(workload, plan, pricing)
    scatters = tuple(step.scatter(number) for number in range(len(plan.buckets)))
    time = workload.update_time / pricing.workers
    step.add(Operation("update", COMPUTE, (), time, waits=scatters, quiet=True))
    return Program(tuple(step.operations))


def _require_runnable(workload: Workload, plan: Plan) -> None:
    require_only(plan, "sharding")
    require_whole(workload, plan)
    if plan.sharding is not None and plan.sharding.replicas > 1:
        raise PlanError(
            f"the plan's sharding has {plan.sharding.replicas} replicas: the distributed optimizer has none, give 1"
        )


class OptimizerHoldings(Holdings):
    """The memory of whole weights and gradients in their buffers, and of a shard of the optimizer's state."""

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        buffers, held = Buffers(self.workload, self.plan, self.workers), super().lasting()
        masters = 0 if offloaded(self.workload) else sum(map(buffers.master_bytes, self.plan.buckets))
        weights = sum(map(buffers.gathered_bytes, self.plan.buckets)) + share_of(self.workload, masters, self.workers)
        communicator = self.communicator if self.workers > 1 else 0
        return {
            **held,
            WEIGHTS: weights,
            STATE: share_of(
                self.workload, -(-moments_bytes(self.workload, self.optimizer) // self.workers), self.workers
            ),
            COMMUNICATORS: communicator,
            BUCKETS: self.gradient_buffers(),
        }

    def gradient_buffers(self) -> int:
        """Bytes of the buffers in which backward adds up gradients; shards are reduced in place."""
        buffers = Buffers(self.workload, self.plan, self.workers)
        return sum(map(buffers.reduced_bytes, self.plan.buckets))

    def gradients(self) -> Iterator[Hold]:
        """Gradients outside their buffers: none."""
        return iter(())

    def _scratch(self) -> Iterator[Hold]:
        """Scratch memory of the update of a shard."""
        yield from (hold._replace(bytes=-(-hold.bytes // self.workers)) for hold in super()._scratch())


STRATEGY = Strategy(
    lower, "weights and gradients whole, optimizer state and update in shards (Megatron-Core)", OptimizerHoldings
)
