"""Columns of results, each defined once: documents write its value, terminal and page its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from osfmodel.entities.records import dataclass, replace

Record = TypeVar("Record")
TERMINAL, PAGE = "terminal", "page"
"""The forms of a result that people read."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Record]):
    """One column of the table of a result.

    key:     its name in JSON and CSV, with its unit; None if only people see it
    head:    its heading for people; None if only documents have it
    value:   (record) -> value in JSON
    shown:   (record) -> text for people
    flat:    (value) -> cell in CSV
    after:   key of the column that it follows for people, if another one precedes it in documents
    only:    TERMINAL or PAGE, if only one of them has it
    on_page: its heading on a page, if a longer one is wanted there
    """

    key: str | None
    head: str | None
    value: Callable[[Record], Any]
    shown: Callable[[Record], str]
    flat: Callable[[Any], Any] = lambda value: value
    after: str | None = None
    only: str | None = None
    on_page: str | None = None

    def heading(self, form: str) -> str:
        """The heading in ``form``, TERMINAL or PAGE."""
        longer = self.on_page if form == PAGE else None
        return (self.head or "") if longer is None else longer


Columns = Sequence[Column[Record]]


def column(
    key: str | None,
    head: str | None,
    value: Callable[[Record], Any],
    write: Callable[[Any], str] = str,
    **more: Any,
) -> Column[Record]:
    """A column whose text is its value, written by ``write``; empty for None."""

    def shown(record: Record) -> str:
        found = value(record)
        return "" if found is None else write(found)

    return Column(key, head, value, shown, **more)


def json_row(columns: Columns[Record], record: Record) -> dict[str, Any]:
    """A row of JSON: the value of each column that has a key."""
    return {one.key: one.value(record) for one in columns if one.key is not None}


def csv_row(columns: Columns[Record], record: Record) -> dict[str, Any]:
    """A row of CSV: as in JSON, but with each list or record in one cell."""
    return {one.key: one.flat(one.value(record)) for one in columns if one.key is not None}


def for_people(columns: Columns[Record], form: str) -> list[Column[Record]]:
    """The columns with a heading in ``form``, TERMINAL or PAGE, in the order that people see."""
    headed = [one for one in columns if one.head is not None and one.only in (None, form)]
    found = [one for one in headed if one.after is None]
    for moved in headed:
        if moved.after is not None:
            found.insert([one.key for one in found].index(moved.after) + 1, replace(moved, after=None))
    return found


def filled(columns: Columns[Record], records: Sequence[Record], form: str = TERMINAL) -> list[Column[Record]]:
    """The columns for people, without those that are empty in all rows."""
    return [one for one in for_people(columns, form) if any(map(one.shown, records))]


def headed(columns: Columns[Record], *heads: str) -> list[Column[Record]]:
    """The columns under these headings, in this order."""
    found = {one.head: one for one in columns}
    return [found[head] for head in heads]


def texts(columns: Columns[Record], record: Record) -> list[str]:
    """The texts of a row, for people."""
    return [one.shown(record) for one in columns]


def spaced(values: Iterable[object]) -> str:
    """A list in one cell, with spaces between."""
    return " ".join(map(str, values))


def percent(value: float) -> str:
    """A fraction in percent: 0.031 -> ``3.1%``."""
    return f"{value:.1%}"


def signed_percent(value: float) -> str:
    """A fraction in percent with its sign: 0.031 -> ``+3.1%``."""
    return f"{value:+.1%}"


def amount(value: float) -> str:
    """A rate or a price in three digits, such as ``7.73k`` or ``12.5M``; below a thousand as it is."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


class ListedRows(NamedTuple):
    """A table for people: its title, its columns, its rows, and how many were left out."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    left_out: int = 0


class Sheet(NamedTuple):
    """The content of a result for people.

    verdict: in a sentence or two; "" without one
    code:    lines to paste; "" without any
    """

    title: str
    tables: Sequence[ListedRows]
    verdict: str = ""
    notes: Sequence[str] = ()
    code: str = ""


def listed_rows(title: str, columns: Sequence[Column[Any]], rows: Iterable[Any]) -> ListedRows:
    """A table with all its rows."""
    return ListedRows(title, columns, list(rows))
