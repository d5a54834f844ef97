"""DeepSpeed's ZeRO stage 3: parameters fetched by module in the order of use, gradients reduced to shards by bucket.

Source: DeepSpeed 0.19.8, ``deepspeed/runtime/zero`` (``partitioned_param_coordinator.py``, ``parameter_offload.py``,
``partition_parameters.py``, ``stage3.py``), read, and run over gloo. Each parameter is split by itself, padded to a
multiple of the ranks. All is as in the second step and later ones, when the order of use is known.

* As compute gets to a module, forward or backward, its own parameters that are not there are gathered in one all-gather
  for each dtype; compute waits for these. Then the parameters that are used next are fetched ahead, in one all-gather
  more, until they have ``prefetch`` elements, or fewer where less fits below ``live``; the last one may pass the limit.
  Modules without parameters of their own fetch ahead as well.
* As compute leaves a module, its parameters are freed, unless they are persistent, are used again within ``reuse``
  elements, or fetching ahead has passed over that use because they were there.
* Gradients are copied into a bucket on a stream of their own; the reduce-scatter of a bucket is issued as the next
  gradient is ready (``handovers``). The thread that launches all this first waits until no more than two earlier ones
  are under way. Without ``overlap_comm`` (``asynchronous``), copies are on the compute stream, and it waits for each.
* After the update, each persistent parameter is gathered by itself.

All collectives share one communicator. The host is taken to run ahead of the device, so that all-gathers wait for what
is before them there, and for the copies on their stream. Over gloo all-gathers run in the background, and
reduce-scatters block. Gradients are reduced in every micro-batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.optimizers import offloaded
from osfmodel.engine.program import CHANNEL, COMPUTE, Program, Taken
from osfmodel.engine.strategies.deepspeed import UsedModule, elements_of, handovers, persistent, rules_of, used_modules
from osfmodel.engine.strategies.holdings import BUCKETS, GRADIENTS
from osfmodel.engine.strategies.issued import GATHERED, WHOLE, IssuedHoldings, IssuedStep
from osfmodel.engine.strategies.lowering import Strategy, require_whole
from osfmodel.engine.works import Work
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.sharding import Fetching, share_of
from osfmodel.entities.workload import Layer, Workload

GATHERS, PACKS = "copies of parameters", "copies of gradients"
"""Streams of copies into and out of all-gathers, and into buckets."""
UNDER_WAY = 2
"""Reduce-scatters that may be under way as another is issued (``max_param_reduce_events``)."""


@dataclass(slots=True)
class Call:
    """All-gathers that are issued together, one for each dtype, and the memory in which they arrive.

    arrived: operations for which uses of the parameters wait; empty while nothing has waited
    """

    layers: list[list[Layer]]
    gathers: list[int]
    buffer: Taken | None
    arrived: tuple[int, ...] = field(default=())


class FetchingStep(IssuedStep):
    """A program under construction.

    trace:     modules in the order of use, forward and then backward
    position:  elements used before each of them, and in all
    again:     the use of each parameter in backward
    step:      the next use
    queue:     (parameter, use) that have not been fetched or passed over
    passed:    the last use of each parameter that was fetched or passed over
    flying:    calls that gather parameters that have not been used, by parameter
    whole:     memory of parameters that are whole, or None while they are in the buffer of a call
    live:      elements of whole parameters, persistent ones aside
    """

    def __init__(self, workload: Workload, plan: Plan, pricing: Pricing) -> None:
        super().__init__(workload, rules_of(plan), pricing, apart=True)
        require_whole(workload, plan)
        self.plan, self.limits = plan, self.rules.fetching or Fetching()
        self.background = self.rules.asynchronous
        self.own = {layer.name: layer for layer in workload.layers}
        self.staying = {layer.name for layer in persistent(workload, self.limits)}
        modules = used_modules(workload)
        self.entered: dict[int, list[UsedModule]] = {}
        self.left: dict[int, list[UsedModule]] = {}
        for module in modules:
            self.entered.setdefault(module.first, []).append(module)
            self.left.setdefault(module.last, []).insert(0, module)
        backward = [module for place in sorted(self.left, reverse=True) for module in reversed(self.left[place])]
        self.trace = [*modules, *backward]
        self.position = [0, *accumulate(sum(map(elements_of, module.layers)) for module in self.trace)]
        self.again = {layer.name: len(modules) + use for use, module in enumerate(backward) for layer in module.layers}
        self.handed = handovers(workload, plan)
        self.bucket_of = {block.layer: number for number, one in enumerate(plan.buckets) for block in one.blocks}
        self.scatters: list[int] = []
        self.packed: dict[str, int] = {}
        self.held: dict[str, Taken] = {}
        self.whole: dict[str, Taken | None] = {}
        self.flying: dict[str, Call] = {}
        self.step = self.live = 0
        self.queue: deque[tuple[Layer, int]] = deque()
        self.passed: dict[str, int] = {}

    def program(self) -> Program:
        """The whole step: forward and backward of each micro-batch, the update, and the persistent parameters."""
        own = 0 if offloaded(self.workload) else self._split(self.own.values(), self._reduced_type)
        self.take(GRADIENTS, share_of(self.workload, own, self.ranks))
        self.take(WHOLE, sum(self._gathered([self.own[name]]) for name in self.staying))
        for _ in range(self.rules.micro_batches):
            self._micro_batch()
        work = "update", self.ranks, self.rules.micro_batches, self.rules.asynchronous
        update = self.add("update", COMPUTE, (), work, tuple(self.scatters))
        for layer in (one for module in self.trace[: len(self.trace) // 2] for one in module.layers):
            if layer.name in self.staying:
                self._send("all_gather", [layer], self._gathered([layer]), (update,))
        return self.finished()

    def _micro_batch(self) -> None:
        """Forward and backward; all that is whole, but for persistent parameters, is freed by the end."""
        self.step = self.live = 0
        self.passed.clear()
        self.queue = deque((layer, use) for use, module in enumerate(self.trace) for layer in module.layers)
        for place in range(len(self.workload.layers)):
            for module in self.entered.get(place, ()):
                self._fetch(module)
            self.compute("forward", place, place + 1)
            for module in self.left.get(place, ()):
                self._release(module)
        for place, layer in reversed(list(enumerate(self.workload.layers))):
            for module in reversed(self.left.get(place, ())):
                self._fetch(module)
            ready = self.compute("backward", place, place + 1)
            handed = self.handed.get(layer.name, ())
            full = [number for number in handed if self._makes_way(number, layer)]
            for number in full:
                self._reduce(number)
            self._keep(layer, ready)
            for number in handed:
                if number not in full:
                    self._reduce(number)
            for module in reversed(self.entered.get(place, ())):
                self._release(module)
        for name in list(self.whole):
            self.give(self.whole.pop(name))
        self.before = (*self.before, *self.scatters[-1:])

    def _fetch(self, module: UsedModule) -> None:
        """Gather what a module lacks, let compute wait for what it needs, and fetch ahead."""
        self._gather([layer for layer in module.layers if not self._there(layer)])
        for layer in module.layers:
            if layer.name in self.flying:
                self.before = (*self.before, *self._arrived(self.flying.pop(layer.name)))
        new = {layer.name for layer in module.layers if self.passed.get(layer.name, -1) < self.step}
        while self.queue and new:
            layer, use = self.queue.popleft()
            self.passed[layer.name] = use
            new.discard(layer.name)
        self._fetch_ahead()
        self.step += 1

    def _fetch_ahead(self) -> None:
        room, size = min(self.limits.live - self.live, self.limits.prefetch), 0
        chosen: dict[str, Layer] = {}
        while self.queue and size < room:
            layer, use = self.queue.popleft()
            self.passed[layer.name] = max(self.passed.get(layer.name, -1), use)
            if not self._there(layer) and layer.name not in chosen:
                chosen[layer.name] = layer
                size += elements_of(layer)
        self._gather(list(chosen.values()))

    def _there(self, layer: Layer) -> bool:
        """Whether a parameter is whole, or is being gathered."""
        return layer.name in self.staying or layer.name in self.whole

    def _gather(self, layers: Sequence[Layer]) -> None:
        """Issue an all-gather for the parameters of each dtype, with the copy in front of it."""
        if not layers:
            return
        alike = [[one for one in layers if one.dtype == dtype] for dtype in dict.fromkeys(one.dtype for one in layers)]
        gathers = []
        several = len(layers) > 1
        buffer = self.take(GATHERED, self._gathered(layers)) if several else None
        for those in alike:
            size = self._gathered(those)
            copied = self._copy("copy_in", self._stream(GATHERS), those, ("copy_in", size // self.ranks), ())
            gathers.append(self._send("all_gather", those, size, (copied,)))
        call = Call(alike, gathers, buffer)
        for layer in layers:
            self.whole[layer.name] = None if several else self.take(WHOLE, self._gathered([layer]))
            self.flying[layer.name] = call
            self.live += elements_of(layer)

    def _arrived(self, call: Call) -> tuple[int, ...]:
        """The operations after which the parameters of a call are there: copies out, unless it gathered only one."""
        if call.buffer is None:
            call.arrived = tuple(call.gathers)
        if not call.arrived:
            for those, gathered in zip(call.layers, call.gathers, strict=True):
                size = self._gathered(those)
                copied = self._copy("copy_out", self._stream(GATHERS), those, ("copy_out", size), (gathered,))
                call.arrived = (*call.arrived, copied)
                for layer in those:
                    self.whole[layer.name] = self.take(WHOLE, self._gathered([layer]))
            self.give(call.buffer)
        return call.arrived

    def _stream(self, own: str) -> str:
        """The stream of copies: their own, or the compute stream without overlap."""
        return own if self.background else COMPUTE

    def _copy(self, kind: str, stream: str, layers: Sequence[Layer], work: Work, waits: tuple[int, ...]) -> int:
        """Add a copy; its number."""
        return self.add(kind, stream, tuple(layer.name for layer in layers), work, waits)

    def _release(self, module: UsedModule) -> None:
        """Free the parameters of a module that compute leaves, but for those to keep."""
        for layer in module.layers:
            again = self.again[layer.name]
            near = again >= self.step and self.position[again] - self.position[self.step] < self.limits.reuse
            passed = self.passed.get(layer.name, -1) > self.step
            if layer.name in self.whole and not near and not passed:
                self.give(self.whole.pop(layer.name))
                self.live -= elements_of(layer)

    def _makes_way(self, number: int, layer: Layer) -> bool:
        """Whether a bucket is sent since the gradient of ``layer`` does not fit into it any more."""
        dtype = self.own[self.plan.buckets[number].blocks[0].layer].dtype
        return layer.dtype == dtype and self.bucket_of.get(layer.name, -1) > number

    def _keep(self, layer: Layer, ready: int) -> None:
        """Copy a gradient into the buffer of its bucket, once it is ready."""
        if layer.gradient_bytes:
            size = elements_of(layer) * element_bytes(self._gathered_type(layer))
            self.held[layer.name] = self.take(GRADIENTS, size)
            waits = (ready, *self.scatters[-1:]) if self.background else (ready,)
            self.packed[layer.name] = self._copy("keep", self._stream(PACKS), [layer], ("copy_in", size), waits)

    def _reduce(self, number: int) -> None:
        """Reduce a bucket to shards; what is launched then waits as the thread that launches it does."""
        layers = self._members(self.plan.buckets[number])
        size = self._padded(layers, self._reduced_type)
        taken = self.take(BUCKETS, size)
        copies = tuple(self.packed[layer.name] for layer in layers)
        packed = self._copy("pack", self._stream(PACKS), layers, ("copy_in", size), copies)
        for layer in layers:
            self.give(self.held.pop(layer.name))
        self.scatters.append(self._send("reduce_scatter", layers, size, (packed,), number))
        self.give(taken)
        allowed = 1 + UNDER_WAY if self.background and not self.pricing.blocking else 0
        self.before = (*self.before, *self.scatters[: max(0, len(self.scatters) - allowed)][-1:])

    def _send(self, kind: str, layers: Sequence[Layer], size: int, waits: tuple[int, ...], number: int = -1) -> int:
        names = tuple(layer.name for layer in layers)
        return self.add(kind, CHANNEL, names, ("send", kind, size, self.ranks), waits, number)

    def _gathered_type(self, layer: Layer) -> str:
        return self.rules.gather_dtype or layer.dtype

    def _reduced_type(self, layer: Layer) -> str:
        return self.rules.reduce_dtype or self.rules.gather_dtype or layer.dtype

    def _padded(self, layers: Iterable[Layer], dtype: Callable[[Layer], str]) -> int:
        return self.ranks * self._split(layers, dtype)

    def _split(self, layers: Iterable[Layer], dtype: Callable[[Layer], str]) -> int:
        """Bytes of a rank's part of some parameters."""
        return sum(-(-elements_of(layer) // self.ranks) * element_bytes(dtype(layer)) for layer in layers)

    def _gathered(self, layers: Iterable[Layer]) -> int:
        return self._padded(layers, self._gathered_type)

    def shard_bytes(self) -> int:
        """Bytes of a rank's part of all parameters, in their own type as well where they are gathered in another."""
        wide = () if offloaded(self.workload) else self.own.values()
        masters = [layer for layer in wide if self._gathered_type(layer) != layer.dtype]
        return self._split(self.own.values(), self._gathered_type) + self._split(masters, lambda layer: layer.dtype)

    def buffer_bytes(self) -> int:
        """Bytes of the buffers of gradients, one for each dtype."""
        types = {self._reduced_type(layer) for layer in self.own.values()}
        largest = max((sum(map(elements_of, self._members(bucket))) for bucket in self.plan.buckets), default=0)
        return sum(map(element_bytes, types)) * (self.rules.buffer or largest)

    def _members(self, bucket: Bucket) -> list[Layer]:
        return [self.own[block.layer] for block in bucket.blocks]


class FetchingHoldings(IssuedHoldings):
    """The memory of stage 3."""

    def issued(self) -> FetchingStep:
        """The step before it is issued, at any prices."""
        return FetchingStep(self.workload, self.plan, Pricing.free(self.workers))

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        assert isinstance(self.step, FetchingStep)
        return {**super().lasting(), BUCKETS: self.step.buffer_bytes()}


def lower(workload: Workload, plan: Plan, pricing: Pricing) -> Program:
    """The program of one step."""
    return FetchingStep(workload, plan, pricing).program()


STRATEGY = Strategy(
    lower, "parameters fetched by module, gradients reduced to shards by bucket (DeepSpeed ZeRO-3)", FetchingHoldings
)
