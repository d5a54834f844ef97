"""Seconds of steps with many groupings of blocks, without a plan or a program for each.

Operations of groupings with as many groups wait for each other alike, and differ only in bytes and layers. So one
program of that *form* is lowered, over layers that stand for what lies between two moments at which a group comes into
use or goes out of it, and is timed for each grouping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program
from osfmodel.engine.run import run_in_order
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies.fully_sharded import ShardedStep
from osfmodel.engine.works import Clock, Seconds, Work
from osfmodel.entities.modules import blocks
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.sharding import ParameterGroup, Sharding, exchanged_bytes
from osfmodel.entities.workload import Layer, Workload
from osfmodel.solve.sharded_bounds import AHEAD, block_of

KINDS = ("all_gather", "copy_part_in", "copy_out", "copy_in", "reduce_scatter", "all_reduce")
"""Works of a bucket, of which it may not need all."""
USES, LEAVES = 1, 0
"""At the place of a layer a bucket comes into use, or goes out of it: at one place in this order."""


class _TimedBucket(NamedTuple):
    """A bucket: places of the first layer that uses it and of the one behind the last, and the seconds of KINDS.

    last: whether its gradients are reduced once backward is over
    gather, reduce: seconds of its all-gather and of its reduce-scatter
    """

    first: int
    end: int
    last: bool
    seconds: tuple[Seconds, ...]
    gather: float
    reduce: float


class _Use(NamedTuple):
    """A bucket of a form: the stretches of layers that use it, and how."""

    first: int
    end: int
    last: bool
    kept: bool


class _Untimed(Clock):
    """No time for any work, for programs that are timed later."""

    def of(self, work: Work) -> Seconds:
        """No seconds."""
        return 0, 0


@cache
def _stand_in(name: str, time: int, size: int) -> Layer:
    return Layer(name, time, time, size)


class GroupTimes:
    """Times of groupings of the blocks of a workload at some prices.

    rules: of every plan, apart from its groups and flights
    """

    def __init__(self, workload: Workload, pricing: Pricing, rules: Sharding) -> None:
        self.workload, self.pricing = pricing.loaded(workload)
        self.rules, self.ranks = rules, rules.ranks(pricing.workers)
        self.clock = Clock(self.workload, self.pricing)
        names = blocks(workload)
        numbers = {name: number for number, name in enumerate(names)}
        self.places: list[list[int]] = [[] for _ in names]
        outer: list[int] = []
        for place, layer in enumerate(workload.layers):
            block = block_of(layer.name, numbers)
            (outer if block is None else self.places[numbers[block]]).append(place)
        self.input = next((place for place, layer in enumerate(workload.layers) if layer.gradient_bytes), -1)
        self.root = tuple(self._by_type(outer, 0, len(workload.layers), last=True))
        self.group, self.form = cache(self._group), cache(self._form)

    def seconds(
        self, starts: Sequence[int], kept: frozenset[int], ahead: tuple[int, int], flight: tuple[int, bool],
        most: float = inf,
    ) -> float:  # fmt: skip
        """Seconds of a step with groups that begin with the blocks ``starts``; inf where a bound is above ``most``.

        kept:   the starts of groups that are not freed after forward
        ahead:  groups gathered ahead in forward and in backward
        flight: reduce-scatters in memory at once, and whether they have their own communicator
        """
        groups = [(start in kept, self.group(start, end)) for start, end in pairwise([*starts, len(self.places)])]
        buckets = [(stays, one) for stays, group in groups for one in group]
        buckets += [(True, one) for one in self.root]
        if self._least(buckets, flight[1]) > most:
            return inf
        bounds = {(0, USES), (len(self.workload.layers), LEAVES)}
        for _, one in buckets:
            bounds |= {(one.first, USES), (one.end, LEAVES)}
        events = sorted(bounds)
        ranks = {event: rank for rank, event in enumerate(events)}
        uses = (_Use(ranks[one.first, USES], ranks[one.end, LEAVES], one.last, kept) for kept, one in buckets)
        program, works = self.form(tuple(uses), len(events) - 1, ahead, flight)
        table = [seconds for _, one in buckets for seconds in one.seconds]
        for (first, _), (end, _) in pairwise(events):
            table += self.clock.of(("forward", first, end)), self.clock.of(("backward", first, end))
        table.append(self.clock.of(("update", self.ranks)))
        timed = program.timed([table[work] for work in works], None)
        return (run_in_order(timed, self.pricing) or run(timed, self.pricing)).finish

    def _least(self, buckets: Sequence[tuple[bool, _TimedBucket]], separate: bool) -> float:
        """Seconds that a step with these buckets takes at least: all computation, slowed, or all that one stream sends.

        Of the messages of several micro-batches it counts those of one.
        """
        again = 0 if self.rules.keep else 1
        gathers = [1 if kept else 1 + again for kept, _ in buckets]
        gathered = plain_sum(count * one.gather for count, (_, one) in zip(gathers, buckets, strict=True))
        reduced = plain_sum(one.reduce for _, one in buckets)
        most = gathered + reduced
        if separate:  # start-ups may overlap, and transfers share the network
            rows = zip(gathers, buckets, strict=True)
            sent = plain_sum(count * one.seconds[0][1] + one.seconds[4][1] for count, (_, one) in rows)
            most = max(gathered, reduced, sent / self.pricing.together(2 + (self.rules.replicas > 1)))
        slowdown = self.pricing.effects.compute_slowdown
        count = len(self.workload.layers)
        computed = plain_sum(self.clock.of((kind, 0, count))[0] for kind in ("forward", "backward"))
        return max(most, computed * self.rules.micro_batches + most * slowdown / (1 + slowdown))

    def _group(self, first: int, end: int) -> tuple[_TimedBucket, ...]:
        """The buckets of the group of the blocks from ``first`` to before ``end``."""
        places = sorted(place for block in self.places[first:end] for place in block)
        return tuple(self._by_type(places, places[0], places[-1] + 1, self.input in places)) if places else ()

    def _by_type(self, places: Sequence[int], first: int, end: int, last: bool) -> Iterator[_TimedBucket]:
        """A bucket for the layers of each type that have parameters."""
        layers = [layer for layer in map(self.workload.layers.__getitem__, places) if layer.gradient_bytes]
        for dtype in dict.fromkeys(layer.dtype for layer in layers):
            alike = [layer for layer in layers if layer.dtype == dtype]
            gathered, reduced = exchanged_bytes(self.rules, alike, self.ranks)
            replicas = self.rules.replicas
            works: list[Work] = [
                ("send", "all_gather", gathered, self.ranks), ("copy_part_in", gathered, self.ranks),
                ("copy_out", gathered), ("copy_in", reduced), ("send", "reduce_scatter", reduced, self.ranks),
                *[("send", "all_reduce", reduced // self.ranks, replicas, self.ranks)] * (replicas > 1),
            ]  # fmt: skip
            seconds = tuple(map(self.clock.of, works))
            unused = ((0, 0),) * (len(KINDS) - len(works))
            yield _TimedBucket(first, end, last, seconds + unused, plain_sum(seconds[0]), plain_sum(seconds[4]))

    def _form(
        self, uses: tuple[_Use, ...], count: int, ahead: tuple[int, int], flight: tuple[int, bool]
    ) -> tuple[Program, list[int]]:
        """The program of groupings whose buckets are used so, and the place of each operation's work in their table.

        count: stretches of layers between two of the places at which buckets come into use or go out of it
        """
        stretches: list[list[Layer]] = [[_stand_in(f"stretch {number}", 1, 0)] for number in range(count)]
        own = [_stand_in(f"bucket {number}", 0, 4) for number in range(len(uses))]
        for use, layer in zip(uses, own, strict=True):
            stretches[use.first].append(layer)
        groups = tuple(
            ParameterGroup(
                (), not use.kept, stretches[use.first][0].name, stretches[use.end - 1][-1].name, use.last,
                True, *(ahead if number < len(uses) - len(self.root) else AHEAD[0])
            )
            for number, use in enumerate(uses)
        )  # fmt: skip
        rules = replace(self.rules, groups=groups, reduce_inputs=flight[0], separate=flight[1])
        plan = Plan("form", tuple(Bucket((Block(layer.name, 0, 4),)) for layer in own), sharding=rules)
        layers = tuple(layer for some in stretches for layer in some)
        step = ShardedStep(replace(self.workload, layers=layers, segments=()), plan, self.pricing)
        step.clock = _Untimed(step.workload, step.pricing)
        program = step.program()
        begins = [0, *accumulate(map(len, stretches))]
        passes = {begin: len(uses) * len(KINDS) + 2 * number for number, begin in enumerate(begins)}
        works = []
        for one, (name, first, *_) in zip(program.operations, step.works, strict=True):
            if one.bucket >= 0:
                works.append(one.bucket * len(KINDS) + KINDS.index(first if name == "send" else name))
            else:
                works.append(passes[len(layers)] if name == "update" else passes[first] + (name == "backward"))
        return program, works
