"""The memory of one GPU at a moment, as PyTorch's caching allocator lists it, and the events that led there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ALLOCATED, PENDING, INACTIVE = "allocated", "pending", "inactive"
"""States of a block: in use, freed and awaited by another stream, and free."""


class StackFrame(NamedTuple):
    """A frame of the stack of an allocation."""

    file: str
    line: int
    function: str


Stack = tuple[StackFrame, ...]
"""Frames, the innermost first; none where no stack was recorded."""


class MemoryBlock(NamedTuple):
    """A part of a segment; ``requested`` are the bytes that were asked for."""

    address: int
    size: int
    requested: int
    state: str
    stack: Stack = ()


class ReservedSegment(NamedTuple):
    """Memory that the allocator took from the GPU, for one stream; ``small`` ones are for blocks up to 1 MiB."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: Sequence[MemoryBlock]

    def held(self, *states: str) -> int:
        """Bytes of its blocks in these states."""
        return sum(block.size for block in self.blocks if block.state in states)


class AllocatorEvent(NamedTuple):
    """An action of the allocator, such as ``alloc``; ``address`` is the GPU's free memory where it is ``oom``."""

    action: str
    address: int
    size: int
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The segments of a GPU, and the last events of its allocator, the oldest first.

    file:       the file that it was read from
    expandable: whether segments grow (expandable_segments); None where the file does not say
    """

    file: str
    device: int
    segments: Sequence[ReservedSegment]
    events: Sequence[AllocatorEvent] = ()
    expandable: bool | None = None

    @property
    def blocks(self) -> list[MemoryBlock]:
        """The blocks of all segments."""
        return [block for segment in self.segments for block in segment.blocks]

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)
