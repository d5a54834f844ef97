"""The buckets in a trace: the gradients of each all-reduce, and how long each all-reduce had the network."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from osfmodel.entities.intervals import common, length, without
from osfmodel.entities.trace import Collective, GradientReady, Step


def carried(step: Step) -> list[list[GradientReady]] | None:
    """The gradients of each of the step's all-reduces, as the host submitted them; None if they do not match.

    An all-reduce carries what was accumulated when it was submitted and no other carries; where sizes are known, they
    must add up, which decides where some of that waited for a later bucket. Gradients may be of no message.
    """
    sizes = [one.elements for one in step.reductions]
    if not sizes or not step.gradients:
        return None
    if any(size is None for size in sizes) or any(gradient.elements is None for gradient in step.gradients):
        return [[one] for one in step.gradients] if len(sizes) == len(step.gradients) else _by_time(step)
    return _by_time(step) or _by_size(step)


def _by_time(step: Step) -> list[list[GradientReady]] | None:
    """The gradients that the host had accumulated before each all-reduce and that fill it, or all without sizes."""
    left = list(step.gradients)
    found: list[list[GradientReady]] = []
    for one in step.reductions:
        there = [gradient for gradient in left if (gradient.accumulated or 0) <= (one.issued or 0)]
        mine = _filling(there, one.elements)
        if not mine:
            return None
        taken = {id(gradient) for gradient in mine}
        left = [gradient for gradient in left if id(gradient) not in taken]
        found.append(mine)
    return found


def _filling(there: Sequence[GradientReady], size: int | None) -> list[GradientReady]:
    """All, the last or the first gradients, whichever add up to ``size``; none if none do."""
    if size is None or any(gradient.elements is None for gradient in there):
        return list(there)
    before = list(accumulate((gradient.elements or 0 for gradient in there), initial=0))
    for count in range(len(there), 0, -1):
        if before[-1] - before[-1 - count] == size:
            return list(there[-count:])
        if before[count] == size:
            return list(there[:count])
    return []


def _by_size(step: Step) -> list[list[GradientReady]] | None:
    """Gradients of each all-reduce, taken in order until its size is reached; None if they run out."""
    found, place = [], 0
    for one in step.reductions:
        mine: list[GradientReady] = []
        size = one.elements or 0
        while size > 0 and place < len(step.gradients):
            mine.append(step.gradients[place])
            size -= step.gradients[place].elements or 0
            place += 1
        if size:
            return None
        found.append(mine)
    return found


def filled(one: Collective, gradients: Sequence[GradientReady], host_computes: bool) -> float:
    """Time at which its last gradient was ready.

    If the trace does not tell its gradients: when it was submitted, if the host computes, as DDP does that with the
    last of them; else its start.
    """
    submitted = one.start if one.issued is None or not host_computes else one.issued
    there = max((gradient.ready for gradient in gradients), default=submitted)
    return min(there, one.start)


def exposed_others(step: Step) -> float:
    """Exposed seconds of collectives other than gradient all-reduces and those of sharded parameters."""
    known = {id(one) for one in (*step.reductions, *step.sharded)}
    others = [one.interval for one in step.collectives if id(one) not in known]
    return length(without(common(others, [(step.start, step.end)]), step.compute))


def wire_times(collectives: Sequence[Collective]) -> list[float]:
    """Network time of each collective in seconds: while all ranks were in it, shared with others at that time.

    Process groups share the network evenly, and so do the collectives of each.
    """
    spans = [(one.moved_from, one.end) for one in collectives]
    edges = sorted({edge for span in spans for edge in span})
    if not edges:
        return []
    starts = [bisect_left(edges, start) for start, _ in spans]
    ends = [bisect_left(edges, end) for _, end in spans]
    changes: dict[str, list[int]] = {}
    for one, start, end in zip(collectives, starts, ends, strict=True):
        change = changes.setdefault(one.group, [0] * len(edges))
        change[start] += 1
        change[end] -= 1
    flying = {group: list(accumulate(change)) for group, change in changes.items()}
    groups = [max(1, sum(map(bool, row))) for row in zip(*flying.values(), strict=True)]
    until = {}
    for group, counts in flying.items():
        parts = zip(edges, edges[1:], counts, groups, strict=False)
        until[group] = [0.0, *accumulate((late - early) / (max(1, n) * among) for early, late, n, among in parts)]
    return [
        until[one.group][end] - until[one.group][start]
        for one, start, end in zip(collectives, starts, ends, strict=True)
    ]
