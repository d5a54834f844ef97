"""An explanation of a memory snapshot: the peak by owner and line of code, free memory, and allocations that failed.

When an allocation was there is told by the snapshot, its owner by the frames of its stack: the innermost that a rule
knows decides. In backward a stack has no frame of Python, as autograd runs in a thread of its own; an allocation of
backward is a gradient if it outlives the record or zero_grad frees it, else scratch. Allocations of an
optimizer that it does not free itself are its state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from osfmodel.engine.strategies.holdings import ACTIVATIONS, BUCKETS, GRADIENTS, STATE, UPDATE, WEIGHTS
from osfmodel.engine.strategies.issued import GATHERED, REDUCED, WHOLE
from osfmodel.entities.display import show_bytes, show_share
from osfmodel.formats.memory_snapshot import (
    ALLOCATED,
    INACTIVE,
    PENDING,
    MemorySnapshot,
    ReservedSegment,
    Stack,
    StackFrame,
)

OTHER, UNKNOWN = "other", "no stack"
BACKWARD = "backward"
RULES = tuple(
    (re.compile(pattern), owner)
    for pattern, owner in (
        (r":(foreach_all_gather_copy_out|(init|alloc)_all_gather_outputs|_alloc_padded_unsharded_flat_param)$", WHOLE),
        (r":\w*all_?gather\w*$|fsdp::all_gather", GATHERED),
        (r":foreach_reduce$|:\w*reduce_scatter\w*$|fsdp::chunk_cat", REDUCED),
        (r"nn/parallel/distributed\.py:(__init__|_ddp_init_helper|_rebuild_buckets)|c10d::Reducer", BUCKETS),
        (r"/param_and_grad_buffer\.py:", BUCKETS),
        (r"optim\w*[/\w]*\.py:(_init_group|__init__|load_state_dict|init_state\w*|_init_state\w*)$", STATE),
        (r"/optim(izers?)?/\w+\.py:|/\w*optimizer\w*\.py:|multi_tensor_appl", UPDATE),
        (
            r"torch/autograd/(__init__|graph)\.py:|autograd::(Engine|Node)|:_?backward$|_aot_autograd/.*backward",
            BACKWARD,
        ),
        (r"/nn/(modules/\w+|parameter)\.py:(__init__|_apply|convert|to|to_empty|reset_parameters|_load\w+)$", WEIGHTS),
        (r"/nn/init\.py:|/_fsdp_param\.py:_init|/modeling_utils\.py:|:set_module_tensor_to_device$", WEIGHTS),
        (
            r"/nn/(modules/\w+|functional)\.py:|:forward$|/utils/checkpoint\.py:|/_inductor/|/_aot_autograd/",
            ACTIVATIONS,
        ),
    )
)
"""Owners by ``file:function`` of a frame, the first that fits."""
LIBRARY = re.compile(
    r"(site|dist)-packages/|/lib/python\d|/torch/(_\w+|nn|optim|autograd|utils|distributed|cuda|fx|functional)\b"
    r"|torchinductor|^(<|\?\?|none$|$)|\.(c|cc|cpp|cu|cuh|h|so)\b"
)
"""Files of frames that are no user's."""
BEFORE = -1
"""Number of the event of allocations that were there before the record."""
ROUND = 512
"""PyTorch rounds sizes to that; a record has those that were asked for."""


class Allocation(NamedTuple):
    """Bytes that were there from one event until another; ``freed`` is the stack of that."""

    since: int
    until: int
    size: int
    stack: Stack
    freed: Stack = ()

    def at(self, moment: int) -> bool:
        """Whether it is there after so many events."""
        return self.since < moment <= self.until


def allocations(snapshot: MemorySnapshot) -> Iterator[Allocation]:
    """Each allocation of a snapshot; ``until`` is the number of events if it is there at the end."""
    there: dict[int, Allocation] = {}
    end = len(snapshot.events)
    for number, event in enumerate(snapshot.events):
        size = -(-event.size // ROUND) * ROUND
        if event.action == "alloc":
            if event.address in there:  # its end was not recorded
                yield there[event.address]._replace(until=number)
            there[event.address] = Allocation(number, end, size, event.stack)
        elif event.action == "free_requested":
            found = there.pop(event.address, Allocation(BEFORE, end, size, ()))
            yield found._replace(until=number, freed=event.stack)
    for block in snapshot.blocks:
        if block.state == ALLOCATED:
            made = there.pop(block.address, Allocation(BEFORE, end, 0, ()))
            yield made._replace(size=block.size, stack=made.stack or block.stack)
    yield from there.values()


@lru_cache(maxsize=2**14)
def _known(frame: StackFrame) -> str | None:
    """The owner, or BACKWARD, that a frame tells."""
    words = f"{frame.file}:{frame.function}"
    return next((owner for pattern, owner in RULES if pattern.search(words)), None)


def owner_of(one: Allocation, end: int, recorded: bool) -> str:
    """The owner of an allocation; ``recorded``: whether stacks are there at all, ``end``: the number of events."""
    told = next(filter(None, map(_known, one.stack)), None)
    if told is None and not one.stack:
        if not recorded or one.since == BEFORE:
            return UNKNOWN
        told = BACKWARD
    kept = one.until == end or any(frame.function == "zero_grad" for frame in one.freed)
    if told == BACKWARD:
        return GRADIENTS if kept else ACTIVATIONS
    if told == REDUCED and kept:
        return GRADIENTS
    if told == UPDATE and (one.until == end or UPDATE not in map(_known, one.freed)):
        return STATE
    return told or OTHER


def user_frame(stack: Stack) -> StackFrame | None:
    """The innermost frame of the user's own code; None without any."""
    return next((frame for frame in stack if not LIBRARY.search(frame.file)), None)


PARTS = 64
"""Maximum parts of the record whose highest level is kept."""
MUCH = 0.1
"""Part of what is reserved from which pieces that are free and cannot be given back are worth a remedy."""
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
HISTORY = "torch.cuda.memory._record_memory_history(max_entries=100000)"
RESERVING = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class CodeLine(NamedTuple):
    """Bytes at the peak that a line of the user's code asked for; None for those of no such line."""

    frame: StackFrame | None
    bytes: int
    owner: str


class SegmentGroup(NamedTuple):
    """Segments of one kind and stream, and their bytes.

    pending:  freed, and awaited by another stream
    split:    free, in segments that are partly in use: these cannot be given back
    cached:   segments that are free as a whole
    rounding: allocated beyond what was asked for
    """

    kind: str
    stream: int
    segments: int
    reserved: int
    allocated: int
    pending: int
    split: int
    cached: int
    rounding: int
    largest_free: int


class OutOfMemory(NamedTuple):
    """An allocation that failed: bytes asked for, free on the GPU, allocated and reserved then, and the line."""

    size: int
    device_free: int
    allocated: int
    reserved: int
    frame: StackFrame | None


@dataclass(frozen=True, slots=True)
class SnapshotExplanation:
    """A snapshot of a GPU, read.

    peak:   highest bytes allocated in the record, else those at its moment; ``owners`` and ``lines`` are of that
    groups: segments by kind and stream; ``segments``: each by itself
    levels: highest bytes allocated in each part of the record
    """

    file: str
    device: int
    allocated: int
    reserved: int
    peak: int
    peak_reserved: int
    events: int
    owners: Mapping[str, int]
    lines: Sequence[CodeLine]
    groups: Sequence[SegmentGroup]
    segments: Sequence[SegmentGroup]
    expandable: bool | None
    failures: Sequence[OutOfMemory]
    levels: Sequence[int]
    verdict: str
    notes: Sequence[str]


def explain_snapshot(snapshot: MemorySnapshot) -> SnapshotExplanation:
    """The explanation of a snapshot."""
    found, end = list(allocations(snapshot)), len(snapshot.events)
    changes = [0] * (end + 2)
    for one in found:
        changes[one.since + 1] += one.size
        changes[one.until + 1] -= one.size
    levels = list(accumulate(changes[:-1]))
    reserved = _reserved(snapshot)
    moment = max(range(end + 1), key=levels.__getitem__)
    there = [one for one in found if one.at(moment)]
    recorded = any(one.stack for one in found)
    owners, lines = Counter[str](), Counter[tuple[StackFrame | None, str]]()
    for one in there:
        owner = owner_of(one, end, recorded)
        owners[owner] += one.size
        lines[user_frame(one.stack), owner] += one.size
    failures = [
        OutOfMemory(event.size, event.address, levels[number], reserved[number], user_frame(event.stack))
        for number, event in enumerate(snapshot.events)
        if event.action == "oom"
    ]
    groups, peak = _groups(snapshot), levels[moment]
    return SnapshotExplanation(
        snapshot.file, snapshot.device, levels[-1], snapshot.reserved, peak, max(reserved), end,
        dict(owners.most_common()), [CodeLine(frame, size, owner) for (frame, owner), size in lines.most_common()],
        groups, [_group(_kind(one), one.stream, [one]) for one in snapshot.segments], snapshot.expandable, failures,
        _parts(levels), _verdict(peak, max(reserved), owners, failures, end),
        _notes(snapshot, groups, failures, recorded),
    )  # fmt: skip


def _reserved(snapshot: MemorySnapshot) -> list[int]:
    """Bytes reserved before each event, and at the end."""
    changes = [RESERVING.get(event.action, 0) * event.size for event in snapshot.events]
    return list(accumulate(changes, initial=max(0, snapshot.reserved - sum(changes))))


def _parts(levels: Sequence[int]) -> list[int]:
    count = min(PARTS, len(levels))
    edges = [part * len(levels) // count for part in range(count + 1)]
    return [max(levels[start:stop]) for start, stop in pairwise(edges)]


def _groups(snapshot: MemorySnapshot) -> list[SegmentGroup]:
    alike: dict[tuple[str, int], list[ReservedSegment]] = {}
    for one in snapshot.segments:
        alike.setdefault((_kind(one), one.stream), []).append(one)
    return sorted((_group(*key, group) for key, group in alike.items()), key=lambda group: -group.reserved)


def _kind(segment: ReservedSegment) -> str:
    return f"{'expandable ' * segment.expandable}{'small' if segment.small else 'large'}"


def _group(kind: str, stream: int, segments: Sequence[ReservedSegment]) -> SegmentGroup:
    reserved, blocks = sum(one.size for one in segments), [block for one in segments for block in one.blocks]
    allocated, pending, free = (sum(one.held(state) for one in segments) for state in (ALLOCATED, PENDING, INACTIVE))
    cached = sum(one.size for one in segments if not one.held(ALLOCATED, PENDING))
    rounding = sum(max(0, one.size - one.requested) for one in blocks if one.state == ALLOCATED)
    largest = max((one.size for one in blocks if one.state == INACTIVE), default=0)
    split = max(0, free - cached)
    return SegmentGroup(kind, stream, len(segments), reserved, allocated, pending, split, cached, rounding, largest)


def _verdict(peak: int, reserved: int, owners: Counter[str], failures: Sequence[OutOfMemory], events: int) -> str:
    """The peak and its largest owner, and the first allocation that failed."""
    when = "The peak is" if events else "At the moment of the snapshot there are"
    said = f"{when} {show_bytes(peak)} allocated, with at most {show_bytes(reserved)} reserved"
    for owner, size in [one for one in owners.most_common() if one[0] != UNKNOWN][:1]:
        said += f"; the largest owner is {owner}, {show_bytes(size)} ({show_share(size / max(1, peak))})"
    for one in failures[:1]:
        said += (
            f". Memory ran out: {show_bytes(one.size)} were asked for, {show_bytes(one.device_free)} were free on the "
            f"GPU, and {show_bytes(max(0, one.reserved - one.allocated))} reserved and not allocated"
        )
    return f"{said}."


def _notes(
    snapshot: MemorySnapshot, groups: Sequence[SegmentGroup], failures: Sequence[OutOfMemory], recorded: bool
) -> list[str]:
    """Remedies, and what a snapshot lacks; no sentence's end."""
    notes, split = [], sum(group.split for group in groups)
    free, largest = split + sum(one.cached for one in groups), max([one.largest_free for one in groups], default=0)
    pieces = any(one.reserved - one.allocated >= one.size for one in failures)
    if (pieces or split > MUCH * snapshot.reserved) and not snapshot.expandable:
        notes.append(
            f"{show_bytes(free)} are reserved and free, {show_bytes(split)} of it in segments in use, in blocks of "
            f"at most {show_bytes(largest)}: {EXPANDABLE} lets segments grow instead"
        )
    if not snapshot.events:
        notes.append(f"no events, so the peak is that of the snapshot's moment: record them with {HISTORY}")
    elif not recorded:
        notes.append(f"no stacks, so no owners: record them with {HISTORY}")
    return notes
