"""The SQLite database of an export of Nsight Systems, and the NVTX ranges in it: of steps, their phases, and NCCL.

It is read row by row: never changed, never held, and trusted in nothing. Such a file may be damaged or made to harm:
only plain tables are read, no function of the file's own schema runs, and no more rows are taken than its bytes can
hold, as a damaged tree may repeat its pages.

NCCL notes each call with its communicator and bytes as a binary payload, which is exported with --include-blobs=true.
A call inside of ncclGroupStart and ncclGroupEnd, as all of PyTorch's are, launches its kernel at the end of the group.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from osfmodel.entities.errors import DataError
from osfmodel.formats.kineto.collectives import kind_of

MAGIC = b"SQLite format 3\0"
LONGEST_VALUE = 2**24
"""Maximum bytes of a text or a blob."""
LEAST_ROW = 4
"""Bytes that a row takes at least."""
DAMAGED = "is a damaged SQLite database"
FAULTS = (sqlite3.Error, OverflowError, UnicodeDecodeError, MemoryError)
"""Errors of the library in damaged files, also where its own message cannot be decoded."""


class Database:
    """An open database: ``columns`` of each plain table."""

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        self.connection, self.most_rows = connection, size // LEAST_ROW
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "cache_size = -16384"):
            list(self._run(f"PRAGMA {pragma}"))
        named = self._run("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        plain = [str(name) for name, sql in named if str(sql).upper().startswith("CREATE TABLE")]
        quoted = {name: '"' + name.replace('"', '""') + '"' for name in plain}
        self.columns: Mapping[str, frozenset[str]] = {
            name: frozenset(str(row[1]) for row in self._run(f"PRAGMA table_info({said})"))
            for name, said in quoted.items()
        }

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is a table with these columns."""
        return table in self.columns and set(columns) <= self.columns[table]

    def require(self, table: str, *columns: str) -> None:
        """Raise DataError if there is no such table with these columns."""
        if table not in self.columns:
            raise DataError(f"has no table {table}")
        missing = sorted(set(columns) - self.columns[table])
        if missing:
            raise DataError(f"the table {table} has no column {missing[0]}")

    def rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, one by one. Raises DataError if the database is damaged."""
        yield from self._run(query, *values)

    def _run(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        left = self.most_rows
        try:
            for row in self.connection.execute(query, values):
                left -= 1
                if left < 0:
                    raise DataError(f"{DAMAGED}: it has more rows than bytes")
                yield row
        except FAULTS as error:
            raise DataError(f"{DAMAGED}: {str(error)[:100]!a}") from None


@contextmanager
def opened_database(path: Path) -> Iterator[Database]:
    """The database in a file, closed afterwards. Raises DataError for one that cannot be read."""
    try:
        size = path.stat().st_size
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"  # no journal is looked for, nor written
        connection = sqlite3.connect(uri, uri=True)
    except (OSError, sqlite3.Error) as error:
        raise DataError(f"cannot be read: {error}") from None
    try:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        if hasattr(connection, "setlimit"):  # Python 3.11 and later; before, a value is as long as the file may hold
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        yield Database(connection, size)
    finally:
        connection.close()


RANGES = (59, 60)
"""Event types of NVTX ranges: pushed and popped on a thread, and started and ended."""
STEP = re.compile(
    r"\W*(?:profilerstep#|(?:global|train(?:ing)?)?[\s_-]*(?:step|iter(?:ation)?|batch))[\s_:#=.-]*(\d{1,15})?\W*",
    re.IGNORECASE,
)
BACKWARD = re.compile(r"\W*(?:loss[._])?(?:backward|bwd)(?:[\s_-]?pass)?\W*", re.IGNORECASE)
UPDATE = re.compile(r"\W*optimi[sz]er(?:[\s_.-]?step)?\W*", re.IGNORECASE)
PHASES = ("%step%", "%iter%", "%batch%", "%backward%", "%bwd%", "%optimi_er%", "ncclComm%")
CALLS = ("nccl%",)
HEADER = 32
"""Bytes before a payload: numbers of 8 bytes, of which the second is its schema and the third its size."""
BYTES, COMMUNICATOR, RANKS, RANK = "Message size [bytes]", "NCCL communicator ID", "No. of ranks", "Rank"
WIDTHS: Mapping[str, int] = {BYTES: 8, COMMUNICATOR: 8, RANKS: 4, RANK: 4}
"""Fields of NCCL's payloads by their names, and their bytes (NCCL, nvtx_payload_schemas.h)."""
LARGEST = 2**62
NO_PROCESS = 0
"""Stands for all processes where kernels do not name theirs."""
THREAD_BITS, PID_BITS = 24, 24
"""Bits of Nsight's numbers of threads: the lowest are the thread, those above it the process as its host knows it."""
MOST_RANGES = 500_000
"""Maximum number of ranges of steps, of phases or of collectives that are kept."""


class ProcessGpu(NamedTuple):
    """A process, as :func:`process_of` has it, and the device that it uses."""

    process: int
    device: int


class NvtxRange(NamedTuple):
    """A range on the host; times in nanoseconds as in the file, ``payload`` as far as it is known."""

    name: str
    start: int
    end: int
    thread: int
    payload: Mapping[str, int]


class NcclCall(NamedTuple):
    """A call of a collective, until the end of its group: ``bytes`` of one rank's part, None if not exported."""

    kind: str
    start: int
    end: int
    bytes: int | None
    communicator: int | None


StepRange = tuple[int, int, int]
"""Number, start and end of a step, in nanoseconds."""


@dataclass(slots=True)
class ProcessRanges:
    """The ranges of one process: ``ranks`` has the ranks and the own rank of each communicator that it joined."""

    steps: list[StepRange] = field(default_factory=list)
    backward: list[tuple[int, int]] = field(default_factory=list)
    updates: list[tuple[int, int]] = field(default_factory=list)
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)


def process_of(global_id: int) -> int:
    """The process in Nsight's number of a thread or a process: its upper bits, without the thread."""
    return global_id >> THREAD_BITS


def pid_of(process: int) -> int:
    """The number of a process on its host."""
    return process & ((1 << PID_BITS) - 1)


def of_process(column: str, process: int) -> tuple[str, list[object]]:
    """The condition of SQL, with its values, that Nsight's number in a column is of a process; none for NO_PROCESS."""
    return ("1", []) if process == NO_PROCESS else (f"{column} >> {THREAD_BITS} = ?", [process])


def ranges_of(database: Database) -> dict[int, ProcessRanges]:
    """Steps, phases and communicators of each process. Raises DataError for times that are none."""
    found: dict[int, ProcessRanges] = defaultdict(ProcessRanges)
    families: dict[int, dict[tuple[str, int], list[tuple[int | None, int, int]]]] = defaultdict(dict)
    kept = 0
    for one in _ranges(database, PHASES):
        process = process_of(one.thread)
        own = found[process]
        step = STEP.fullmatch(one.name)
        if step:
            name = re.sub(r"\d+", "", one.name)
            row = (int(step[1]) if step[1] else None, one.start, one.end)
            families[process].setdefault((name, one.thread), []).append(row)
        elif BACKWARD.fullmatch(one.name):
            own.backward.append((one.start, one.end))
        elif UPDATE.fullmatch(one.name):
            own.updates.append((one.start, one.end))
        elif one.name.startswith("ncclComm") and {COMMUNICATOR, RANKS} <= set(one.payload):
            own.ranks[one.payload[COMMUNICATOR]] = one.payload[RANKS], one.payload.get(RANK, 0)
        else:
            continue
        kept += 1
        _require_few(kept)
    for process, steps in families.items():
        found[process].steps = _longest(steps.values())
    return found


def _require_few(count: int) -> None:
    if count > MOST_RANGES:
        raise DataError(f"has more than {MOST_RANGES:,} NVTX ranges of steps and collectives: record fewer steps")


def calls_of(database: Database, process: int, since: int, until: int) -> list[NcclCall]:
    """NCCL's collectives that a process called from ``since`` to before ``until``; of all processes for NO_PROCESS."""
    own = (one for one in _ranges(database, CALLS, process, (since, until)))
    found: list[NcclCall] = []
    for call in _calls(own):
        found.append(call)
        _require_few(len(found))
    return found


def _ranges(
    database: Database, like: Sequence[str], process: int = NO_PROCESS, window: tuple[int, int] = (-LARGEST, LARGEST)
) -> Iterator[NvtxRange]:
    """The ranges of such names that start in a window, in order of their threads and starts."""
    if not database.has("NVTX_EVENTS", "start", "end", "text", "globalTid", "eventType"):
        return
    schemas = _schemas(database)
    text, join = "n.text", ""
    if database.has("NVTX_EVENTS", "textId") and database.has("StringIds", "id", "value"):
        text, join = "COALESCE(n.text, s.value)", " LEFT JOIN StringIds AS s ON s.id = n.textId"
    blob = "n.binaryData" if database.has("NVTX_EVENTS", "binaryData") else "NULL"
    named = " OR ".join(f"{text} LIKE ?" for _ in like)
    own, of_own = of_process("n.globalTid", process)
    where = f"n.eventType IN (?, ?) AND n.end IS NOT NULL AND ({named}) AND {own}"
    values: list[object] = [*RANGES, *like, *of_own]
    if window != (-LARGEST, LARGEST):
        where, values = f"{where} AND n.start >= ? AND n.start < ?", [*values, *window]
    query = (
        f"SELECT {text}, n.start, n.end, n.globalTid, {blob} FROM NVTX_EVENTS AS n{join} WHERE {where} "
        "ORDER BY n.globalTid, n.start, n.end DESC"
    )
    for name, *numbers, payload in database.rows(query, *values):
        start, end, thread = (number_in(value, "NVTX_EVENTS") for value in numbers)
        yield NvtxRange(str(name), start, end, thread, _payload(payload, schemas))


def number_in(value: Any, table: str) -> int:
    """A whole number in a row, such as a time or a process. Raises DataError if it is none."""
    if not isinstance(value, int) or not -LARGEST < value < LARGEST:
        raise DataError(f"the table {table} has {str(value)[:40]!a} where a whole number belongs")
    return value


def _schemas(database: Database) -> Mapping[int, Mapping[str, int]]:
    """The offsets of the known fields in each schema of payloads."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if database.has(table, "schemaId", "name", "offset"):
        for schema, name, offset in database.rows(f"SELECT schemaId, name, offset FROM {table}"):
            if name in WIDTHS and isinstance(offset, int | None):
                found[schema][name] = offset or 0
    return found


def _payload(blob: Any, schemas: Mapping[int, Mapping[str, int]]) -> Mapping[str, int]:
    """The known fields of a payload; none if it is laid out in any other way."""
    if not isinstance(blob, bytes) or len(blob) < HEADER:
        return {}
    schema, size = (int.from_bytes(blob[place : place + 8], "little") for place in (8, 16))
    if size != len(blob) - HEADER:
        return {}
    fields = {}
    for name, offset in schemas.get(schema, {}).items():
        place, width = HEADER + offset, WIDTHS[name]
        if offset >= 0 and place + width <= len(blob):
            fields[name] = int.from_bytes(blob[place : place + width], "little")
    return fields


def _longest(families: Iterable[list[tuple[int | None, int, int]]]) -> list[StepRange]:
    """The ranges of the name, apart from numbers, that lasts longest in all; those without a number are counted on."""
    longest = max(families, key=lambda steps: sum(end - start for _, start, end in steps), default=[])
    numbered = []
    before = -1
    for number, start, end in sorted(longest, key=lambda step: step[1]):
        before = before + 1 if number is None else number
        numbered.append((before, start, end))
    return numbered


def _calls(found: Iterable[NvtxRange]) -> Iterator[NcclCall]:
    """NCCL's collectives; those of one group are one call, as NCCL launches them together."""
    inside: list[NvtxRange] = []
    depth, thread = 0, -1
    for one in found:
        if one.thread != thread:
            depth, inside, thread = 0, [], one.thread
        if one.name.startswith("ncclGroupStart"):
            depth += 1
        elif one.name.startswith("ncclGroupEnd"):
            depth = max(0, depth - 1)
            if not depth and inside:
                yield _merged(inside, one.end)
                inside = []
        elif one.name.startswith("nccl") and not one.name.startswith("ncclComm") and kind_of(one.name):
            inside.append(one)
            if not depth:
                yield _merged(inside, one.end)
                inside = []


def _merged(calls: list[NvtxRange], end: int) -> NcclCall:
    """The call of a group: the bytes of all, if they are of one kind and communicator."""
    kinds = {kind_of(one.name) or "" for one in calls}
    communicators = {one.payload.get(COMMUNICATOR) for one in calls}
    sizes = [one.payload.get(BYTES) for one in calls]
    known = [size for size in sizes if size is not None]
    alike = len(kinds) == len(communicators) == 1 and len(known) == len(sizes) and sum(known) < LARGEST
    kind = kinds.pop() if len(kinds) == 1 else "collective"
    return NcclCall(kind, calls[0].start, end, sum(known) if alike else None, communicators.pop() if alike else None)
