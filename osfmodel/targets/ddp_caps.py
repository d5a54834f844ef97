"""The best that one cap, or a first cap and a cap, can do: for a torch without per-bucket limits.

The layout changes only where the cap passes the size of a run of consecutive tensors, so trying those sizes, at most
L(L+1)/2, is exhaustive. Only the end of communication is computed for each, for all caps at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from osfmodel.cost import Cost
from osfmodel.cost.curves import Array
from osfmodel.workload import Gradients, Workload

MOST_PAIR_CELLS = 4_000_000
"""Positions times caps up to which all (first cap, cap) pairs are tried; above, caps are thinned out evenly."""
CHUNK_CELLS = 2_000_000


@dataclass(frozen=True, slots=True)
class CapSearch:
    """The best single cap, and the best (first cap, cap), in bytes; whether all pairs were tried.

    ``whole_mib`` is the best single cap among whole numbers of MiB, for launchers that take no other. Among equally
    good caps the largest is given, which makes the fewest buckets.
    """

    cap: int
    whole_mib: int
    pair: tuple[int, int]
    pair_exhaustive: bool


def search_caps(workload: Workload, cost: Cost) -> CapSearch:
    """Smallest end of communication over all caps, and over all pairs. Dtypes are taken as one walk.

    With several dtypes DDP walks each by itself, and what is best for one walk is only a good guess.
    """
    gradients = workload.gradients
    prefix = np.concatenate([[0], np.cumsum(np.array(gradients.sizes, dtype=np.int64))])
    ready = np.array(gradients.ready_times, dtype=float)
    caps = candidate_caps(gradients)
    cap = _best_cap(prefix, ready, caps, cost)
    whole = np.arange(1, int(prefix[-1]) // 2**20 + 2, dtype=np.int64)
    most = max(1, MOST_PAIR_CELLS // len(ready))
    exhaustive = len(caps) <= most
    chosen = caps if exhaustive else np.union1d(caps[np.linspace(0, len(caps) - 1, most).astype(int)], [cap])
    whole_mib = _best_cap(prefix, ready, whole * 2**20, cost) >> 20
    return CapSearch(cap, whole_mib, _best_pair(prefix, ready, chosen, cost), exhaustive)


def _best_cap(prefix: Array, ready: Array, caps: Array, cost: Cost) -> int:
    chunks = np.array_split(caps, 1 + len(caps) // CHUNK_CELLS)
    finishes = np.concatenate([single_cap_finishes(prefix, ready, chunk, cost) for chunk in chunks])
    return int(caps[_last_minimum(finishes)])


def _last_minimum(values: Array) -> int:
    """Position of the last value that is the minimum but for rounding."""
    return int(np.flatnonzero(values <= values.min() * (1 + 1e-12))[-1])


def candidate_caps(gradients: Gradients) -> Array:
    """The sizes of all runs of consecutive tensors, increasing: between two of them no layout changes."""
    prefix = np.concatenate([[0], np.cumsum(np.array(gradients.sizes, dtype=np.int64))])
    runs = [np.unique(prefix[i + 1 :] - prefix[i]) for i in range(len(prefix) - 1)]
    return np.unique(np.concatenate(runs))


def single_cap_finishes(prefix: Array, ready: Array, caps: Array, cost: Cost) -> Array:
    """End of communication for each cap, walking all layouts forward side by side."""
    finish = np.zeros(len(caps))
    position = np.zeros(len(caps), dtype=np.int64)
    alive = np.arange(len(caps))
    last = len(prefix) - 1
    while len(alive):
        start = position[alive]
        end = np.minimum(np.searchsorted(prefix, prefix[start] + caps[alive]), last)
        size = (prefix[end] - prefix[start]).astype(float)
        finish[alive] = np.maximum(finish[alive], ready[end - 1]) + cost(size)
        position[alive] = end
        alive = alive[end < last]
    return finish


def _best_pair(prefix: Array, ready: Array, caps: Array, cost: Cost) -> tuple[int, int]:
    """The first bucket may end anywhere; what follows depends on when it ends only through max and +.

    From a boundary p on, a cap turns the time x at which the channel is free there into max(x + A, B): A and B follow
    from those at the end of the next bucket, so one backward pass serves all first buckets.
    """
    last = len(ready)
    firsts = ready + cost(prefix[1:].astype(float))
    best, pair = float("inf"), (0, 0)
    for chunk in np.array_split(caps, 1 + len(caps) * last // CHUNK_CELLS):
        add = np.zeros((last + 1, len(chunk)))
        least = np.full((last + 1, len(chunk)), -np.inf)
        column = np.arange(len(chunk))
        for start in range(last, 0, -1):
            if start < last:
                end = np.minimum(np.searchsorted(prefix, prefix[start] + chunk), last)
                time = cost((prefix[end] - prefix[start]).astype(float))
                add[start] = time + add[end, column]
                least[start] = np.maximum(ready[end - 1] + add[start], least[end, column])
            finish = np.maximum(firsts[start - 1] + add[start], least[start])
            winner = _last_minimum(finish)
            if finish[winner] < best * (1 - 1e-12):
                best, pair = float(finish[winner]), (int(prefix[start]), int(chunk[winner]))
    return pair
