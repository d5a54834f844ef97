"""ZeRO stages 1 and 2: gradients reduced by bucket, shards updated, parameters gathered or broadcast.

Sources: DeepSpeed 0.19.8, ``deepspeed/runtime/zero/stage_1_and_2.py``, and its issue 8364 for the stall. Each bucket is
an all-reduce, also with DeepSpeed's ``reduce_scatter``: so it was seen over gloo (``targets.deepspeed``).

* A bucket is handed over with the next gradient, or once backward is over (``handover``). With ``overlap_comm``
  (``asynchronous`` of the plan's sharding; off by default) backward then waits for the reduction of the bucket before,
  since 0.14.4; without, for that of the bucket itself. So it does in any case where launching a collective blocks, as
  over gloo: DeepSpeed launches none of these in the background (recorded with 2 ranks).
* Backward ends when all its reductions have. Of several micro-batches, stage 1 reduces with the last and stage 2 with
  each; gradients are copied into buckets only where they are reduced.
* Each rank updates its shard; then the parameters of each dtype, padded, are gathered, and the step ends with that.

Where ranks own whole tensors instead of shards (``zero-1-owners``), each broadcasts what it has updated, one rank after
the other: so InternEvo (``HybridZeroOptimizer``), ColossalAI's early ZeRO, and torch's ``ZeroRedundancyOptimizer``. The
largest tensor that is left goes to the rank that has least. With replicas the ranks of each own all tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heappop, heappush

from osfmodel.cost.pricing import BROADCAST, Pricing
from osfmodel.engine.optimizers import state_bytes
from osfmodel.engine.program import CHANNEL, COMPUTE, Hold, Instant, Operation, Program
from osfmodel.engine.strategies.handover import handovers
from osfmodel.engine.strategies.holdings import BUCKETS, GRADIENTS, STATE, Holdings
from osfmodel.engine.strategies.lowering import Lowering, Strategy
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.modules import OWNERS
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.sharding import Sharding
from osfmodel.entities.workload import Layer, Workload

ALIGNED = 2
"""Elements of which each rank's part of the parameters is a multiple (NCCL_START_ALIGNMENT_FACTOR)."""
DEFAULTS = Sharding(())
"""Rules of plans that state none."""


class ZeroStep(Lowering):
    """A program under construction.

    each:       whether every micro-batch reduces its gradients, as in stage 2
    owners:     whether ranks own whole tensors, and broadcast them
    left:       micro-batches that have not begun their backward
    reductions: numbers of the reductions so far
    stall:      operations for which the next computation waits
    """

    def __init__(self, workload: Workload, plan: Plan, pricing: Pricing, each: bool, owners: bool) -> None:
        """Begin with the forward and the backward of the first micro-batch."""
        self.rules, self.each, self.owners = rules_of(plan), each, owners
        self.left = self.rules.micro_batches
        self.reductions: list[int] = []
        self.stall: tuple[int, ...] = ()
        self.handed = handovers(workload, plan)
        self.own = {layer.name: layer for layer in workload.layers}
        super().__init__(workload, plan, pricing)

    def program(self) -> Program:
        """The whole step: the other micro-batches, the update of the shards, and the all-gathers or broadcasts."""
        while self.left:
            for layer in self.workload.layers:
                self.add(self._forward([layer], self._stalled()))
            self._backward()
        ranks = self.rules.ranks(self.pricing.workers)
        time = self.workload.update_time / ranks
        update = self.add(Operation("update", COMPUTE, (), time, waits=tuple(self.reductions), quiet=True))
        self._broadcast(update, ranks) if self.owners else self._gather(update)
        return Program(tuple(self.operations))

    def _broadcast(self, update: int, ranks: int) -> None:
        """Add a broadcast for each rank that owns tensors, between the ranks of a replica."""
        prices = self.pricing.between(ranks)
        for layers in owned(trained(self.workload), ranks):
            size = sum(_elements(one) * element_bytes(self.rules.gather_dtype or one.dtype) for one in layers)
            startup, transfer = prices.split(BROADCAST, size)
            names = tuple(one.name for one in layers)
            self.add(Operation(BROADCAST, CHANNEL, names, startup, transfer, (update,), size=size))

    def _gather(self, update: int) -> None:
        """Add an all-gather for each dtype."""
        for dtype in dict.fromkeys(layer.dtype for layer in trained(self.workload)):
            layers = [layer for layer in trained(self.workload) if layer.dtype == dtype]
            size = gathered_bytes(self.rules, layers, self.pricing.workers)
            startup, transfer = self.pricing.split("all_gather", size)
            names = tuple(layer.name for layer in layers)
            self.add(Operation("all_gather", CHANNEL, names, startup, transfer, (update,), size=size))

    def _backward(self) -> None:
        """Add the backward of a micro-batch and, if it reduces, its copies, hooks and reductions."""
        self.left -= 1
        reduces = self.each or not self.left
        hooks, copy_in = (self._hooks(), self.effects.copy_in) if reduces else ({}, 0)
        for layer in reversed(self.workload.layers):
            time = layer.backward_time * self.stretch + copy_in * layer.gradient_bytes + hooks.get(layer.name, 0)
            number = self.add(Operation("backward", COMPUTE, (layer.name,), time, waits=self._stalled()))
            self.ready[layer.name] = number
            for bucket in self.handed.get(layer.name, ()) if reduces else ():
                self._reduce(bucket, number)
        self.stall = tuple(self.reductions)

    def _stalled(self) -> tuple[int, ...]:
        """The operations for which the next computation waits; those after it need not."""
        stall, self.stall = self.stall, ()
        return stall

    def _reduce(self, number: int, ready: int) -> None:
        """Hand a bucket over once the operation ``ready`` has ended, and let the next computation wait."""
        bucket = self.plan.buckets[number]
        layers, size = tuple(dict.fromkeys(block.layer for block in bucket.blocks)), self._reduced_bytes(bucket)
        startup, transfer = self.pricing.split("all_reduce", size)
        operation = Operation(
            "all_reduce", CHANNEL, layers, startup, transfer, (ready,), bucket.release_time, size, bucket=number
        )
        self.reductions.append(self.add(operation))
        last = len(self.reductions) - (self.rules.asynchronous and not self.pricing.blocking)
        self.stall = tuple(self.reductions[max(0, last - 1) : last])

    def _reduced_bytes(self, bucket: Bucket) -> int:
        """Bytes of a bucket in the type in which it is reduced."""
        dtype = self.rules.reduce_dtype or self.rules.gather_dtype
        if not dtype:
            return bucket.size
        return sum(
            -(-block.bytes // element_bytes(self.own[block.layer].dtype)) * element_bytes(dtype)
            for block in bucket.blocks
        )


def rules_of(plan: Plan) -> Sharding:
    """The rules of the plan. Raises PlanError if it asks for what DeepSpeed does not do."""
    others = [words for name, words in plan.wants.items() if name not in ("strategy", "sharding", "recompute")]
    if others:
        raise PlanError(f"the strategy {plan.strategy!r} excludes {', '.join(others)}")
    rules = plan.sharding or DEFAULTS
    if rules.replicas > 1 and plan.strategy != OWNERS:
        raise PlanError(f"the strategy {plan.strategy!r} shards between all workers: the plan has several replicas")
    return rules


def trained(workload: Workload) -> list[Layer]:
    """The layers with parameters, in forward order."""
    return [layer for layer in workload.layers if layer.gradient_bytes]


def gathered_bytes(rules: Sharding, layers: list[Layer], ranks: int) -> int:
    """Bytes of the parameters of layers of one dtype, padded as a whole, as they are gathered from ``ranks`` ranks."""
    part = ALIGNED * ranks
    return -(-sum(map(_elements, layers)) // part) * part * element_bytes(rules.gather_dtype or layers[0].dtype)


def owned(layers: Sequence[Layer], ranks: int) -> list[list[Layer]]:
    """The layers of each rank that owns any: the largest that is left goes to the rank that has least."""
    held = [(0, rank) for rank in range(ranks)]
    found: list[list[Layer]] = [[] for _ in held]
    for layer in sorted(layers, key=_elements, reverse=True):
        elements, rank = heappop(held)
        found[rank].append(layer)
        heappush(held, (elements + _elements(layer), rank))
    return [own for own in found if own]


def _elements(layer: Layer) -> int:
    """Number of elements of a parameter, rounded up."""
    return layer.elements if layer.shape else -(-layer.gradient_bytes // element_bytes(layer.dtype))


class ZeroHoldings(Holdings):
    """The memory of stage 1: whole weights and gradients, shards of the optimizer's state, and buffers of buckets.

    Owners of whole tensors are taken to hold equal parts.
    """

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        rules = rules_of(self.plan)
        state = -(-state_bytes(self.workload, self.optimizer) // rules.ranks(self.workers))
        types = {rules.reduce_dtype or rules.gather_dtype or layer.dtype for layer in trained(self.workload)}
        whole = rules.buffer * sum(map(element_bytes, types))
        buffer = whole or max((bucket.size for bucket in self.plan.buckets), default=0)
        return {**super().lasting(), STATE: state, BUCKETS: (1 + rules.asynchronous) * buffer}

    def _scratch(self) -> Iterator[Hold]:
        """Scratch memory of the update of the shard."""
        ranks = rules_of(self.plan).ranks(self.workers)
        yield from (hold._replace(bytes=-(-hold.bytes // ranks)) for hold in super()._scratch())

    def gradients(self) -> Iterator[Hold]:
        """All gradients, from the first backward to the end of the update."""
        seen: set[str] = set()
        updated = self._updated()
        for number, one in enumerate(self.bare.operations):
            if one.kind == "backward" and one.layers[0] in self.sizes and one.layers[0] not in seen:
                seen.add(one.layers[0])
                yield Hold(GRADIENTS, self.sizes[one.layers[0]], (Instant(number, ended=True),), updated)

    def _updated(self) -> Instant:
        """The end of the update."""
        return Instant(next(i for i, one in enumerate(self.bare.operations) if one.kind == "update"), ended=True)


class ReducedHoldings(ZeroHoldings):
    """The memory of stage 2: gradients of a bucket until it is reduced, and from then on those of the rank's share."""

    def gradients(self) -> Iterator[Hold]:
        """Gradients until each reduction, and the shares from the first reduction to the end of the update."""
        ready: dict[str, Instant] = {}
        seen: set[int] = set()
        for number, one in enumerate(self.bare.operations):
            ended = Instant(number, ended=True)
            if one.kind == "backward":
                ready[one.layers[0]] = ended
            elif one.kind == "all_reduce":
                bucket = self.plan.buckets[one.bucket]
                for block in bucket.blocks:
                    yield Hold(GRADIENTS, block.bytes, (ready[block.layer],), ended)
                if one.bucket not in seen:
                    seen.add(one.bucket)
                    yield Hold(GRADIENTS, -(-bucket.size // self.workers), (ended,), self._updated())


def lower(workload: Workload, plan: Plan, pricing: Pricing, each: bool, owners: bool = False) -> Program:
    """The program of one step; ``each``: whether every micro-batch reduces its gradients; ``owners``: as in ZeroStep.

    Raises PlanError if the plan asks for what none of these frameworks does.
    """
    return ZeroStep(workload, plan, pricing, each, owners).program()


FIRST = Strategy(
    partial(lower, each=False), "gradients reduced, shards updated, parameters gathered (ZeRO-1)", ZeroHoldings
)
SECOND = Strategy(
    partial(lower, each=True), "as zero-1, and only a share of the gradients kept (ZeRO-2)", ReducedHoldings
)
OWNERS_STRATEGY = Strategy(
    partial(lower, each=False, owners=True),
    "as zero-1, and each rank broadcasts the tensors that it owns",
    ZeroHoldings,
)
