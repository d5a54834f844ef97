"""The rows of long tables that a page of the ledger shows: the command prints all."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 10.0
"""Percent: cells whose prediction is off by more stand on the page."""
CELLS = "| error |"


def on_page(lines: Iterable[str]) -> list[str]:
    """The lines of a page; of a table that ends in errors only cells off by more than MOST, with its head."""
    found, cells = [], False
    for line in lines:
        if line.endswith(CELLS):
            cells = True
        elif not line.startswith("|"):
            cells = False
        elif cells and line.strip("|-") and abs(float(line.split("|")[-2].split("%")[0])) <= MOST:
            continue
        found.append(line)
    return found
