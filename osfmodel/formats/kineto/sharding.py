"""The groups of sharded parameters in a trace: which of them a collective gathers or reduces, and when each is in use.

FSDP2 notes what it does with the name of the module (``FSDP::all_gather (layers.0)``, none for the root), and copies
every parameter by an operator of its own, whose shapes are recorded. FSDP1 notes its hooks without names: its units are
told by the order of their all-gathers in forward, later collectives by the sizes of units, the last unit of that size
first, as backward goes.

Collectives that name no process group have theirs from the header of a trace, and by the threads that ran them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from osfmodel.entities.trace import ProcessGroup, Sharded
from osfmodel.formats.kineto.collectives import Found, elements_of
from osfmodel.formats.kineto.recorded import FSDP_COPIES, HostSpan, Recorded

LARGEST_GROUP = 100_000
"""Ranks of a group beyond which they are not listed."""


def process_groups(header: Mapping[str, Any]) -> tuple[ProcessGroup, ...]:
    """The process groups that the header lists; fields of wrong types count as not stated."""
    return tuple(map(_group, _listed(header)))


def _group(entry: Mapping[str, Any]) -> ProcessGroup:
    listed, described = entry.get("ranks"), entry.get("pg_desc")
    ranks = tuple(sorted(set(listed))) if isinstance(listed, list) and _are_ranks(listed) else ()
    size = entry.get("pg_size", len(ranks) or None)
    known = isinstance(size, int) and not isinstance(size, bool) and size > 0
    words = described if isinstance(described, str) and described.isprintable() and described != "undefined" else ""
    return ProcessGroup(str(entry.get("pg_name", "")), words, size if known else None, ranks)


def _are_ranks(listed: Sequence[Any]) -> bool:
    """Whether a list holds only numbers of ranks; a long one may be shortened, with dots between numbers."""
    return len(listed) <= LARGEST_GROUP and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in listed
    )


def _listed(header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The header's entries, one for each process group."""
    told = header.get("distributedInfo")
    config = told.get("pg_config") if isinstance(told, Mapping) else None
    return [entry for entry in config if isinstance(entry, Mapping)] if isinstance(config, list) else []


def meshed(header: Mapping[str, Any], found: Sequence[Found]) -> list[Found]:
    """Collectives of sharded parameters, with their process group from the trace's header if the library records none.

    Parameters are sharded between the ranks of a group that are next to each other; shards are all-reduced in another
    group of the remaining ranks, so that the product of both sizes is the job's.
    """
    listed = [entry for entry in _listed(header) if isinstance(entry.get("ranks"), list) and len(entry["ranks"]) > 1]
    ordered = sorted(listed, key=lambda entry: max(map(_number, entry["ranks"])) - min(map(_number, entry["ranks"])))
    world = max((len(entry["ranks"]) for entry in listed), default=0)
    ranks = {one.workers for one in found if one.shard and one.kind != "all_reduce"}
    split = min((size for size in ranks if size), default=0)
    if not split or world % split:
        return list(found)

    def named(one: Found) -> Found:
        if one.shard is None or one.group:
            return one
        reduced = one.kind == "all_reduce"
        size = world // split if reduced else one.workers
        like = [entry for entry in ordered if len(entry["ranks"]) == size]
        if not like:
            return one
        return one._replace(workers=size, group=str(like[-1 if reduced else 0].get("pg_name", "")))

    return [named(one) for one in found]


def by_threads(header: Mapping[str, Any], found: Sequence[Found]) -> list[Found]:
    """The collectives, with their groups from the threads that ran them, if the library notes no group at all.

    gloo has threads of its own for each group, which it starts with the group. Threads that ran collectives of one
    kind are taken to be of one group, so groups are told apart only where there are as many as the header lists.
    """
    names = [group.name for group in process_groups(header)]
    if len(names) < 2 or any(one.group or not one.thread.isdecimal() for one in found):
        return list(found)
    pools: list[tuple[set[str], set[str]]] = []  # threads, kinds
    for thread, kind in dict.fromkeys((one.thread, one.kind) for one in found):
        mine = [pool for pool in pools if thread in pool[0] or kind in pool[1]]
        pools = [pool for pool in pools if pool not in mine]
        pools.append((set().union({thread}, *(one for one, _ in mine)), set().union({kind}, *(one for _, one in mine))))
    if len(pools) != len(names):
        return list(found)
    pools.sort(key=lambda pool: min(map(int, pool[0])))
    group = {thread: name for (threads, _), name in zip(pools, names, strict=True) for thread in threads}
    return [one._replace(group=group[one.thread]) for one in found]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


GATHERS, REDUCES, LAST = "all_gather", "post_backward_reduce", "root_post_backward_callback"
LABEL = re.compile(r"FSDP::(\w+)(?: \((.*)\)| for (?:.*))?\Z")
"""A note of FSDP2: its action, and the module; a prefetch is told by the all-gather within."""
UNIT = "FullyShardedDataParallel._"
"""Beginning of FSDP1's notes."""
ENTERS = {"pre_forward": False, "pre_backward": True}
"""FSDP2's notes with which the use of a group begins; whether in backward."""
LEAVES = {"post_forward": False, "post_backward_accumulate": True}


class HostUse(NamedTuple):
    """The use of a group in one pass on the host, in microseconds as in the file."""

    module: str
    backward: bool
    start: float
    end: float


class Note(NamedTuple):
    """A note of FSDP: its action, and the module if FSDP2 names it; None for FSDP1."""

    action: str
    module: str | None
    start: float
    end: float


def _note(span: HostSpan) -> Note | None:
    label = LABEL.match(span.name)
    if label:
        return Note(label[1], label[2] or "", span.start, span.end)
    if span.name.startswith(UNIT):
        return Note(span.name.removeprefix(UNIT), None, span.start, span.end)
    return None


def grouped(kept: Recorded, found: Sequence[Found]) -> tuple[list[Found], list[HostUse]]:
    """The collectives, with the groups of those that are about sharded parameters, and the uses of all groups."""
    spans = sorted(kept.sharding, key=lambda span: span.start)
    notes = [note for span in spans if (note := _note(span))]
    if not notes:
        return list(found), []
    copies = [span for span in spans if span.name.startswith(FSDP_COPIES)]
    units = _Units()
    hooks = [note for note in notes if note.action in ENTERS]
    named = []
    for one, around in zip(found, _around(notes, [one.submitted for one in found]), strict=True):
        shard = _of_module(one, around, hooks, copies) or units.of(one, around)
        named.append(one if shard is None else one._replace(kind=one.called or one.kind, shard=shard))
    return named, sorted([*_uses_of_modules(notes), *_uses_of_units(notes)], key=lambda use: use.start)


def _around(notes: Sequence[Note], times: Sequence[float]) -> Iterator[list[Note]]:
    """The notes around each of these ascending times, the outermost first."""
    place, open_notes = 0, list[Note]()
    for time in times:
        while place < len(notes) and notes[place].start <= time:
            open_notes.append(notes[place])
            place += 1
        open_notes = [note for note in open_notes if note.end >= time]
        yield open_notes


def _of_module(one: Found, around: Sequence[Note], hooks: Sequence[Note], copies: Sequence[HostSpan]) -> Sharded | None:
    """The group that FSDP2 names around a collective; None if it names none.

    A list of modules to prefetch is gone through behind the note of the hook, which is then the last of ``hooks``.
    """
    about = next((note for note in reversed(around) if note.action in (GATHERS, REDUCES)), None)
    if about is None or about.module is None:
        return None
    actions = {note.action for note in around}
    backward = bool(actions & {REDUCES, "pre_backward", "backward_prefetch"})
    place = bisect_right(hooks, one.submitted, key=lambda note: note.start) - 1
    ahead = "backward_prefetch" in actions or "forward_prefetch" in actions
    inside = place >= 0 and (ahead or hooks[place].end >= one.submitted)
    by = hooks[place].module if inside else about.module
    shapes, padded = _copied(copies, about.start, one.submitted)
    return Sharded(about.module, backward, by or "", LAST in actions, shapes, padded)


def _copied(
    copies: Sequence[HostSpan], start: float, end: float
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """(shapes of the gradients, padded elements of the parameters) in the last copy between two times."""
    place = bisect_right(copies, end, key=lambda span: span.start) - 1
    if place < bisect_left(copies, start, key=lambda span: span.start):
        return (), ()
    dims: Any = copies[place].args.input_dims
    shapes = dims[0] if isinstance(dims, list) and dims and isinstance(dims[0], list) else []
    if not shapes or any(not isinstance(shape, list) or elements_of(shape) is None for shape in shapes if shape):
        return (), ()
    whole = tuple(tuple(shape) for shape in shapes)
    if copies[place].name.endswith("chunk_cat"):
        return whole, ()
    return (), tuple(math.prod(shape) for shape in whole)


class _Units:
    """Units of FSDP1, one forward at a time: elements of each rank's part, and which backward has had already."""

    def __init__(self) -> None:
        self.parts: list[int | None] = []
        self.gathered: set[int] = set()
        self.reduced: list[int] = []

    def of(self, one: Found, around: Sequence[Note]) -> Sharded | None:
        """The unit of a collective that FSDP1 issued; None if it did not, or if no unit has its size."""
        if not any(note.module is None for note in around):
            return None
        if not any("backward" in note.action for note in around):
            return self._forward(one)
        kind = one.called or one.kind
        unit = self._like(one, kind)
        if unit is None:
            return None
        if kind == "reduce_scatter":
            self.reduced.append(unit)
        elif kind == "all_gather":
            self.gathered.add(unit)
        return Sharded(f"unit{unit}", backward=True, last=unit == 0 and kind != "all_gather", flat=True)

    def _forward(self, one: Found) -> Sharded | None:
        if (one.called or one.kind) != "all_gather":
            return None
        if self.gathered or self.reduced:  # another forward
            self.parts, self.gathered, self.reduced = [], set(), []
        self.parts.append(one.elements)
        return Sharded(f"unit{len(self.parts) - 1}", backward=False, flat=True)

    def _like(self, one: Found, kind: str) -> int | None:
        """The last unit of its size that has had no such collective in this backward."""
        if kind == "all_reduce":
            return self.reduced[-1] if self.reduced else None
        had = self.gathered if kind == "all_gather" else set(self.reduced)
        part = one.elements
        if kind == "reduce_scatter" and part is not None:
            part = part // one.workers if one.workers else None
        left = [unit for unit, size in enumerate(self.parts) if unit not in had and size == part]
        return left[-1] if left else None


def _uses_of_modules(notes: Sequence[Note]) -> Iterator[HostUse]:
    """The uses that FSDP2 names: from before a group's all-gather until it is left."""
    entered: dict[tuple[str, bool], float] = {}
    for note in notes:
        if note.module is None:
            continue
        if note.action in ENTERS:
            entered.setdefault((note.module, ENTERS[note.action]), note.start)
        elif note.action in LEAVES:
            backward = LEAVES[note.action]
            start = entered.pop((note.module, backward), None)
            if start is not None:
                yield HostUse(note.module, backward, start, note.start)


def _uses_of_units(notes: Sequence[Note]) -> Iterator[HostUse]:
    """The uses of FSDP1's units: nested in forward; in backward the other way round, and the root is left last."""
    inside, left = list[tuple[int, float]](), list[int]()
    count, before, after = 0, list[float](), list[float]()
    for note in (note for note in notes if note.module is None):
        if note.action == "pre_forward":
            if not inside:
                yield from _backward_of_units(left, before, after)
                count, left, before, after = 0, [], [], []
            inside.append((count, note.start))
            count += 1
        elif note.action == "post_forward" and inside:
            unit, start = inside.pop()
            left.append(unit)
            yield HostUse(f"unit{unit}", False, start, note.start)
        elif note.action == "pre_backward_hook":
            before.append(note.start)
        elif note.action == "post_backward_hook":
            after.append(note.start)
    yield from _backward_of_units(left, before, after)


def _backward_of_units(left: Sequence[int], before: Sequence[float], after: Sequence[float]) -> Iterator[HostUse]:
    if not left or len({len(left), len(before), len(after)}) > 1:
        return
    entered = dict(zip(reversed(left), before, strict=True))
    ends = dict(zip([*(unit for unit in reversed(left) if unit), 0], after, strict=True))
    for unit, start in entered.items():
        if ends[unit] > start:
            yield HostUse(f"unit{unit}", True, start, ends[unit])
