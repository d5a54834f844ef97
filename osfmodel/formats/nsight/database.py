"""An SQLite database of another tool, read row by row: never changed, never held, and trusted in nothing.

Such a file may be damaged or made to harm: only plain tables are read, no function of the file's own schema runs, and
no more rows are taken than its bytes can hold, as a damaged tree may repeat its pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from osfmodel.entities.errors import DataError

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
        self.columns: Mapping[str, frozenset[str]] = {name: frozenset(self._columns(name)) for name in plain}

    def _columns(self, table: str) -> Iterator[str]:
        for row in self._run(f"PRAGMA table_info({_quoted(table)})"):
            yield str(row[1])

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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
