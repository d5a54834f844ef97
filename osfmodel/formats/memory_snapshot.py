"""PyTorch's memory snapshots: the pickle of ``torch.cuda.memory._snapshot()``, as ``_dump_snapshot`` writes it.

``segments`` is a list of segments with their blocks, ``device_traces`` has a list of events for each GPU; a stack is a
list of frames, the innermost first (torch/cuda/memory.py). Pickles are read of plain data only.
:class:`MemorySnapshot` is the memory of one GPU at that moment, and the events that led there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from osfmodel.entities.errors import LARGEST_COUNT, DataError
from osfmodel.formats.source_text import Files, Hints, Text
from osfmodel.formats.streams import named, opened
from osfmodel.formats.streams.archives import limited
from osfmodel.formats.streams.pickles import is_pickle, plain_data

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


NAME, LABEL = "memory-snapshot", "a memory snapshot of PyTorch"
ENDINGS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
LARGEST_SNAPSHOT, MOST_STEPS, MOST_OBJECTS = 2**28, 12_000_000, 2_000_000
"""Maximum bytes of a snapshot, steps of its pickle, and blocks with events: some 400,000 events."""
FEWER = "record fewer events: torch.cuda.memory._record_memory_history(max_entries=100000)"
STATES = {
    "active_allocated": ALLOCATED,
    "active_pending_free": PENDING,
    "active_awaiting_free": PENDING,
    "inactive": INACTIVE,
}
WRITE_ONE = "write one with torch.cuda.memory._dump_snapshot(FILE)"
LONGEST_WORD = 300
MOST_KEYS = 5


def sniff(head: str) -> bool:
    """Whether a file begins as a snapshot in a pickle, also without a segment, or as a list of segments alone."""
    signs = (("total_size", "segment"), ("segments", "device_traces"))
    return is_pickle(head) and any(one in head and other in head for one, other in signs)


def read(text: Text, hints: Hints) -> NoReturn:
    """Refuse: a snapshot has no workload."""
    raise DataError(f"is {LABEL}, which holds no workload: osf explain reads it")


def read_job(files: Files, hints: Hints) -> NoReturn:
    """Refuse, as :func:`read`, with the path."""
    raise DataError(f"{files.paths[0]}: is {LABEL}, which holds no workload: osf explain reads it")


def load_snapshots(paths: Sequence[Path]) -> Iterator[MemorySnapshot]:
    """The snapshots in files, archives and folders: one for each GPU that a file has memory of.

    Raises DataError, with the path, for a pickle that is damaged, too large, of more than plain data, or of others.
    """
    files = Files(tuple(paths))
    for name, pieces in opened(files, sniff, ENDINGS, LABEL):
        with named(files, name):
            content = b"".join(limited(pieces, LARGEST_SNAPSHOT, f"the maximum for a snapshot: {FEWER}"))
            if not content.startswith(b"\x80"):
                raise DataError(f"is not {LABEL}, a pickle of protocol 2 or later: {WRITE_ONE}, or leave it out")
            data = plain_data(content, MOST_STEPS, f"more objects than a snapshot has: {FEWER}")
            found = list(SnapshotReader(name, data).read())
            del content, data
        yield from found


class SnapshotReader:
    """A reader of the data of one file; stacks that are stored once are made once."""

    def __init__(self, file: str, data: Any) -> None:
        self.file, self.left = file, MOST_OBJECTS
        self.data: Mapping[str, Any] = {"segments": data} if isinstance(data, list) else data
        self.stacks: dict[int, Stack] = {}

    def read(self) -> Iterator[MemorySnapshot]:
        """A snapshot for each GPU with segments or events. Raises DataError for other data."""
        segments, traces, settings = self._parts()
        by_device: dict[int, list[ReservedSegment]] = {}
        for number, entry in enumerate(segments):
            device, segment = self._segment(entry, f"segment {number}")
            by_device.setdefault(device, []).append(segment)
        known = settings.get("expandable_segments")
        for device in sorted({*by_device, *(number for number, trace in enumerate(traces) if trace)}):
            events = self._events(traces[device] if device < len(traces) else [], f"device_traces {device}")
            held = by_device.get(device, [])
            expandable = any(one.expandable for one in held) or (known if isinstance(known, bool) else None)
            yield MemorySnapshot(self.file, device, tuple(held), tuple(events), expandable)

    def _parts(self) -> tuple[list[Any], list[Any], Mapping[str, Any]]:
        data = self.data
        if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
            keys = ", ".join(map(str, list(data)[:MOST_KEYS]))[:LONGEST_WORD] if isinstance(data, dict) else ""
            what = f"a dictionary with the keys {keys}" if keys else f"a {type(data).__name__}"
            raise DataError(f"is a pickle of {what}, not of torch.cuda.memory._snapshot(): {WRITE_ONE}")
        traces, settings = data.get("device_traces", []), data.get("allocator_settings", {})
        if not isinstance(traces, list):
            raise DataError(f"device_traces is no list: {WRITE_ONE}")
        return data["segments"], traces, settings if isinstance(settings, dict) else {}

    def _segment(self, entry: Any, place: str) -> tuple[int, ReservedSegment]:
        device = _number(entry, "device", place, 0)
        address, size = (_number(entry, key, place) for key in ("address", "total_size"))
        blocks, start = [], address
        for number, block in enumerate(self._list(entry, "blocks", place)):
            inside = f"{place}, block {number}"
            width = _number(block, "size", inside)
            state = STATES.get(word := _word(block.get("state")))
            if state is None:
                raise DataError(f"{inside}: the state is {word[:40]!a}, none that PyTorch writes")
            requested = _number(block, "requested_size", inside, width)
            blocks.append(MemoryBlock(start, width, requested, state, self._stack(block.get("frames"))))
            start += width
        if start > address + size:
            raise DataError(f"{place}: its blocks are larger than its total_size of {size:,}: {WRITE_ONE}")
        stream, small = _number(entry, "stream", place, 0), entry.get("segment_type") == "small"
        return device, ReservedSegment(address, size, stream, small, entry.get("is_expandable") is True, tuple(blocks))

    def _events(self, trace: Any, place: str) -> Iterator[AllocatorEvent]:
        for number, entry in enumerate(self._list({"events": trace}, "events", place)):
            inside = f"{place}, event {number}"
            size, action = _number(entry, "size", inside, 0), _word(entry.get("action"))
            at = _number(entry, "device_free" if action == "oom" else "addr", inside, 0)
            yield AllocatorEvent(action, at, size, self._stack(entry.get("frames")))

    def _list(self, entry: Mapping[str, Any], key: str, place: str) -> list[Any]:
        found = entry.get(key)
        if not isinstance(found, list):
            raise DataError(f"{place}: has no list of {key}: {WRITE_ONE}")
        self.left -= len(found)
        if self.left < 0:
            raise DataError(f"has more than {MOST_OBJECTS:,} blocks and events: {FEWER}")
        return found

    def _stack(self, frames: Any) -> Stack:
        """A stack; frames that are none are left out."""
        if not isinstance(frames, list):
            return ()
        if id(frames) not in self.stacks:
            self.stacks[id(frames)] = tuple(_frame(one) for one in frames if isinstance(one, dict))
        return self.stacks[id(frames)]


def _frame(entry: Mapping[str, Any]) -> StackFrame:
    line = entry.get("line")
    return StackFrame(_word(entry.get("filename")), line if isinstance(line, int) else 0, _word(entry.get("name")))


def _word(value: Any) -> str:
    """A foreign name that can be printed."""
    text = value[-LONGEST_WORD:] if isinstance(value, str) else ""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)


def _number(entry: Any, key: str, place: str, default: int | None = None) -> int:
    """A whole number; an address or a stream may be any."""
    if not isinstance(entry, dict):
        raise DataError(f"{place}: is not a dictionary: {WRITE_ONE}")
    value = entry.get(key, default)
    free = key in ("address", "addr", "stream")
    if isinstance(value, bool) or not isinstance(value, int) or (not free and not 0 <= value <= LARGEST_COUNT):
        shown = value if isinstance(value, int | str | float) else type(value).__name__
        raise DataError(f"{place}: {key} is {str(shown)[:40]!a}, not a whole number, 0 or more: {WRITE_ONE}")
    return value
