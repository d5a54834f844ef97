"""US-Byte: unequal blocks of tensors, sent by a searched priority while backward runs, and then input first.

"US-Byte: an efficient communication mechanism for scheduling unequal-sized tensor blocks in distributed deep learning",
IEEE TPDS. Only the abstract and the released planner (ZJU-CNLAB/US-Byte, dist_trainer_US-Byte.py) were available: this
is what the planner does, written afresh from its description (docs/reference/published.md says where it departs).

Tensors are counted in base blocks of S_p elements. Phase 1, while backward runs and the network is free: of the layers
with blocks left the one of highest priority sends so many that they end just after the next gradient is ready
(Algorithm 1). Phase 2, after backward: what is left of each layer in one block, input first (Algorithm 2). Priorities
of phase 1 start as input first; from the output on, each layer is tried at the priority of the layer that becomes ready
when its first send would end, were it sent whole, and keeps it where that helps (Algorithm 3). Tensors are never fused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Block, Bucket, Objective, Plan
from osfmodel.entities.rounding import just_below, least, within
from osfmodel.entities.workload import Workload
from osfmodel.solve.published.regression import linear
from osfmodel.solve.scheduling import tails_of
from osfmodel.solve.solution import PlanRule, Question, Solution, answer

PARAMETER = element_bytes("float32")
"""Bytes of the unit that the planner counts in, elements of float32."""
BASE_ELEMENTS = (2_000, 100_000, 1_000_000, 8_000_000)
"""Base partitions S_p that are tried: that of the plan in the authors' code (VGG-16), BYTESCHEDULER_PARTITION, which it
inherits, by default and as advised for all-reduce, and one between. The authors tune it on a running job."""


def solve(question: Question) -> Solution:
    """The best plan of all BASE_ELEMENTS within the limits, by the engine, or the first that attains the bound."""
    best = _answer(question, BASE_ELEMENTS[0])
    for count in BASE_ELEMENTS[1:]:
        if _time(best) <= within(question.lower_bound):
            break
        best = least((best, _answer(question, count)), _time, lambda one: one.plan.rank if one.plan else ())
    return best


def _answer(question: Question, elements: int) -> Solution:
    found = plan(question.workload, question.pricing, elements * PARAMETER)
    return answer(question, found.under(question.objective))


def _time(solution: Solution) -> float:
    return math.inf if solution.timeline is None else solution.timeline.iteration_time


def plan(workload: Workload, pricing: Pricing, base: int) -> Plan:
    """The plan of all three algorithms for base blocks of ``base`` bytes. Costs other than a + b bytes: ``linear``."""
    problem = problem_of(workload, *linear(pricing.cost()), base)
    _, sends = search(problem)
    sent = [0] * len(problem.names)
    buckets = []
    for layer, size in sends:
        buckets.append(Bucket((Block(problem.names[layer], sent[layer], size),)))
        sent[layer] += size
    return Plan(workload.name, tuple(buckets), forward_overlap=True)


@dataclass(frozen=True, slots=True)
class UsByteProblem:
    """Data of the planner, per tensor from the input on: when its gradient is ready after the start of backward,
    how much forward follows it (its own included), its bytes; and a, b and S_p in bytes."""

    names: tuple[str, ...]
    ready: tuple[float, ...]
    tails: tuple[float, ...]
    sizes: tuple[int, ...]
    startup: float
    per_byte: float
    base: int

    def time(self, size: int) -> float:
        """Seconds of one send; 0 for no bytes."""
        return self.startup + self.per_byte * size if size else 0


def problem_of(workload: Workload, startup: float, per_byte: float, base: int) -> UsByteProblem:
    """The problem of ``workload``; layers without parameters only add their time."""
    gradients = workload.gradients
    return UsByteProblem(
        names=gradients.names[::-1],
        ready=tuple(time - workload.forward_time for time in reversed(gradients.ready_times)),
        tails=tuple(reversed(tails_of(workload))),
        sizes=gradients.sizes[::-1],
        startup=startup,
        per_byte=per_byte,
        base=base,
    )


def search(problem: UsByteProblem) -> tuple[float, list[tuple[int, int]]]:
    """The best time found by Algorithm 3, as ``evaluate`` computes it, and its sends (layer, bytes)."""
    priority = list(range(len(problem.sizes)))
    best, sends, starts = evaluate(problem, priority)
    layer, lowest = len(priority) - 1, within(floor(problem))
    while layer >= 1 and best > lowest:
        target = _target(problem, layer, sends, starts)
        if target < layer:
            tried = promoted(priority, layer, target)
            found = evaluate(problem, tried)
            if found[0] < just_below(best):
                (best, sends, starts), priority, layer = found, tried, target
        layer -= 1
    return best, sends


def floor(problem: UsByteProblem) -> float:
    """A lower bound: layers up to the l-th are ready no earlier than it, and the least tail is its own.

    The published search goes on where this is reached, in vain.
    """
    sent = accumulate(problem.sizes)
    rows = zip(problem.ready, sent, problem.tails, strict=True)
    return max((ready + problem.time(size) + tail for ready, size, tail in rows), default=0)


def _target(problem: UsByteProblem, layer: int, sends: Sequence[tuple[int, int]], starts: Sequence[float]) -> int:
    """The layer at whose priority ``layer`` is tried; itself if it sends nothing before the end of backward."""
    first = next((start for (sender, _), start in zip(sends, starts, strict=False) if sender == layer), None)
    if first is None:
        return layer
    end = first + problem.time(problem.sizes[layer])
    target = layer
    while target > 0 and problem.ready[target - 1] < end:
        target -= 1
    return target


def promoted(priority: Sequence[int], layer: int, target: int) -> list[int]:
    """The priorities with ``layer`` at the position of ``target``; that one and those between them one lower."""
    moved = list(priority)
    moved[layer] = priority[target]
    for other in range(target, layer):
        moved[other] += 1
    return moved


def evaluate(problem: UsByteProblem, priority: Sequence[int]) -> tuple[float, list[tuple[int, int]], list[float]]:
    """(latest end of a layer + the forward after it, the sends of both phases, the starts of those of phase 1)."""
    phase = first_phase(problem, priority)
    clock = max(phase.now, problem.ready[0]) if problem.ready else 0
    sends, left = list(phase.sends), phase.left
    worst: float = max((end + tail for end, tail in zip(phase.ends, problem.tails, strict=True)), default=0)
    for layer, size in enumerate(left):
        if size:
            sends.append((layer, size))
            clock += problem.time(size)
            worst = max(worst, clock + problem.tails[layer])
    return worst, sends, phase.starts


@dataclass(slots=True)
class Phase:
    """Algorithm 1 at work: the clock of the network, the sends so far with their starts, what is left of each layer and
    when its last send ended; ``pending`` are layers with something left, by priority."""

    problem: UsByteProblem
    priority: Sequence[int]
    now: float = 0
    sends: list[tuple[int, int]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    pending: list[tuple[int, int]] = field(default_factory=list)

    def send(self, until: float) -> None:
        """Send from the most urgent layer until just after ``until``, in one message with its present one."""
        layer = self.pending[0][1]
        joined = bool(self.sends) and self.sends[-1][0] == layer and self.ends[layer] == self.now
        before = self.sends[-1][1] if joined else 0
        start = self.starts[-1] if joined else self.now
        size = min(before + self.left[layer], max(blocks(self.problem, until - start), before + self.problem.base))
        if joined:
            self.sends[-1] = (layer, size)
        else:
            self.sends.append((layer, size))
            self.starts.append(start)
        self.left[layer] -= size - before
        self.now = self.ends[layer] = start + self.problem.time(size)
        if not self.left[layer]:
            heappop(self.pending)


def first_phase(problem: UsByteProblem, priority: Sequence[int]) -> Phase:
    """Algorithm 1: the sends before the last gradient is ready. The network is left idle only for lack of blocks."""
    phase = Phase(problem, priority, left=[0] * len(priority), ends=[0] * len(priority))
    for layer in reversed(range(len(priority))):
        while phase.pending and phase.now < problem.ready[layer]:
            phase.send(problem.ready[layer])
        phase.now = max(phase.now, problem.ready[layer])
        phase.left[layer] = problem.sizes[layer]
        heappush(phase.pending, (priority[layer], layer))
    return phase


def blocks(problem: UsByteProblem, gap: float) -> int:
    """Bytes of the fewest base blocks, 1 or more, that take at least ``gap`` seconds in one message."""
    if gap <= problem.startup:
        return problem.base
    if not problem.per_byte:
        return max(problem.sizes)
    return max(math.ceil((gap - problem.startup) / (problem.per_byte * problem.base)), 1) * problem.base


RULE = PlanRule(solve, "unequal blocks, as released (TPDS)", objective=Objective(forward_overlap=True), unfused=True)
