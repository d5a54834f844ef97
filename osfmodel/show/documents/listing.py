"""The result of ``osf list`` in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.listing import Entry, columns_of


class Listed:
    """The result of ``osf list``: entries by kind, or one entry in full."""

    def __init__(self, listings: Mapping[str, Sequence[Entry]], problems: Sequence[str], whole: bool) -> None:
        self.listings, self.problems, self.whole = listings, problems, whole

    def document(self) -> dict[str, Any]:
        found = {kind: [json_row(columns_of(kind), row) for row in rows] for kind, rows in self.listings.items()}
        return {"schema_version": SCHEMA_VERSION, **found}

    def rows(self) -> list[dict[str, Any]]:
        rows = [
            {"kind": kind, **csv_row(columns_of(kind), row)} for kind, found in self.listings.items() for row in found
        ]
        keys = dict.fromkeys(key for row in rows for key in row)
        return [{key: row.get(key) for key in keys} for row in rows]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import listing as list_screen

        for number, (kind, rows) in enumerate(self.listings.items()):
            if number:
                console.print()
            if self.whole:
                list_screen.show_entry(console, columns_of(kind), rows[0])
            else:
                list_screen.show_list(console, kind, rows)

    def warnings(self) -> list[str]:
        return list(self.problems)
