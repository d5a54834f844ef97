"""Lowering for all strategies: the operations of the compute stream, and a collective for each bucket.

Backward takes each layer in turn, with its copy into a bucket or the choice of what a sparse bucket sends, and the hook
of the buckets that it completes. The work after the collectives depends on the plan: with the barrier every bucket is
dealt with after backward, in the order of the plan (reducer.cpp, ``finalize_backward``), and one update follows; with
``forward_overlap`` each layer of the next forward takes its share of copy and update when its gradient has arrived;
with ``release`` the compute stream turns to a bucket that has arrived as soon as another gradient is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import CHANNEL, COMPUTE, RELEASE, Layered, Operation, Program, Stream
from osfmodel.engine.sparse import Sparsity
from osfmodel.engine.strategies.holdings import Holdings
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Layer, Workload


class Lowering:
    """A program under construction: operations are added in the order of issue.

    ready: by layer, the number of the operation after which its gradient is ready
    added: by layer, seconds of copies and hooks in its backward
    apart: whether each layer is an operation; else those between two collectives are one, where nothing comes between
    """

    def __init__(self, workload: Workload, plan: Plan, pricing: Pricing, apart: bool = True) -> None:
        """Begin with forward, unless it overlaps and so comes last, and with backward."""
        self.apart = apart or plan.release or plan.sparse
        self.workload, self.plan, self.pricing, self.effects = workload, plan, pricing, pricing.effects
        self.sparsity = Sparsity(workload, pricing.effects, pricing.workers)
        self.stretch = pricing.effects.stretch(pricing.workers)
        self.operations: list[Operation] = []
        self.ready: dict[str, int] = {}
        self.added: dict[str, float] = {}
        self._compute()

    def add(self, operation: Operation) -> int:
        """Add an operation, and return its number."""
        self.operations.append(operation)
        return len(self.operations) - 1

    def _compute(self) -> None:
        """Add forward, unless it overlaps, and backward."""
        if not self.plan.forward_overlap:
            for layers in [[layer] for layer in self.workload.layers] if self.apart else [self.workload.layers]:
                self.add(self._forward(layers))
        self._backward()

    def _forward(self, layers: Sequence[Layer], waits: tuple[int, ...] = ()) -> Operation:
        time = plain_sum(layer.forward_time * self.stretch for layer in layers)
        return Operation("forward", COMPUTE, tuple(layer.name for layer in layers), time, waits=waits)

    def _backward(self) -> None:
        hooks, chosen = self._hooks(), self._choices()
        last = () if self.apart else self.plan.completed_by(self.workload)
        awaited = {self.workload.gradients.names[place] for place in last}
        names: list[str] = []
        time: float = 0
        for layer in reversed(self.workload.layers):
            packed = chosen.get(layer.name, self.effects.copy_in * layer.gradient_bytes)
            self.added[layer.name] = packed + hooks.get(layer.name, 0)
            time += layer.backward_time * self.stretch + self.added[layer.name]
            names.append(layer.name)
            if not (self.apart or layer.name in awaited or layer is self.workload.layers[0]):
                continue
            number = self.add(Operation("backward", COMPUTE, tuple(names), time))
            self.ready.update(dict.fromkeys(names, number))
            names, time = [], 0
            if layer.gradient_bytes > 0 and (self.plan.release or layer.name in chosen):
                self.add(Operation("hook", COMPUTE, (layer.name,), 0, yields=True, quiet=True))

    def _hooks(self) -> dict[str, float]:
        """Seconds of hooks by layer: those of the buckets that the layer completes."""
        hooks: dict[str, float] = {}
        for last in completing(self.workload, self.plan) if self.effects.hook_time else ():
            hooks[last] = hooks.get(last, 0) + self.effects.hook_time
        return hooks

    def _choices(self) -> dict[str, float]:
        """Seconds by layer to choose the entries of sparse buckets."""
        sparse = [bucket for bucket in self.plan.buckets if bucket.density is not None]
        return {
            block.layer: self.sparsity.sparsify(block, bucket.density or 1)
            for bucket in sparse
            for block in bucket.blocks
        }

    def send(self, number: int, kind: str, waits: tuple[int, ...] | None = None, size: int | None = None) -> int:
        """Add the collective ``kind`` of a bucket, and return its number. It waits for ``waits``, or its gradients.

        size: bytes that it carries, if they are not those of the bucket
        """
        bucket = self.plan.buckets[number]
        dense = bucket.density is None
        layers = tuple(dict.fromkeys(block.layer for block in bucket.blocks))
        if size is None:
            size = bucket.size if dense else self.sparsity.gathered_bytes(bucket)
        startup, transfer = self.pricing.split(kind, size, self.plan.channels)
        if dense and waits is None and len(bucket.blocks) > 1:
            transfer += self.effects.fusion_copy * bucket.size
        begins = self.workload.forward_time if self.plan.forward_overlap else 0
        not_before = max(bucket.release_time - begins, 0) if waits is None else 0
        waits = (max(self.ready[layer] for layer in layers),) if waits is None else waits
        carried = size if dense else bucket.size
        return self.add(Operation(kind, CHANNEL, layers, startup, transfer, waits, not_before, carried, bucket=number))

    def finished(self, arrivals: Sequence[int]) -> Program:
        """The program with the operations after ``arrivals``, the last collective of each bucket."""
        if self.plan.forward_overlap:
            self._next_forward(arrivals)
        elif self.plan.release:
            self._release(arrivals)
        else:
            self._barrier(arrivals)
        width, credit = max(min(self.plan.channels, len(arrivals)), 1), self.plan.credit
        streams = {CHANNEL: Stream(width, credit), **({RELEASE: Stream(between=True)} if self.plan.release else {})}
        share = self._per_byte() if self.plan.forward_overlap else 0
        layers = None if self.apart else Layered(self.workload, self.stretch, partial(dict, self.added), share=share)
        return Program(tuple(self.operations), streams, layers=layers)

    def _unpacking(self, bucket: Bucket) -> tuple[str, float]:
        """Kind and seconds of the computation that unpacks a bucket that has arrived."""
        if bucket.density is None:
            return "copy", self.effects.copy_out * bucket.size
        return "spread", self.sparsity.densify(bucket)

    def _mirroring(self, bucket: Bucket) -> float:
        """Seconds by which mirror weights lengthen the update of a bucket."""
        return self.effects.mirror * bucket.size if self.plan.mirror and bucket.density is not None else 0

    def _barrier(self, arrivals: Sequence[int]) -> None:
        unpacked = bool(self.effects.copy_out) or self.plan.sparse
        for number, bucket in enumerate(self.plan.buckets) if unpacked else ():
            kind, time = self._unpacking(bucket)
            layers = tuple(block.layer for block in bucket.blocks)
            self.add(
                Operation(
                    kind, COMPUTE, layers, time, waits=(arrivals[number],), bucket=number, slowed=False, quiet=True
                )
            )
        time = self.workload.update_time + plain_sum(self._mirroring(bucket) for bucket in self.plan.buckets)
        self.add(Operation("update", COMPUTE, (), time, waits=() if unpacked else tuple(arrivals), quiet=True))

    def _after_backward(self, time: float, waits: tuple[int, ...] = ()) -> int:
        """Add the operation that follows backward, and return its number.

        It is the update, or one of no duration if buckets update themselves.
        """
        last = max(number for number, one in enumerate(self.operations) if one.stream == COMPUTE)
        self.operations[last] = self.operations[last]._replace(yields=False)
        return self.add(Operation("update", COMPUTE, (), time, waits=waits, quiet=True))

    def _release(self, arrivals: Sequence[int]) -> None:
        """Add the update of each bucket, in proportion to its bytes, after it is unpacked."""
        self._after_backward(0 if self.plan.buckets else self.workload.update_time)
        for number, bucket in enumerate(self.plan.buckets):
            kind, time = self._unpacking(bucket)
            waits, layers = (arrivals[number],), self.operations[arrivals[number]].layers
            share = self.workload.update_time / self.workload.gradient_bytes * bucket.size + self._mirroring(bucket)
            self.add(Operation(kind, RELEASE, layers, time, waits=waits, bucket=number, slowed=False))
            self.add(Operation("update", RELEASE, layers, share, waits=waits, bucket=number))

    def _per_byte(self) -> float:
        """Seconds per byte of gradients that have arrived: the share of the update, and the copy."""
        total = self.workload.gradient_bytes
        return (self.workload.update_time / total if total else 0) + self.effects.copy_out

    def _alone(self) -> float:
        """Seconds of an update that no gradient takes a share of."""
        return 0 if self.workload.gradient_bytes else self.workload.update_time

    def _next_forward(self, arrivals: Sequence[int]) -> None:
        """Add the layers of the next forward, each after its gradient has arrived and it has been updated."""
        awaited: dict[str, list[int]] = {}
        for number in sorted(arrivals):
            for name in self.operations[number].layers:
                awaited.setdefault(name, []).append(number)
        per_byte = self._per_byte()
        self._after_backward(self._alone())
        seen: set[int] = set()
        runs: list[tuple[list[Layer], tuple[int, ...]]] = []  # layers before which nothing else has to arrive
        for layer in self.workload.layers:
            waits = tuple(awaited.get(layer.name, ()))
            if self.apart or not runs or not seen.issuperset(waits):
                runs.append(([], waits))
            runs[-1][0].append(layer)
            seen.update(waits)
        for layers, waits in runs:
            one = self._forward(layers, waits)
            time = per_byte * sum(layer.gradient_bytes for layer in layers)
            if time and len(layers) == 1:
                self.add(Operation("update", COMPUTE, one.layers, time, waits=waits))
            self.add(one if len(layers) == 1 else one._replace(startup=one.startup + time))


def completing(workload: Workload, plan: Plan) -> Iterator[str]:
    """The layer that completes each bucket of the plan."""
    order = {name: place for place, name in enumerate(workload.gradients.names)}
    for bucket in plan.buckets:
        yield max((block.layer for block in bucket.blocks), key=order.__getitem__)


class Strategy(NamedTuple):
    """An entry of STRATEGIES.

    lower:    (workload, plan, pricing) -> Program of one step, in the steady state
    summary:  shown to people
    holdings: the memory of its programs
    apart:    as ``lower``, with an operation for each layer; None where ``lower`` makes these
    """

    lower: Callable[[Workload, Plan, Pricing], Program]
    summary: str
    holdings: type[Holdings] = Holdings
    apart: Callable[[Workload, Plan, Pricing], Program] | None = None


class GatheringStep(Lowering):
    """A program under construction, with one all-gather for each bucket, issued one ahead in forward.

    Buckets are gathered in the order in which forward needs them, the first layer of each. In front of that layer
    compute waits for the all-gather of the bucket; as it gets there, the all-gather of the next bucket is issued, which
    goes after all that compute has been given so far.
    """

    def padded_bytes(self, number: int, kind: str) -> int:
        """Bytes of the collective ``kind`` of a bucket; those of its gradients, unless they are padded."""
        return self.plan.buckets[number].size

    def arrived(self, number: int, gathered: int) -> tuple[int, ...]:
        """Add the computations that follow the all-gather ``gathered`` of a bucket: their numbers; none here."""
        return ()

    def gathering_forward(self, computed: tuple[int, ...]) -> None:
        """Add all-gathers and forward behind ``computed``, the last computation; none at the start of a program."""
        order, needed = self._needed()
        following = dict(pairwise(order))
        last = self._gather(order[0], computed) if order else -1
        for place, layer in enumerate(self.workload.layers):
            waits: tuple[int, ...] = ()
            for number in needed.get(place, ()):
                gathered = last
                waits = (*waits, gathered)
                if number in following:
                    last = self._gather(following[number], (gathered, *computed))
                computed = self.arrived(number, gathered) or computed
            computed = (self.add(self._forward([layer], waits)),)

    def scatter(self, number: int) -> int:
        """Add the reduce-scatter of a bucket, and return its number."""
        return self.send(number, "reduce_scatter", size=self.padded_bytes(number, "reduce_scatter"))

    def _gather(self, number: int, waits: tuple[int, ...]) -> int:
        return self.send(number, "all_gather", waits, self.padded_bytes(number, "all_gather"))

    def _needed(self) -> tuple[list[int], dict[int, list[int]]]:
        """Buckets in the order in which forward needs them, and those that it needs at each place."""
        places = {layer.name: place for place, layer in enumerate(self.workload.layers)}
        first = [min(places[block.layer] for block in bucket.blocks) for bucket in self.plan.buckets]
        order = sorted(range(len(first)), key=first.__getitem__)
        needed: dict[int, list[int]] = {}
        for number in order:
            needed.setdefault(first[number], []).append(number)
        return order, needed


def require_only(plan: Plan, *names: str) -> None:
    """Raise PlanError if the plan wants what its strategy does not do; ``names`` are fields of a plan that it does."""
    others = [words for name, words in plan.wants.items() if name not in ("strategy", "channels", "recompute", *names)]
    if others:
        raise PlanError(f"the strategy {plan.strategy} does not go with {', '.join(others)}")


def require_whole(workload: Workload, plan: Plan) -> None:
    """Raise PlanError if the plan cuts tensors."""
    sizes = dict(zip(workload.gradients.names, workload.gradients.sizes, strict=True))
    if any(block.bytes != sizes[block.layer] for bucket in plan.buckets for block in bucket.blocks):
        raise PlanError(f"the plan cuts tensors: the strategy {plan.strategy} needs each whole, in one bucket")
