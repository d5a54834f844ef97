"""Scheduling jobs for a channel: the ready time of each gradient, and the computation after its arrival.

A gradient of the next iteration's forward overlap is a job with a *tail*: the update and forward of its layer and of
all layers towards the output. Both ready times and tails grow in ready order, so of a bucket only two numbers count:

    last_gradient: the last of its gradients in ready order, which says when it may start (r) and what follows it (q)
    bytes:         how long it takes

t_iter = max(compute time, max over buckets of (its end + q of its last gradient)), planning.md. With a barrier all
tails are the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Block, Bucket, Objective, Plan
from osfmodel.entities.workload import Workload


class Chunk(NamedTuple):
    """A bucket as a solver sees it: the position of its last gradient in ready order, its bytes, and its dtype.

    ``dtype`` is "" if any will do.
    """

    last_gradient: int
    bytes: int
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Parallel sequences in ready order. ``ready`` counts from the start of the timeline (the start of forward, or
    of backward with forward overlap), ``least`` is the time of computation alone. All times in seconds."""

    sizes: Sequence[int]
    ready: Sequence[float]
    tails: Sequence[float]
    dtypes: Sequence[str]
    least: float

    @property
    def grain(self) -> int:
        """Unit of message sizes in bytes: whole elements of every type, if the gradients consist of those."""
        return gcd(lcm(*map(element_bytes, self.dtypes)), *self.sizes)

    @staticmethod
    def of(workload: Workload, objective: Objective) -> Jobs:
        """The jobs for the gradients of ``workload`` under these rules."""
        gradients = workload.gradients
        start = workload.forward_time if objective.forward_overlap else 0
        tails = tails_of(workload) if objective.forward_overlap else [workload.update_time] * len(gradients)
        ready = [time - start for time in gradients.ready_times]
        return Jobs(gradients.sizes, ready, tails, gradients.dtypes, workload.compute_time)


def tails_of(workload: Workload) -> list[float]:
    """Seconds of forward and update of each gradient's layer and all that follow it, in ready order."""
    total = workload.gradient_bytes
    per_byte = workload.update_time / total if total else 0
    tail: float = 0
    tails = []
    for layer in reversed(workload.layers):
        tail += layer.forward_time + per_byte * layer.gradient_bytes
        if layer.gradient_bytes:
            tails.append(tail)
    return tails


def plan_of(workload: Workload, chunks: Sequence[Chunk], objective: Objective) -> Plan | None:
    """A plan whose buckets start no later and end no later than ``chunks`` sent in this order; None if none can be.

    From the last gradient to the first, each goes whole into the bucket, of its position or later, that it fills best,
    and is cut only where none can take it. Room left in a later bucket serves all earlier gradients, so which bucket
    is filled first does not matter. A bucket of several dtypes becomes one of each. Empty room is left out.
    """
    gradients, elements = workload.gradients, workload.gradients.elements
    room = [chunk.bytes for chunk in chunks]
    parts: list[list[tuple[int, int, int]]] = [[] for _ in chunks]
    lost = 0
    for item in reversed(range(len(gradients))):
        size, offset = gradients.sizes[item], 0
        able = [
            number
            for number, chunk in enumerate(chunks)
            if chunk.last_gradient >= item and room[number] and chunk.dtype in ("", gradients.dtypes[item])
        ]
        able.sort(key=lambda number: (room[number] < size, room[number] if room[number] >= size else -room[number]))
        for number in able:
            taken = min(room[number], size - offset)
            if taken < size - offset:
                lost += taken % elements[gradients.dtypes[item]]
                taken -= taken % elements[gradients.dtypes[item]]
            if taken:
                parts[number].append((item, offset, taken))
                room[number] -= taken
                offset += taken
        if offset < size:
            # What rounding cuts to whole elements has lost goes where the most room was.
            if not able or size - offset > lost:
                return None
            lost -= size - offset
            _append(parts[able[0]], item, offset, size - offset)
    return blocks_plan(workload, parts).under(objective)


def _append(parts: list[tuple[int, int, int]], item: int, offset: int, size: int) -> None:
    if parts and parts[-1][0] == item and parts[-1][1] + parts[-1][2] == offset:
        parts[-1] = (item, parts[-1][1], parts[-1][2] + size)
    else:
        parts.append((item, offset, size))


def chunks_in(workload: Workload, plan: Plan) -> list[Chunk]:
    """The buckets of ``plan`` as chunks."""
    gradients = workload.gradients
    place = {name: item for item, name in enumerate(gradients.names)}
    last = [max(place[block.layer] for block in bucket.blocks) for bucket in plan.buckets]
    return [Chunk(item, bucket.size, gradients.dtypes[item]) for item, bucket in zip(last, plan.buckets, strict=True)]


def blocks_plan(workload: Workload, parts: Sequence[Sequence[tuple[int, int, int]]]) -> Plan:
    """The plan of buckets of (position in ready order, offset, bytes), empty ones left out, dtypes kept apart."""
    gradients = workload.gradients
    buckets = []
    for part in parts:
        for dtype in dict.fromkeys(gradients.dtypes[item] for item, _, _ in part):
            chosen = sorted(block for block in part if gradients.dtypes[block[0]] == dtype)
            buckets.append(Bucket(tuple(Block(gradients.names[item], start, size) for item, start, size in chosen)))
    return Plan(workload.name, tuple(buckets))
