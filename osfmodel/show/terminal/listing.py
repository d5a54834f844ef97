"""What a person sees of ``osf list``: one line per entry, or all of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

HEADINGS = {"gradient_mib": "MiB", "compute_ms": "ms", "batch_size": "batch"}
"""Short headings for a listing: size of the gradients, time of one worker alone, samples per worker."""
SHORT = 44
"""Most characters of a source in a listing; ``osf list KIND NAME`` shows all."""


def show_list(console: Console, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per entry."""
    columns = [
        column for column in (rows[0] if rows else ["name"]) if column not in ("conditions", "licence", "evidence")
    ]
    console.print(kind, style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # Where the terminal is narrow only sources are cut, and only meanings wrap.
        longest = 0 if column in ("source", "meaning") else max((len(_text(row[column])) for row in rows), default=0)
        heading = HEADINGS.get(column, column.replace("_", " "))
        table.add_column(
            heading, no_wrap=column != "meaning", overflow="ellipsis", min_width=max(longest, len(heading))
        )
    for row in rows:
        table.add_row(*[escape(_short(row[key]) if key == "source" else _text(row[key])) for key in columns])
    console.print(table)


def show_entry(console: Console, row: Mapping[str, Any]) -> None:
    """All that is known of one entry, a line each."""
    for column, value in row.items():
        console.print(f"{column.replace('_', ' ')}: {_text(value)}", markup=False, soft_wrap=True)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _short(source: str) -> str:
    """Who published it: what stands before the commit or the path, cut to a line."""
    who = source.partition(" @ ")[0].partition(": ")[0]
    return who if len(who) <= SHORT else who[: SHORT - 1] + "…"
