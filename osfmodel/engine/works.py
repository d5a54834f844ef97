"""The work of each operation of a program, from which its seconds follow at any prices.

Sharded steps are issued once: a program that keeps its ``works`` is timed again for a slower network or computation.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program
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
        self.sent: dict[Work, Seconds] = {}

    def of(self, work: Work) -> Seconds:
        """Seconds of any work."""
        found: Seconds = getattr(self, work[0])(*work[1:])
        return found

    def forward(self, place: int) -> Seconds:
        """The forward of a layer."""
        return self.layers[place].forward_time * self.stretch, 0

    def backward(self, place: int) -> Seconds:
        """The backward of a layer."""
        return self.layers[place].backward_time * self.stretch, 0

    def update(self, ranks: int) -> Seconds:
        """The update of a rank's part."""
        return self.workload.update_time / ranks, 0

    def copy_in(self, size: int) -> Seconds:
        """The copy of so many bytes into a buffer."""
        return self.effects.copy_in * size, 0

    def copy_part_in(self, size: int, ranks: int) -> Seconds:
        """The copy of a rank's part of so many bytes into a buffer."""
        return self.effects.copy_in * size / ranks, 0

    def copy_out(self, size: int) -> Seconds:
        """The copy of so many bytes out of a buffer."""
        return self.effects.copy_out * size, 0

    def send(self, kind: str, size: int, ranks: int, apart: int = 1) -> Seconds:
        """A collective of so many bytes between ``ranks`` ranks, each ``apart`` from the next."""
        key = kind, size, ranks, apart
        if key not in self.sent:
            self.sent[key] = self.between(ranks, apart).split(kind, size)
        return self.sent[key]


def timed(program: Program, workload: Workload, pricing: Pricing) -> Program:
    """A program that keeps its works, for a workload with the same tensors, at other prices between as many workers."""
    clock = Clock(workload, pricing)
    return program.timed([clock.of(work) for work in program.works])
