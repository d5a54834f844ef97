"""Local search over membership, order, boundaries and splits of buckets.

A plan is a sequence of chunks (``scheduling.py``): of each bucket only its last gradient in ready order, and its bytes
count, as both ready times and tails grow in ready order. Any bytes may then travel together: a sequence can be filled
iff for every dtype and every j the chunks that end at j or later have room for all of j..L (they are nested, so
filling from the last gradient to the first never fails). A bucket need not be contiguous in ready order.
Moving bytes between chunks, changing a last gradient, changing the order, cutting a chunk and joining two reach every
membership, boundary, order and split.

The first move that helps is made, until none does or so many plans have been tried. There is no chance and no clock in
it. Helping means a smaller iteration time, or the same and earlier ends on average, which leads across plateaus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import Objective
from osfmodel.entities.records import dataclass, field
from osfmodel.entities.rounding import just_below, plain_sum, within
from osfmodel.solve.scheduling import Chunk, Jobs

FRACTIONS = (1, 2, 4, 16, 64, 256, 2048)
"""Parts of its bytes that a chunk tries to give to another, from all of them down."""


@dataclass(slots=True)
class ChunkTimer:
    """A timer of chunk sequences without effects on computation; it counts how many it has timed."""

    jobs: Jobs
    pricing: Pricing
    objective: Objective
    asked: int = 0
    prices: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    _shares: dict[int, float] = field(default_factory=dict)

    def time(self, chunks: Sequence[Chunk]) -> tuple[float, float]:
        """Iteration time in seconds, and the mean end of the chunks."""
        self.asked += 1
        ends = self.ends(chunks)
        tails = self.jobs.tails
        late = max([end + tails[chunk.last_gradient] for end, chunk in zip(ends, chunks, strict=True)], default=0)
        return max(self.jobs.least, late), plain_sum(ends) / max(len(ends), 1)

    def ends(self, chunks: Sequence[Chunk]) -> list[float]:
        """Seconds at which each chunk has arrived."""
        if self.objective.channels > 1:
            return self._together(chunks)
        kind = "reduce_scatter" if self.objective.split else "all_reduce"
        end: float = 0
        ends = []
        for chunk in chunks:
            startup, transfer = self.price(kind, chunk.bytes)
            end = max(end, self.jobs.ready[chunk.last_gradient]) + (startup + transfer)
            ends.append(end)
        if not self.objective.split:
            return ends
        for number in gathering(chunks):
            startup, transfer = self.price("all_gather", chunks[number].bytes)
            end = end + (startup + transfer)
            ends[number] = end
        return ends

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
    best = list(start)
    value = timer.time(best)
    limit = timer.asked + most
    able = Filling.of(timer.jobs)
    step = timer.jobs.grain
    moved = True
    while moved and value[0] > within(bound):
        moved = False
        for chunks in moves(best, timer.jobs, step):
            if timer.asked >= limit:
                return best
            if able(chunks) and _better(found := timer.time(chunks), value):
                best, value, moved = chunks, found, True
                break
    return best


def _better(new: tuple[float, float], old: tuple[float, float]) -> bool:
    return new[0] < just_below(old[0]) or (new[0] <= within(old[0]) and new[1] < old[1] - old[1] * 1e-6)


@dataclass(frozen=True, slots=True)
class Filling:
    """A test whether chunks can be filled: ``after[dtype][j]`` is the bytes of the gradients from j on."""

    after: dict[str, list[int]]

    @staticmethod
    def of(jobs: Jobs) -> Filling:
        """The filling of the gradients of ``jobs``."""
        found = {}
        for dtype in dict.fromkeys(jobs.dtypes):
            suffix = [0]
            for size, other in zip(reversed(jobs.sizes), reversed(jobs.dtypes), strict=True):
                suffix.append(suffix[-1] + (size if other == dtype else 0))
            found[dtype] = suffix[::-1]
        return Filling(found)

    def __call__(self, chunks: Sequence[Chunk]) -> bool:
        """Whether each dtype has room, from the last gradient to the first."""
        for dtype, after in self.after.items():
            ordered = sorted((chunk.last_gradient, chunk.bytes) for chunk in chunks if chunk.dtype == dtype)[::-1]
            if after[ordered[0][0] + 1 if ordered else 0]:
                return False
            room = 0
            for (_, size), (last, _) in pairwise([*ordered, (-1, 0)]):
                room += size
                if room < after[last + 1]:
                    return False
        return True


def moves(chunks: Sequence[Chunk], jobs: Jobs, step: int) -> Iterator[list[Chunk]]:
    """All neighbours of a sequence, even those that cannot be filled."""
    for make in (_joined, _shifted, _reordered, _moved, _cut):
        yield from make(chunks, jobs, step)


def _replaced(chunks: Sequence[Chunk], changes: dict[int, Chunk | None]) -> list[Chunk]:
    kept = [changes.get(number, chunk) for number, chunk in enumerate(chunks)]
    return [chunk for chunk in kept if chunk is not None]


def _joined(chunks: Sequence[Chunk], jobs: Jobs, step: int) -> Iterator[list[Chunk]]:
    for u, one in enumerate(chunks):
        for v, other in enumerate(chunks):
            if u != v and one.dtype == other.dtype:
                last = max(one.last_gradient, other.last_gradient)
                yield _replaced(chunks, {u: None, v: Chunk(last, one.bytes + other.bytes, one.dtype)})


def _shifted(chunks: Sequence[Chunk], jobs: Jobs, step: int) -> Iterator[list[Chunk]]:
    for part in FRACTIONS[1:]:
        for u, giver in enumerate(chunks):
            given = max(giver.bytes // part // step, 1) * step
            for v, taker in enumerate(chunks):
                if u != v and 0 < given < giver.bytes and giver.dtype == taker.dtype:
                    less, more = giver._replace(bytes=giver.bytes - given), taker._replace(bytes=taker.bytes + given)
                    yield _replaced(chunks, {u: less, v: more})


def _reordered(chunks: Sequence[Chunk], jobs: Jobs, step: int) -> Iterator[list[Chunk]]:
    for u, chunk in enumerate(chunks):
        rest = [*chunks[:u], *chunks[u + 1 :]]
        for v in range(len(chunks)):
            if v not in (u, u - 1):
                yield [*rest[:v], chunk, *rest[v:]]


def _moved(chunks: Sequence[Chunk], jobs: Jobs, step: int) -> Iterator[list[Chunk]]:
    for u, chunk in enumerate(chunks):
        for by in (1, -1, 2, -2, 4, -4, 8, -8, 16, -16, 32, -32):
            if 0 <= chunk.last_gradient + by < len(jobs.sizes):
                yield _replaced(chunks, {u: chunk._replace(last_gradient=chunk.last_gradient + by)})


def _cut(chunks: Sequence[Chunk], jobs: Jobs, step: int) -> Iterator[list[Chunk]]:
    """Sequences with one chunk cut in two; one half gets an earlier last gradient."""
    for u, chunk in enumerate(chunks):
        size = chunk.bytes // 2 // step * step
        if 0 < size < chunk.bytes:
            for last in sorted({max(chunk.last_gradient - by, 0) for by in (0, 1, 2, 4, 8, 16, 32)}):
                pair = [Chunk(last, size, chunk.dtype), chunk._replace(bytes=chunk.bytes - size)]
                yield [*chunks[:u], *pair, *chunks[u + 1 :]]
                yield [*chunks[:u], *pair[::-1], *chunks[u + 1 :]]
