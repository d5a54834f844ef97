"""Buckets that close at a cap or before it, and searches for the best cap, or the best first cap and cap.

PyTorch DDP forms its buckets so. The layout changes only where the cap passes the size of a run of consecutive
tensors, so trying those sizes, at most L(L+1)/2, is exhaustive. With one dtype only the end of communication is
computed for each, for all caps at once; with several dtypes, each walked by itself, caps are tried one by one.

Caps are bytes, but for frameworks that count elements: their functions say so in their names. Code that adds sizes
up and compares them (``Closing``, :func:`cap_forming`, :func:`candidate_caps`) takes and gives caps in the unit of the
sizes of its gradients: bytes, or elements where they come from :func:`in_elements`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import NamedTuple

import numpy as np

from osfmodel.cost.shapes import Array, Cost
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.rounding import TIE, least, within
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Gradients, Workload
from osfmodel.solve.solution import Limits, allowed, finish

DDP_LIMITS = (1 * MIB, 25 * MIB)
"""The limits of DDP without arguments, in bytes: of the first bucket, and of the others."""
MOST_PAIR_CELLS = 20_000_000
"""Positions times caps up to which all (first cap, cap) pairs are tried; above, caps are thinned out evenly."""
MOST_CAPS = 400_000
"""Caps up to which all are tried (about 900 tensors of unequal sizes); above, they are thinned out evenly."""
MOST_MIXED_CAPS = 150
"""Maximum number of caps to try if each is laid out by itself: with several dtypes, or with limits."""
HALVINGS = 12
"""Halvings of all bytes down to which :func:`capped_plans` tries single caps."""
CHUNK_CELLS = 2_000_000
ALIKE = 5e-4
"""Caps whose communication ends within this part of the earliest end count as equally good.

Prices leave out what a bucket costs the host, so ever smaller caps look ever so slightly better."""


@dataclass(frozen=True, slots=True)
class CapSearch:
    """The best single cap, and the best (first cap, cap), in bytes; whether all caps and all pairs were tried.

    ``whole_mib`` is the best single cap in whole MiB, for launchers that take no other; None if none keeps the limits.
    Among caps that are ALIKE the largest is given, which makes the fewest buckets.
    """

    cap: int
    whole_mib: int | None
    pair: tuple[int, int]
    cap_exhaustive: bool
    pair_exhaustive: bool


def bucket_layout(gradients: Gradients, limits: Sequence[int]) -> list[list[int]]:
    """Buckets, as positions in ready order, that each close as soon as they hold at least their limit.

    Limits are in the unit of the sizes, and the last repeats; each dtype is walked by itself with the same limits.
    Buckets are in the order of closing, those still open at the end behind them. DDP's rule, exactly, but that torch
    leaves the order of the latter open.
    """
    closed, opened = list[tuple[int, list[int]]](), list[list[int]]()
    for places in gradients.chains:
        held = list(accumulate([gradients.held_sizes[i] for i in places], initial=0))
        start = 0
        for limit in chain(limits, repeat(limits[-1])):
            if (end := bisect_left(held, held[start] + limit, start + 1)) == len(held):
                break
            closed.append((places[end - 1], places[start:end]))
            start = end
        if start < len(places):
            opened.append(places[start:])
    return [bucket for _, bucket in sorted(closed)] + sorted(opened)


def bounded_layout(gradients: Gradients, limit: int) -> list[list[int]]:
    """Buckets, as positions in the order given, that are each sent before they would hold more than ``limit``.

    ``limit`` is in the unit of the sizes. A larger tensor travels alone. Each dtype is walked by itself; what is open
    at the end is sent in the order in which the dtypes came up.
    """
    from osfmodel.entities.filling import Closes, fill_by_dtype  # not loaded for caps that a bucket reaches

    closed, opened = fill_by_dtype(gradients, gradients.sizes, Closes(over=lambda held, bucket, item: held > limit))
    return closed + opened


def _end_at_least(prefix: Array, start: Array, limits: Array) -> Array:
    end: Array = np.searchsorted(prefix, prefix[start] + limits)
    return end


def _end_at_most(prefix: Array, start: Array, limits: Array) -> Array:
    end: Array = np.maximum(np.searchsorted(prefix, prefix[start] + limits, side="right") - 1, start + 1)
    return end


class Closing(NamedTuple):
    """A rule that forms all buckets from one cap; sizes and caps in the same unit, bytes or elements.

    layout: (gradients, cap) -> buckets, as positions
    end:    (prefix sums, starts, caps) -> where the buckets that begin there end; for many caps side by side
    """

    layout: Callable[[Gradients, int], list[list[int]]]
    end: Callable[[Array, Array, Array], Array]


AT_LEAST = Closing(lambda gradients, cap: bucket_layout(gradients, (cap,)), _end_at_least)
"""Close a bucket once it holds the cap: PyTorch DDP, Megatron."""
AT_MOST = Closing(bounded_layout, _end_at_most)
"""Close a bucket before it would hold more than the cap: DeepSpeed."""


def in_elements(gradients: Gradients) -> Gradients:
    """The gradients with sizes in elements, as some frameworks count; rounded up unless a profile has whole elements.

    Elements in memory are counted, since frameworks fill buckets with gradients as they are. A gradient sent in half
    its bytes in memory was cast to a type of half the size; one sent in fewer is sent only in part.
    """
    rows = zip(gradients.dtypes, gradients.sizes, gradients.held_sizes, strict=True)
    sizes = tuple(-(-held // (element_bytes(dtype) * (2 if held == 2 * sent else 1))) for dtype, sent, held in rows)
    return replace(gradients, sizes=sizes, held=())


def cap_forming(groups: Sequence[Sequence[int]], gradients: Gradients, closing: Closing) -> int | None:
    """A cap, in the unit of ``gradients``, that forms exactly these buckets in this order; None if there is none.

    If any does, one of these sizes does: that of the largest bucket, of the largest of several tensors, of the smallest
    that another of its dtype follows (without one: one more than the largest), or of the last of a dtype.
    """
    sizes = [sum(gradients.sizes[i] for i in group) for group in groups]
    last = {gradients.dtypes[group[0]]: place for place, group in enumerate(groups)}
    ended = [size for place, size in enumerate(sizes) if place not in last.values()]
    fused = [size for group, size in zip(groups, sizes, strict=True) if len(group) > 1]
    closed, lasts = min(ended, default=max(sizes) + 1), [sizes[place] for place in last.values()]
    tried = dict.fromkeys([max(sizes), min(sizes), closed, max(fused, default=1), *lasts])
    wanted = [list(group) for group in groups]
    return next((cap for cap in tried if closing.layout(gradients, cap) == wanted), None)


def best_cap_elements(workload: Workload, cost: Cost, closing: Closing, limits: Limits = Limits()) -> int | None:
    """The cap, in elements, with the smallest end of communication; None if none keeps ``limits``.

    It is 1 if there is nothing to send. All that make a difference are tried; with limits, or several dtypes,
    MOST_MIXED_CAPS of them.
    """
    gradients = workload.gradients
    if not gradients:
        return 1
    elements = in_elements(gradients)
    caps = candidate_caps(elements)[0]
    if limits == Limits() and len(set(gradients.dtypes)) == 1:
        element = element_bytes(gradients.dtypes[0])
        return _best_cap(*_arrays(elements), caps, lambda counts: cost(counts * element), closing)
    layouts = {cap: closing.layout(elements, cap) for cap in _thinned(caps, MOST_MIXED_CAPS).tolist()}
    return _best_of(layouts, gradients, cost, limits)


def capped_plans(workload: Workload, cost: Cost) -> list[Plan]:
    """Different plans that caps form: DDP's default, the best single cap, and caps of all bytes, a half, a quarter...

    They are for timing if no method is exact: ``cost`` judges a cap without effects or collectives in parallel.
    """
    caps = [best_cap(workload, cost), *(max(workload.gradient_bytes >> times, 1) for times in range(HALVINGS + 1))]
    layouts = [bucket_layout(workload.gradients, limits) for limits in (DDP_LIMITS, *((cap,) for cap in caps))]
    return list(dict.fromkeys(grouped_plan(workload, layout) for layout in layouts))


def best_cap(workload: Workload, cost: Cost) -> int:
    """The single cap, in bytes, with the smallest end of communication; 1 if there is nothing to send."""
    gradients = workload.gradients
    if not gradients:
        return 1
    if len(set(gradients.dtypes)) > 1 or gradients.held:
        found = _one_by_one(gradients, cost, Limits(), TIE)
        return 1 if found is None else found.cap
    return _best_cap(*_arrays(gradients), candidate_caps(gradients)[0], cost, tie=TIE)


def search_caps(workload: Workload, cost: Cost, limits: Limits = Limits(), pairs: bool = True) -> CapSearch | None:
    """The best of all caps, and of all pairs, by the end of communication; None if no cap keeps ``limits``.

    With several dtypes, with limits or with compression the pair is not searched for, nor without ``pairs``: it is the
    single cap twice.
    """
    gradients = workload.gradients
    if not gradients:
        return None
    if limits != Limits() or len(set(gradients.dtypes)) > 1 or gradients.held:
        return _one_by_one(gradients, cost, limits)
    prefix, ready = _arrays(gradients)
    caps, complete = candidate_caps(gradients)
    cap = _best_cap(prefix, ready, caps, cost)
    whole_mib = _best_cap(prefix, ready, distinct(-(-caps // MIB)) * MIB, cost) // MIB
    most = max(1, MOST_PAIR_CELLS // len(ready))
    exhaustive = pairs and complete and len(caps) <= most
    chosen = caps if len(caps) <= most else distinct(np.sort(np.append(_thinned(caps, most), cap)))
    pair = _best_pair(prefix, ready, chosen, cost) if pairs else (cap, cap)
    return CapSearch(cap, whole_mib, pair, complete, exhaustive)


def _arrays(gradients: Gradients) -> tuple[Array, Array]:
    """Prefix sums of the sizes, from 0, and ready times."""
    return _prefix(gradients.sizes), np.array(gradients.ready_times, dtype=float)


def _prefix(sizes: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])


def _one_by_one(gradients: Gradients, cost: Cost, limits: Limits, tie: float = ALIKE) -> CapSearch | None:
    caps = _thinned(candidate_caps(gradients)[0], MOST_MIXED_CAPS)

    def best(tried: Array) -> int | None:
        layouts = {cap: bucket_layout(gradients, [cap]) for cap in tried.tolist()}
        return _best_of(layouts, gradients, cost, limits, tie)

    cap, whole = best(caps), best(distinct(-(-caps // MIB)) * MIB)
    if cap is None:
        return None
    whole_mib = None if whole is None else whole // MIB
    return CapSearch(cap, whole_mib, (cap, cap), cap_exhaustive=False, pair_exhaustive=False)


def _best_of(
    layouts: Mapping[int, list[list[int]]], gradients: Gradients, cost: Cost, limits: Limits, tie: float = ALIKE
) -> int | None:
    """The best of increasing caps, the last of those within ``tie``; None if none is allowed; gradients in bytes."""
    kept = [cap for cap, layout in layouts.items() if allowed(layout, gradients, limits)]
    return least(reversed(kept), lambda cap: finish(layouts[cap], gradients, cost), tie=tie) if kept else None


def _thinned(caps: Array, most: int) -> Array:
    """At most ``most`` of ``caps``, evenly spread over their ranks, the largest included."""
    if len(caps) <= most:
        return caps
    return distinct(caps[np.linspace(0, len(caps) - 1, most).astype(int)])


def candidate_caps(gradients: Gradients) -> tuple[Array, bool]:
    """The caps that make a difference, sizes of all runs of consecutive tensors, in increasing order; and True.

    They are in the unit of the sizes of ``gradients``, which are those in memory. For more than MOST_CAPS an eighth of
    so many, evenly spread, and False.
    """
    return _candidates(gradients.held_sizes)


@lru_cache(maxsize=8)
def _candidates(sizes: tuple[int, ...]) -> tuple[Array, bool]:
    prefix = _prefix(sizes)
    count = len(prefix) - 1
    stride = 1 + count * count // (8 * MOST_CAPS)
    runs = [prefix[i + 1 :] - prefix[i] for i in range(0, count, stride)]
    caps = distinct(np.sort(np.concatenate(runs)))
    if stride > 1 or len(caps) > MOST_CAPS:
        return _thinned(caps, MOST_CAPS // 8), False
    return caps, True


def distinct(values: Array) -> Array:
    """Sorted values without repeats; faster than np.unique, which loads numpy.ma besides."""
    found: Array = values[np.append(True, np.diff(values) > 0)]
    return found


def _best_cap(
    prefix: Array,
    ready: Array,
    caps: Array,
    cost: Callable[[Array], Array],
    closing: Closing = AT_LEAST,
    tie: float = ALIKE,
) -> int:
    chunks = np.array_split(caps, 1 + len(caps) // CHUNK_CELLS)
    finishes = np.concatenate([single_cap_finishes(prefix, ready, chunk, cost, closing) for chunk in chunks])
    return int(caps[_last_minimum(finishes, tie)])


def _last_minimum(values: Array, tie: float) -> int:
    """Position of the last value that is within ``tie`` of the minimum."""
    return int(np.flatnonzero(values <= within(values.min(), tie))[-1])


def single_cap_finishes(
    prefix: Array, ready: Array, caps: Array, cost: Callable[[Array], Array], closing: Closing = AT_LEAST
) -> Array:
    """End of communication, in seconds, for each cap, walking all layouts forward side by side.

    ``cost`` is of sizes in the unit of ``prefix``, the sums of the sizes from 0, and of ``caps``.
    """
    finishes = np.zeros(len(caps))
    position = np.zeros(len(caps), dtype=np.int64)
    alive = np.arange(len(caps))
    last = len(prefix) - 1
    while len(alive):
        start = position[alive]
        end = np.minimum(closing.end(prefix, start, caps[alive]), last)
        size = (prefix[end] - prefix[start]).astype(float)
        finishes[alive] = np.maximum(finishes[alive], ready[end - 1]) + cost(size)
        position[alive] = end
        alive = alive[end < last]
    return finishes


def _best_pair(prefix: Array, ready: Array, caps: Array, cost: Cost) -> tuple[int, int]:
    """The best (first cap, cap), from one pass that serves every end of the first bucket and all caps.

    From a boundary p on, a cap turns the time x at which the channel is free there into max(x + A, B). With the bucket
    from p to q, of price t and ready at r, and A', B' those of q:  A = t + A',  B = max(r + t + A', B').  One backward
    pass over the boundaries gives A and B for all caps, and so serves all first buckets.
    """
    last = len(ready)
    firsts = ready + cost(prefix[1:].astype(float))
    found: list[tuple[float, tuple[int, int]]] = []  # that of the largest cap that is ALIKE to the least
    best = np.inf
    for chunk in np.array_split(caps, 1 + len(caps) * last // CHUNK_CELLS):
        add = np.zeros((last + 1, len(chunk)))
        least = np.full((last + 1, len(chunk)), -np.inf)
        column = np.arange(len(chunk))
        for start in range(last, 0, -1):
            if start < last:
                # Caps increase, so those whose bucket ends at the same place lie side by side.
                held = prefix[start + 1 :] - prefix[start]
                passed = np.searchsorted(chunk, held[:-1], side="right")
                passed = np.concatenate([[0], passed, [len(chunk)]])  # np.diff takes longer to append them
                alike = passed[1:] - passed[:-1]
                place = np.repeat(np.arange(start + 1, last + 1) * len(chunk), alike) + column
                add[start] = np.repeat(cost(held.astype(float)), alike) + add.take(place)
                least[start] = np.maximum(np.repeat(ready[start:], alike) + add[start], least.take(place))
            finishes = np.maximum(firsts[start - 1] + add[start], least[start])
            if (lowest := float(finishes.min())) <= within(best, ALIKE):
                winner, best = _last_minimum(finishes, ALIKE), min(best, lowest)
                found.append((float(finishes[winner]), (int(chunk[winner]), int(prefix[start]))))
    cap, first = max(pair for value, pair in found if value <= within(best, ALIKE))
    return first, cap
