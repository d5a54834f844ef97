"""The memory of a step, as :class:`Hold` records from one instant of its program to another.

:class:`Holdings` is for strategies that replicate weights; one that keeps other things overrides what differs there.

A workload with ``peak_bytes`` says how much activations, inputs and scratch take during each layer's backward, as
profiled without recomputation. From that follows, for a plan,

    level(t) = weights + state + gradients(t) + buckets(t) + sparse(t) + peak_bytes(t) - sum of kept_bytes(s)

over the recomputed segments s that lie before t: they are not there again before their own backward. All but weights,
state and what belongs to gradients grows in proportion to the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, product

from osfmodel.engine.optimizers import state_bytes, update_scratch
from osfmodel.engine.program import CHANNEL, COMPUTE, RELEASE, Hold, Instant, Program
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.executors import Storage
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.workload import Workload

WEIGHTS, STATE, BUFFERS, GRADIENTS = "weights", "optimizer state", "buffers", "gradients"
BUCKETS, SPARSE, GATHERED, ACTIVATIONS = "buckets", "sparse state", "gathered entries", "activations and scratch"
UPDATE, COMMUNICATORS = "update scratch", "communicators"
OWNERS = (WEIGHTS, STATE, BUFFERS, ACTIVATIONS, GRADIENTS, BUCKETS, SPARSE, GATHERED, UPDATE, COMMUNICATORS)
"""Owners of memory, in the order in which they are shown."""
ALWAYS = (WEIGHTS, STATE, BUFFERS)
"""Owners that are shown even if they hold nothing."""


def activation_levels(workload: Workload, recompute: Sequence[str]) -> list[int]:
    """Bytes of activations, inputs and scratch during the backward of each layer, in the order of the layers.

    A layer without a peak of its own has that of the next one whose gradient is ready.
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


class Holdings:
    """The memory of a program in which each worker has all weights: owner, bytes, start and end of each hold.

    storage:      how the executor stores gradients
    optimizer:    one of OPTIMIZERS, instead of the profiled one
    communicator: bytes that the library keeps for each channel of the plan
    """

    def __init__(
        self,
        program: Program,
        workload: Workload,
        plan: Plan,
        workers: int,
        storage: Storage,
        optimizer: str | None = None,
        communicator: int = 0,
    ) -> None:
        self.bare, self.workload, self.plan, self.workers = program, workload, plan, workers
        self.storage, self.optimizer, self.communicator = storage, optimizer, communicator
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

    def program(self) -> Program:
        """The program with its moments and all of its holds."""
        fixed = [Hold(owner, held) for owner, held in self.lasting().items() if held or owner in ALWAYS]
        holds = [*fixed, *self.activations(), *self._scratch(), *self.gradients()]
        order = {owner: place for place, owner in enumerate(OWNERS)}
        holds.sort(key=lambda hold: order.get(hold.owner, len(OWNERS)))
        return replace(self.bare, moments=dict(self._moments()), holds=tuple(holds))

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        return {
            WEIGHTS: self.workload.gradient_bytes,
            STATE: state_bytes(self.workload, self.optimizer),
            BUFFERS: self.workload.fixed_bytes or 0,
            COMMUNICATORS: self.communicator * self.plan.channels if self.workers > 1 else 0,
            SPARSE: sum(self.sizes[name] for name in self.sparse),
            BUCKETS: self.gradient_buffers() if self.storage.buckets and not self.plan.release else 0,
        }

    def gradients(self) -> Iterator[Hold]:
        """Gradients and buckets that come and go in the step."""
        yield from self._buckets()
        if self.storage.gradients:
            yield from (Hold(GRADIENTS, self.sizes[name], (self._end("backward", name),)) for name in self.sizes)

    def _end(self, kind: str, layer: str) -> Instant:
        return Instant(self.numbers[kind, layer], ended=True)

    def _moments(self) -> Iterator[tuple[int, str]]:
        """Moments: forward, backward, hooks, means of sparse buckets or updates of released gradients, and the end."""
        names = {"forward": "forward", "backward": "backward", "hook": "hook"}
        names |= {"update": "update"} if self.plan.release else {"spread": "means"}
        for number, one in enumerate(self.bare.operations):
            if one.kind == "update" and not one.layers:
                yield number, "update"
            elif one.kind in names:
                yield number, f"{names[one.kind]} {one.layers[0]}"

    def gradient_buffers(self) -> int:
        """Bytes of the memory from which dense gradients are sent: buffers of their buckets, and cut tensors.

        A piece of a cut tensor that travels alone is sent out of the tensor's own memory.
        """
        dense = self.dense()
        cut = {block.layer for bucket in dense for block in bucket.blocks if block.bytes != self.sizes[block.layer]}
        buffers = sum(bucket.size for bucket in dense if len(bucket.blocks) > 1 or bucket.blocks[0].layer not in cut)
        return buffers + sum(self.sizes[name] for name in cut)

    def dense(self) -> list[Bucket]:
        """The buckets that send all of their elements."""
        return [bucket for bucket in self.plan.buckets if not _sparse(bucket)]

    def activations(self) -> Iterator[Hold]:
        """Activations from forward to backward and, if profiled, the extra memory of backward itself.

        If the next forward overlaps, a program begins with the activations of the last one's forward.
        """
        layers, again = self.workload.layers, self._again()
        kept, alive = self._kept(), activation_levels(self.workload, self.plan.recompute)
        so_far = list(accumulate(kept))
        for numbers, (place, layer) in product(self._passes(), enumerate(layers)):
            forward, backward = numbers["forward", layer.name], numbers["backward", layer.name]
            done, begins = Instant(backward, ended=True), Instant(forward, ended=False)
            if self.plan.forward_overlap:
                yield Hold(ACTIVATIONS, kept[place], (), done)
                yield Hold(ACTIVATIONS, kept[place], (begins,))
            else:
                yield Hold(ACTIVATIONS, kept[place], (begins,), done)
            there = so_far[place]
            if place in again:
                begun, last = again[place]
                there += sum(layer.activation_bytes or 0 for layer in layers[begun : place + 1])
                since = Instant(numbers["backward", layers[last].name], ended=True)
                yield Hold(ACTIVATIONS, layer.activation_bytes or 0, (since,), done)
            yield Hold(ACTIVATIONS, alive[place] - there, (Instant(backward, ended=False),), done)

    def _passes(self) -> list[dict[tuple[str, str], int]]:
        """Numbers of forward and backward by kind and layer, for each micro-batch."""
        found: dict[tuple[str, str], list[int]] = {}
        for number, one in enumerate(self.bare.operations):
            if one.kind in ("forward", "backward"):
                found.setdefault((one.kind, one.layers[0]), []).append(number)
        return [dict(zip(found, numbers, strict=True)) for numbers in zip(*found.values(), strict=True)]

    def _again(self) -> dict[int, tuple[int, int]]:
        """First and last layer of the recomputed segment, by the index of each of its layers but the last."""
        spans = [self.workload.span(name) for name in self.plan.recompute]
        return {
            place: (span.start, span.stop - 1) for span in spans for place in range(span.start, span.stop - 1)
        }  # fmt: skip

    def _kept(self) -> list[int]:
        """Bytes that the forward of each layer adds; for a recomputed segment those that stay, at its end."""
        added = [layer.activation_bytes or 0 for layer in self.workload.layers]
        for segment in self.workload.segments:
            if segment.name in self.plan.recompute:
                span = self.workload.span(segment.name)
                left = max(0, sum(added[span]) - segment.kept_bytes)
                added[span] = [*[0] * (span.stop - span.start - 1), left]
        return added

    def _scratch(self) -> Iterator[Hold]:
        """Scratch memory of hooks and updates while they run."""
        for number, one in enumerate(self.bare.operations):
            if one.kind not in ("hook", "update"):
                continue
            begin, end = Instant(number, ended=False), Instant(number, ended=True)
            if one.kind == "hook":
                yield Hold(ACTIVATIONS, self.sizes[one.layers[0]], (begin,), end)
            elif one.kind == "update" and one.stream == RELEASE:
                sizes = [self.sizes[name] for name in one.layers]
                yield Hold(UPDATE, update_scratch(self.workload, sizes), (begin,), end)
            elif one.kind == "update" and not one.layers and not self.plan.release:
                yield Hold(UPDATE, update_scratch(self.workload), (begin,), end)

    def _buckets(self) -> Iterator[Hold]:
        """Released buckets from their first gradient on; sparse buckets' entries, sent and received, and their means.

        With a barrier all sparse buckets have been submitted when backward ends, and so have memory to arrive in.
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
    """Whether the bucket sends only a fraction of its elements."""
    return bucket.density is not None
