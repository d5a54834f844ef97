"""The memory that PyTorch's caching allocator reserves for a step: its holds, taken and given back in their order.

An optimizer makes its state in the first update, out of what that step has left free: blocks that it cuts are too small
for what they held before, so that the second step reserves more. All-gathers take memory of a stream of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from osfmodel.engine.caching import CachedPart, CachingAllocator
from osfmodel.engine.levels import ALWAYS, Place, places_of
from osfmodel.engine.program import Hold, Program
from osfmodel.engine.strategies.holdings import ACTIVATIONS, COMMUNICATORS, STATE
from osfmodel.engine.strategies.issued import GATHERED

STEPS = 2
"""Steps after which hardly anything more is reserved."""


def reserved_bytes(
    program: Program,
    times: tuple[Sequence[float], Sequence[float], float],
    made: Mapping[str, int],
    held: int = 0,
    largest: int = 0,
    expandable: bool = False,
) -> int:
    """Bytes that the allocator has reserved after STEPS steps, buffers of communicators apart.

    times: starts and ends of the program's operations, and the end of the step
    made:  bytes of the optimizer's state of each tensor that the first update makes; ``held``: of what is there before
    largest: bytes of the largest tensor of activations
    """
    allocator = CachingAllocator(expandable=expandable)
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
