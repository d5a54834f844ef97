"""The lines that a page of the ledger shows: the command prints long tables of cells besides."""

from __future__ import annotations

from collections.abc import Iterable

CELLS = "| error |"


def on_page(lines: Iterable[str]) -> list[str]:
    """The lines of a page: all but tables that end in errors."""
    found, cells = [], False
    for line in lines:
        cells = line.endswith(CELLS) or (cells and line.startswith("|"))
        if not cells:
            found.append(line)
    return found
