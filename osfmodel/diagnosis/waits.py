"""The collectives of a step as messages: when their gradients were there, how long the wires had them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from osfmodel.diagnosis.parts import GRAIN, LocalClock
from osfmodel.trace.buckets import carried, filled, wire_times
from osfmodel.trace.record import Collective, GradientReady, Key, Step, keys_of
from osfmodel.workload import holds_gradients

COMPLETE = 0.02
"""Part of the bytes sent by which gradients seen may miss them and still be taken for all of them."""
ROUNDING = 1e-9
"""Seconds by which sums of times may be off: a message that starts when another ends is not held back."""
EVEN = 16
"""Pieces of a bucket whose gradients are not in the trace."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of a step, as one rank sent it.

    formed:   when what is in it was there (:func:`osfmodel.trace.buckets.filled`), and in all buckets before it
    ready:    when it would have been with buckets formed in the order in which gradients become ready: as many bytes of
              gradients were there as it and all before it have; ``formed`` where the trace does not say, or if sooner
    delay:    seconds from ``formed`` to its start, where no other was in flight just before it; else 0, since then it
              may have waited for the wires
    wire:     seconds for which it had the wires: its transfer, shared evenly with others in flight
    gradient: whether it carries gradients; a map of used parameters, a broadcast of buffers and the like do not
    pieces:   (when it was there, its part of the bytes) of each gradient; where the trace does not say, evenly spread
              between the bucket before and this one
    """

    key: Key
    collective: Collective
    formed: float
    ready: float
    delay: float
    wire: float
    gradient: bool
    pieces: tuple[tuple[float, float], ...]


def used_map(kind: str, dtype: str | None) -> bool:
    """Whether it is the map of used parameters that DDP sends as int32 with ``find_unused_parameters``."""
    return kind == "all_reduce" and not holds_gradients(dtype)


def sent(step: Step, host_computes: bool) -> tuple[Sent, ...]:
    """What the rank sent in this step, in the order of the starts.

    ``host_computes``: whether computation is the host's own, as with gloo and MPI.
    """
    pairs = sorted(zip(keys_of(step), step.collectives, strict=True), key=_start)
    flying = LocalClock(step.start, step.communication)
    held = _held(step)
    earliest = _earliest(step)
    before = last = step.backward[0] if step.backward else step.start
    found = []
    for (key, one), wire in zip(pairs, wire_times([one for _, one in pairs]), strict=True):
        mine = held.get(id(one), ())
        formed = filled(one, mine, host_computes)
        formed = min(max(last, formed), one.start) if mine else formed
        ready = min(earliest.get(id(one), formed), formed)
        quiet = flying.at(one.start) - flying.at(one.start - GRAIN) > ROUNDING
        gradient = id(one) in held
        delay = one.start - formed if quiet else 0.0
        pieces = _pieces(mine, before, ready) if gradient else ((formed, 1.0),)
        found.append(Sent(key, one, formed, ready, delay, wire, gradient, pieces))
        before, last = (max(before, ready), max(last, formed)) if gradient else (before, last)
    return tuple(found)


def _start(pair: tuple[Key, Collective]) -> tuple[float, int]:
    return pair[1].start, pair[1].sequence or 0


def _held(step: Step) -> dict[int, Sequence[GradientReady]]:
    """By the identity of each all-reduce of gradients, those in it; none where that does not work out."""
    reductions = step.reductions
    messages = carried(step) or [[] for _ in reductions]
    return {id(one): mine for one, mine in zip(reductions, messages, strict=True)}


def _earliest(step: Step) -> dict[int, float]:
    """When as many elements of gradients were there as each bucket and all before it have; empty where sizes differ."""
    buckets = step.reductions
    ordered = sorted(step.gradients, key=lambda one: one.ready)
    there = list(accumulate(one.elements or 0 for one in ordered))
    total = sum(one.elements or 0 for one in buckets)
    if not there or not there[-1] or abs(there[-1] - total) > COMPLETE * total:
        return {}
    wanted = accumulate(one.elements or 0 for one in buckets)
    last = len(there) - 1
    # A little less than all of it will do: sizes may be padded.
    places = [min(last, bisect_left(there, need * (1 - COMPLETE / 10))) for need in wanted]
    return {id(one): ordered[place].ready for one, place in zip(buckets, places, strict=True)}


def _pieces(mine: Sequence[GradientReady], before: float, ready: float) -> tuple[tuple[float, float], ...]:
    total = sum(one.bytes or 0 for one in mine)
    if total:
        return tuple((one.ready, (one.bytes or 0) / total) for one in mine)
    if mine:
        return tuple((one.ready, 1 / len(mine)) for one in mine)
    return tuple((before + max(0.0, ready - before) * (k + 1) / EVEN, 1 / EVEN) for k in range(EVEN))
