"""The workload and the plan in a trace of sharded training: its groups as modules, and how they are sharded.

Of the rank that sets the pace, in its usual steps, and in the last micro-batch of each. A group computes from its
all-gather until the next group is entered, without the transfers that were exposed; waits for other ranks are part of
it, as of every workload of a trace. Computation before the first block and after the last is the root's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from osfmodel.entities.cluster import BLOCKING
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError
from osfmodel.entities.modules import FULLY_SHARDED, HYBRID_SHARDED
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.timeline import Interval, common, length, without
from osfmodel.entities.trace import ROOTS, Collective, ShardedUse, Step, Trace
from osfmodel.entities.workload import Layer
from osfmodel.formats.traces.usual import usual_steps

SHAPES = "record with record_shapes=True"


@dataclass(frozen=True, slots=True)
class TracedGroup:
    """A group of sharded parameters in a step.

    parts:     (shape, elements) of each parameter, the shape () where only elements are known
    dtype:     in which gradients are reduced, and the parameters taken to be; ``gathered`` in which they are gathered
    ranks:     between which it is sharded; ``again``: between which backward gathers it, 0 if it does not
    last:      whether it is reduced when backward is over
    ahead, behind: groups gathered ahead in forward and in backward
    """

    module: str
    parts: tuple[tuple[tuple[int, ...], int], ...]
    dtype: str
    gathered: str
    ranks: int
    again: int
    last: bool
    ahead: int
    behind: int

    @property
    def names(self) -> list[str]:
        """Names of its parameters, as made up."""
        before = f"{self.module}." if self.module else ""
        return [f"{before}parameter{number}" for number in range(len(self.parts))]

    @property
    def sizes(self) -> list[int]:
        """Bytes of its parameters."""
        return [elements * element_bytes(self.dtype) for _, elements in self.parts]


def groups_of(step: Step) -> list[TracedGroup]:
    """The groups in the order in which forward enters them. Raises DataError if their sizes are not known."""
    entered = [use.module for use in step.uses if not use.backward]
    gathers = [one for one in step.sharded if one.kind == "all_gather"]
    order = list(dict.fromkeys([*entered, *(one.shard.module for one in gathers if one.shard)]))
    about = {module: [one for one in step.sharded if one.shard and one.shard.module == module] for module in order}
    order = [module for module in order if about[module]]
    return [_group(module, about[module], order, step) for module in order]


def _group(module: str, about: Sequence[Collective], order: Sequence[str], step: Step) -> TracedGroup:
    gathers = [one for one in about if one.kind == "all_gather"]
    first = next((one for one in gathers if one.shard and not one.shard.backward), None)
    again = next((one for one in gathers if one.shard and one.shard.backward), None)
    reduced = next((one for one in about if one.kind == "reduce_scatter"), None)
    gathered = first or again
    known = gathered if gathered is not None and gathered.dtype else reduced
    if known is None or not known.dtype or not known.workers or known.elements is None:
        raise DataError(f"the all-gathers of {module or 'the root'} have no sizes: {SHAPES}")
    return TracedGroup(
        module,
        tuple(_parts(gathered, reduced)),
        (reduced.dtype if reduced else None) or known.dtype,
        known.dtype,
        known.workers,
        (again.workers or 0) if again else 0,
        bool(reduced and reduced.shard and reduced.shard.last),
        _distance(step, module, order, backward=False),
        max(1, _distance(step, module, order, backward=True)),
    )


def _parts(gathered: Collective | None, reduced: Collective | None) -> Iterator[tuple[tuple[int, ...], int]]:
    """(shape, elements) of each parameter: as its gradient is copied, else as it is gathered, else of all in one."""
    shapes = reduced.shard.shapes if reduced and reduced.shard else ()
    padded = gathered.shard.padded if gathered and gathered.shard else ()
    ranks = next((one.workers for one in (gathered, reduced) if one and one.workers), 1)
    if shapes and len(shapes) >= len(padded):
        yield from ((shape, math.prod(shape)) for shape in shapes)
    elif padded:
        yield from (((), part * ranks) for part in padded)
    elif gathered and gathered.elements is not None:
        yield (), gathered.elements * ranks
    elif reduced and reduced.elements is not None:
        yield (), reduced.elements


def _distance(step: Step, module: str, order: Sequence[str], backward: bool) -> int:
    """Groups from this one to the farthest that its hooks gather, in the order of forward; 0 if they gather none."""
    place = order.index(module)
    found = [
        abs(order.index(one.shard.module) - place)
        for one in step.sharded
        if one.kind == "all_gather" and one.shard and one.shard.backward == backward and one.shard.by == module
        if one.shard.module in order and not one.shard.flat and module not in ROOTS
    ]
    return max(found, default=0)


INPUT, OUTPUT = "input", "output"
"""Names of the layers for computation before the first block and behind the last, if no parameter stands for it."""
OVERLAPS = 0.5
"""Part of the collectives' time that computation must hide for a library to run them in the background."""


def is_sharded(trace: Trace) -> bool:
    """Whether a usual step of the trace reduces sharded gradients."""
    return any(one.kind == "reduce_scatter" for one in usual_steps(trace)[0].sharded)


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of computation in one micro-batch: by module, and of the root before and behind the blocks.

    They are those of the last one, in proportion to the mean over all micro-batches.
    """

    forward: Mapping[str, float]
    backward: Mapping[str, float]
    update: float


def passes_of(step: Step) -> Passes:
    """The computation of each block, the keys INPUT and OUTPUT for the root's. Raises DataError without backward."""
    if step.backward is None:
        raise DataError("does not tell backward from the rest: record the CPU too, activities=[CPU, CUDA]")
    own = without([(step.start, step.end)], _transfers(step))

    def seconds(start: float, end: float) -> float:
        return length(common([(start, end)], own)) if end > start else 0.0

    begin = step.start if step.micro_batches == 1 or step.forward is None else step.forward[0]
    middle = step.backward[0]
    reduced = max((one.end for one in step.sharded), default=step.backward[1])
    done = max(step.backward[1], reduced)
    forward, backward = _blocks(step, begin, backward=False), _blocks(step, middle, backward=True)
    if not forward or not backward:
        return Passes({INPUT: seconds(begin, middle)}, {INPUT: seconds(middle, done)}, seconds(done, step.end))
    found: list[dict[str, float]] = []
    for uses, start, end, (ahead, behind) in (
        (forward, begin, middle, (INPUT, OUTPUT)),
        (backward, middle, done, (OUTPUT, INPUT)),
    ):
        marks = [*(use.start for use in uses), uses[-1].end]
        times = {use.module: seconds(a, b) for use, (a, b) in zip(uses, pairwise(marks), strict=True)}
        found.append({ahead: seconds(start, marks[0]), **times, behind: seconds(marks[-1], end)})
    whole = plain_sum(value for row in found for value in row.values())
    scale = seconds(step.start, done) / step.micro_batches / whole if whole else 1.0
    scaled = [{module: scale * value for module, value in row.items()} for row in found]
    return Passes(scaled[0], scaled[1], seconds(done, step.end))


def _transfers(step: Step) -> list[Interval]:
    """Exposed time in which collectives of sharded parameters moved bytes."""
    moving = [(one.moved_from, one.end) for one in step.sharded]
    return list(without(common(moving, [(step.start, step.end)]), [*step.compute, *step.copies]))


def _blocks(step: Step, begin: float, backward: bool) -> list[ShardedUse]:
    """The uses of groups that hold no other, in the order of time, from ``begin`` on."""
    mine = [use for use in step.uses if use.backward == backward and use.start >= begin]
    inner = [
        use
        for use in mine
        if not any(use.start <= other.start and other.end <= use.end for other in mine if other.module != use.module)
    ]
    return sorted(inner, key=lambda use: use.start)


def layers_of(steps: Sequence[Step]) -> tuple[list[Layer], float]:
    """The layers from input to output, and the seconds of the update of all parameters.

    A block's time is spread over its parameters by their bytes. The root's first parameter is taken to come before the
    blocks, as an embedding does, and the others behind them. A group around others takes no time of its own.
    """
    groups = groups_of(steps[0])
    known = [passes_of(step) for step in steps]
    forward, backward = (
        {module: median(row.get(module, 0.0) for row in rows) for module in rows[0]}
        for rows in ([one.forward for one in known], [one.backward for one in known])
    )
    root = next((group for group in groups if group.module in ROOTS), None)
    ends: dict[str, list[Layer]] = {INPUT: [], OUTPUT: []}
    if root is not None:
        layers = _spread(root, 0.0, 0.0)
        cut = 1 if len(layers) > 1 else 0
        ends = {INPUT: layers[:cut], OUTPUT: layers[cut:]}
    for end, mine in ends.items():
        times = forward.get(end, 0.0), backward.get(end, 0.0)
        if mine:
            ends[end] = _sharing(mine, *times)
        elif any(times):
            ends[end] = [Layer(end, *times, 0)]
    inside = [
        layer
        for group in groups
        if group is not root
        for layer in _spread(group, forward.get(group.module, 0.0), backward.get(group.module, 0.0))
    ]
    return [*ends[INPUT], *inside, *ends[OUTPUT]], groups[0].ranks * median(one.update for one in known)


def _spread(group: TracedGroup, forward: float, backward: float) -> list[Layer]:
    layers = [
        Layer(name, 0.0, 0.0, size, group.dtype, shape=shape)
        for name, size, (shape, _) in zip(group.names, group.sizes, group.parts, strict=True)
    ]
    return _sharing(layers, forward, backward)


def _sharing(layers: Sequence[Layer], forward: float, backward: float) -> list[Layer]:
    """The layers with their shares of the times, by bytes."""
    total = sum(layer.gradient_bytes for layer in layers) or 1
    shares = [layer.gradient_bytes / total for layer in layers]
    return [
        replace(layer, forward_time=share * forward, backward_time=share * backward)
        for layer, share in zip(layers, shares, strict=True)
    ]


def sharded_plan(trace: Trace, workload: str, layers: Sequence[Layer]) -> Plan:
    """The groups as a plan for the workload of that name with these layers."""
    step = usual_steps(trace)[0]
    groups = groups_of(step)
    ranks = groups[0].ranks
    between = next((one.workers for one in step.sharded if one.kind == "all_reduce" and one.workers), 1)
    own, gathered = groups[0].dtype, groups[0].gathered
    spans = [one.interval for one in step.sharded]
    hidden = length(common(spans, step.compute)) > OVERLAPS * plain_sum(end - start for start, end in spans)
    sharding = Sharding(
        tuple(_rules(group, groups, layers, step) for group in groups),
        replicas=between,
        gather_dtype=gathered if gathered != own else "",
        reduce_dtype=own if gathered != own else "",
        separate=_separate(step),
        asynchronous=trace.pace.backend in BLOCKING and hidden,
        micro_batches=step.micro_batches,
        reduce_each=_times(step, "reduce_scatter") > 1 or step.micro_batches == 1,
        replicas_each=_times(step, "all_reduce") > 1 or step.micro_batches == 1,
        keep=step.micro_batches > 1 and ranks > 1 and _times(step, "all_gather", backward=False) == 1,
    )
    buckets = tuple(
        Bucket(tuple(Block(name, 0, size) for name, size in zip(group.names, group.sizes, strict=True)))
        for group in groups
    )
    return Plan(workload, buckets, strategy=HYBRID_SHARDED if between > 1 else FULLY_SHARDED, sharding=sharding)


def _rules(group: TracedGroup, groups: Sequence[TracedGroup], layers: Sequence[Layer], step: Step) -> ParameterGroup:
    first, last = group.names[0], group.names[-1]
    inside = _inside(group, groups, step)
    if inside == groups:
        first, last = layers[0].name, layers[-1].name
    elif inside:
        last = inside[-1].names[-1]
    return ParameterGroup(
        modules=(group.module,) if group.module else (),
        reshard=bool(group.again) if group.again in (0, group.ranks) else group.again,
        first=first,
        last=last,
        reduced_last=group.last,
        forward_prefetch=group.ahead,
        backward_prefetch=group.behind,
    )


def _inside(group: TracedGroup, groups: Sequence[TracedGroup], step: Step) -> Sequence[TracedGroup]:
    """All groups if it is the root; else those whose forward lies in that of this group."""
    if group.module in ROOTS:
        return groups
    forward = {use.module: use for use in step.uses if not use.backward}
    mine = forward.get(group.module)
    if mine is None:
        return []
    return [
        other
        for other in groups
        if other is not group and (use := forward.get(other.module)) and mine.start <= use.start and use.end <= mine.end
    ]


def _separate(step: Step) -> bool:
    """Whether reduce-scatters go through another process group than all-gathers."""
    gathers, reduces = (
        {one.group for one in step.sharded if one.kind == kind} for kind in ("all_gather", "reduce_scatter")
    )
    return "" not in gathers | reduces and not gathers & reduces


def _times(step: Step, kind: str, backward: bool = True) -> int:
    """How often the step has such a collective for one group, at most."""
    found = [
        one.shard.module for one in step.sharded if one.kind == kind and one.shard and one.shard.backward == backward
    ]
    return max((found.count(module) for module in set(found)), default=0)


def doubts_of(trace: Trace) -> Iterator[str]:
    """A sentence on each thing that a trace of sharded training does not say, and what is taken instead."""
    step = usual_steps(trace)[0]
    groups = groups_of(step)
    if any(one.shard and one.shard.flat for one in step.sharded):
        yield (
            "FSDP1 notes no names: its units are named in the order of forward. They are predicted as FSDP2's, which "
            "copies parameters out and limits reduce-scatters in flight"
        )
    unshaped = [group.module or "the root" for group in groups if any(not shape for shape, _ in group.parts)]
    if unshaped and not any(one.shard and one.shard.flat for one in step.sharded):
        yield (
            f"shapes of the parameters of {len(unshaped)} of {len(groups)} groups are not recorded, so that padding "
            f"counts as parameters: {SHAPES}"
        )
    if any(group.gathered != group.dtype for group in groups):
        yield (
            f"parameters are gathered in {groups[0].gathered} and reduced in {groups[0].dtype}: their own type is not "
            f"in the trace, and taken to be {groups[0].dtype}"
        )
    reduced = {one.shard.module for one in step.sharded if one.shard and one.kind == "reduce_scatter"}
    if frozen := [group.module or "the root" for group in groups if group.module not in reduced]:
        yield f"{', '.join(frozen)}: gathered and not reduced, so that all parameters count as trained"
    shards = groups[0].ranks
    between = next((one.workers for one in step.sharded if one.kind == "all_reduce" and one.workers), 1)
    if (trace.workers or 1) != shards * between:
        told = shards * between
        yield f"parameters are sharded between {told} of {trace.workers} ranks: predict the plan for {told} workers"
    if trace.pace.backend not in BLOCKING:
        yield "how many reduce-scatter inputs may be in memory is not in the trace: one, as by default"
