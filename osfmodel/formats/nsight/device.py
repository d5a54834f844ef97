"""Work of the GPU in an export of Nsight Systems, and the calls that submitted it, put into columns row by row.

Of a large report the steps in the middle are read, as many as memory allows. A report of gigabytes holds thousands of
steps, of which some hundred show what all do. Beside those that count, a few before and after are read, so that work
which was in flight is on the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from osfmodel.entities.errors import DataError
from osfmodel.formats.kineto.events import Args, Event
from osfmodel.formats.kineto.recorded import LAUNCH, Columns, Recorded
from osfmodel.formats.nsight.database import LARGEST, Database, ProcessGpu, StepRange, number_in, of_process

MOST_KERNELS = 250_000
"""Kernels of a job from which on not all steps are read."""
LEAST_STEPS, AROUND = 3, 2
"""Steps that are read at least, and steps before and after them."""


class Excerpt(NamedTuple):
    """A part of a process's record: ``steps`` and, in nanoseconds, the host's time of their submissions."""

    steps: Sequence[StepRange]
    since: int = -LARGEST
    until: int = LARGEST

    @property
    def whole(self) -> bool:
        """Whether it is all of the record."""
        return self.since == -LARGEST


def chosen_steps(
    processes: Sequence[tuple[Sequence[StepRange], int]], asked: tuple[int, int] | None
) -> tuple[range | None, str]:
    """The numbers of the steps to read of a job, and a remark; None for all of them.

    ``processes`` are (its steps, the number of its kernels) of each; ``asked`` are the first and the last step wanted.
    """
    total = sum(kernels for _, kernels in processes)
    shared = set.intersection(*({number for number, _, _ in steps} for steps, _ in processes))
    wanted = sorted(number for number in shared if asked is None or asked[0] <= number <= asked[1])
    if total <= MOST_KERNELS or not wanted:
        return None, ""
    in_a_step = sum(kernels / len(steps) for steps, kernels in processes)
    room = max(LEAST_STEPS, int(MOST_KERNELS / in_a_step) - 2 * AROUND)
    first = max(0, len(wanted) - room) // 2
    read = wanted[first : first + room]
    said = (
        f"has {total:,} kernels in {len(shared):,} steps, of which {read[0]} to {read[-1]} are read: --steps chooses "
        "others"
    )
    return range(read[0], read[-1] + 1), said if len(read) < len(wanted) else ""


def excerpt_of(steps: Sequence[StepRange], chosen: range | None) -> Excerpt:
    """The part of a process's record that holds the chosen steps, with a few before and after."""
    places = [place for place, (number, _, _) in enumerate(steps) if chosen is not None and number in chosen]
    if not places:
        return Excerpt(steps)
    part = steps[max(0, places[0] - AROUND) : places[-1] + 1 + AROUND]
    return Excerpt(part, part[0][1], max(end for _, _, end in part))


KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
MOST_ROWS = 4_000_000
"""Maximum kernels, or calls that submit them, that are kept of a process."""
MOST_NAMES = 500

Condition = tuple[str, list[object]]
"""A condition of SQL, and its values."""


def add_work(kept: Recorded, database: Database, place: ProcessGpu, part: Excerpt) -> None:
    """Add launches, copies and computing kernels of a process on a device."""
    _add_launches(kept, database, place.process, part)
    for table in COPIES:
        if database.has(table, "start", "end", "correlationId", "streamId"):
            for start, end, correlation, stream, _ in _rows(database, table, place, _submitted(kept, part), "0"):
                _add(kept, kept.copies, (start / 1e3, end / 1e3, correlation, stream))


def collectives_of(kept: Recorded, database: Database, place: ProcessGpu, part: Excerpt) -> Iterator[Event]:
    """The kernels of collectives as events, while those that compute are added to ``kept``.

    Of the names of kernels only those of collectives matter.
    """
    named = "demangledName" if database.has(KERNELS, "demangledName") else "shortName"
    database.require(KERNELS, named)
    names = {
        key: str(name)
        for key, name in database.rows(
            f"SELECT id, value FROM StringIds WHERE (value LIKE '%nccl%' OR value LIKE '%rccl%') AND id IN "
            f"(SELECT DISTINCT {named} FROM {KERNELS})"
        )
    }
    for start, end, correlation, stream, key in _rows(database, KERNELS, place, _submitted(kept, part), named):
        if key in names:
            args = Args(correlation=correlation, stream=stream)
            yield Event("X", "kernel", names[key], start / 1e3, (end - start) / 1e3, str(place.device), "", args)
        else:
            _add(kept, kept.work, (start / 1e3, end / 1e3, correlation, stream))


def _add(kept: Recorded, columns: Columns, row: tuple[float, float, float, float]) -> None:
    columns.add(*row)
    kept.first = min(kept.first, row[0])
    if len(columns) > MOST_ROWS:
        raise DataError(f"has more than {MOST_ROWS:,} kernels in so few steps: record fewer")


def _submitted(kept: Recorded, part: Excerpt) -> Condition:
    """The condition that work was submitted in a part of the record: by its launch, without any by its start."""
    if part.whole:
        return "1", []
    numbers = kept.launches.rows()[:, 0]
    if not len(numbers):
        return "start >= ? AND start < ?", [part.since, part.until]
    return "correlationId BETWEEN ? AND ?", [int(numbers.min()), int(numbers.max())]


def _rows(
    database: Database, table: str, place: ProcessGpu, inside: Condition, name: str
) -> Iterator[tuple[int, int, int, int, object]]:
    """(start, end, correlation, stream, name) of each row of device work of this process and device."""
    own, values = [inside[0]], [*inside[1]]
    if database.has(table, "deviceId"):
        own, values = [*own, "deviceId = ?"], [*values, place.device]
    if database.has(table, "globalPid"):
        named, numbers = of_process("globalPid", place.process)
        own, values = [*own, named], [*values, *numbers]
    query = f"SELECT start, end, correlationId, streamId, {name} FROM {table} WHERE {' AND '.join(own)}"
    for row in database.rows(query, *values):
        start, end, correlation, stream = (number_in(value, table) for value in row[:4])
        if end < start:
            raise DataError(f"a row of the table {table} ends before it starts")
        yield start, end, correlation, stream, row[4]


def _add_launches(kept: Recorded, database: Database, process: int, part: Excerpt) -> None:
    """Add the calls of the runtime that submit work."""
    if not database.has(RUNTIME, "start", "end", "correlationId", "nameId", "globalTid"):
        return
    known = database.rows(f"SELECT id, value FROM StringIds WHERE id IN (SELECT DISTINCT nameId FROM {RUNTIME})")
    called: Sequence[object] = [key for key, name in known if LAUNCH.search(str(name))][:MOST_NAMES]
    named, numbers = of_process("globalTid", process)
    own, values = [f"nameId IN ({', '.join('?' * len(called))})", named], [*called, *numbers]
    if not part.whole:
        own, values = [*own, "start >= ? AND start < ?"], [*values, part.since, part.until]
    query = f"SELECT start, end, correlationId FROM {RUNTIME} WHERE {' AND '.join(own)}"
    for row in database.rows(query, *values):
        start, end, correlation = (number_in(value, RUNTIME) for value in row)
        if end < start:
            raise DataError(f"a row of the table {RUNTIME} ends before it starts")
        kept.launches.add(correlation, start / 1e3, end / 1e3)
        kept.first = min(kept.first, start / 1e3)
        if len(kept.launches) > MOST_ROWS:
            raise DataError(f"has more than {MOST_ROWS:,} launches in so few steps: record fewer")
