"""A result as a piece of HTML for notebooks: a few tables, styled in place, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from osfmodel.show.html.markup import Markup, element
from osfmodel.show.tables import PAGE, TERMINAL, Column, for_people, texts
from osfmodel.show.tables.compared import ListedRows

SHOWN = 20
"""Maximum number of rows of a table."""
SAID = 12
"""Maximum number of notes."""
FIGURES = frozenset("0123456789+-")
LINE = "1px solid rgba(128,128,128,.4)"
"""A border that shows on light and on dark."""
BOX = "overflow-x:auto;max-width:100%;margin:.3em 0 .6em"
TABLE = "border-collapse:collapse;color:inherit;background:none;font-size:90%;margin:0"
CELL = "padding:.2em .7em .2em 0;vertical-align:top;border:none;background:none;"
CODE = (
    f"overflow-x:auto;max-height:24em;padding:.5em;border:{LINE};color:inherit;background:none;font-size:90%;"
    "margin:.3em 0"
)
WORDS = "margin:.2em 0"
WRAPPED = 32
"""Characters from which a cell may be wrapped."""


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


def sheet_html(sheet: Sheet) -> str:
    """The sheet as HTML; every text is escaped."""
    return element("div", *_parts(sheet)).text


def _parts(sheet: Sheet) -> Iterator[Markup]:
    yield element("div", element("b", sheet.title), style=WORDS)
    if sheet.verdict:
        yield element("div", sheet.verdict, style=WORDS)
    for table in sheet.tables:
        if table.rows:
            yield from _table(table)
    yield from (element("div", f"Note: {note}.", style=WORDS) for note in sheet.notes[:SAID])
    if len(sheet.notes) > SAID:
        yield _left_out(len(sheet.notes) - SAID, "note")
    if sheet.code:
        yield element("pre", element("code", sheet.code), style=CODE)


def _table(table: ListedRows) -> Iterator[Markup]:
    """The first rows of a table, without the columns that are empty in all of them."""
    rows = table.rows[:SHOWN]
    columns = for_people(table.columns, TERMINAL)
    cells = [texts(columns, row) for row in rows]
    kept = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    found = [(columns[place], [row[place] for row in cells]) for place in kept]
    sides = ["left" if place == 0 or not _is_figures(column) else "right" for place, (_, column) in enumerate(found)]
    head = [_cell("th", one.heading(PAGE), side) for (one, _), side in zip(found, sides, strict=True)]
    body = ([_cell("td", row[place], side) for place, side in zip(kept, sides, strict=True)] for row in cells)
    if table.title:
        yield element("div", element("b", table.title), style=WORDS)
    inner = element("thead", _row(head)) + element("tbody", *map(_row, body))
    yield element("div", element("table", inner, class_="osfmodel", style=TABLE), style=BOX)
    if left := table.left_out + len(table.rows) - len(rows):
        yield _left_out(left, "row")


def _row(cells: Iterable[Markup]) -> Markup:
    return element("tr", *cells, style=f"background:none;border-bottom:{LINE}")


def _cell(tag: str, text: str, side: str) -> Markup:
    width = "min-width:14em" if len(text) > WRAPPED else "white-space:nowrap" if tag == "td" else "font-weight:bold"
    return element(tag, text, style=f"{CELL}text-align:{side};{width}")


def _is_figures(cells: Sequence[str]) -> bool:
    """Whether a column is of figures, so that it is aligned to the right."""
    return all(cell[0] in FIGURES for cell in cells if cell)


def _left_out(number: int, what: str) -> Markup:
    words = f"{number:,} more {what}{'s' * (number != 1)}: to_dict() has all."
    return element("div", element("i", words), style=WORDS)


def listed_rows(title: str, columns: Sequence[Column[Any]], rows: Iterable[Any]) -> ListedRows:
    """A table with all its rows."""
    return ListedRows(title, columns, list(rows))
