"""A comparison of two runs on a terminal: the verdict, then what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from osfmodel.diagnosis.comparing import RunComparison
from osfmodel.show.tables import TERMINAL, for_people, texts
from osfmodel.show.tables.compared import ListedRows, left_out, lists
from osfmodel.show.terminal.tables import print_fitting, show_title

LEFT_OUT = ("noise floor", "bytes", "group", "workers", "bus bandwidth")
"""Columns to leave out on a narrow terminal, the first one first."""


def show_comparison_of_runs(console: Console, one: RunComparison, verdict: str) -> None:
    """Print the verdict, the tables that have rows, and the notes."""
    console.print(verdict, style="bold", markup=False)
    for table in lists(one):
        console.print()
        if table.title:
            show_title(console, table.title)
        _show(console, table)
        if table.left_out:
            console.print(left_out(table), markup=False)
    if one.remarks:
        console.print()
    for remark in one.remarks:
        console.print(f"Note: {remark}.", markup=False)


def _show(console: Console, table: ListedRows) -> None:
    """Print a table without the columns that are empty."""
    columns: list[Any] = [
        column
        for column in for_people(table.columns, TERMINAL)
        if any(texts([column], record)[0] for record in table.rows)
    ]
    columns = [replace(column, after=None) for column in columns]
    print_fitting(console, columns, table.rows, leave_out=LEFT_OUT)
