"""Work of the GPU in an export of Nsight Systems, and the calls that submitted it, put into columns row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from osfmodel.entities.errors import DataError
from osfmodel.formats.kineto.events import Args, Event
from osfmodel.formats.kineto.recorded import LAUNCH, Columns, Recorded
from osfmodel.formats.nsight.database import Database
from osfmodel.formats.nsight.excerpt import Excerpt
from osfmodel.formats.nsight.ranges import ProcessGpu, number_in, of_process

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
