"""Fully sharded parameters (PyTorch FSDP2): gathered by group before they are used, gradients reduced to shards.

Operations come in the order in which FSDP2's hooks issue them (torch 2.13, ``torch/distributed/fsdp/_fully_shard``):

* Forward of a group: copy in and all-gather, copy out on the compute stream, the group's own computation; then its
  parameters are freed, kept, or split between fewer ranks. An all-gather waits for the copy out of the group before the
  one that issues it, whose buffer is dropped only then.
* Backward of a group: the same, if the parameters are not there; then the all-gathers of the groups that are
  prefetched are issued, after its copy out. When its last gradient is there: copy in on the compute stream, which first
  waits until fewer than ``reduce_inputs`` reduce-scatters hold an input; then the reduce-scatter and, with replicas,
  the all-reduce of the shard. Groups that are ``reduced_last`` come after all of backward.

All-gathers and reduce-scatters share one communicator, and so go one at a time in that order, unless ``separate``. A
library that blocks the thread that launches a collective, as gloo does, does one operation after the other; in the
background it launches a collective once the thread, which computes itself, gets there. The host's work for each
collective is an operation as well: before the launch, after an all-gather has ended, and before gradients are reduced.
It delays what is launched next, and computation where the host computes itself. In a replay computation is a fixed
delay: the host goes on beside it, and waits for it where the thread would sleep. Where no core is
free, collectives in the background stand still meanwhile (``group_stall``).

Memory is taken and given back in the order of issue, as a caching allocator sees it, whatever the streams are doing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.optimizers import offloaded
from osfmodel.engine.program import CHANNEL, COMPUTE, Operation, Program, Stream, Taken
from osfmodel.engine.strategies.holdings import BUFFERS, GRADIENTS
from osfmodel.engine.strategies.issued import COPY_IN, GATHERED, HOST, REDUCED, WHOLE, IssuedHoldings, IssuedStep, turns
from osfmodel.engine.strategies.lowering import Strategy, require_whole
from osfmodel.engine.works import Work
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Plan
from osfmodel.entities.sharding import exchanged_bytes, frozen_bytes, padded_elements, share_of
from osfmodel.entities.workload import Layer, Workload

REDUCE, REPLICAS = "reduce channel", "replica channel"
"""Streams of reduce-scatters on their own, and of all-reduces between replicas."""


class ShardedStep(IssuedStep):
    """A program under construction.

    order:    numbers of the groups as forward enters them; a module comes before those inside it
    entered:  place of a layer -> groups that forward enters there, outer ones first
    leaving:  place of a layer -> groups that forward leaves there, inner ones first
    runs:     (first, end) of the layers between which no group is entered or left
    left:     numbers of the groups in the order in which forward left them
    gathered: bytes of each group as it is gathered, padded
    reducing: bytes of each group as its gradients are reduced, padded
    gathers:  all-gathers whose groups have not been copied out, by group
    after:    the copy out for which all-gathers wait from now on
    inputs:   reduce-scatters whose inputs are in memory, the oldest first
    """

    def __init__(self, workload: Workload, plan: Plan, pricing: Pricing, apart: bool = False) -> None:
        if plan.sharding is None:
            raise PlanError(f"the plan has the strategy {plan.strategy!r}, and does not say how its groups are sharded")
        super().__init__(workload, plan.sharding, pricing, apart)
        layers = {layer.name: layer for layer in workload.layers}
        self.members = [[layers[block.layer] for block in bucket.blocks] for bucket in plan.buckets]
        self.group_of = {layer.name: group for group, members in enumerate(self.members) for layer in members}
        require_whole(workload, plan)
        self.gathered: tuple[int, ...]
        self.reducing: tuple[int, ...]
        self.gathered, self.reducing = zip(*map(self.exchanged_bytes, self.members), strict=True)
        self.names = [tuple(layer.name for layer in members) for members in self.members]
        self.uses = list(self._uses())
        numbers = range(len(self.members))
        self.order = sorted(numbers, key=lambda group: (self.uses[group][0], -self.uses[group][1]))
        self.entered: dict[int, list[int]] = {}
        self.leaving: dict[int, list[int]] = {}
        for group in self.order:
            self.entered.setdefault(self.uses[group][0], []).append(group)
            self.leaving.setdefault(self.uses[group][1], []).insert(0, group)
        self.runs = self.stretches(self.entered, (place + 1 for place in self.leaving))
        self.left: list[int] = []
        self.gathers: dict[int, int] = {}
        self.after: tuple[int, ...] = ()
        self.inputs: deque[tuple[int, Taken]] = deque()
        self.ends: list[int] = []
        self.buffers: dict[int, Taken] = {}
        self.whole: dict[int, Taken] = {}
        self.gradients: dict[int, dict[str, Taken]] = {group: {} for group in numbers}
        self.added: dict[int, Taken] = {}
        self.reduced: set[int] = set()
        self.last = True
        self.arrived: tuple[int, Taken] | None = None

    def exchanged_bytes(self, members: Sequence[Layer]) -> tuple[int, int]:
        """Bytes of a group as its parameters are gathered, and as its gradients are reduced."""
        return exchanged_bytes(self.rules, members, self.ranks)

    def split_bytes(self, members: Sequence[Layer]) -> int:
        """Bytes of a rank's part of a group, in the type of its parameters."""
        return sum(padded_elements(one, self.ranks) // self.ranks * element_bytes(one.dtype) for one in members)

    def _uses(self) -> Iterator[tuple[int, int]]:
        """Places of the first and the last layer of forward between which each group is in use."""
        places = {layer.name: place for place, layer in enumerate(self.workload.layers)}
        for group, members in zip(self.rules.groups, self.members, strict=True):
            own = [places[layer.name] for layer in members]
            yield places.get(group.first, min(own)), places.get(group.last, max(own))

    @classmethod
    def lower(cls, workload: Workload, plan: Plan, pricing: Pricing, apart: bool = False) -> Program:
        """The program of one step."""
        return cls(workload, plan, pricing, apart).program()

    def program(self) -> Program:
        """The whole step: forward and backward of each micro-batch, and the update of the shards."""
        for number in range(1, self.rules.micro_batches + 1):
            self.last = number == self.rules.micro_batches
            self._micro_batch()
        self.add("update", COMPUTE, (), self._updating(), tuple(self.ends))
        background = self.pricing.blocking and self.rules.asynchronous
        link = Stream(
            width=self.pricing.in_flight if background else 1,
            link="node" if self.ranks <= self.pricing.per_host else "network",
        )
        return self.finished({CHANNEL: link, REDUCE: link})

    def _updating(self) -> Work:
        """The update of a shard; with a host, its copies go beside computation."""
        count, rules = self.rules.micro_batches, self.rules
        return "update", self.ranks, count if rules.reduce_each else 1, True, 1 if rules.keep else count

    def _micro_batch(self) -> None:
        """Forward and backward. Both begin when all that came before has ended, reduce-scatters included."""
        self.before, self.ends = tuple(self.ends), []
        self.after = (len(self.operations) - 1, *self.before) if self.operations else ()
        self.left.clear()
        for first, end in self.runs:
            for group in self.entered.get(first, ()):
                self._enter(group)
            self.compute("forward", first, end)
            for group in self.leaving.get(end - 1, ()):
                self._leave(group)
        self._drop()
        for first, end in reversed(self.runs):
            for group in reversed(self.leaving.get(end - 1, ())):
                self._enter_backward(group)
            self.compute("backward", first, end)
            for layer in reversed(self.workload.layers[first:end]) if self.apart else ():
                self._take_gradient(layer)
            for group in reversed(self.entered.get(first, ())):
                if not self.rules.groups[group].reduced_last:
                    self._leave_backward(group)
        self._backward_over()
        for group in self.order:
            if self.rules.groups[group].reduced_last:
                self._leave_backward(group)
        for _, held in self.inputs:
            self.give(held)
        self.inputs.clear()

    def _take_gradient(self, layer: Layer) -> None:
        """Memory for a layer's gradient, unless it is there from an earlier micro-batch."""
        if layer.name in self.group_of:
            held = self.gradients[self.group_of[layer.name]]
            if layer.name not in held:
                size = layer.elements * element_bytes(self.rules.gather_dtype or layer.dtype)
                held[layer.name] = self.take(GRADIENTS, size)

    def _enter(self, group: int) -> None:
        """Gather a group before its forward, and then those that are prefetched."""
        self._gather(group)
        if group in self.gathers:
            self._drop()
            self.arrived = self._copy_out(group), self.buffers[group]
        place = self.order.index(group) + 1
        for ahead in self.order[place : place + self.rules.groups[group].forward_prefetch]:
            self._gather(ahead)

    def _leave(self, group: int) -> None:
        """Free the parameters of a group after its forward, keep them, or keep the part of fewer ranks."""
        self.left.append(group)
        reshard = self.rules.groups[group].reshard
        if reshard is not False:
            self.give(self.whole.pop(group))
        if not isinstance(reshard, bool):
            self.buffers[group] = self.take(WHOLE, ("gathered_bytes", group, reshard))

    def _drop(self) -> None:
        """Drop the buffer of the last group that was copied out in forward; all-gathers wait for that from now on."""
        if self.arrived is not None:
            copied, buffer = self.arrived
            self.after, self.arrived = (copied,), None
            self.give(buffer)

    def _enter_backward(self, group: int) -> None:
        """Gather a group before its backward, if it is not there, and then those that are prefetched."""
        rules, place = self.rules.groups[group], self.left.index(group)
        self._gather(group, backward=True)
        if group in self.gathers:
            self.after = (self._copy_out(group),)
            self.give(self.buffers[group])
        for ahead in reversed(self.left[max(0, place - rules.backward_prefetch) : place]):
            self._gather(ahead, backward=True)

    def _gather(self, group: int, backward: bool = False) -> None:
        """Issue the all-gather of a group, unless that was done, it is not needed, or its parameters are there."""
        rules = self.rules.groups[group]
        if group in self.gathers or group in self.whole or (backward and not rules.needed_in_backward):
            return
        layers, size = self.names[group], self.gathered[group]
        self.give(self.buffers.get(group))
        self.buffers[group] = self.take(GATHERED, ("gathered_bytes", group))
        hosted = self._hosted(group, size, self.after, 0.5)
        copied = self.add("copy_in", COPY_IN, layers, ("copy_part_in", size, self.ranks), self.after, group)
        among = rules.reshard if backward and not isinstance(rules.reshard, bool) else self.ranks
        work = ("send", "all_gather", size, among)
        self.gathers[group] = self.add("all_gather", CHANNEL, layers, work, (copied, *hosted), group)

    def _copy_out(self, group: int) -> int:
        """Copy a gathered group out into parameters; the number of the copy."""
        size, waits = self.gathered[group], (self.gathers.pop(group),)
        self.whole[group] = self.take(WHOLE, ("gathered_bytes", group))
        self._hosted(group, size, waits, 0.5)
        return self.add("copy", COMPUTE, self.names[group], ("copy_out", size), waits, group)

    def _hosted(self, group: int, size: int, waits: tuple[int, ...], part: float = 1.0) -> tuple[int, ...]:
        """Add the ``part`` of the host's work for a collective, and its stall of others; the work's number, if any."""
        if not self.pricing.hosts:
            return ()
        work, stream = ("host", len(self.names[group]), size, part), HOST if self.pricing.replayed else COMPUTE
        stall = self.pricing.effects.group_stall
        if stall and self.rules.asynchronous:
            self.add("host", CHANNEL, self.names[group], (*work[:3], part * stall), waits, group)
        return (self.add("host", stream, self.names[group], work, waits, group),)

    def _leave_backward(self, group: int) -> None:
        """After a group's backward, free its parameters and reduce its gradients, if this micro-batch does so."""
        if self.last or not self.rules.keep:
            self.give(self.whole.pop(group, None))
        if self.last or self.rules.reduce_each:
            self._reduce(group)
        else:
            self._add_up(group)

    def _add_up(self, group: int) -> None:
        """Add the gradients of a group to those of earlier micro-batches, in the type in which they are reduced.

        Where that is their own type, autograd has done so.
        """
        dtype, members = self.rules.reduce_dtype, self.members[group]
        if dtype and any(dtype != (self.rules.gather_dtype or layer.dtype) for layer in members):
            if group not in self.added:
                size = sum(layer.elements for layer in members) * element_bytes(dtype)
                self.added[group] = self.take(GRADIENTS, size)
            self._give_gradients(group)

    def _give_gradients(self, group: int) -> None:
        """Give the gradients back that autograd has made for a group."""
        for gradient in self.gradients[group].values():
            self.give(gradient)
        self.gradients[group].clear()

    def _backward_over(self) -> None:
        """Deal with what backward leaves behind, before the groups that are reduced last: nothing."""

    def _oldest(self) -> tuple[int, ...]:
        """Give inputs of reduce-scatters back, the oldest first, until there is room; the one to wait for."""
        waits: tuple[int, ...] = ()
        while len(self.inputs) >= self.rules.reduce_inputs:
            number, before = self.inputs.popleft()
            self.give(before)
            waits = (number,)
        return waits

    def _reduce(self, group: int) -> None:
        """Reduce the gradients of a group to shards, and its shard between replicas."""
        layers, size, waits = self.names[group], self.reducing[group], self._oldest()
        if group in self.added:
            self._give_gradients(group)
        taken = self.take(REDUCED, ("reduced_bytes", group))
        hosted = self._hosted(group, size, waits)
        packed = self.add("pack", COMPUTE, layers, ("copy_in", size), waits, group)
        self._give_gradients(group)
        self.give(self.added.pop(group, None))
        stream = REDUCE if self.rules.separate else CHANNEL
        work = ("send", "reduce_scatter", size, self.ranks)
        self.ends.append(self.add("reduce_scatter", stream, layers, work, (packed, *hosted), group))
        self.inputs.append((self.ends[-1], taken))
        if group not in self.reduced:
            self.reduced.add(group)
            self.take(GRADIENTS, ("own_bytes", group))
        if self.rules.replicas > 1 and (self.last or self.rules.replicas_each):
            shared: Work = ("send", "all_reduce", size // self.ranks, self.rules.replicas, self.ranks)
            self.ends.append(self.add("all_reduce", REPLICAS, layers, shared, (self.ends[-1],), group))

    def gathered_bytes(self, group: int, ranks: int = 1) -> int:
        """Bytes of a group as it is gathered, or of a part of it for each of several ranks."""
        return self.gathered[group] // ranks

    def reduced_bytes(self, group: int) -> int:
        """Bytes of a group as its gradients are reduced."""
        return self.reducing[group]

    def own_bytes(self, group: int) -> int:
        """Bytes of a rank's part of a group's gradients, in the type of its parameters; with a host, none."""
        return (
            0
            if offloaded(self.workload)
            else share_of(self.workload, self.split_bytes(self.members[group]), self.ranks)
        )

    def shard_bytes(self) -> int:
        """Bytes of a rank's part of all parameters; with a host, none."""
        if offloaded(self.workload):
            return 0
        return sum(self.split_bytes(members) + frozen_bytes(members, self.ranks) for members in self.members)

    def in_turn(self) -> Iterable[Operation]:
        """The operations as the library launches them."""
        return turns(self.operations, self.pricing.blocking, self.rules.asynchronous)


class ShardedHoldings(IssuedHoldings):
    """The memory of a step of fully_shard."""

    made: type[ShardedStep] = ShardedStep

    def issued(self) -> IssuedStep:
        """The step before it is issued, at any prices."""
        return self.made(self.workload, self.plan, Pricing.free(self.workers))

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        held = super().lasting()
        return {**held, BUFFERS: held[BUFFERS] - frozen_bytes(self.workload.layers, 1)}

    def communicators(self) -> int:
        """Number of communicators of a step."""
        return 1 + self.step.rules.separate + (self.step.rules.replicas > 1)


STRATEGY = Strategy(
    ShardedStep.lower,
    "parameters gathered by group before use, gradients reduced to shards (FSDP2)",
    ShardedHoldings,
    partial(ShardedStep.lower, apart=True),
)
HYBRID = STRATEGY._replace(
    summary="sharded as with fully-sharded inside each replica, shards all-reduced between replicas"
)
