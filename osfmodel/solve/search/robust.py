"""Search one plan for several worker counts: the worst slow-down against each count's best plan is minimised.

An elastic job changes its worker count but not its buckets. The search minimises the largest, over the counts, of
iteration time / iteration time of that count's own optimum. The same serves one worker count on a network that may be
slower than stated: each cost is then a slower network. A heuristic: boundaries are moved, added and removed while that
helps, from the best of the plans that are optimal for one cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from osfmodel.cost.shapes import Cost
from osfmodel.engine.recursion import communication_finish
from osfmodel.entities.rounding import TIE, least
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import Limits, allowed, groups_of

Item = TypeVar("Item")

STEPS = (1, -1, 2, -2, 4, -4, 8, -8, 16, -16)
PENALTY = 1000.0
MOST_TRIES = 20_000
"""Maximum number of plans to price before the search stops."""


def robust_ends(
    workload: Workload,
    costs: Sequence[Cost],
    optima: Sequence[float],
    starts: Sequence[Sequence[int]],
    limits: Limits,
    ceilings: Sequence[float] = (),
) -> tuple[int, ...]:
    """The ends of the best plan found from the best of ``starts``; ``optima`` are the best iteration times.

    ``ceilings`` are iteration times that should not be exceeded, for the first so many costs: :func:`penalised`.
    """
    gradients = workload.gradients
    backward_end = workload.forward_time + workload.backward_time
    prefix = [0, *accumulate(gradients.sizes)]

    def value(ends: Sequence[int]) -> float:
        releases = [gradients.ready_times[end - 1] for end in ends]
        sizes = [prefix[end] - prefix[start] for start, end in pairwise([0, *ends])]
        finishes = [communication_finish(releases, [cost(size) for size in sizes]) for cost in costs]
        times = [max(backward_end, end) + workload.update_time for end in finishes]
        return penalised(times, optima, ceilings)

    return _descend(
        least(map(tuple, starts), value, lambda ends: (len(ends), ends)),
        value,
        lambda ends: allowed(groups_of(ends), gradients, limits),
        len(gradients),
    )


def penalised(times: Sequence[float], optima: Sequence[float], ceilings: Sequence[float]) -> float:
    """The worst slow-down against the optima, plus PENALTY times the worst relative excess over a ceiling."""
    regret = max(time / best for time, best in zip(times, optima, strict=True))
    excess = max((time / most - 1 for time, most in zip(times, ceilings, strict=False)), default=0.0)
    return regret + PENALTY * max(excess - TIE, 0.0)


def fairest(
    options: Sequence[Item],
    times_of: Callable[[Item], Sequence[float]],
    ceilings: Sequence[float] = (),
    tie: float = TIE,
) -> Item:
    """The option whose worst slow-down against the best of them is least, and above no ceiling if one of them is.

    times_of: seconds at each price
    ceilings: seconds that should not be exceeded: :func:`penalised`
    tie:      relative difference up to which options are equal; the first of equal ones is returned
    """
    times = [times_of(option) for option in options]
    best = [min(column) for column in zip(*times, strict=True)]
    return options[least(range(len(options)), lambda number: penalised(times[number], best, ceilings), tie=tie)]


def _descend(
    ends: tuple[int, ...],
    value_of: Callable[[tuple[int, ...]], float],
    is_allowed: Callable[[tuple[int, ...]], bool],
    count: int,
) -> tuple[int, ...]:
    """The ends after taking the first improvement repeatedly, until there is none."""
    value, tries, improved = value_of(ends), 0, True
    while improved and tries < MOST_TRIES:
        improved = False
        for neighbour in _neighbours(ends, count):
            tries += 1
            if is_allowed(neighbour) and (found := value_of(neighbour)) < value * (1 - 1e-9):
                ends, value, improved = neighbour, found, True
                break
    return ends


def _neighbours(ends: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """Plans with one boundary moved, removed or added; the last one stays at ``count``."""
    inner = ends[:-1]
    for k, end in enumerate(inner):
        others = set(inner) - {end}
        yield (*sorted(others), count)
        for step in STEPS:
            if 0 < end + step < count and end + step not in others:
                yield (*sorted({*others, end + step}), count)
        middle = (end + ends[k + 1]) // 2
        if middle not in ends:
            yield (*sorted({*inner, middle}), count)
    if ends and ends[0] > 1:
        yield (ends[0] // 2, *ends)
