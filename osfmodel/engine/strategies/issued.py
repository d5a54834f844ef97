"""Steps whose memory is taken and given back in the order of issue, as a caching allocator sees it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.optimizers import state_bytes
from osfmodel.engine.program import COMPUTE, Hold, Instant, Operation, Program
from osfmodel.engine.strategies.holdings import BUCKETS, COMMUNICATORS, STATE, WEIGHTS, Holdings
from osfmodel.entities.sharding import Sharding
from osfmodel.entities.workload import Layer, Workload

GATHERED, WHOLE, REDUCED = "all-gather buffers", "unsharded groups", "reduce-scatter inputs"
"""Owners of memory: buffers in which parameters arrive, whole parameters, and copies of gradients to be reduced."""


@dataclass(slots=True)
class Taken:
    """Bytes of an owner from one place in the order of issue to another; None while that is not known."""

    owner: str
    bytes: int
    since: int
    until: int | None = None


class IssuedStep:
    """A program under construction, with its memory.

    ranks:  ranks between which each parameter is split
    before: operations for which the next computation waits
    """

    def __init__(self, workload: Workload, rules: Sharding, pricing: Pricing) -> None:
        self.workload, self.rules, self.pricing, self.effects = workload, rules, pricing, pricing.effects
        self.ranks = rules.ranks(pricing.workers)
        self.stretch = pricing.effects.stretch(pricing.workers)
        self.operations: list[Operation] = []
        self.taken: list[Taken] = []
        self.before: tuple[int, ...] = ()

    def add(self, operation: Operation) -> int:
        """Add an operation, and return its number."""
        self.operations.append(operation)
        return len(self.operations) - 1

    def take(self, owner: str, size: int) -> Taken:
        """Memory that is taken now."""
        self.taken.append(Taken(owner, size, len(self.operations)))
        return self.taken[-1]

    def give(self, taken: Taken | None) -> None:
        """Give memory back now, if that was not done before."""
        if taken is not None and taken.until is None:
            taken.until = len(self.operations)

    def compute(self, kind: str, layer: Layer, time: float) -> int:
        """Add the computation of a layer, which waits for what is ``before`` it; its number."""
        waits, self.before = self.before, ()
        return self.add(Operation(kind, COMPUTE, (layer.name,), time * self.stretch, waits=waits))

    def in_turn(self) -> Iterator[Operation]:
        """The operations; where launching a collective blocks, each waits for the one before it."""
        blocks = self.pricing.blocking and not self.rules.asynchronous
        for number, operation in enumerate(self.operations):
            yield replace(operation, waits=(number - 1,)) if blocks and number else operation

    def shard_bytes(self) -> int:
        """Bytes of a rank's part of all parameters."""
        raise NotImplementedError

    def program(self) -> Program:
        """The whole step."""
        raise NotImplementedError


class IssuedHoldings(Holdings):
    """The memory of a step with sharded parameters, gradients and optimizer state."""

    def issued(self) -> IssuedStep:
        """A new step of the plan, whose operations are not yet added. Any prices will do: only holds are used."""
        raise NotImplementedError

    def program(self) -> Program:
        """The program with its moments and all of its holds."""
        self.step = self.issued()
        self.step.program()
        return super().program()

    def _moments(self) -> Iterator[tuple[int, str]]:
        """Moments of computation, and those in which parameters are copied out, or gradients are copied in."""
        yield from super()._moments()
        names = {"copy": "gather", "pack": "reduce"}
        for number, one in enumerate(self.bare.operations):
            if one.kind in names and one.stream == COMPUTE:
                yield number, f"{names[one.kind]} {one.layers[0]}"

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        state = -(-state_bytes(self.workload, self.optimizer) // self.step.ranks)
        communicators = self.communicator * self.communicators()
        held = {WEIGHTS: self.step.shard_bytes(), STATE: state, COMMUNICATORS: communicators, BUCKETS: 0}
        return {**super().lasting(), **held}

    def communicators(self) -> int:
        """Number of communicators of a step."""
        return 1

    def _scratch(self) -> Iterator[Hold]:
        """Scratch memory of the update of the shards."""
        yield from (replace(hold, bytes=-(-hold.bytes // self.step.ranks)) for hold in super()._scratch())

    def gradients(self) -> Iterator[Hold]:
        """Gradients, gathered parameters, and the inputs of reduce-scatters, from one computation to another."""
        computed = [number for number, one in enumerate(self.bare.operations) if one.stream == COMPUTE]
        for taken in self.step.taken:
            since, until = (
                next((Instant(number, ended=False) for number in computed[bisect_left(computed, place) :]), None)
                for place in (taken.since, len(self.bare.operations) if taken.until is None else taken.until)
            )
            if since is not None:
                yield Hold(taken.owner, taken.bytes, (since,), until)
