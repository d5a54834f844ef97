"""Steps whose memory is taken and given back in the order of issue, as a caching allocator sees it."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.optimizers import moments_bytes
from osfmodel.engine.program import COMPUTE, Hold, Instant, Layered, Operation, Program, Stream, Taken
from osfmodel.engine.strategies.holdings import BUCKETS, COMMUNICATORS, STATE, WEIGHTS, Holdings
from osfmodel.engine.works import Clock, Work
from osfmodel.entities.sharding import Sharding, share_of
from osfmodel.entities.workload import Workload

GATHERED, WHOLE, REDUCED = "all-gather buffers", "unsharded groups", "reduce-scatter inputs"
"""Owners of memory: buffers in which parameters arrive, whole parameters, and copies of gradients to be reduced."""

COPY_IN, HOST = "copy in", "host"
"""Streams of copies into the buffers of all-gathers, and of the host's work in a replay, whose computation sleeps."""
SHOWN = ("forward", "backward", "packed", "send")
"""Works that are shown where they take no time."""
UNNOTED = Taken("", 0, 0, 0)
"""Memory that is taken in a step whose memory is not noted."""
PLAIN_STREAMS: Mapping[str, Stream] = {}


class IssuedStep:
    """A program under construction, with its memory.

    apart:  whether each layer is an operation of its own, also where nothing else happens between layers; only then is
            memory noted
    ranks:  ranks between which each parameter is split
    clock:  seconds of its work
    before: operations for which the next computation waits
    hooks:  number of hooks of each layer, where backward copies gradients and calls hooks, ``packed_from`` an operation
    """

    hooks: Mapping[str, int] | None = None
    packed_from = sys.maxsize

    def __init__(self, workload: Workload, rules: Sharding, pricing: Pricing, apart: bool = False) -> None:
        self.workload, self.rules, self.pricing, self.apart = workload, rules, pricing, apart
        self.ranks = rules.ranks(pricing.workers)
        self.clock = Clock(workload, pricing)
        self.names_of = tuple(layer.name for layer in workload.layers)
        self.operations: list[Operation] = []
        self.works: list[Work] = []
        self.taken: list[Taken] = []
        self.sizes: dict[tuple[Any, ...], int] = {}
        self.before: tuple[int, ...] = ()

    def add(
        self,
        kind: str,
        stream: str,
        layers: tuple[str, ...],
        work: Work,
        waits: tuple[int, ...] = (),
        bucket: int = -1,
    ) -> int:
        """Add an operation, and return its number."""
        startup, transfer = self.clock.of(work)
        size = work[2] if work[0] == "send" else 0
        quiet = work[0] not in SHOWN
        self.operations.append(
            Operation(kind, stream, layers, startup, transfer, waits, 0, size, bucket, False, True, quiet)
        )
        self.works.append(work)
        return len(self.operations) - 1

    def take(self, owner: str, size: int | tuple[Any, ...]) -> Taken:
        """Memory that is taken now; ``size`` as in Taken."""
        if not self.apart:
            return UNNOTED
        self.taken.append(Taken(owner, size, len(self.operations)))
        return self.taken[-1]

    def bytes_of(self, taken: Taken) -> int:
        """Bytes of memory that was taken in any step of the same plan."""
        if isinstance(taken.size, int):
            return taken.size
        if taken.size not in self.sizes:
            self.sizes[taken.size] = getattr(self, taken.size[0])(*taken.size[1:])
        return self.sizes[taken.size]

    def give(self, taken: Taken | None) -> None:
        """Give memory back now, if that was not done before."""
        if taken is not None and taken.until is None:
            taken.until = len(self.operations)

    def stretches(self, *bounds: Iterable[int]) -> list[tuple[int, int]]:
        """(first, end) of the stretches of layers between which something may happen, in forward order.

        bounds: places at which a stretch ends; without them, and where layers are ``apart``, each layer is one
        """
        count = len(self.workload.layers)
        return list(pairwise(range(count + 1) if self.apart else sorted({0, count}.union(*bounds))))

    def compute(self, kind: str, first: int, end: int) -> int:
        """Add the forward or backward of some layers, which waits for what is ``before`` it; its number."""
        waits, self.before = self.before, ()
        names = self.names_of[first:end] if kind == "forward" else self.names_of[first:end][::-1]
        return self.add(kind, COMPUTE, names, (kind, first, end), waits)

    def finished(self, streams: Mapping[str, Stream] = PLAIN_STREAMS) -> Program:
        """The program of all operations; where launching a collective blocks, it is another one at other prices."""
        works = () if self.pricing.blocking else tuple(self.works)
        layers = Layered(self.workload, self.clock.stretch, self.clock.added(self.hooks), self.hooks, self.packed_from)
        return Program(tuple(self.in_turn()), streams, works=works, taken=tuple(self.taken), layers=layers)

    def in_turn(self) -> Iterable[Operation]:
        """The operations as the library launches them."""
        return self.operations

    def shard_bytes(self) -> int:
        """Bytes of a rank's part of all parameters."""
        raise NotImplementedError

    def program(self) -> Program:
        """The whole step."""
        raise NotImplementedError


class IssuedHoldings(Holdings):
    """The memory of a step with sharded parameters, gradients and optimizer state."""

    def issued(self) -> IssuedStep:
        """A new step of the plan, without operations. Any prices will do: only its rules and sizes are used."""
        raise NotImplementedError

    @cached_property
    def step(self) -> IssuedStep:
        """The step before it is issued."""
        return self.issued()

    def moments(self) -> Iterator[tuple[int, str]]:
        """Moments of computation, and those in which parameters are copied out, or gradients are copied in."""
        yield from super().moments()
        names = {"copy": "gather", "pack": "reduce"}
        for number, one in enumerate(self.bare.operations):
            if one.kind in names and one.stream == COMPUTE:
                yield number, f"{names[one.kind]} {one.layers[0]}"

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        state = -(-moments_bytes(self.workload, self.optimizer) // self.step.ranks)
        communicators = self.communicator * self.communicators()
        weights, state = (share_of(self.workload, held, self.step.ranks) for held in (self.step.shard_bytes(), state))
        held = {WEIGHTS: weights, STATE: state, COMMUNICATORS: communicators, BUCKETS: 0}
        return {**super().lasting(), **held}

    def communicators(self) -> int:
        """Number of communicators of a step."""
        return 1

    def _scratch(self) -> Iterator[Hold]:
        """Scratch memory of the update of the shards."""
        yield from (hold._replace(bytes=-(-hold.bytes // self.step.ranks)) for hold in super()._scratch())

    def gradients(self) -> Iterator[Hold]:
        """Gradients, gathered parameters, and the inputs of reduce-scatters, from one computation to another."""
        computed = [number for number, one in enumerate(self.bare.operations) if one.stream == COMPUTE]
        begins = [Instant(number, ended=False) for number in computed]
        for taken in self.bare.taken:
            first = bisect_left(computed, taken.since)
            last = len(begins) if taken.until is None else bisect_left(computed, taken.until)
            if first < len(begins):
                until = begins[last] if last < len(begins) else None
                yield Hold(taken.owner, self.step.bytes_of(taken), (begins[first],), until)


def turns(operations: Sequence[Operation], blocks: bool, background: bool) -> Iterable[Operation]:
    """The operations; where launching a collective ``blocks``, each waits for the one before it.

    In the ``background`` such a library launches a collective when the host, which also computes, gets there.
    """
    if not blocks:
        return operations
    return _in_background(operations) if background else _blocking(operations)


def _in_background(operations: Sequence[Operation]) -> Iterator[Operation]:
    host: tuple[int, ...] = ()
    for number, operation in enumerate(operations):
        yield operation._replace(waits=operation.waits + host)
        if operation.stream in (COMPUTE, COPY_IN):
            host = (number,)


def _blocking(operations: Sequence[Operation]) -> Iterator[Operation]:
    """The operations, each after the one before it; the host's work in a replay only after a collective."""
    before: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    for number, operation in enumerate(operations):
        if operation.stream == HOST:
            yield operation._replace(waits=sent)
            continue
        hosted = tuple(one for one in operation.waits if operations[one].stream == HOST)
        yield operation._replace(waits=before + hosted)
        before = (number,)
        if operation.stream not in (COMPUTE, COPY_IN):
            sent = before
