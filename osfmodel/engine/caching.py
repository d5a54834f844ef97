"""PyTorch's caching allocator of CUDA: the bytes that it reserves for allocations and frees, and for those of a step.

Sizes are rounded to 512 bytes. Those up to 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments of
20 MiB, and larger ones get a segment of their own, rounded to 2 MiB; each stream has segments of its own. An allocation
takes the smallest free block that is large enough, the one at the lowest address of equal ones, and gives back what it
does not need: of a large block only what is more than 1 MiB. Free neighbours in a segment become one block. Segments
are never given back; with ``expandable`` a stream has one that grows, in pages of 2 MiB (20 MiB of large blocks).

A step takes and gives back its holds in their order. An optimizer makes its state in the first update, out of what that
step has left free: blocks that it cuts are too small for what they held before, so that the second step reserves more.
All-gathers take memory of a stream of their own.

The constants are those of ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h`` in torch 2.13.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from osfmodel.engine.levels import ALWAYS, Place, places_of
from osfmodel.engine.program import Hold, Program
from osfmodel.engine.strategies.holdings import ACTIVATIONS, COMMUNICATORS, STATE
from osfmodel.engine.strategies.issued import GATHERED

MIB = 1 << 20
ROUND, SMALL = 512, MIB
SMALL_SEGMENT, LARGE_SEGMENT, FROM, PAGE = 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB
"""Bytes of a segment for small blocks, and for those below ``FROM``; larger ones are rounded to ``PAGE``."""


@dataclass(slots=True, eq=False)
class CachedPart:
    """A part of a segment.

    start:  its address; those of a segment are next to each other
    before, after: its neighbours in the segment
    """

    pool: tuple[Hashable, bool]
    start: int
    size: int
    free: bool = False
    before: CachedPart | None = None
    after: CachedPart | None = None


class CachingAllocator:
    """The allocator of one device.

    expandable: whether segments grow (expandable_segments)
    reserved, allocated: bytes of all segments, and of blocks in use
    """

    def __init__(self, expandable: bool = False) -> None:
        self.expandable = expandable
        self.reserved = self.allocated = 0
        self._free: dict[tuple[Hashable, bool], list[tuple[int, int, CachedPart]]] = {}
        self._end: dict[tuple[Hashable, bool], CachedPart] = {}
        self._address = 0

    def take(self, size: int, stream: Hashable = 0) -> CachedPart | None:
        """A block of ``size`` bytes or more, of ``stream``'s own segments; None for no bytes."""
        if size <= 0:
            return None
        size = -(-size // ROUND) * ROUND
        pool = (stream, size <= SMALL)
        block = self._found(pool, size) or self._new(pool, size)
        rest = block.size - size
        if rest >= ROUND if pool[1] or self.expandable else rest > SMALL:
            behind = CachedPart(pool, block.start + size, rest, before=block, after=block.after)
            if block.after is not None:
                block.after.before = behind
            elif self._end.get(pool) is block:
                self._end[pool] = behind
            block.after, block.size = behind, size
            self._add(behind)
        self.allocated += block.size
        return block

    def give(self, block: CachedPart | None) -> None:
        """Free a block, and join it to free neighbours."""
        if block is None:
            return
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._remove(other)
                first, second = sorted((block, other), key=lambda one: one.start)
                first.size += second.size
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                elif self._end.get(block.pool) is second:
                    self._end[block.pool] = first
                block = first
        self._add(block)

    def _found(self, pool: tuple[Hashable, bool], size: int) -> CachedPart | None:
        """The smallest free block that will do, no longer free."""
        free = self._free.get(pool, [])
        place = bisect_left(free, size, key=lambda one: one[0])
        if place == len(free):
            return None
        block = free[place][2]
        self._remove(block)
        return block

    def _new(self, pool: tuple[Hashable, bool], size: int) -> CachedPart:
        """A block of a new segment, or of one that grows."""
        if self.expandable:
            last, page = self._end.get(pool), SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
            if last is not None and last.free:
                self._remove(last)
                more = -(-(size - last.size) // page) * page
                last.size += more
                self.reserved += more
                return last
            start = last.start + last.size if last else self._next(1 << 60)
            block = CachedPart(pool, start, -(-size // page) * page, before=last)
            if last is not None:
                last.after = block
            self._end[pool] = block
        else:
            whole = SMALL_SEGMENT if pool[1] else LARGE_SEGMENT if size < FROM else -(-size // PAGE) * PAGE
            block = CachedPart(pool, self._next(whole), whole)
        self.reserved += block.size
        return block

    def _next(self, size: int) -> int:
        self._address += size
        return self._address - size

    def _add(self, block: CachedPart) -> None:
        block.free = True
        insort(self._free.setdefault(block.pool, []), (block.size, block.start, block), key=lambda one: one[:2])

    def _remove(self, block: CachedPart) -> None:
        block.free = False
        free = self._free[block.pool]
        free.pop(bisect_left(free, (block.size, block.start), key=lambda one: one[:2]))


STEPS = 2
"""Steps after which hardly anything more is reserved."""


def reserved_bytes(
    program: Program,
    times: tuple[Sequence[float], Sequence[float], float],
    made: Mapping[str, int],
    held: int,
    largest: int,
    expandable: bool,
) -> int:
    """Bytes that the allocator has reserved after STEPS steps, buffers of communicators apart.

    times: starts and ends of the program's operations, and the end of the step
    made:  bytes of the optimizer's state of each tensor that the first update makes; ``held``: of what is there before
    largest: bytes of the largest tensor of activations
    """
    allocator = CachingAllocator(expandable)
    holds = [hold for hold in program.holds if hold.owner not in (COMMUNICATORS, STATE)]
    taken: dict[int, list[CachedPart | None]] = {}
    changes = list(_changes(program, times, holds))
    lasting = {number for place, comes, number in changes if comes and place == ALWAYS and holds[number].until is None}
    allocator.take(held)
    for number in lasting:
        allocator.take(holds[number].bytes)
    for step in range(STEPS):
        for _, comes, number in changes:
            if number in lasting:
                continue
            for block in taken.pop(number, ()):
                allocator.give(block)
            if comes:
                hold = holds[number]
                pieces = -(-hold.bytes // max(1, largest)) if hold.owner == ACTIVATIONS else 1
                stream = int(hold.owner == GATHERED)
                taken[number] = [allocator.take(hold.bytes // pieces, stream) for _ in range(pieces)]
        for size in made.values() if not step else ():
            allocator.take(size // 2)
            allocator.take(size // 2)
        for blocks in taken.values():
            for block in blocks:
                allocator.give(block)
        taken.clear()
    return allocator.reserved


def _changes(
    program: Program, times: tuple[Sequence[float], Sequence[float], float], holds: Sequence[Hold]
) -> Iterator[tuple[Place, bool, int]]:
    """(when, whether it comes, number of the hold) in the order in which they happen; what goes is first."""
    begun, place = places_of(program, *times)
    found = [(begun(hold), True, number) for number, hold in enumerate(holds)]
    found += [(place(hold.until), False, number) for number, hold in enumerate(holds) if hold.until is not None]
    yield from sorted(found)
