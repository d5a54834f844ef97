"""Tables on a terminal: a heading line, no frame, words to the left and figures to the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osfmodel.show.tables import TERMINAL, Column, Record, for_people, texts

FIRST, ENDS = (0,), (0, -1)
"""Columns of words: the first alone, or the last as well."""


def empty_table(heads: Sequence[str], words: Sequence[int] = FIRST) -> Table:
    """A table without rows; the columns ``words`` are aligned to the left, the others to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    left = [place % len(heads) for place in words]
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number in left else "right")
    return table


def table_of(columns: Sequence[Column[Record]], records: Iterable[Record], words: Sequence[int] = FIRST) -> Table:
    """A table of ``records``, with the ``columns`` that a terminal shows."""
    shown = for_people(columns, TERMINAL)
    table = empty_table([one.heading(TERMINAL) for one in shown], words)
    for record in records:
        table.add_row(*map(escape, texts(shown, record)))
    return table


def show_title(console: Console, title: str) -> None:
    """Print a title by itself, so that a narrow table does not wrap it."""
    console.print(title, style="bold", markup=False)
