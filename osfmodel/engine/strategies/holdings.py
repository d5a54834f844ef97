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
from itertools import accumulate
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
Array: TypeAlias = NDArray[np.int64]


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

    of_parameters: ClassVar[tuple[str, ...]] = (WEIGHTS, STATE, GRADIENTS, BUCKETS)
    """Owners that hold as much for each parameter."""

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
        holds = sorted([*self.activations(), *self.others()], key=place_of)
        return replace(self.bare, moments=dict(self.moments()), holds=tuple(holds))

    def others(self) -> Iterator[Hold]:
        """All holds but those of activations."""
        for hold in self._others():
            of_stage = self.workload.fullest if hold.owner in self.of_parameters else 1
            yield hold if of_stage == 1 else hold._replace(bytes=round(hold.bytes * of_stage))

    def _others(self) -> Iterator[Hold]:
        yield from (Hold(owner, held) for owner, held in self.lasting().items() if held or owner in ALWAYS)
        yield from self._scratch()
        yield from self.gradients()

    def lasting(self) -> dict[str, int]:
        """Bytes that stay throughout the step, by owner."""
        return {
            WEIGHTS: self.workload.weight_bytes or self.workload.gradient_bytes,
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
            for name, size in self.sizes.items():
                yield Hold(GRADIENTS, size, (Instant(self.numbers["backward", name], ended=True),))

    def moments(self) -> Iterator[tuple[int, str]]:
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
        """The holds of :meth:`active`."""
        for number, ended, until, size in self.active().tolist():
            since = () if number < 0 else (Instant(number, bool(ended)),)
            yield Hold(ACTIVATIONS, size, since, None if until < 0 else Instant(until, ended=True))

    def active(self) -> Array:
        """Activations from forward to backward and, if profiled, the extra memory of backward itself.

        Rows of (operation with which they come, or -1 for the start; whether with its end; operation with whose end
        they go, or -1 for the end of the step; bytes). If the next forward overlaps, a program begins with the
        activations of the last one's forward.
        """
        layers, again = self.workload.layers, self._again()
        added = [layer.activation_bytes or 0 for layer in layers]
        kept, alive = self._kept(), activation_levels(self.workload, self.plan.recompute)
        there = list(accumulate(kept))
        for place, (begun, _) in again.items():
            there[place] += sum(added[begun : place + 1])
        scratch = [level - held for level, held in zip(alive, there, strict=True)]
        found = []
        for forward, backward in self._passes():
            if self.plan.forward_overlap:
                found += [_rows(-1, 0, backward, kept), _rows(forward, 0, -1, kept)]
            else:
                found.append(_rows(forward, 0, backward, kept))
            last = [backward[end] for _, end in again.values()]
            found.append(_rows(last, 1, [backward[place] for place in again], [added[place] for place in again]))
            found.append(_rows(backward, 0, backward, scratch))
        return np.concatenate(found)

    def _passes(self) -> Iterator[tuple[list[int], list[int]]]:
        """Numbers of the forward and of the backward of each layer, for each micro-batch."""
        found: dict[str, dict[str, list[int]]] = {"forward": {}, "backward": {}}
        for number, one in enumerate(self.bare.operations):
            if one.kind in found:
                found[one.kind].setdefault(one.layers[0], []).append(number)
        names = [layer.name for layer in self.workload.layers]
        by_layer = [[own[name] for name in names] for own in found.values()]
        for forward, backward in zip(*(zip(*numbers, strict=True) for numbers in by_layer), strict=True):
            yield list(forward), list(backward)

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


def place_of(hold: Hold) -> int:
    """The place of a hold's owner among all that are shown."""
    return _PLACES.get(hold.owner, len(OWNERS))


_PLACES = {owner: place for place, owner in enumerate(OWNERS)}


def _rows(*columns: Sequence[int] | int) -> Array:
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.int64)


def _sparse(bucket: Bucket) -> bool:
    """Whether the bucket sends only a fraction of its elements."""
    return bucket.density is not None
