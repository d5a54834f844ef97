"""Local search over membership, order, boundaries and splits of buckets.

A plan is a sequence of chunks (``scheduling.py``): of each bucket only its last gradient in ready order, and its bytes
count, as both ready times and tails grow in ready order. Any bytes may then travel together: a sequence can be filled
iff for every dtype and every j the chunks that end at j or later have room for all of j..L (they are nested, so
filling from the last gradient to the first never fails). A bucket need not be contiguous in ready order.
Moving bytes between chunks, changing a last gradient, changing the order, cutting a chunk and joining two reach every
membership, boundary, order and split.

The first move that helps is made, until none does or so many plans have been tried. There is no chance and no clock in
it. Helping means a smaller iteration time, or the same and earlier ends on average, which leads across plateaus. The
moves of a chunk are timed at once, as rows: with r the ready times, c the times of messages and C their sums, chunk i
ends at C_i + max over j <= i of (r_j - C_j + c_j).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import Objective
from osfmodel.entities.rounding import just_below, within
from osfmodel.solve.scheduling import Chunk, Jobs

FRACTIONS = (1, 2, 4, 16, 64, 256, 2048)
"""Parts of its bytes that a chunk tries to give to another, from all of them down."""


STEPS = (0, 1, 2, 4, 8, 16, 32)
"""Gradients by which a last gradient is moved."""
ENTRIES = 8192
"""Chunks of moves that are timed at once, some more or less."""
Array: TypeAlias = Any


class Rows(NamedTuple):
    """Sequences of as many chunks, each a row: last gradients, bytes, and numbers of dtypes among ``kinds``."""

    last: Array
    bytes: Array
    dtype: Array
    kinds: tuple[str, ...]

    @staticmethod
    def of(chunks: Sequence[Chunk]) -> Rows:
        """One sequence, of a chunk or more."""
        lasts, sizes, dtypes = zip(*chunks, strict=True)
        kinds = tuple(dict.fromkeys(dtypes))
        last, size, dtype = np.array([lasts, sizes, [kinds.index(one) for one in dtypes]])[:, None]
        return Rows(last, size, dtype, kinds)

    def row(self, number: int) -> list[Chunk]:
        """The chunks of a row."""
        columns = (column[number].tolist() for column in self[:3])
        return [Chunk(last, size, self.kinds[kind]) for last, size, kind in zip(*columns, strict=True)]

    def at(self, *places: Array) -> Rows:
        """Other rows, of the chunks at these places."""
        return Rows(self.last[places], self.bytes[places], self.dtype[places], self.kinds)


@dataclass(slots=True)
class ChunkTimer:
    """A timer of chunk sequences without effects on computation; it counts how many it has timed."""

    jobs: Jobs
    pricing: Pricing
    objective: Objective
    asked: int = 0
    prices: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    _shares: dict[int, float] = field(default_factory=dict)
    _ready: Array = field(init=False)
    _tails: Array = field(init=False)

    def __post_init__(self) -> None:
        self._ready, self._tails = np.array(self.jobs.ready), np.array(self.jobs.tails)

    def time(self, chunks: Sequence[Chunk]) -> tuple[float, float]:
        """Iteration time in seconds, and the mean end of the chunks."""
        return next(self.times(Rows.of(chunks)))

    def times(self, rows: Rows) -> Iterator[tuple[float, float]]:
        """The same of each row."""
        if self.objective.channels > 1:
            for number, last in enumerate(rows.last):
                yield from self._told(last[None], np.array([self._together(rows.row(number))]))
        elif self.objective.split:
            scattered = self._sent("reduce_scatter", rows, self._ready[rows.last])
            rows = rows.at(np.arange(len(rows.last))[:, None], np.argsort(-rows.last, axis=1, kind="stable"))
            yield from self._told(rows.last, self._sent("all_gather", rows, scattered[:, -1:]))
        else:
            yield from self._told(rows.last, self._sent("all_reduce", rows, self._ready[rows.last]))

    def _sent(self, kind: str, rows: Rows, begin: Array) -> Array:
        """Seconds at which chunks arrive that are sent one after the other, each from ``begin`` on."""
        spent: Any = self.pricing.cost(kind)(rows.bytes)
        sent = spent.cumsum(axis=1)
        return np.maximum.accumulate(begin - sent + spent, axis=1) + sent

    def _told(self, last: Array, ends: Array) -> Iterator[tuple[float, float]]:
        late = np.maximum((ends + self._tails[last]).max(axis=1), self.jobs.least)
        for found in zip(late.tolist(), ends.mean(axis=1).tolist(), strict=True):
            self.asked += 1
            yield found

    def price(self, kind: str, size: int) -> tuple[float, float]:
        """(start-up, transfer) of a message."""
        found = self.prices.get((kind, size))
        if found is None:
            found = self.prices[kind, size] = self.pricing.split(kind, size, self.objective.channels)
        return found

    def _together(self, chunks: Sequence[Chunk]) -> list[float]:
        """Ends of chunks with several in flight, in this order: start-ups overlap, transfers run at X(n) / n each."""
        count, ready = len(chunks), self.jobs.ready
        kind = "reduce_scatter" if self.objective.split else "all_reduce"
        queue = [(number, *self.price(kind, chunk.bytes)) for number, chunk in enumerate(chunks)]
        if self.objective.split:
            queue += [(number + count, *self.price("all_gather", chunks[number].bytes)) for number in gathering(chunks)]
        ends: list[float] = [-1] * len(queue)
        flows: list[list[float]] = []
        now: float = 0
        following = 0
        while following < len(queue) or flows:
            waiting: float = -1
            while following < len(queue) and len(flows) < self.objective.channels:
                number, startup, transfer = queue[following]
                free = ready[chunks[number].last_gradient] if number < count else ends[number - count]
                if free < 0 or (free > now and flows):
                    waiting = free
                    break
                now = max(now, free)
                flows.append([number, startup, transfer])
                following += 1
            now = self._step(flows, ends, now, waiting)
        return ends[count:] if self.objective.split else ends

    def _step(self, flows: list[list[float]], ends: list[float], now: float, waiting: float) -> float:
        """Advance to the next event, or to ``waiting`` if earlier; remove flows that end, and return the time."""
        sending = 0
        for flow in flows:
            sending += not flow[1]
        share = self._shares.get(sending) or self._shares.setdefault(sending, self.pricing.share(max(sending, 1)))
        step = min([flow[1] or flow[2] / share for flow in flows])
        if now < waiting < now + step:
            step = waiting - now
        ended = False
        for flow in flows:
            if flow[1]:
                flow[1] = flow[1] - step if flow[1] > step else 0
            else:
                flow[2] = flow[2] - step * share if flow[2] / share > step else 0
            ended = ended or not (flow[1] or flow[2])
        now += step
        if ended:
            for flow in flows:
                if not flow[1] and not flow[2]:
                    ends[int(flow[0])] = now
            flows[:] = [flow for flow in flows if flow[1] or flow[2]]
        return now


def gathering(chunks: Sequence[Chunk]) -> list[int]:
    """The order of the all-gathers, as the next forward needs them."""
    return sorted(range(len(chunks)), key=lambda number: -chunks[number].last_gradient)


def improve(start: Sequence[Chunk], timer: ChunkTimer, bound: float, most: int) -> list[Chunk]:
    """A sequence that no move improves, or the best after ``most`` moves; ends early once it attains ``bound``."""
    if not start:
        return []
    best, value = Rows.of(start), timer.time(start)
    limit = timer.asked + most
    able = Filling.of(timer.jobs)
    step = timer.jobs.grain
    moved = True
    while moved and value[0] > within(bound):
        moved = False
        for neighbours in moves(best, len(timer.jobs.sizes), step):
            rows = neighbours.at(np.flatnonzero(able(neighbours))[: limit - timer.asked])
            found = ((number, found) for number, found in enumerate(timer.times(rows)) if _better(found, value))
            number, value = next(found, (-1, value))
            if number >= 0:
                best, moved = rows.at([number]), True
                break
            if timer.asked >= limit:
                return best.row(0)
    return best.row(0)


def _better(new: tuple[float, float], old: tuple[float, float]) -> bool:
    return new[0] < just_below(old[0]) or (new[0] <= within(old[0]) and new[1] < old[1] - old[1] * 1e-6)


@dataclass(frozen=True, slots=True)
class Filling:
    """A test whether chunks can be filled: ``after[dtype][j]`` is the bytes of the gradients from j on."""

    after: dict[str, Array]

    @staticmethod
    def of(jobs: Jobs) -> Filling:
        """The filling of the gradients of ``jobs``."""
        found = {}
        for dtype in dict.fromkeys(jobs.dtypes):
            sizes = [size if other == dtype else 0 for size, other in zip(jobs.sizes, jobs.dtypes, strict=True)]
            found[dtype] = np.array([*sizes, 0])[::-1].cumsum()[::-1]
        return Filling(found)

    def __call__(self, rows: Rows) -> Array:
        """Whether each dtype has room in a row, from the last gradient to the first."""
        rows = rows.at(np.arange(len(rows.last))[:, None], np.argsort(-rows.last, axis=1))
        reached = np.concatenate([rows.last + 1, np.zeros((len(rows.last), 1), dtype=int)], axis=1)
        able = np.ones(len(rows.last), dtype=bool)
        for dtype, after in self.after.items():
            kind = rows.kinds.index(dtype) if dtype in rows.kinds else -1
            room = np.where(rows.dtype == kind, rows.bytes, 0).cumsum(axis=1)
            able &= (after[reached[:, 0]] == 0) & (room >= after[reached[:, 1:]]).all(axis=1)
        return able


def moves(one: Rows, gradients: int, step: int) -> Iterator[Rows]:
    """All neighbours of a sequence, even those that cannot be filled: of each chunk together, at places in ready order
    below ``gradients``, by bytes in multiples of ``step``."""
    for make in (_joined, _shifted, _reordered, _moved, _cut):
        yield from (rows for rows in make(one, gradients, step) if rows.last.size)


def _pairs(able: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Numbers of the rows and columns that are able, and of each pair in its part: of as many as fit into a cache."""
    most = max(ENTRIES // len(able), 1)
    rows, columns = np.nonzero(able)
    for first in range(0, len(rows), most):
        u, v = rows[first : first + most], columns[first : first + most]
        yield u[:, None], v[:, None], np.arange(len(u))[:, None]


def _alike(one: Rows) -> Array:
    """Whether two chunks are of one dtype, and not the same."""
    return (one.dtype == one.dtype.T) & ~np.eye(one.dtype.size, dtype=bool)


def _joined(one: Rows, gradients: int, step: int) -> Iterator[Rows]:
    numbers = np.arange(one.last.size - 1)
    for u, v, row in _pairs(_alike(one)):
        rows, there = one.at(0, numbers + (numbers >= u)), (row, v - (v > u))
        rows.last[there] = np.maximum(rows.last[there], one.last[0, u])
        rows.bytes[there] += one.bytes[0, u]
        yield rows


def _shifted(one: Rows, gradients: int, step: int) -> Iterator[Rows]:
    numbers = np.arange(one.last.size)
    for part in FRACTIONS[1:]:
        given = np.maximum(one.bytes[0] // part // step, 1) * step
        for u, v, row in _pairs(_alike(one) & (given < one.bytes[0])[:, None]):
            rows = one.at(0, numbers + 0 * u)
            rows.bytes[row, u] -= given[u]
            rows.bytes[row, v] += given[u]
            yield rows


def _reordered(one: Rows, gradients: int, step: int) -> Iterator[Rows]:
    numbers = np.arange(one.last.size)
    steps = numbers - numbers[:, None]
    for u, v, _ in _pairs((steps != 0) & (steps != -1)):
        places = numbers - (numbers > v)
        yield one.at(0, np.where(numbers == v, u, places + (places >= u)))


def _moved(one: Rows, gradients: int, step: int) -> Iterator[Rows]:
    found = one.last.T + np.array([sign * by for by in STEPS[1:] for sign in (1, -1)])
    for u, v, row in _pairs((found >= 0) & (found < gradients)):
        rows = one.at(0, np.arange(one.last.size) + 0 * u)
        rows.last[row, u] = found[u, v]
        yield rows


def _cut(one: Rows, gradients: int, step: int) -> Iterator[Rows]:
    """Sequences with one chunk cut in two; one half gets an earlier last gradient."""
    half, numbers = one.bytes[0] // 2 // step * step, np.arange(one.last.size + 1)
    found = np.maximum(one.last.T - np.array(STEPS[::-1]), 0)
    new = np.diff(found, axis=1, prepend=-1) > 0
    for part, v, _ in _pairs(new & ((half > 0) & (half < one.bytes[0]))[:, None]):
        u, last = part.repeat(2, axis=0), found[part, v].repeat(2, axis=0)
        rows, row = one.at(0, numbers - (numbers > u)), np.arange(len(u))[:, None]
        first = u + row % 2
        rows.last[row, first] = last
        rows.bytes[row, first] = half[u]
        rows.bytes[row, 2 * u + 1 - first] -= half[u]
        yield rows
