"""Search for the groups of blocks of sharded parameters: runs of whole blocks, and how each is gathered and reduced.

Groupings are timed by the engine, on a workload in which consecutive layers of a block are one: the order of its
operations and their times are the same, and it takes as much memory, or more by the padding of gradients. Few blocks
are grouped in every possible way; else search begins with even groupings, and changes one thing at a time while that
helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, groupby, islice, pairwise, product
from math import inf
from operator import attrgetter

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.strategies.holdings import activation_levels
from osfmodel.entities.compression import types_of
from osfmodel.entities.display import show_bytes
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.modules import blocks, wrapped
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import least, plain_sum, within
from osfmodel.entities.sharding import EACH, Form, ParameterGroup, Sharding, padded_elements
from osfmodel.entities.workload import Layer, Workload
from osfmodel.solve.sharded_bounds import AHEAD, GROWTH, block_bytes, block_of
from osfmodel.solve.solution import Limits, MemoryLimit
from osfmodel.solve.verdicts import peak_within

NEGLIGIBLE = 1e-3
"""Relative gain below which nothing is worth changing."""
FEW, FEW_KEPT = 7, 4
"""Number of blocks up to which every grouping is timed, without a limit on memory and with one."""
FEW_CHANGED = 12
"""Number of blocks up to which groups are changed under every setting, by two changes at once where one is no help."""
MOST_TIMED = 250
"""Groupings after which the search ends."""
FLIGHTS = ((1, False), (2, False), (2, True))
"""Pairs: reduce-scatters in memory at once, and whether they have their own communicator. FSDP2's default is first."""
SETTINGS = tuple((ahead, *flight) for flight in FLIGHTS for ahead in AHEAD)
"""Groups gathered ahead, and flights: the simplest first."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of blocks, by the numbers of blocks in forward order.

    ends:     blocks before the end of each group but the last
    kept:     first blocks of the groups that are not freed after forward
    ahead:    groups gathered ahead in forward and in backward
    inputs:   reduce-scatters whose inputs are in memory at once
    separate: whether reduce-scatters have a communicator of their own
    """

    ends: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    ahead: tuple[int, int] = AHEAD[0]
    inputs: int = 1
    separate: bool = False

    def under(self, ahead: tuple[int, int], inputs: int, separate: bool) -> Grouping:
        """The same groups under other settings."""
        return Grouping(self.ends, self.kept, ahead, inputs, separate)

    @property
    def starts(self) -> list[int]:
        """First blocks of the groups."""
        return [0, *sorted(self.ends)]

    @property
    def rank(self) -> tuple[int, int]:
        """The order of groupings that are as fast: fewest kept, then the smallest groups."""
        return len(self.kept), -len(self.ends)


def groups_for(
    names: Sequence[Sequence[str]], ahead: tuple[int, int] = AHEAD[0], kept: Iterable[int] = ()
) -> list[ParameterGroup]:
    """The rules of groups of modules, of which those at the places ``kept`` are not gathered again in backward."""
    forward, backward = ahead
    return [
        ParameterGroup(tuple(group), reshard=place not in kept, forward_prefetch=forward, backward_prefetch=backward)
        for place, group in enumerate(names)
    ]


class GroupSearch:
    """Times and memory of groupings.

    names:    the blocks, in forward order
    whole, workload: as it is, and condensed
    padding:  bytes of gradients that the condensed workload has beyond those of the whole
    rules:    of every plan, apart from its groups and flights. Of several micro-batches the first, the last and, where
              parameters are kept, one between are searched with: others take as long and as much memory as one of these
    settings: those that are tried
    hosted:   whether the host's work for each tensor counts, which a condensed workload does not have
    """

    def __init__(
        self,
        workload: Workload,
        pricing: Pricing,
        replicas: int = 1,
        limits: Limits = Limits(),
        micro_batches: tuple[int, Form] = (1, EACH),
    ) -> None:
        self.names, self.replicas, self.room = blocks(workload), replicas, limits.memory
        (count, form), shared = micro_batches, Sharding((), replicas).typed(*types_of(workload))
        self.rules, self.settings = shared.accumulating(min(count, 2 + form.keep), form), SETTINGS
        self.pricing, self.hosted = pricing, pricing.hosts
        self.whole = workload
        self.workload = condensed(workload, self.names, pricing.workers // replicas)
        self.padding = self.workload.gradient_bytes - workload.gradient_bytes
        sizes = block_bytes(self.workload, self.names, 1)
        self.before = [0, *accumulate(sizes)]
        self.most = limits.max_bucket_bytes or GROWTH * max(sizes, default=0)
        for name, size in zip(self.names, sizes, strict=True):
            if size > self.most:
                raise PlanError(
                    f"--max-bucket {show_bytes(self.most)}: block {name!r} holds {show_bytes(size)}, and FSDP2 gathers "
                    "whole blocks: raise it"
                )
        from osfmodel.solve.search.group_times import GroupTimes

        self.times = GroupTimes(self.workload, pricing, self.rules)
        self.timed: dict[Grouping, float] = {}
        self.fitting: dict[Grouping, bool] = {}

    @property
    def each(self) -> Grouping:
        """A group per block."""
        return Grouping(frozenset(range(1, len(self.names))))

    def best(self) -> Grouping | None:
        """The fastest grouping found that fits; simpler settings unless others are faster. None if none fits."""
        few = FEW if self.room is None else FEW_KEPT
        every = list(self._every()) if len(self.names) <= few else []
        chosen = self.each if self.fits(self.each) else None
        for setting in self.settings:
            if every:
                found = self._fastest([one.under(*setting) for one in every])
            elif chosen is None or self._worth_changing(chosen, setting):
                found = self._improved((chosen or self.each).under(*setting))
            else:
                continue
            if found and (chosen is None or self.time(found) < self.time(chosen) * (1 - NEGLIGIBLE)):
                chosen = found
        return chosen

    def _worth_changing(self, chosen: Grouping, setting: tuple[tuple[int, int], int, bool]) -> bool:
        """Whether groups are changed under a setting: of few blocks always, else under the first or one that gains."""
        first = SETTINGS[: 1 if self.room else len(AHEAD)]
        if len(self.names) <= FEW_CHANGED or setting in first:
            return True
        return self.time(chosen.under(*setting)) < self.time(chosen) * (1 - NEGLIGIBLE)

    def time(self, grouping: Grouping, most: float = inf) -> float:
        """Seconds of a step; inf where a bound shows that it takes more than ``most``."""
        found = self.timed.get(grouping, inf)
        if found == inf:
            if self.hosted:
                plan = self.plan(grouping, self.whole)
                found = predict_timeline(self.whole, plan, self.pricing).iteration_time
            else:
                flight = grouping.inputs, grouping.separate
                found = self.times.seconds(grouping.starts, grouping.kept, grouping.ahead, flight, most)
            self.timed[grouping] = found
        return found

    def fits(self, grouping: Grouping) -> bool:
        """Whether the step fits into memory."""
        if self.room is None:
            return True
        if grouping not in self.fitting:
            above = self.peak(grouping, self.workload, self.room) - self.room.bytes
            if 0 < above <= self.padding:
                above = self.peak(grouping, self.whole, self.room) - self.room.bytes
            self.fitting[grouping] = above <= 0
        return self.fitting[grouping]

    def peak(self, grouping: Grouping, workload: Workload, room: MemoryLimit) -> int:
        """Bytes of the highest level of a step of ``workload``."""
        plan = self.plan(grouping, workload)
        timeline = predict_timeline(workload, plan, self.pricing)
        return peak_within(room, workload, plan, timeline, self.pricing.workers).bytes

    def plan(self, grouping: Grouping, workload: Workload) -> Plan:
        """The plan of a grouping for the workload, as it is or condensed."""
        places = {start: place for place, start in enumerate(grouping.starts)}
        groups = groups_for(self._groups(grouping), grouping.ahead, [places[start] for start in grouping.kept])
        rules = replace(self.rules, reduce_inputs=grouping.inputs, separate=grouping.separate)
        return wrapped(workload, groups, rules)

    def _groups(self, grouping: Grouping) -> list[tuple[str, ...]]:
        places = [*grouping.starts, len(self.names)]
        return [self.names[start:end] for start, end in pairwise(places) if end > start]

    def _every(self) -> Iterator[Grouping]:
        """Every grouping whose groups are small enough, with every choice of what is kept if memory is limited."""
        inner = range(1, len(self.names))
        for ends in (frozenset(some) for size in range(len(self.names)) for some in combinations(inner, size)):
            if self._allowed(grouping := Grouping(ends)):
                starts = grouping.starts if self.room is not None and self.names else []
                for size in range(len(starts) + 1):
                    yield from (replace(grouping, kept=frozenset(some)) for some in combinations(starts, size))

    def _allowed(self, grouping: Grouping) -> bool:
        places = [*grouping.starts, len(self.names)]
        return all(self.before[end] - self.before[start] <= self.most for start, end in pairwise(places))

    def _improved(self, begin: Grouping) -> Grouping | None:
        """The fastest of ``begin`` and of even groupings under its setting, changed step by step while that helps."""
        setting = begin.ahead, begin.inputs, begin.separate
        options = [begin, *(one.under(*setting) for one in self._even() if self._allowed(one))]
        if self.room is not None:
            quick = sorted(options, key=self.time)[:2]
            options += [filled for one in dict.fromkeys((begin, *quick)) for filled in self._filled(one)]
        best = self._fastest(options)
        while best is not None and len(self.timed) < MOST_TIMED:
            changed = self._step(best, self._changed(best)) or self._step(best, self._changed_twice(best))
            if changed is None:
                break
            best = changed
        return best

    def _step(self, best: Grouping, others: Iterable[Grouping]) -> Grouping | None:
        """The fastest of ``others`` if it is faster than ``best``; of many only the first ones are timed."""
        some = list(islice(filter(self._allowed, others), MOST_TIMED))
        found = self._fastest([best, *some])
        return found if found and self.time(found) < self.time(best) * (1 - NEGLIGIBLE / 10) else None

    def _changed_twice(self, grouping: Grouping) -> Iterator[Grouping]:
        """The groupings that are two changes away, of a model with few blocks."""
        if len(self.names) <= FEW_CHANGED:
            for changed in filter(self._allowed, list(self._changed(grouping))):
                yield from self._changed(changed)

    def _fastest(self, options: Sequence[Grouping]) -> Grouping | None:
        """The fastest that fits; of those as fast, the first by rank."""
        left = list(dict.fromkeys(options))
        while left:
            best = inf
            for one in sorted(left, key=attrgetter("rank"), reverse=True):  # fewer messages are mostly faster
                best = min(best, self.time(one, within(best)))
            found = least(left, self.timed.__getitem__, attrgetter("rank"))
            if self.fits(found):
                return found
            left.remove(found)
        return None

    def _even(self) -> Iterator[Grouping]:
        """Groups of as many blocks each, counted from the first block or from the last."""
        count = len(self.names)
        for size, first in product(range(1, count + 1), (False, True)):
            yield Grouping(frozenset(range(size, count, size) if first else range(count - size, 0, -size)))

    def _filled(self, grouping: Grouping) -> Iterator[Grouping]:
        """The grouping with as many groups kept as fit: the last ones, the first ones, or some evenly spread."""
        starts = grouping.starts
        spread = sorted(starts, key=lambda start: start & -start, reverse=True)  # every eighth, fourth, second block
        for order in (starts[::-1], starts, spread):
            low, high = 0, len(starts) + 1
            while high - low > 1:
                count = (low + high) // 2
                fits = self.fits(replace(grouping, kept=frozenset(order[:count])))
                low, high = (count, high) if fits else (low, count)
            yield replace(grouping, kept=frozenset(order[:low]))

    def _changed(self, grouping: Grouping) -> Iterator[Grouping]:
        """The groupings with one end more, less or elsewhere, and with one group more or less kept."""
        count, ends = len(self.names), grouping.ends
        others = [ends ^ {place} for place in range(1, count)]
        others += [ends - {end} | {end + step} for end in ends for step in (-1, 1) if 0 < end + step < count]
        for changed in others:
            yield replace(grouping, ends=changed, kept=grouping.kept & {0, *changed})
        if self.room is not None:
            yield from (replace(grouping, kept=grouping.kept ^ {start}) for start in grouping.starts)


def condensed(workload: Workload, names: Sequence[str], ranks: int) -> Workload:
    """The workload with consecutive layers of one block, or of none, as one layer, of their bytes as padded.

    Types stay apart, as they do in groups. A layer's peak is that of its layers with the gradients of those behind.
    """
    levels = activation_levels(workload, ())
    there = dict(zip((layer.name for layer in workload.layers), levels, strict=True))
    known = frozenset(names)
    runs = groupby(workload.layers, lambda layer: (block_of(layer.name, known), layer.dtype))
    return replace(workload, layers=tuple(_one(list(layers), ranks, there) for _, layers in runs), segments=())


def _one(layers: Sequence[Layer], ranks: int, levels: dict[str, int]) -> Layer:
    """One layer that computes, sends and keeps what these do."""
    trained = [layer for layer in layers if layer.gradient_bytes]
    size = sum(padded_elements(layer, ranks) * element_bytes(layer.dtype) for layer in trained)
    forward, backward = (plain_sum(map(attrgetter(kind), layers)) for kind in ("forward_time", "backward_time"))
    frozen = sum(layer.frozen_bytes or 0 for layer in layers) or None
    found = Layer((trained or layers)[0].name, forward, backward, size, layers[0].dtype, frozen_bytes=frozen)
    peak = held = 0
    for layer in reversed(layers):
        peak, held = max(peak, levels[layer.name] + held), held + layer.gradient_bytes
    return replace(found, activation_bytes=sum(layer.activation_bytes or 0 for layer in layers), peak_bytes=peak)
