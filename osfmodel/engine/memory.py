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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.engine.levels import Level, Memory, curve, times_of
from osfmodel.engine.optimizers import require_mirrorable, state_bytes, update_scratch
from osfmodel.engine.program import CHANNEL, COMPUTE, RELEASE, Hold, Instant, Program
from osfmodel.engine.sparse import Sparsity
from osfmodel.engine.strategies import lower
from osfmodel.entities.checks import require_count
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.executors import EXECUTORS, KEEPERS, RUNTIME, Storage
from osfmodel.entities.lookup import require
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

__all__ = ["Level", "Memory", "memory_of"]

WEIGHTS, STATE, BUFFERS, GRADIENTS = "weights", "optimizer state", "buffers", "gradients"
BUCKETS, SPARSE, GATHERED, ACTIVATIONS = "buckets", "sparse state", "gathered entries", "activations and scratch"
UPDATE, COMMUNICATORS = "update scratch", "communicators"
OWNERS = (WEIGHTS, STATE, BUFFERS, ACTIVATIONS, GRADIENTS, BUCKETS, SPARSE, GATHERED, UPDATE, COMMUNICATORS)
"""Who holds memory, in the order in which it is shown."""
ALWAYS = (WEIGHTS, STATE, BUFFERS)
"""Owners that are shown where they hold nothing, too."""


def caveat(communicator: int) -> str:
    """What is said of every prediction."""
    library = "" if communicator else ", the library's buffers"
    return f"live bytes; the device's context{library} and fragmentation come on top"


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
    storage = require(keeper, KEEPERS, "keeper")
    if not EXECUTORS[keeper].carries(plan.plain):
        raise UsageError(f"{EXECUTORS[keeper].called} cannot carry out this plan: only {RUNTIME.called} can")
    require_count(communicator, "bytes of a communicator")
    require_mirrorable(plan.mirror, optimizer)
    bare = lower(workload, plan, Pricing.of(FREE, workers=workers))
    program = holding(bare, workload, plan, workers, storage, optimizer, communicator)
    starts, ends = times_of(program, timeline)
    return curve(program, starts, ends, timeline.iteration_time)


def holding(
    program: Program,
    workload: Workload,
    plan: Plan,
    workers: int,
    keeper: Storage,
    optimizer: str | None = None,
    communicator: int = 0,
) -> Program:
    """``program``, which ``plan`` was lowered to, with what it keeps in memory; the rest as for :func:`memory_of`."""
    always = {
        WEIGHTS: workload.gradient_bytes,
        STATE: state_bytes(workload, optimizer),
        BUFFERS: workload.fixed_bytes or 0,
        COMMUNICATORS: communicator * plan.channels if workers > 1 else 0,
    }
    return _Holdings(program, workload, plan, workers).program(keeper, always)


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


class _Holdings:
    """What a program of one or two collectives a bucket keeps in memory: who, how much, and from when to when."""

    def __init__(self, program: Program, workload: Workload, plan: Plan, workers: int) -> None:
        self.bare, self.workload, self.plan, self.workers = program, workload, plan, workers
        self.sizes = dict(zip(workload.gradients.names, workload.gradients.sizes, strict=True))
        self.sparsity = Sparsity(workload, workers=workers)
        self.places = {layer.name: place for place, layer in enumerate(workload.layers)}
        self.numbers: dict[tuple[str, str], int] = {}
        self.dealt: dict[tuple[str, int], int] = {}
        for number, one in enumerate(program.operations):
            if one.stream == COMPUTE and len(one.layers) == 1 and one.bucket < 0:
                self.numbers[one.kind, one.layers[0]] = number
            elif one.bucket >= 0:
                self.dealt.setdefault((one.stream if one.stream == CHANNEL else one.kind, one.bucket), number)
        self.sparse = {block.layer for bucket in plan.buckets if _sparse(bucket) for block in bucket.blocks}

    def program(self, keeper: Storage, always: Mapping[str, int]) -> Program:
        """The program with its moments and all that it holds."""
        always = {**always, SPARSE: sum(self.sizes[name] for name in self.sparse)}
        if keeper.buckets and not self.plan.release:
            always[BUCKETS] = self._homes()
        fixed = [Hold(owner, held) for owner, held in always.items() if held or owner in ALWAYS]
        holds = [*fixed, *self._activations(), *self._scratch(), *self._buckets()]
        if keeper.gradients:
            holds += [Hold(GRADIENTS, self.sizes[name], (self._end("backward", name),)) for name in self.sizes]
        order = {owner: place for place, owner in enumerate(OWNERS)}
        holds.sort(key=lambda hold: order[hold.owner])
        return replace(self.bare, moments=dict(self._moments()), holds=tuple(holds))

    def _end(self, kind: str, layer: str) -> Instant:
        return Instant(self.numbers[kind, layer], ended=True)

    def _moments(self) -> Iterator[tuple[int, str]]:
        """Forward, backward, hooks, means of sparse buckets, or updates where gradients are released, and the end."""
        names = {"forward": "forward", "backward": "backward", "hook": "hook"}
        names |= {"update": "update"} if self.plan.release else {"spread": "means"}
        for number, one in enumerate(self.bare.operations):
            if one.kind == "update" and not one.layers:
                yield number, "update"
            elif one.kind in names:
                yield number, f"{names[one.kind]} {one.layers[0]}"

    def _homes(self) -> int:
        """Of all dense gradients: in the buffers of their messages, tensors that are cut beside them; and shards.

        A piece of a cut tensor that travels alone is sent out of the tensor's own memory.
        """
        dense = [bucket for bucket in self.plan.buckets if not _sparse(bucket)]
        cut = {block.layer for bucket in dense for block in bucket.blocks if block.bytes != self.sizes[block.layer]}
        buffers = sum(bucket.size for bucket in dense if len(bucket.blocks) > 1 or bucket.blocks[0].layer not in cut)
        shards = sum(-(-bucket.size // self.workers) for bucket in dense) if self.plan.split else 0
        return buffers + sum(self.sizes[name] for name in cut) + shards

    def _activations(self) -> Iterator[Hold]:
        """From forward to backward; where that is profiled, with what backward itself takes beyond.

        Where the next forward overlaps, a program begins with what the last one's forward has left.
        """
        layers, again = self.workload.layers, self._again()
        kept, alive = self._kept(), activation_levels(self.workload, self.plan.recompute)
        for place, layer in enumerate(layers):
            forward, backward = self.numbers["forward", layer.name], self.numbers["backward", layer.name]
            done, begins = Instant(backward, ended=True), Instant(forward, ended=False)
            if self.plan.forward_overlap:
                yield Hold(ACTIVATIONS, kept[place], (), done)
                yield Hold(ACTIVATIONS, kept[place], (begins,))
            else:
                yield Hold(ACTIVATIONS, kept[place], (begins,), done)
            there = sum(kept[: place + 1])
            if place in again:
                begun, last = again[place]
                there += sum(layer.activation_bytes or 0 for layer in layers[begun : place + 1])
                since = Instant(self.numbers["backward", layers[last].name], ended=True)
                yield Hold(ACTIVATIONS, layer.activation_bytes or 0, (since,), done)
            yield Hold(ACTIVATIONS, alive[place] - there, (Instant(backward, ended=False),), done)

    def _again(self) -> dict[int, tuple[int, int]]:
        """By place of a layer that is computed again and not the last of its segment: the first and last there."""
        spans = [self.workload.span(name) for name in self.plan.recompute]
        return {
            place: (span.start, span.stop - 1) for span in spans for place in range(span.start, span.stop - 1)
        }  # fmt: skip

    def _kept(self) -> list[int]:
        """What the forward of each layer adds: of a recomputed segment what it does not give back, at its end."""
        added = [layer.activation_bytes or 0 for layer in self.workload.layers]
        for segment in self.workload.segments:
            if segment.name in self.plan.recompute:
                span = self.workload.span(segment.name)
                left = max(0, sum(added[span]) - segment.kept_bytes)
                added[span] = [*[0] * (span.stop - span.start - 1), left]
        return added

    def _scratch(self) -> Iterator[Hold]:
        """What hooks and updates take while they last."""
        for number, one in enumerate(self.bare.operations):
            begin, end = Instant(number, ended=False), Instant(number, ended=True)
            if one.kind == "hook":
                yield Hold(ACTIVATIONS, self.sizes[one.layers[0]], (begin,), end)
            elif one.kind == "update" and one.stream == RELEASE:
                sizes = [self.sizes[name] for name in one.layers]
                yield Hold(UPDATE, update_scratch(self.workload, sizes), (begin,), end)
            elif one.kind == "update" and not one.layers and not self.plan.release:
                yield Hold(UPDATE, update_scratch(self.workload), (begin,), end)

    def _buckets(self) -> Iterator[Hold]:
        """Of released buckets, from their first gradient on; of sparse ones what is sent, what arrives, the means.

        With the barrier all that is sparse has been submitted when backward ends, and so has memory to arrive in.
        """
        backward = [number for number, one in enumerate(self.bare.operations) if one.kind == "backward"]
        latest = None if self.plan.release else Instant(backward[-1], ended=True)
        for number, bucket in enumerate(self.plan.buckets):
            ready = [self.numbers["backward", block.layer] for block in bucket.blocks]
            since, sent = Instant(min(ready), ended=True), Instant(self.dealt[CHANNEL, number], ended=False)
            dealt = self.dealt.get(("update" if self.plan.release else "spread", number), -1)
            until = Instant(dealt, ended=True)
            if _sparse(bucket):
                yield Hold(GATHERED, self.sparsity.sent_bytes(bucket), (since,), until)
                yield Hold(GATHERED, self.sparsity.gathered_bytes(bucket), (since, sent), until, latest)
                made = Instant(self.dealt["spread", number], ended=False)
                yield Hold(GRADIENTS, bucket.size, (made,), until if self.plan.release else None)
            elif self.plan.release:
                yield Hold(BUCKETS, bucket.size, (since,), until)


def _sparse(bucket: Bucket) -> bool:
    """Whether it sends a part of its elements only."""
    return bucket.density is not None
