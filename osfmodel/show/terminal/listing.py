"""``osf list`` on a terminal: one line per entry, or one entry in full."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from osfmodel.show.tables import TERMINAL, Column, for_people
from osfmodel.show.tables.listing import Entry, columns_of
from osfmodel.show.terminal.tables import print_fitting

LEFT_OUT = (
    "source", "GPU", "cost model", "batch", "tensors", "cited", "unit", "priced as",
    "bandwidth", "half precision", "type",
)  # fmt: skip
"""Columns to leave out on a narrow terminal, the first one first."""


def show_list(console: Console, kind: str, rows: Sequence[Entry]) -> None:
    """Print one line per entry."""
    console.print(kind, style="bold")
    columns = for_people(columns_of(kind), TERMINAL)
    columns = [one for one in columns if one.key != "package" or any(map(one.shown, rows))]  # all are osfmodel's own
    print_fitting(console, columns, rows, range(len(columns)), LEFT_OUT, wrapped=["meaning"], cut=["source"])


def show_entry(console: Console, columns: Sequence[Column[Entry]], row: Entry) -> None:
    """Print one entry in full, a line for each property."""
    for column in columns:
        name, value = (column.key or "").replace("_", " "), column.value(row)
        console.print(f"{name}: {'' if value is None else value}", markup=False, soft_wrap=True)
