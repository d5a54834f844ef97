"""ZeRO stages 1 and 2: gradients reduced by bucket, shards updated, parameters gathered or broadcast.

Sources: DeepSpeed 0.19.8, ``deepspeed/runtime/zero/stage_1_and_2.py``, and its issue 8364 for the stall. Each bucket is
an all-reduce, also with DeepSpeed's ``reduce_scatter``: so it was seen over gloo (``targets.deepspeed``).

* A bucket is handed over with the next gradient, or once backward is over (``handovers``). With ``overlap_comm``
  (``asynchronous`` of the plan's sharding; off by default) backward then waits for the reduction of the bucket before,
  since 0.14.4; without, for that of the bucket itself. So it does in any case where launching a collective blocks, as
  over gloo: DeepSpeed launches none of these in the background (recorded with 2 ranks).
* Backward ends when all its reductions have. Of several micro-batches, stage 1 reduces with the last and stage 2 with
  each; gradients are copied into buckets only where they are reduced.
* Each rank updates its shard; then the parameters of each dtype, padded, are gathered, and the step ends with that, or
  with copies of each rank's part of each parameter (``part_time`` of the plan's sharding), as in nanotron.

Where ranks own whole tensors instead of shards (``zero-1-owners``), each broadcasts what it has updated, one rank after
the other: so InternEvo (``HybridZeroOptimizer``), ColossalAI's early ZeRO, and torch's ``ZeroRedundancyOptimizer``. The
largest tensor that is left goes to the rank that has least. With replicas the ranks of each own all tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from heapq import heappop, heappush
from typing import ClassVar

from osfmodel.cost.pricing import BROADCAST, Pricing
from osfmodel.engine.optimizers import offloaded, state_bytes
from osfmodel.engine.program import CHANNEL, COMPUTE, Hold, Instant, Program
from osfmodel.engine.strategies.deepspeed import elements_of, handovers, rules_of
from osfmodel.engine.strategies.holdings import BUCKETS, GRADIENTS, STATE, UPDATE, WEIGHTS, Holdings
from osfmodel.engine.strategies.issued import IssuedStep
from osfmodel.engine.strategies.lowering import Strategy, completing
from osfmodel.engine.works import Work
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.sharding import Sharding, share_of
from osfmodel.entities.workload import Layer, Workload

ALIGNED = 2
"""Elements of which each rank's part of the parameters is a multiple (NCCL_START_ALIGNMENT_FACTOR)."""
PARAMETERS, HALF = "float32", 2
"""Type of parameters in shards, and the fewest bytes of an element that is held whole in the type of computation."""


class ZeroStep(IssuedStep):
    """A program under construction.

    each:       whether every micro-batch reduces its gradients, as in stage 2
    owners:     whether ranks own whole tensors, and broadcast them
    completed:  number of buckets that each layer completes
    handed:     numbers of the buckets that are sent after each layer, by its place
    reductions: numbers of the reductions so far
    """

    def __init__(
        self, workload: Workload, plan: Plan, pricing: Pricing, each: bool, owners: bool, apart: bool = False
    ) -> None:
        super().__init__(workload, rules_of(plan), pricing, apart)
        self.plan, self.each, self.owners = plan, each, owners
        self.hooks = self.completed = Counter(completing(workload, plan))
        self.reductions: list[int] = []
        places = {layer.name: place for place, layer in enumerate(workload.layers)}
        self.handed = {places[name]: numbers for name, numbers in handovers(workload, plan).items()}
        self.own = {layer.name: layer for layer in workload.layers}

    def program(self) -> Program:
        """The whole step: micro-batches, the update of the shards, and the all-gathers or broadcasts."""
        for left in reversed(range(self.rules.micro_batches)):
            for first, end in self.stretches():
                self.compute("forward", first, end)
            if self.each or not left:
                self._reduced_backward()
                continue
            for first, end in reversed(self.stretches()):  # gradients are added up
                self.compute("backward", first, end)
        update = self.add("update", COMPUTE, (), self._updating(), tuple(self.reductions))
        self._broadcast(update) if self.owners else self._gather(update)
        made = self.finished()
        # Times of release are in the operations.
        return replace(made, works=()) if any(bucket.release_time for bucket in self.plan.buckets) else made

    def _updating(self) -> Work:
        """The update of a shard; gradients go to a host beside backward where they are reduced beside it."""
        return "update", self.ranks, self.rules.micro_batches if self.each else 1, self.rules.asynchronous

    def _broadcast(self, update: int) -> None:
        """Add a broadcast for each rank that owns tensors, between the ranks of a replica."""
        for layers in owned(trained(self.workload), self.ranks):
            size = sum(elements_of(one) * element_bytes(self.rules.gather_dtype or one.dtype) for one in layers)
            names = tuple(one.name for one in layers)
            self.add(BROADCAST, CHANNEL, names, ("send", BROADCAST, size, self.ranks), (update,))

    def _gather(self, update: int) -> None:
        """Add an all-gather for each dtype."""
        ranks = self.pricing.workers
        for dtype in dict.fromkeys(layer.dtype for layer in trained(self.workload)):
            layers = [layer for layer in trained(self.workload) if layer.dtype == dtype]
            names, size = tuple(layer.name for layer in layers), gathered_bytes(self.rules, layers, ranks)
            gather = self.add("all_gather", CHANNEL, names, ("send", "all_gather", size, ranks), (update,))
            if self.rules.part_time:
                work = ("copy_parts", ranks * len(layers), self.rules.part_time)
                self.add("copy_out", COMPUTE, names, work, (gather,))

    def _reduced_backward(self) -> None:
        """Add the backward of a micro-batch with its copies and hooks, and the reductions."""
        self.packed_from = min(self.packed_from, len(self.operations))
        for first, end in reversed(self.stretches(self.handed)):
            hooks = sum(self.completed[name] for name in self.names_of[first:end])
            waits, self.before = self.before, ()
            number = self.add("backward", COMPUTE, self.names_of[first:end][::-1], ("packed", first, end, hooks), waits)
            for bucket in self.handed.get(first, ()):
                self._reduce(bucket, number)
        self.before = tuple(self.reductions)

    def _reduce(self, number: int, ready: int) -> None:
        """Hand a bucket over once the operation ``ready`` has ended, and let the next computation wait."""
        bucket = self.plan.buckets[number]
        layers, size = tuple(dict.fromkeys(block.layer for block in bucket.blocks)), self._reduced_bytes(bucket)
        work = ("send", "all_reduce", size, self.pricing.workers)
        self.reductions.append(self.add("all_reduce", CHANNEL, layers, work, (ready,), number))
        self.operations[-1] = self.operations[-1]._replace(not_before=bucket.release_time)
        last = len(self.reductions) - (self.rules.asynchronous and not self.pricing.blocking)
        self.before = tuple(self.reductions[max(0, last - 1) : last])

    def _reduced_bytes(self, bucket: Bucket) -> int:
        """Bytes of a bucket in the type in which it is reduced."""
        dtype = self.rules.reduce_dtype or self.rules.gather_dtype
        if not dtype:
            return bucket.size
        return sum(
            -(-block.bytes // element_bytes(self.own[block.layer].dtype)) * element_bytes(dtype)
            for block in bucket.blocks
        )


def trained(workload: Workload) -> list[Layer]:
    """The layers with parameters, in forward order."""
    return [layer for layer in workload.layers if layer.gradient_bytes]


def gathered_bytes(rules: Sharding, layers: list[Layer], ranks: int) -> int:
    """Bytes of the parameters of layers of one dtype, padded as a whole, as they are gathered from ``ranks`` ranks."""
    part = ALIGNED * ranks
    return -(-sum(map(elements_of, layers)) // part) * part * element_bytes(rules.gather_dtype or layers[0].dtype)


def owned(layers: Sequence[Layer], ranks: int) -> list[list[Layer]]:
    """The layers of each rank that owns any: the largest that is left goes to the rank that has least."""
    held = [(0, rank) for rank in range(ranks)]
    found: list[list[Layer]] = [[] for _ in held]
    for layer in sorted(layers, key=elements_of, reverse=True):
        elements, rank = heappop(held)
        found[rank].append(layer)
        heappush(held, (elements + elements_of(layer), rank))
    return [own for own in found if own]


class ZeroHoldings(Holdings):
    """The memory of stage 1: whole weights and gradients, shards of the optimizer's state, and buffers of buckets.

    Owners of whole tensors are taken to hold equal parts. Where weights are in half precision with float32 copies in
    the state (Megatron, nanotron), gradients are added up in one buffer that stays, and reduced there. A plan that
    gathers parameters of float32 in half precision has them and their gradients whole in that alone, and shards of
    float32 for the update (DeepSpeed's ``bf16`` and ``fp16``; ``get_data_types`` of its engine; InternEvo's too).
    """

    of_parameters = (WEIGHTS, STATE, GRADIENTS)  # buffers have a size of their own
    buffered: ClassVar[bool] = False
    """Whether buckets have buffers whatever the weights are."""

    @property
    def in_place(self) -> bool:
        """Whether gradients are reduced where they are added up."""
        return not (self.buffered or self.workload.weight_bytes is None or offloaded(self.workload))

    @cached_property
    def narrow(self) -> float:
        """Bytes that are held whole for a byte of float32 parameters, and of their gradients."""
        rules, own = rules_of(self.plan), {layer.dtype for layer in trained(self.workload)}
        width = element_bytes(rules.gather_dtype or PARAMETERS)
        if self.workload.weight_bytes is not None or own != {PARAMETERS}:
            return 1.0
        return max(width, HALF) / element_bytes(PARAMETERS)

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        rules, held = rules_of(self.plan), super().lasting()
        copies = self.workload.gradient_bytes * (self.narrow < 1)
        state = -(-(state_bytes(self.workload, self.optimizer) + copies) // rules.ranks(self.workers))
        types = {rules.reduce_dtype or rules.gather_dtype or layer.dtype for layer in trained(self.workload)}
        whole = rules.buffer * sum(map(element_bytes, types))
        buffer = whole or max((bucket.size for bucket in self.plan.buckets), default=0)
        buckets = 0 if self.in_place else (1 + rules.asynchronous) * buffer
        state = share_of(self.workload, state, rules.ranks(self.workers))
        return {**held, WEIGHTS: round(held[WEIGHTS] * self.narrow), STATE: state, BUCKETS: buckets}

    def _scratch(self) -> Iterator[Hold]:
        """Scratch memory of the update of the shard, and its gradients in the type of the update."""
        ranks = rules_of(self.plan).ranks(self.workers)
        yield from (hold._replace(bytes=-(-hold.bytes // ranks)) for hold in super()._scratch())
        if self.narrow < 1:
            until = self._updated
            yield Hold(UPDATE, -(-self.workload.gradient_bytes // ranks), (until._replace(ended=False),), until)

    def gradients(self) -> Iterator[Hold]:
        """All gradients, from the first backward to the end of the update; those in place throughout the step."""
        if self.in_place:
            yield Hold(GRADIENTS, sum(self.sizes.values()))
            return
        seen: set[str] = set()
        updated = self._updated
        for number, one in enumerate(self.bare.operations):
            if one.kind == "backward" and one.layers[0] in self.sizes and one.layers[0] not in seen:
                seen.add(one.layers[0])
                size = round(self.sizes[one.layers[0]] * self.narrow)
                yield Hold(GRADIENTS, size, (Instant(number, ended=True),), updated)

    @cached_property
    def _updated(self) -> Instant:
        """The end of the update."""
        return Instant(next(i for i, one in enumerate(self.bare.operations) if one.kind == "update"), ended=True)


class ReducedHoldings(ZeroHoldings):
    """The memory of stage 2: gradients of a bucket until it is reduced, and from then on those of the rank's share."""

    buffered = True

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
                    yield Hold(GRADIENTS, round(block.bytes * self.narrow), (ready[block.layer],), ended)
                if one.bucket not in seen and not offloaded(self.workload):
                    seen.add(one.bucket)
                    share = -(-round(bucket.size * self.narrow) // self.workers)
                    yield Hold(GRADIENTS, share_of(self.workload, share, self.workers), (ended,), self._updated)


def _strategy(summary: str, holdings: type[Holdings], each: bool = False, owners: bool = False) -> Strategy:
    """The entry of a stage; ``each`` and ``owners`` as in ZeroStep."""

    def lower(workload: Workload, plan: Plan, pricing: Pricing, apart: bool = False) -> Program:
        return ZeroStep(workload, plan, pricing, each, owners, apart).program()

    return Strategy(lower, summary, holdings, partial(lower, apart=True))


FIRST = _strategy("gradients reduced, shards updated, parameters gathered (ZeRO-1)", ZeroHoldings)
SECOND = _strategy("as zero-1, and only a share of the gradients kept (ZeRO-2)", ReducedHoldings, each=True)
OWNERS_STRATEGY = _strategy("as zero-1, and each rank broadcasts the tensors that it owns", ZeroHoldings, owners=True)
