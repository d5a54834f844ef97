"""What a training step keeps in memory, when, and who owns the peak: reconstructed after LaySA (IEEE Access'21).

Only LaySA's abstract is public; what is here follows from how PyTorch, DDP and this package's executor hold memory.
Levels are of live bytes, as ``torch.cuda.max_memory_allocated`` and torch's MemTracker count them: what an allocator
holds beyond that, a device's context and the buffers of a communication library are not in them.

A workload with ``peak_bytes`` says how much activations, inputs and scratch take during each layer's backward, as
profiled without recomputation. From that follows, for a plan,

    level(t) = weights + state + gradients(t) + buckets(t) + sparse(t) + peak_bytes(t) - sum of kept_bytes(s)

over the recomputed segments s that lie before t: they are not there again before their own backward. All but weights,
state and what belongs to gradients grows in proportion to the batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from osfmodel.engine.optimizers import require_mirrorable, state_bytes, update_scratch
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.checks import require_count
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.executors import EXECUTORS, KEEPERS, RUNTIME
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

WEIGHTS, STATE, BUFFERS, GRADIENTS = "weights", "optimizer state", "buffers", "gradients"
BUCKETS, SPARSE, GATHERED, ACTIVATIONS = "buckets", "sparse state", "gathered entries", "activations and scratch"
UPDATE, COMMUNICATORS = "update scratch", "communicators"
OWNERS = (WEIGHTS, STATE, BUFFERS, ACTIVATIONS, GRADIENTS, BUCKETS, SPARSE, GATHERED, UPDATE, COMMUNICATORS)
"""Who holds memory, in the order in which it is shown."""


def caveat(communicator: int) -> str:
    """What is said of every prediction."""
    library = "" if communicator else ", the library's buffers"
    return f"live bytes; the device's context{library} and fragmentation come on top"


@dataclass(frozen=True, slots=True)
class Level:
    """From ``start`` to ``end`` (seconds after the start of the iteration) at most ``held`` bytes by owner are alive.

    during: ``forward LAYER``, ``backward LAYER``, ``hook LAYER`` (its gradient is packed or selected), ``means LAYER``
            (those of its sparse bucket are made), ``update LAYER`` (its bucket is released) or ``update``
    """

    during: str
    start: float
    end: float
    held: Mapping[str, int] = field(repr=False)

    @property
    def bytes(self) -> int:
        """In all."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Memory:
    """A step as a sequence of levels, in the order of time."""

    levels: tuple[Level, ...]

    @property
    def peak(self) -> Level:
        """The first of the highest."""
        return max(self.levels, key=lambda level: level.bytes)


def memory_of(
    workload: Workload,
    plan: Plan,
    timeline: Timeline,
    workers: int,
    keeper: str = RUNTIME.name,
    optimizer: str | None = None,
    communicator: int = 0,
) -> Memory:
    """What a step of ``workload`` keeps under ``plan``, where it happens as ``timeline`` says.

    workers:   whose entries are gathered, where the plan has sparse buckets
    keeper:    one of KEEPERS
    optimizer: one of OPTIMIZERS, in place of the one that was profiled
    communicator: bytes that the library keeps for each communicator, of which each channel of the plan is one

    Raises DataError for a workload that does not say what it keeps, UsageError for an unknown keeper or optimizer, and
    for one that cannot carry out the plan.
    """
    require_known(workload)
    require_count(workers, "the number of workers", least=1)
    if keeper not in KEEPERS:
        raise UsageError(f"unknown keeper {keeper!r}: known are {', '.join(KEEPERS)}")
    if not EXECUTORS[keeper].carries(plan):
        raise UsageError(f"{EXECUTORS[keeper].called} cannot carry out this plan: only {RUNTIME.called} can")
    require_count(communicator, "bytes of a communicator")
    require_mirrorable(plan.mirror, optimizer)
    library = communicator * plan.channels if workers > 1 else 0
    step = _Step(
        workload, plan, timeline, workers, keeper, {COMMUNICATORS: library, STATE: state_bytes(workload, optimizer)}
    )
    return Memory(tuple(sorted(step.levels(), key=lambda level: level.start)))


def require_known(workload: Workload) -> None:
    """Raise DataError unless ``workload`` says what it keeps."""
    if all(layer.peak_bytes is None for layer in workload.layers):
        raise DataError(
            f"workload {workload.name!r} does not say what its layers keep in memory (peak_bytes): make it with "
            "osf profile, which measures that"
        )


def activation_levels(workload: Workload, recompute: Sequence[str]) -> list[int]:
    """Bytes of activations, inputs and scratch during the backward of each layer, in the order of the layers.

    A layer that says nothing of its peak has that of the next one whose gradient is ready.
    """
    levels: list[int] = []
    known = 0
    for layer in workload.layers:
        known = known if layer.peak_bytes is None else layer.peak_bytes
        levels.append(known)
    for segment in workload.segments:
        if segment.name in recompute:
            after = workload.span(segment.name).stop
            levels[after:] = [max(0, level - segment.kept_bytes) for level in levels[after:]]
    return levels


class _Step:
    """One iteration: what is there throughout, and what comes and goes."""

    def __init__(
        self, workload: Workload, plan: Plan, timeline: Timeline, workers: int, keeper: str, always: dict[str, int]
    ) -> None:
        """``always``: bytes of owners that hold as much throughout, whatever the plan."""
        self.workload, self.plan, self.timeline, self.keeper = workload, plan, timeline, KEEPERS[keeper]
        self.computed = max(span.end for span in timeline.spans if span.kind == "backward")
        gradients = workload.gradients
        self.sizes = dict(zip(gradients.names, gradients.sizes, strict=True))
        sparsity = Sparsity(workload, workers=workers)
        self.lives = [_Life.of(bucket, sparsity) for bucket in plan.buckets]
        self.sparse = {name for life in self.lives if life.sparse for name in life.names}
        self.again = [workload.span(name) for name in plan.recompute]
        self._follow()
        weights = {WEIGHTS: workload.gradient_bytes, BUFFERS: workload.fixed_bytes or 0}
        self.base = weights | {owner: held for owner, held in always.items() if held or owner == STATE}
        if self.sparse:
            self.base[SPARSE] = sum(self.sizes[name] for name in self.sparse)
        if self.keeper.buckets and not plan.release:
            self.base[BUCKETS] = self._homes(workers)

    def _homes(self, workers: int) -> int:
        """Of all dense gradients: in the buffers of their messages, tensors that are cut beside them; and shards.

        A piece of a cut tensor that travels alone is sent out of the tensor's own memory.
        """
        dense = [life.bucket for life in self.lives if not life.sparse]
        cut = {block.layer for bucket in dense for block in bucket.blocks if block.bytes != self.sizes[block.layer]}
        buffers = sum(bucket.size for bucket in dense if len(bucket.blocks) > 1 or bucket.blocks[0].layer not in cut)
        shards = sum(-(-bucket.size // workers) for bucket in dense) if self.plan.split else 0
        return buffers + sum(self.sizes[name] for name in cut) + shards

    def _follow(self) -> None:
        """When each bucket's first gradient is ready, and when it is sent, has arrived and is done with."""
        ready = {span.layers[0]: span.end for span in self.timeline.spans if span.kind == "backward"}
        sent: dict[frozenset[str], deque[tuple[float, float]]] = {}
        for span in self.timeline.communication:
            sent.setdefault(frozenset(span.layers), deque()).append((span.start, span.end))
        ends = {
            kind: {name: span.end for span in self.timeline.spans if span.kind == kind for name in span.layers}
            for kind in ("spread", "update")
        }
        for life in self.lives:
            names = [block.layer for block in life.bucket.blocks]
            life.begin = min(ready[name] for name in names)
            life.sent, life.arrived = sent[frozenset(names)].popleft()
            done = ends["update" if self.plan.release else "spread"]
            life.end = done.get(names[0], max(life.arrived, self.computed))

    def levels(self) -> Iterator[Level]:
        """Forward, backward layer by layer, then the update."""
        spans = {(span.kind, span.layers[0]): span for span in self.timeline.spans if len(span.layers) == 1}
        kept = list(accumulate(self._kept()))
        for layer, held in zip(self.workload.layers, kept, strict=True):
            if ("forward", layer.name) in spans:
                span = spans["forward", layer.name]
                yield self._level(f"forward {layer.name}", span.start, span.end, held, 0)
        alive = activation_levels(self.workload, self.plan.recompute)
        done = 0
        for place in reversed(range(len(self.workload.layers))):
            layer = self.workload.layers[place]
            span = spans["backward", layer.name]
            yield self._level(f"backward {layer.name}", span.start, span.end, alive[place], done)
            if layer.gradient_bytes and (self.plan.release or layer.name in self.sparse):
                below = self._below(kept, place)
                yield self._level(f"hook {layer.name}", span.end, span.end, below + layer.gradient_bytes, done)
            done += layer.gradient_bytes
        yield from self._releases(kept) if self.plan.release else self._landings(done)
        scratch = 0 if self.plan.release else update_scratch(self.workload)
        yield self._level("update", self.computed, self.timeline.iteration_time, 0, done, scratch)

    def _releases(self, kept: Sequence[int]) -> Iterator[Level]:
        """The update of each bucket beside what backward still needs; means are made beside what has arrived."""
        made = {name: life.bucket.size for life in self.lives if life.sparse for name in life.names}
        ends = [span.end for span in self.timeline.spans if span.kind == "backward"]
        for span in self.timeline.spans:
            if span.kind == "update" and span.layers:
                left = len(kept) - bisect_right(ends, span.start)
                scratch = update_scratch(self.workload, [self.sizes[name] for name in span.layers])
                below = self._below(kept, left)
                level = self._level(f"update {span.layers[0]}", span.start, span.end, below, 0, scratch)
                means = made.get(span.layers[0], 0)
                yield replace(level, held={**level.held, GRADIENTS: means}) if means else level

    def _below(self, kept: Sequence[int], left: int) -> int:
        """Bytes of activations that the first ``left`` layers need, with those that were computed again among them."""
        begun = next((span.start for span in self.again if span.start < left < span.stop), left)
        activations = sum(layer.activation_bytes or 0 for layer in self.workload.layers[begun:left])
        return (kept[left - 1] if left else 0) + activations

    def _landings(self, done: int) -> Iterator[Level]:
        """After backward the entries of sparse buckets become gradients, one bucket after the other."""
        made, left = 0, sum(life.part + life.gathered for life in self.lives if life.sparse)
        for life in sorted((life for life in self.lives if life.sparse), key=lambda life: life.end):
            made += life.bucket.size
            level = self._level(f"means {life.bucket.blocks[0].layer}", self.computed, life.end, 0, done)
            gradients = level.held.get(GRADIENTS, 0) + made
            yield replace(level, held={**level.held, GATHERED: left, GRADIENTS: gradients})
            left -= life.part + life.gathered

    def _kept(self) -> list[int]:
        """What the forward of each layer adds: of a recomputed segment what it does not give back, at its end."""
        added = [layer.activation_bytes or 0 for layer in self.workload.layers]
        for segment in self.workload.segments:
            if segment.name in self.plan.recompute:
                span = self.workload.span(segment.name)
                left = max(0, sum(added[span]) - segment.kept_bytes)
                added[span] = [*[0] * (span.stop - span.start - 1), left]
        return added

    def _level(self, during: str, start: float, end: float, alive: int, done: int, scratch: int = 0) -> Level:
        """``done``: bytes of gradients that were ready before."""
        held = {**self.base, ACTIVATIONS: alive}
        if self.keeper.gradients:
            held[GRADIENTS] = done
        hooked = not during.startswith("backward")
        begun = [life for life in self.lives if life.begin < end or (hooked and life.begin <= end)]
        if self.plan.release:
            held[BUCKETS] = sum(life.bucket.size for life in begun if not life.sparse and life.end > start)
        # Without release what has arrived is dealt with after backward, whose last hook is before that.
        moving = [life for life in begun if life.sparse and (life.end > start or not self.plan.release)]
        if self.sparse:
            held[GATHERED] = sum(life.part + life.gathered * (life.sent <= end) for life in moving)
        if during == "update" and not self.plan.release:
            held.pop(GATHERED, None)
            held[GRADIENTS] = held.get(GRADIENTS, 0) + sum(life.bucket.size for life in self.lives if life.sparse)
        if scratch:
            held[UPDATE] = scratch
        return Level(during, start, end, {owner: held[owner] for owner in OWNERS if owner in held})


@dataclass(slots=True)
class _Life:
    """A bucket's memory: from its first gradient on, until it is done with."""

    bucket: Bucket
    names: frozenset[str]
    part: int
    gathered: int
    begin: float = 0
    sent: float = 0
    arrived: float = 0
    end: float = 0

    @staticmethod
    def of(bucket: Bucket, sparsity: Sparsity) -> _Life:
        """Before anything is known of when."""
        names = frozenset(block.layer for block in bucket.blocks)
        if bucket.density is None:
            return _Life(bucket, names, 0, 0)
        return _Life(bucket, names, sparsity.sent_bytes(bucket), sparsity.gathered_bytes(bucket))

    @property
    def sparse(self) -> bool:
        """Whether it sends a part of its elements."""
        return self.bucket.density is not None
