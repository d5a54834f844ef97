"""The work of each operation of a program, from which its seconds follow at any prices.

Sharded steps are issued once: a program that keeps its ``works`` is timed again for a slower network or computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.optimizers import shard_update_time
from osfmodel.engine.program import Layered, Program
from osfmodel.entities.effects import Effects
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Workload

Work: TypeAlias = tuple[Any, ...]
"""The name of a method of :class:`Clock`, and its arguments."""
Seconds: TypeAlias = tuple[float, float]
"""(start-up, transfer) of an operation."""


class Clock:
    """Seconds of work of a workload at some prices; layers are given by their places."""

    def __init__(self, workload: Workload, pricing: Pricing) -> None:
        self.workload, self.layers, self.effects = workload, workload.layers, pricing.effects
        self.stretch = pricing.effects.stretch(pricing.workers)
        self.between = cache(pricing.between)
        self.known: dict[Work, Seconds] = {}

    def of(self, work: Work) -> Seconds:
        """Seconds of any work."""
        found = self.known.get(work)
        if found is None:
            found = self.known[work] = getattr(self, work[0])(*work[1:])
        return found

    def forward(self, first: int, end: int) -> Seconds:
        """The forward of the layers from ``first`` to before ``end``."""
        return plain_sum(layer.forward_time for layer in self.layers[first:end]) * self.stretch, 0

    def backward(self, first: int, end: int) -> Seconds:
        """The backward of the layers from before ``end`` to ``first``."""
        return plain_sum(layer.backward_time for layer in self.layers[first:end]) * self.stretch, 0

    def packed(self, first: int, end: int, hooks: int) -> Seconds:
        """The same, with the copies of gradients into buckets and so many hooks."""
        copied = self.effects.copy_in * sum(layer.gradient_bytes for layer in self.layers[first:end])
        return self.backward(first, end)[0] + copied + self.effects.hook_time * hooks, 0

    def added(self, hooks: Mapping[str, int] | None) -> Callable[[], dict[str, float]]:
        """By layer, the seconds of its copy and its hooks; without ``hooks`` there are none."""
        return dict if hooks is None else partial(_added, self.workload, self.effects, hooks)

    def update(self, ranks: int, left: int = 1, beside: bool = False, fetched: int = 0) -> Seconds:
        """The update of a rank's part, as ``shard_update_time``."""
        return shard_update_time(self.workload, ranks, left, beside, fetched), 0

    def copy_in(self, size: int) -> Seconds:
        """The copy of so many bytes into a buffer."""
        return self.effects.copy_in * size, 0

    def copy_part_in(self, size: int, ranks: int) -> Seconds:
        """The copy of a rank's part of so many bytes into a buffer."""
        return self.effects.copy_in * size / ranks, 0

    def copy_out(self, size: int) -> Seconds:
        """The copy of so many bytes out of a buffer."""
        return self.effects.copy_out * size, 0

    def copy_parts(self, parts: int, each: float) -> Seconds:
        """The copies of so many parts, each of which takes so long."""
        return parts * each, 0

    def host(self, tensors: int, size: int, part: float) -> Seconds:
        """A part of the host's work for a collective of so many tensors and bytes."""
        effects = self.effects
        return part * (effects.group_time + effects.member_time * tensors + effects.group_copy * size), 0

    def send(self, kind: str, size: int, ranks: int, apart: int = 1) -> Seconds:
        """A collective of so many bytes between ``ranks`` ranks, each ``apart`` from the next."""
        return self.between(ranks, apart).split(kind, size)


def timed(program: Program, workload: Workload, pricing: Pricing) -> Program:
    """A program that keeps its works, for a workload with the same tensors, at other prices between as many workers."""
    clock, (works, places) = Clock(workload, pricing), program.distinct()
    seconds = list(map(clock.of, works))
    hooks, since = (None, 0) if program.layers is None else program.layers[3:5]
    layers = Layered(workload, clock.stretch, clock.added(hooks), hooks, since)
    return program.timed([seconds[place] for place in places], layers)


def _added(workload: Workload, effects: Effects, hooks: Mapping[str, int]) -> dict[str, float]:
    return {
        layer.name: effects.copy_in * layer.gradient_bytes + effects.hook_time * hooks.get(layer.name, 0)
        for layer in workload.layers
    }
