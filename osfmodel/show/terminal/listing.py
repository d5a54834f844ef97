"""``osf list`` on a terminal: one line per entry, or one entry in full."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from osfmodel.show.tables import TERMINAL, Column, for_people, texts
from osfmodel.show.tables.listing import Entry, columns_of
from osfmodel.show.terminal.tables import empty_table


def show_list(console: Console, kind: str, rows: Sequence[Entry]) -> None:
    """Print one line per entry."""
    console.print(kind, style="bold")
    columns = for_people(columns_of(kind), TERMINAL)
    table = empty_table([one.heading(TERMINAL) for one in columns], range(len(columns)))
    for place, (head, column) in enumerate(zip(table.columns, columns, strict=True)):
        # On a narrow terminal only sources are cut, and only summaries wrap.
        bounded = column.key in ("source", "meaning")
        longest = 0 if bounded else max((len(texts(columns, row)[place]) for row in rows), default=0)
        head.no_wrap, head.overflow = column.key != "meaning", "ellipsis"
        head.min_width = max(longest, len(column.heading(TERMINAL)))
    for row in rows:
        table.add_row(*map(escape, texts(columns, row)))
    console.print(table)


def show_entry(console: Console, columns: Sequence[Column[Entry]], row: Entry) -> None:
    """Print one entry in full, a line for each property."""
    for column in columns:
        name, value = (column.key or "").replace("_", " "), column.value(row)
        console.print(f"{name}: {'' if value is None else value}", markup=False, soft_wrap=True)
