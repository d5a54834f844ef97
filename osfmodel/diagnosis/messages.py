"""The collectives of a step as messages: when their gradients were there, how long the wires had them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from osfmodel.diagnosis.parts import GRAIN, LocalClock, moved_from
from osfmodel.trace import Collective, GradientReady, Step
from osfmodel.workload import element_bytes

BITMAPS = ("int", "int32", "long", "int64", "uint8", "bool")
"""Types of what is no gradient: DDP sends a map of the parameters that a rank has used as int32."""
GRADIENT_KINDS = ("all_reduce", "reduce_scatter")
COMPLETE = 0.02
"""Part of the bytes sent by which gradients seen may miss them and still be taken for all of them."""
EVEN = 16
"""Pieces of a bucket whose gradients are not in the trace."""

Key = tuple[str, int]
"""A process group and the place of a collective in it: the same on all ranks."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of a step, as one rank sent it.

    ready:   when this rank could have sent it first, with buckets formed in the order in which gradients become ready:
             as many bytes of gradients were there as it and all before it have. When it was submitted, where the
             gradients of the trace do not say
    formed:  when the gradients that are really in it were there, as far as the trace says: ``ready`` or later
    delay:   seconds from ``formed`` to its start, where no other was in flight just before it; else 0, since then it
             may have waited for the wires
    wire:    seconds for which it had the wires: its transfer, shared evenly with others in flight
    gradient: whether it carries gradients; a map of used parameters, a broadcast of buffers and the like do not
    """

    key: Key
    collective: Collective
    ready: float
    formed: float
    delay: float
    wire: float
    gradient: bool


def keyed(step: Step) -> list[tuple[Key, Collective]]:
    """The collectives in the order in which they started, each with what it is called on every rank."""
    seen: dict[str, int] = {}
    found = []
    for one in sorted(step.collectives, key=lambda one: (one.start, one.sequence or 0)):
        number = seen[one.group] = seen.get(one.group, -1) + 1
        found.append(((one.group, number if one.sequence is None else one.sequence), one))
    return found


def carries_gradients(one: Collective) -> bool:
    """Whether it may: it adds up, and not whole numbers."""
    return one.kind in GRADIENT_KINDS and one.dtype not in BITMAPS


def used_map(one: Collective) -> bool:
    """Whether it is the map of used parameters that DDP sends with ``find_unused_parameters``."""
    return one.kind == "all_reduce" and one.dtype in BITMAPS


def sent(step: Step, host_computes: bool) -> tuple[Sent, ...]:
    """What the rank sent in this step, in the order of the starts.

    ``host_computes``: whether computation is the host's own (gloo, MPI). Then a bucket is formed when it is submitted,
    as DDP does that with the last gradient of the bucket; else, between submission and start, the device still waited
    for its gradients, where the wires were free.
    """
    pairs = keyed(step)
    wires = wire_times([one for _, one in pairs])
    earliest = _earliest([one for _, one in pairs if carries_gradients(one)], step.gradients)
    flying = LocalClock(step.start, step.communication)
    found = []
    for (key, one), wire in zip(pairs, wires, strict=True):
        submitted = one.start if one.issued is None else min(one.issued, one.start)
        ready = min(earliest.pop(0), one.start) if earliest and carries_gradients(one) else submitted
        formed = max(ready, submitted) if host_computes else (one.start if submitted <= ready else ready)
        quiet = flying.at(one.start) - flying.at(one.start - GRAIN) > 0.0
        delay = one.start - formed if quiet else 0.0
        found.append(Sent(key, one, ready, formed, delay, wire, carries_gradients(one)))
    return tuple(found)


def wire_times(collectives: Sequence[Collective]) -> list[float]:
    """Seconds for which each had the wires: those in which all ranks were in it, by how many were so at once."""
    spans = [(moved_from(one), one.end) for one in collectives]
    edges = sorted({edge for span in spans for edge in span})
    if not edges:
        return []
    flying = [0] * (len(edges) + 1)
    for start, end in spans:
        flying[bisect_left(edges, start)] += 1
        flying[bisect_left(edges, end)] -= 1
    counts = list(accumulate(flying))
    shares = [(late - early) / max(1, n) for early, late, n in zip(edges, edges[1:], counts, strict=False)]
    until = [0.0, *accumulate(shares)]
    return [until[bisect_left(edges, end)] - until[bisect_left(edges, start)] for start, end in spans]


def gradient_bytes(one: GradientReady) -> int:
    """Of a gradient; 0 where the trace does not say its size."""
    return (one.elements or 0) * element_bytes(one.dtype or "float32")


def _earliest(buckets: Sequence[Collective], gradients: Sequence[GradientReady]) -> list[float]:
    """When as many bytes of gradients were there as each bucket and all before it have; empty where sizes differ."""
    ordered = sorted(gradients, key=lambda one: one.ready)
    there = list(accumulate(gradient_bytes(one) for one in ordered))
    total = sum(one.bytes or 0 for one in buckets)
    if not there or not there[-1] or abs(there[-1] - total) > COMPLETE * total:
        return []
    wanted = accumulate(one.bytes or 0 for one in buckets)
    last = len(there) - 1
    # A little less than all of it will do: sizes may be padded.
    return [ordered[min(last, bisect_left(there, need * (1 - COMPLETE / 10)))].ready for need in wanted]


def pieces(one: Sent, before: float, step: Step) -> list[tuple[float, float]]:
    """(when it was there, part of the bytes) of the gradients of a bucket, were each sent by itself.

    Those that became ready after the bucket before it; where the trace does not tell, evenly in that time.
    """
    inside = [g for g in step.gradients if before < g.ready <= one.ready and gradient_bytes(g)]
    total = sum(map(gradient_bytes, inside))
    if total:
        return [(g.ready, gradient_bytes(g) / total) for g in sorted(inside, key=lambda g: g.ready)]
    return [(before + (one.ready - before) * (k + 1) / EVEN, 1 / EVEN) for k in range(EVEN)]
