"""A sequence of collectives as cuts of one tape: the bytes in the order in which they are sent.

The tape holds *segments*, each a run of bytes of one layer; a plan on one channel cuts it into collectives. A cut lies
either inside a segment, and then the collectives on both sides hold a part of it, or on the edge between two. This
(its *place*) decides what a collective waits for and what waits for it; given the places, all times are
linear in the positions (osfmodel.solve.blocks.resize).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost, Cost
from osfmodel.engine.program import COMPUTE
from osfmodel.engine.strategies import strategy_of
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Block, Bucket, Objective, Plan
from osfmodel.entities.workload import Workload


class Cut(NamedTuple):
    """A cut between two collectives, at ``position`` bytes of the tape: ``before`` is the last segment that the earlier
    holds, ``after`` the first that the later holds: the same for a cut inside a segment, else the next."""

    before: int
    after: int
    position: float


class Tape(NamedTuple):
    """Runs of bytes in sending order, and the start of each on the tape (one entry more than there are segments)."""

    segments: tuple[Block, ...]
    starts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of the tape."""
        return self.starts[-1]

    def range_of(self, cut: Cut) -> tuple[int, int]:
        """The positions between which the cut may move without leaving its place."""
        return self.starts[cut.after], self.starts[cut.before + 1]


class CostPiece(NamedTuple):
    """Seconds ``latency + slope * bytes`` of a collective between ``least`` and ``most`` bytes."""

    latency: float
    slope: float
    least: float
    most: float


class Times(NamedTuple):
    """Ready time of each layer's gradient, and the rest of the iteration after it has arrived (of a split
    all-reduce: after its all-gather). ``least`` is the time of the iteration without communication."""

    ready: Mapping[str, float]
    tails: Mapping[str, float]
    least: float


def laid_out(workload: Workload, order: Sequence[int]) -> Tape:
    """The tape of whole gradients in this order, given as positions in ready order."""
    gradients = workload.gradients
    return _tape([Block(gradients.names[i], 0, gradients.sizes[i]) for i in order])


def tape_of(plan: Plan) -> tuple[Tape, list[Cut]]:
    """The tape of a plan and its cuts. Consecutive pieces of one tensor are one segment."""
    segments: list[Block] = []
    cuts: list[Cut] = []
    position = 0
    for bucket in plan.buckets:
        for number, block in enumerate(bucket.blocks):
            last = segments[-1] if segments else Block("", 0, 0)
            joined = (last.layer, last.offset + last.bytes) == (block.layer, block.offset)
            if number == 0 and segments:
                cuts.append(Cut(len(segments) - 1, len(segments) - joined, position))
            if joined:
                segments[-1] = Block(last.layer, last.offset, last.bytes + block.bytes)
            else:
                segments.append(block)
            position += block.bytes
    return _tape(segments), cuts


def plan_of(workload: Workload, tape: Tape, positions: Sequence[float]) -> Plan:
    """The plan that cuts the tape at these positions, rounded to whole elements of the tensors that they lie in."""
    gradients = workload.gradients
    units = dict(zip(gradients.names, map(element_bytes, gradients.dtypes), strict=True))
    bounds = [0, *[_rounded(tape, position, units) for position in positions], tape.total]
    buckets, segment = [], 0
    for start, end in pairwise(bounds):
        blocks, place = [], start
        while place < end:
            while tape.starts[segment + 1] <= place:
                segment += 1
            whole = tape.segments[segment]
            stop = min(end, tape.starts[segment + 1])
            blocks.append(Block(whole.layer, whole.offset + place - tape.starts[segment], stop - place))
            place = stop
        if blocks:
            buckets.append(Bucket(tuple(blocks)))
    return Plan(workload.name, tuple(buckets))


def times_of(workload: Workload, pricing: Pricing, objective: Objective) -> Times:
    """Times of the layers from the program of a step that sends nothing, under these rules and with no hooks."""
    plan = Plan(workload.name, ()).under(objective)
    strategy = strategy_of(plan)
    program = (strategy.apart or strategy.lower)(workload, plan, pricing)
    tasks = [one for one in program.operations if one.stream == COMPUTE and one.layers]
    ends = list(accumulate((task.startup for task in tasks), initial=0.0))
    total = ends.pop()
    ready: dict[str, float] = {}
    tails: dict[str, float] = {}
    for task, begin in zip(tasks, ends, strict=True):
        if task.kind == "backward":
            ready[task.layers[0]] = begin + task.startup
        elif objective.forward_overlap:
            tails.setdefault(task.layers[0], total - begin)
    if not objective.forward_overlap:
        # Each bucket is copied out once it is there, after those before it; of that, a layer's own share is counted.
        copy_out, update = pricing.effects.copy_out, workload.update_time
        tails = {
            layer.name: copy_out * layer.gradient_bytes + update for layer in workload.layers if layer.name in ready
        }
        total += copy_out * workload.gradient_bytes + update
    return Times(ready, tails, total)


def lines_of(cost: Cost, total: int) -> tuple[CostPiece, ...]:
    """The lines of a cost up to ``total`` bytes: of a minimum of lines each everywhere, of a table one per stretch."""
    if isinstance(cost, AffineCost):
        return tuple(CostPiece(latency, slope, 0, total) for latency, slope in cost.pieces)
    lines = [CostPiece(cost.times[0], 0, 0, min(cost.sizes[0], total))]
    ends = [*cost.sizes[1:], max(total, cost.sizes[-1] + 1)]
    for start, end, time in zip(cost.sizes, ends, cost.times, strict=True):
        if start < total:
            slope = (cost(end) - time) / (end - start)
            lines.append(CostPiece(time - slope * start, slope, start, min(end, total)))
    return tuple(lines)


def line_at(lines: Sequence[CostPiece], size: float, last: CostPiece | None = None) -> CostPiece:
    """The cheapest line valid at ``size``. Where two stretches of a table meet, ``last`` is skipped."""
    if len(lines) == 1:
        return lines[0]
    slack = 1e-9 * lines[-1].most
    if lines[0].most == lines[-1].most:
        return min(lines, key=lambda line: line.latency + line.slope * size)
    after = bisect_right(lines, size + slack, key=attrgetter("least"))
    valid = [line for line in lines[max(after - 2, 0) : after] if size <= line.most + slack]
    if len(valid) > 1 and last in valid:
        valid.remove(last)
    return min(valid, key=lambda line: line.latency + line.slope * size)


def _tape(segments: Sequence[Block]) -> Tape:
    return Tape(tuple(segments), tuple(accumulate((segment.bytes for segment in segments), initial=0)))


def _rounded(tape: Tape, position: float, units: Mapping[str, int]) -> int:
    """The nearest end of a whole element in the segment of the position; ``units``: bytes of an element by layer."""
    whole = min(max(round(position), 0), tape.total)
    number = bisect_right(tape.starts, whole) - 1
    if number == len(tape.segments):
        return tape.total
    segment, start = tape.segments[number], tape.starts[number]
    unit, origin = units[segment.layer], start - segment.offset  # of the tensor, were it on the tape whole
    nearest = origin + round((position - origin) / unit) * unit
    return min(max(nearest, start), tape.starts[number + 1])
