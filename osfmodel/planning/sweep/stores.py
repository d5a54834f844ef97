"""Tables of records that grow as a sweep goes on, and from which it resumes: CSV, JSON lines, Parquet, DuckDB.

Each batch of records is appended whole. After a sweep was killed, what it left of a batch is removed when its table is
opened again, and points that are in the table are not computed again.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files.profiles import reason
from osfmodel.planning.sweep import FIELDS, KEYS, Record

PART = "part-"
ROWS_OF_A_PART = 2000
"""Rows from which on a Parquet part is written."""
LONGEST_LINE = 1 << 20
TRUTH = {"True": True, "False": False}


class Store(Protocol):
    """A table of records in a file or a folder."""

    def records(self) -> Iterator[Record]:
        """The records in the table, in order."""

    def append(self, records: Sequence[Record]) -> None:
        """Write these records after the others."""

    def close(self) -> None:
        """Write all that is held back."""


def open_store(path: str | os.PathLike[str], writes: bool = True) -> Store:
    """The store of a file, by the ending of its name; ``writes``: whether it is appended to, and may be new.

    Raises UsageError for another ending, DataError where the file holds something else.
    """
    ending = Path(path).suffix.lower()
    if ending not in STORES:
        raise UsageError(f"{path}: a sweep writes {', '.join(STORES)}: name the file so")
    try:
        if not writes:
            os.stat(path)
        return STORES[ending](Path(path), writes)
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {reason(Path(path), error)}") from None


class _Lines:
    """A text file with a record in each line. A last line without an end is left out, and removed before writing."""

    def __init__(self, path: Path, writes: bool) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("ab+" if writes else "rb")
        try:
            if writes:
                _lock(self._file.fileno(), path)
            self._begin(writes)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, writes: bool) -> None:
        """Look at the first line, or write it; remove an unfinished last line. Raises DataError for another table."""
        self._file.seek(0)
        head = self._file.readline(LONGEST_LINE)
        whole = head.endswith(b"\n")
        if not (self._fits(head) if whole else self._begins(head)):
            raise DataError(f"{self.path} is no table of a sweep, or of another version: give a grid, or another name")
        if writes:
            self._file.truncate(_end_of_lines(self._file) if whole else 0)
            self._write(b"" if whole else self._head())

    def _head(self) -> bytes:
        """The first line of a new file."""
        return b""

    def _begins(self, head: bytes) -> bool:
        """Whether an unfinished first line may be ours."""
        raise NotImplementedError

    def _fits(self, head: bytes) -> bool:
        """Whether a first line is ours."""
        raise NotImplementedError

    def _read(self) -> Iterator[str]:
        with self.path.open(encoding="utf-8", newline="") as file:
            try:
                yield from (line for line in file if line.endswith("\n"))
            except UnicodeDecodeError:
                raise _damaged(self.path, "it is not UTF-8 text") from None

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._file.flush()

    def close(self) -> None:
        """Write all that is held back."""
        self._file.close()


def _lock(file: int, path: Path) -> None:
    """Keep other sweeps from writing there while a file is open, if the system can. Raises DataError if one does."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"{path}: another sweep is writing there: wait for it, or give another name") from None
    except (ImportError, OSError):
        return  # Windows, or a file system without locks


def _end_of_lines(file: IO[bytes]) -> int:
    """The place behind the last end of a line."""
    place = file.seek(0, os.SEEK_END)
    while place:
        start = max(0, place - LONGEST_LINE)
        file.seek(start)
        found = file.read(place - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        place = start
    return 0


class CsvStore(_Lines):
    """A CSV file; cells without a value are empty."""

    def _head(self) -> bytes:
        return (",".join(KEYS) + "\n").encode()

    def _begins(self, head: bytes) -> bool:
        return self._head().startswith(head)

    def _fits(self, head: bytes) -> bool:
        return head == self._head()

    def records(self) -> Iterator[Record]:
        """The records in the table, in order."""
        for place, row in enumerate(csv.DictReader(self._read()), 2):
            if len(row) != len(KEYS) or None in row.values():
                raise _damaged(self.path, f"row {place} does not have {len(KEYS)} cells")
            try:
                yield {one.key: _value(one.type, row[one.key]) for one in FIELDS.values()}
            except (ValueError, KeyError):
                raise _damaged(self.path, f"row {place} has a cell of another type") from None

    def append(self, records: Sequence[Record]) -> None:
        """Write these records after the others."""
        text = io.StringIO()
        writer = csv.DictWriter(text, KEYS, lineterminator="\n")
        writer.writerows(records)
        self._write(text.getvalue().encode())


def _value(kind: type, cell: str) -> Any:
    """The value of a cell. Raises ValueError or KeyError for one of another type."""
    if not cell:
        return None
    return TRUTH[cell] if kind is bool else kind(cell)


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path} is damaged: {reason}: remove that part, or sweep into another file")


class LinesStore(_Lines):
    """A file of JSON lines."""

    def _begins(self, head: bytes) -> bool:
        return head.startswith(b'{"point"'[: len(head)])

    def _fits(self, head: bytes) -> bool:
        try:
            return tuple(json.loads(head)) == KEYS
        except ValueError:
            return False

    def records(self) -> Iterator[Record]:
        """The records in the table, in order."""
        for place, text in enumerate(self._read(), 1):
            try:
                yield _typed(json.loads(text))
            except (ValueError, TypeError, AttributeError):
                raise _damaged(self.path, f"line {place} is no record of a sweep") from None

    def append(self, records: Sequence[Record]) -> None:
        """Write these records after the others."""
        self._write("".join(json.dumps(record) + "\n" for record in records).encode())


def _typed(record: Any) -> Record:
    """The record, if it has the columns of one. Raises ValueError, TypeError or AttributeError."""
    for key, value in zip(KEYS, record.values(), strict=True):
        kind = FIELDS[key].type
        if value is not None and type(value) is not kind and not (kind is float and type(value) is int):
            raise TypeError(key)
    if tuple(record) != KEYS:
        raise ValueError(record)
    return record  # type: ignore[no-any-return]


class ParquetStore:
    """A folder of Parquet files, which pandas, polars, Spark and DuckDB read as one table."""

    def __init__(self, path: Path, writes: bool) -> None:
        self._arrow = _package("pyarrow", "pyarrow.parquet")
        self.path = path
        self._folder: int | None = None
        if path.is_file():
            raise DataError(f"{path} is a file: a sweep writes a folder of Parquet files: give another name")
        if writes:
            path.mkdir(exist_ok=True)
            if sys.platform != "win32":  # there folders cannot be opened
                self._folder = os.open(path, os.O_RDONLY)
                _lock(self._folder, path)
            for left in path.glob(".part-*.tmp"):
                left.unlink()
        self._held: list[Record] = []
        self._next = 1 + max((int(part.stem[len(PART) :]) for part in self._parts()), default=0)

    def _parts(self) -> list[Path]:
        return sorted(
            part for part in self.path.glob(f"{PART}*.parquet") if re.fullmatch("[0-9]+", part.stem[len(PART) :])
        )

    def records(self) -> Iterator[Record]:
        """The records in the table, in order."""
        for part in self._parts():
            try:
                table = self._arrow.parquet.read_table(part)
            except (OSError, self._arrow.ArrowException):
                raise _damaged(part, "it is not a Parquet file") from None
            if tuple(table.column_names) != KEYS:
                raise DataError(f"{part} is not of a sweep, or of another version: give a grid, or another name")
            yield from table.to_pylist()

    def append(self, records: Sequence[Record]) -> None:
        """Write these records after the others."""
        self._held += records
        if len(self._held) >= ROWS_OF_A_PART:
            self._write()

    def close(self) -> None:
        """Write all that is held back."""
        try:
            if self._held:
                self._write()
        finally:
            if self._folder is not None:
                os.close(self._folder)
                self._folder = None

    def _write(self) -> None:
        target = self.path / f"{PART}{self._next:06d}.parquet"
        temporary = self.path / f".{target.name}.tmp"
        self._arrow.parquet.write_table(_table(self._arrow, self._held), temporary)
        os.replace(temporary, target)
        self._next += 1
        self._held = []


class DuckDbStore:
    """The table ``sweep`` of a DuckDB database."""

    def __init__(self, path: Path, writes: bool) -> None:
        self.path, duckdb, self._arrow = path, _package("duckdb"), _package("pyarrow")
        self._error = duckdb.Error
        try:
            self._connection = duckdb.connect(str(path), read_only=not writes)
            if writes:
                types = ", ".join(f"{one.key} {SQL_TYPES[one.type]}" for one in FIELDS.values())
                self._connection.execute(f"CREATE TABLE IF NOT EXISTS sweep ({types})")
            found = self._connection.execute("SELECT * FROM sweep LIMIT 0").description
        except duckdb.Error as error:
            raise DataError(f"{path} cannot be opened as a DuckDB database: {str(error).splitlines()[0]}") from None
        if tuple(row[0] for row in found) != KEYS:
            raise DataError(f"{path}: its table `sweep` is of another version: give another name")

    def records(self) -> Iterator[Record]:
        """The records in the table, in order."""
        cursor = self._connection.cursor().execute("SELECT * FROM sweep")
        while rows := cursor.fetchmany(ROWS_OF_A_PART):
            yield from (dict(zip(KEYS, row, strict=True)) for row in rows)

    def append(self, records: Sequence[Record]) -> None:
        """Write these records after the others."""
        try:
            self._connection.register("added", _table(self._arrow, records))
            self._connection.execute("INSERT INTO sweep SELECT * FROM added")
        except self._error as error:
            raise DataError(f"{self.path} cannot be written: {str(error).splitlines()[0]}") from None
        self._connection.unregister("added")

    def close(self) -> None:
        """Write all that is held back."""
        self._connection.close()


class MemoryStore:
    """Records that are only kept in memory."""

    def __init__(self) -> None:
        self.held: list[Record] = []

    def records(self) -> Iterator[Record]:
        """The records in the table, in order."""
        yield from self.held

    def append(self, records: Sequence[Record]) -> None:
        """Write these records after the others."""
        self.held += records

    def close(self) -> None:
        """Nothing is held back."""


SQL_TYPES: Mapping[type, str] = {int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN"}
STORES: Mapping[str, Callable[[Path, bool], Store]] = {
    ".csv": CsvStore,
    ".jsonl": LinesStore,
    ".parquet": ParquetStore,
    ".duckdb": DuckDbStore,
}
"""Stores by the ending of a file's name."""


def _package(*names: str) -> Any:
    """A package that is not installed with osfmodel, loaded with its modules. Raises UsageError if it is missing."""
    from importlib import import_module

    try:
        for name in names:
            import_module(name)
    except ImportError:
        raise UsageError(f"{names[0]} is not installed: pip install 'osfmodel[sweep]', or name the file .csv") from None
    return import_module(names[0])


def _table(arrow: Any, records: Iterable[Record]) -> Any:
    """Records as an Arrow table."""
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string(), bool: arrow.bool_()}
    schema = arrow.schema([(one.key, types[one.type]) for one in FIELDS.values()])
    return arrow.Table.from_pylist(list(records), schema=schema)
