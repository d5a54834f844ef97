"""Lower bounds on the step of fully sharded parameters whose groups are made of whole blocks (FSDP2, HSDP).

Times count from the end of the last update. X is the communicator of all-gathers (AG) and reduce-scatters (RS); what is
in no block is the root's, which is gathered first, kept until backward, and reduced after it. No message of blocks is
larger than a group may be, so that start-ups add up (``cost.shapes.serial``). With f and b the times of forward and
backward,

    F = max over layers k of  AG(root) + AG(blocks up to k) + f(k to the last),    the end of forward,

since a layer's group has been gathered before its forward, and X is first in, first out. Gradients of layer i are
reduced, with those of all layers before it and of the root, after its backward:

    t >= F + max over i of  b(last to i) + RS(root and layers up to i)

Groups that are gathered again have that issued after a copy in backward, but for those prefetched from the group that
backward enters first, the last d groups at most:

    t >= F + AG(blocks - d groups) + RS(all)

Each of several micro-batches begins when all that came before it has ended, so that their bounds add up. One that
finds its parameters there (``keep``) gathers none before its forward; one that only adds gradients up reduces none.

Copies count as computation. Two communicators share the network, so that their start-ups may overlap but not their
transfers. With replicas the all-reduces of shards follow in the place of RS. Where launching blocks, all adds up.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import serial, transfer
from osfmodel.engine.optimizers import shard_update_time
from osfmodel.entities.compression import types_of
from osfmodel.entities.errors import CostError
from osfmodel.entities.modules import HYBRID_SHARDED, around, blocks
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.sharding import EACH, Form, Sharding, exchanged_bytes
from osfmodel.entities.workload import Layer, Workload

GROWTH = 2
"""Largest number of bytes of a group, as a multiple of those of the largest block."""
AHEAD = ((0, 1), (0, 2), (2, 1), (2, 2))
"""Groups gathered ahead in forward and in backward that are tried; the first is FSDP2's default."""


def replicas_in(pricing: Pricing) -> int:
    """Replicas if each has the ranks of one host; 1 where that is one rank, or hosts do not divide the workers."""
    per_host = pricing.per_host
    return pricing.workers // per_host if per_host > 1 and pricing.workers % per_host == 0 else 1


def replica_counts(strategy: str, pricing: Pricing, any_number: bool) -> list[int]:
    """Numbers of replicas to try: 1 for FSDP2; for HSDP one per host, and any smaller number that has prices.

    With ``any_number``, also larger numbers: these take more memory.
    """
    usual = replicas_in(pricing)
    if strategy != HYBRID_SHARDED:
        return [1]
    most = pricing.workers // 2 if any_number else usual
    others = [count for count in range(2, most + 1) if pricing.workers % count == 0 and count != usual]
    return [usual, *(count for count in others if _priced(pricing, count))]


def _priced(pricing: Pricing, replicas: int) -> bool:
    """Whether there are prices between the ranks of a replica and between replicas."""
    try:
        pricing.between(pricing.workers // replicas)
        pricing.between(replicas, pricing.workers // replicas)
    except CostError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Properties that all groupings share for which a bound holds.

    sharding: replicas, types, communicators, and whether collectives are launched in the background
    most:     largest group of blocks, padded: bytes as gathered, and as reduced
    again:    whether all groups of blocks are gathered again in backward
    depth:    largest number of groups gathered ahead in backward
    """

    sharding: Sharding
    most: tuple[int, int]
    again: bool = True
    depth: int = AHEAD[-1][1]


def planned_bound(
    workload: Workload,
    pricing: Pricing,
    strategy: str,
    most: int | None,
    kept: bool,
    micro_batches: tuple[int, Form] = (1, EACH),
) -> float:
    """Lower bound in seconds on the step of every grouping in the search of ``solve.search.sharded``.

    most: largest bytes of a group, None for the usual limit; kept: whether groups may stay until backward
    """
    bounds, pricing = [], replace(pricing, parts=pricing.parts and cache(pricing.parts))
    for count in replica_counts(strategy, pricing, kept):
        sharding = Sharding((), count, separate=True).typed(*types_of(workload)).accumulating(*micro_batches)
        sizes = block_bytes(workload, blocks(workload), sharding.ranks(pricing.workers))
        largest = most or GROWTH * max(sizes, default=0)
        bounds.append(sharded_bound(workload, pricing, GroupRules(sharding, (largest, largest), not kept)))
    return min(bounds)


def block_bytes(workload: Workload, names: Sequence[str], ranks: int) -> list[int]:
    """Padded bytes of each of the blocks ``names``, in the types of its parameters."""
    sizes = dict.fromkeys(names, 0)
    for layer in workload.layers:
        block = block_of(layer.name, sizes)
        if block is not None and layer.gradient_bytes:
            sizes[block] += exchanged_bytes(Sharding(()), [layer], ranks)[0]
    return list(sizes.values())


def block_of(name: str, names: Container[str]) -> str | None:
    """The block, of these ``names``, that holds a layer; None for the root."""
    return next((block for block in around(name) if block in names), None)


def grouped_bound(workload: Workload, plan: Plan, pricing: Pricing) -> float:
    """Seconds that no grouping of blocks as large, with the other rules of ``plan``, beats; 0 for other modules."""
    rules = plan.sharding
    if rules is None:
        return 0.0
    layers, ranks = {layer.name: layer for layer in workload.layers}, rules.ranks(pricing.workers)
    pairs = list(zip(plan.buckets, rules.groups, strict=True))
    grouped = [[layers[block.layer] for block in bucket.blocks] for bucket, group in pairs if group.modules]
    groups = [group for group in rules.groups if group.modules]
    root = [group.first for group in rules.groups if not group.modules]
    if (
        {name for group in groups for name in group.modules} != set(blocks(workload))
        or root[1:]
        or (root and root[0] != workload.layers[0].name)
    ):
        return 0.0
    sizes = [exchanged_bytes(rules, one, ranks) for one in grouped]
    most = [max((size[kind] for size in sizes), default=0) for kind in range(2)]
    again = all(group.reshard is True and group.needed_in_backward for group in groups)
    depth = max((group.backward_prefetch for group in rules.groups), default=1)
    return sharded_bound(workload, pricing, GroupRules(rules, (most[0], most[1]), again, max(1, depth)))


def sharded_bound(workload: Workload, pricing: Pricing, rules: GroupRules) -> float:
    """Seconds that no grouping of whole blocks under these rules beats: the sum over micro-batches, and the update."""
    workload, pricing = pricing.loaded(workload)
    count, form = rules.sharding.micro_batches, rules.sharding.form
    middle = _Part(not form.keep, form.reduce_each, form.reduce_each and form.replicas_each)
    first, last = middle._replace(gathers=True), middle._replace(reduces=True, replicas=True)
    parts = [(first, 1), (middle, count - 2), (last, 1)] if count > 1 else [(_Part(), 1)]
    one_by_one = plain_sum(
        times * _ShardedLimit(workload, pricing, rules, part).bound() for part, times in parts if times
    )
    copied = count if form.reduce_each else 1, True, 1 if form.keep else count
    return one_by_one + shard_update_time(workload, rules.sharding.ranks(pricing.workers), *copied)


class _Part(NamedTuple):
    """A micro-batch.

    gathers:  whether it gathers before its forward
    reduces:  whether it reduces gradients; replicas: also between replicas
    """

    gathers: bool = True
    reduces: bool = True
    replicas: bool = True


class _SentLayer(NamedTuple):
    """A layer, whether it is in a block, and its padded bytes as gathered and as reduced."""

    layer: Layer
    held: bool
    gathered: int
    reduced: int


class _ShardedLimit:
    """Bytes and prices of a micro-batch.

    root, inner:   bytes of what is in no block, and of blocks, as gathered and as reduced
    gather, reduce: least time of bytes of blocks
    """

    def __init__(self, workload: Workload, pricing: Pricing, rules: GroupRules, part: _Part) -> None:
        self.workload, self.pricing, self.rules, self.part = workload, pricing, rules, part
        sharding, names = rules.sharding, frozenset(blocks(workload))
        self.ranks = sharding.ranks(pricing.workers)
        self.prices = pricing.between(self.ranks)
        self.rows: list[_SentLayer] = []
        for layer in workload.layers:
            trained = [layer] if layer.gradient_bytes else []
            gathered, reduced = exchanged_bytes(sharding, trained, self.ranks)
            held = block_of(layer.name, names) is not None
            self.rows.append(_SentLayer(layer, held, gathered, reduced if part.reduces else 0))
        self.root, self.inner = (
            (sum(row.gathered for row in some), sum(row.reduced for row in some))
            for some in ([row for row in self.rows if row.held is held] for held in (False, True))
        )
        kinds = ("all_gather", "reduce_scatter")
        costs = [self.prices.cost(kind) for kind in kinds]
        self.gather, self.reduce = (serial(cost, most) for cost, most in zip(costs, rules.most, strict=True))
        sent = (self.root[0] * part.gathers, self.root[1])
        self.root_gather, self.root_reduce = (
            serial(cost)(size) if size else 0.0 for cost, size in zip(costs, sent, strict=True)
        )
        self.before_forward = self.gather(self.inner[0]) if part.gathers else 0.0
        self.slopes = [  # measured start-ups may leave less for the transfer than the line does
            0.0 if kind in self.prices.startups else transfer(cost)(max(1, most)) / max(1, most)
            for kind, cost, most in zip(kinds, costs, rules.most, strict=True)
        ]
        self.copied = pricing.effects.copy_out, pricing.effects.copy_in

    def bound(self) -> float:
        """The largest of the bounds."""
        forward = self.forward_end()
        computed = self.workload.forward_time + self.workload.backward_time + self.copies()
        again = self.gather(self.inner[0]) if self.rules.again else 0.0
        reduced = self.root_reduce + self.reduce(self.inner[1])
        sent = self.together(self.root_gather + self.before_forward + again, reduced)
        slowdown = self.pricing.effects.compute_slowdown
        found = [forward + self.backward(), computed + sent * slowdown / (1 + slowdown), sent]
        if self.rules.again:
            later = max(0, self.inner[0] - self.rules.depth * self.rules.most[0])
            found.append(forward + self.together(self.gather(later), reduced, later))
        else:
            found.append(forward + reduced)
        if self.pricing.blocking and not self.rules.sharding.asynchronous:
            found.append(computed + self.root_gather + self.before_forward + again + reduced)
        return max(found)

    def copies(self) -> float:
        """Seconds of copies into and out of messages on the compute stream."""
        copy_out, copy_in = self.copied
        gathered = self.part.gathers * self.root[0] + self.times * self.inner[0]
        return copy_out * gathered + copy_in * (self.root[1] + self.inner[1])

    @property
    def times(self) -> int:
        """How often blocks are gathered: before forward, and again in backward."""
        return self.part.gathers + self.rules.again

    def together(self, gathered: float, reduced: float, later: int | None = None) -> float:
        """The shortest time of all-gathers and reduce-scatters that take so long one after the other."""
        if not self.rules.sharding.separate:
            return gathered + reduced
        size = self.inner[0] * self.times if later is None else later
        sent = size * self.slopes[0] + self.inner[1] * self.slopes[1]
        return max(gathered, reduced, sent / self.pricing.together(2))

    def forward_end(self) -> float:
        """F: the earliest end of forward."""
        if not self.part.gathers:
            return self.workload.forward_time
        end, done, left = 0.0, 0, self.workload.forward_time
        for layer, held, gathered, _ in self.rows:
            copied = self.copied[0] * (self.inner[0] - done)
            done += gathered if held else 0
            end = max(end, self.root_gather + self.gather(done) + left + copied)
            left -= layer.forward_time
        return end

    def backward(self) -> float:
        """Seconds from the end of forward to that of the last collective that waits for gradients."""
        time, found, left = 0.0, 0.0, self.inner[1]
        replicas, copied = self.rules.sharding.replicas, self.copied[0] if self.rules.again else 0.0
        between = replicas > 1 and self.part.replicas
        shards = serial(self.pricing.between(replicas, self.ranks).cost()) if between else None
        for layer, held, gathered, reduced in reversed(self.rows):
            time += layer.backward_time + (copied * gathered if held else 0.0)
            last = time + self.root_reduce + self.reduce(left)
            if shards is not None and self.root[1] + left >= self.ranks:
                last = max(last, time + shards((self.root[1] + left) // self.ranks))
            found = max(found, last)
            left -= reduced if held else 0
        return found
