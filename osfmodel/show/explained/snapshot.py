"""Explained memory snapshots in every format: the verdict, owners at the peak, lines of code, segments, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osfmodel.diagnosis.snapshots import CodeLine, OutOfMemory, SegmentGroup, SnapshotExplanation
from osfmodel.engine.strategies.holdings import OWNERS
from osfmodel.entities.display import how_many, show_bytes
from osfmodel.formats.memory_snapshot import StackFrame
from osfmodel.show.document import Result
from osfmodel.show.memory import BARS
from osfmodel.show.table import Column, column, csv_row, json_row
from osfmodel.show.terminal import ENDS, Console, print_fitting, show_notes, show_title, table_of


class OwnerRow(NamedTuple):
    """Bytes of an owner at the peak; ``expected`` by the model, None without one."""

    owner: str
    bytes: int
    expected: int | None


OWNED: tuple[Column[OwnerRow], ...] = (
    column("owner", "at the peak", lambda row: row.owner),
    column("peak_bytes", "snapshot", lambda row: row.bytes, show_bytes),
    column("expected_bytes", "expected", lambda row: row.expected, show_bytes),
)


def _place(frame: StackFrame | None) -> str:
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"


LINES: tuple[Column[CodeLine], ...] = (
    column("place", "line of code", lambda line: _place(line.frame) or "none of the user's"),
    column("file", None, lambda line: line.frame and line.frame.file),
    column("bytes", "at the peak", lambda line: line.bytes, show_bytes),
    column("owner", "owner", lambda line: line.owner),
)
GROUPS: tuple[Column[SegmentGroup], ...] = (
    column("kind", "segments", lambda group: group.kind),
    column("stream", "stream", lambda group: group.stream),
    column("segments", "number", lambda group: group.segments),
    column("reserved_bytes", "reserved", lambda group: group.reserved, show_bytes),
    column("allocated_bytes", "allocated", lambda group: group.allocated, show_bytes),
    column("pending_bytes", None, lambda group: group.pending),
    column("split_bytes", "free, split", lambda group: group.split, show_bytes),
    column("cached_bytes", "free, whole", lambda group: group.cached, show_bytes),
    column("rounding_bytes", "rounding", lambda group: group.rounding, show_bytes),
    column("largest_free_bytes", "largest free", lambda group: group.largest_free, show_bytes),
)
FAILURES: tuple[Column[OutOfMemory], ...] = (
    column("place", "out of memory at", lambda one: _place(one.frame)),
    column("bytes", "asked for", lambda one: one.size, show_bytes),
    column("device_free_bytes", "free on the GPU", lambda one: one.device_free, show_bytes),
    column("allocated_bytes", "allocated", lambda one: one.allocated, show_bytes),
    column("reserved_bytes", "reserved", lambda one: one.reserved, show_bytes),
)
TOTALS: tuple[Column[SnapshotExplanation], ...] = (
    column("snapshot", None, lambda one: one.file),
    column("device", None, lambda one: one.device),
    column("verdict", None, lambda one: one.verdict),
    column("allocated_bytes", None, lambda one: one.allocated),
    column("reserved_bytes", None, lambda one: one.reserved),
    column("peak_bytes", None, lambda one: one.peak),
    column("peak_reserved_bytes", None, lambda one: one.peak_reserved),
    column("segments", None, lambda one: sum(group.segments for group in one.groups)),
    column("expandable_segments", None, lambda one: one.expandable),
    column("events", None, lambda one: one.events),
)
LISTED = 8
"""Maximum number of lines of code and failures on a terminal; other formats list all."""


class SnapshotsExplained(Result):
    """The result of ``osf explain`` of memory snapshots.

    expected: the words of a prediction, and its bytes by owner at the peak
    """

    def __init__(
        self, found: Sequence[SnapshotExplanation], expected: tuple[str, Mapping[str, int]] | None = None
    ) -> None:
        self.found = found
        self.words = None if expected is None else expected[0]
        self.expected = None if expected is None else expected[1]

    def content(self) -> dict[str, Any]:
        return {"expected": self.words, "snapshots": [self._document(one) for one in self.found]}

    def _document(self, one: SnapshotExplanation) -> dict[str, Any]:
        return {
            **json_row(TOTALS, one),
            "peak_owners": [json_row(OWNED, row) for row in self.owners(one)],
            "lines": [json_row(LINES, line) for line in one.lines],
            "segment_groups": [json_row(GROUPS, group) for group in one.groups],
            "each_segment": [json_row(GROUPS, segment) for segment in one.segments],
            "out_of_memory": [json_row(FAILURES, failure) for failure in one.failures],
            "levels_bytes": list(one.levels),
            "notes": list(one.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"snapshot": one.file, "device": one.device, **csv_row(OWNED, row)}
            for one in self.found
            for row in self.owners(one)
        ]

    def owners(self, one: SnapshotExplanation) -> list[OwnerRow]:
        """The owners of a peak, those of the model among them, and their sum."""
        expected = self.expected or {}
        names = dict.fromkeys((*OWNERS, *one.owners, *expected))
        rows = [OwnerRow(name, one.owners.get(name, 0), expected.get(name, 0)) for name in names]
        rows = [row for row in rows if row.bytes or row.expected]
        rows.append(OwnerRow("in all", one.peak, sum(expected.values())))
        return rows if self.expected is not None else [row._replace(expected=None) for row in rows]

    def show(self, console: Console) -> None:
        for number, one in enumerate(self.found):
            console.print() if number else None
            self._show(console, one)

    def _show(self, console: Console, one: SnapshotExplanation) -> None:
        grows = {True: ", expandable", False: ", not expandable", None: ""}[one.expandable]
        segments = how_many(sum(group.segments for group in one.groups), "segment")
        show_title(console, one.verdict)
        console.print()
        now = f"{show_bytes(one.allocated)} allocated of {show_bytes(one.reserved)} reserved in {segments}{grows}"
        show_title(console, f"{one.file}: GPU {one.device}, {how_many(one.events, 'event')}; at its moment {now}")
        columns = OWNED if self.expected is not None else OWNED[:2]
        console.print(table_of(columns, self.owners(one)))
        if one.events:
            top, steps = max(1, *one.levels), len(BARS) - 1
            bars = "".join(BARS[-(-size * steps // top)] for size in one.levels)
            console.print(f"{bars}  the record; a full block is {show_bytes(top)}.", markup=False, soft_wrap=True)
        if one.lines:
            console.print()
            print_fitting(console, LINES, one.lines[:LISTED], ENDS, cut=["line of code"])
        console.print()
        print_fitting(console, GROUPS, one.groups, leave_out=["rounding", "stream", "free, whole"])
        if one.failures:
            console.print()
            print_fitting(console, FAILURES, one.failures[:LISTED], leave_out=["reserved"])
        told = [f"expected is the peak of {self.words}"] if self.words else []
        show_notes(console, [*told, *one.notes])
