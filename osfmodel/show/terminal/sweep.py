"""The points of a sweep on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from osfmodel.show.tables.sweep import SHARES, Record, common_words, shown_columns
from osfmodel.show.terminal.tables import print_fitting, show_title

LEFT_OUT = ("error", "per hour", "MFU", "batch", "memory", "samples/s", "error band")
"""Columns to leave out on a narrow terminal, the first one first."""


def show_points(console: Console, points: Sequence[Record]) -> None:
    """Print a row for each point, and the reasons of those that cannot be predicted."""
    if not points:
        console.print("No point is like that.", markup=False)
        return
    columns = shown_columns(points)
    if common := common_words(points, columns):
        show_title(console, common)
    print_fitting(console, columns, list(points), words=(0, 1), leave_out=LEFT_OUT)
    for reason in dict.fromkeys(record["error"] for record in points if record["error"]):
        console.print(f"No prediction: {reason}", markup=False)


def show_influences(console: Console, goal: str, rows: Sequence[Record]) -> None:
    """Print how much of the variance of a goal each column explains."""
    console.print(f"Parts of the variance of ln({goal})", style="bold", markup=False)
    print_fitting(console, SHARES, list(rows), words=(0,))
