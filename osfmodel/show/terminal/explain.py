"""An explained trace on a terminal: the verdict, a bar per part of the step, the buckets, the remedies."""

from __future__ import annotations

from rich.console import Console

from osfmodel.diagnosis.explanation import Explanation
from osfmodel.show.tables import TERMINAL, texts
from osfmodel.show.tables.explained import (
    COSTS,
    PARTS,
    RANKS,
    REMEDIES,
    costs,
    group_columns,
    helping,
    messages,
    most_exposed,
    others,
    parts,
    rank_rows,
    title,
    whose_messages,
)
from osfmodel.show.terminal.tables import ENDS, empty_table, print_fitting, table_of

WIDTH = 40
"""Characters of the bar of a whole step."""
LEFT_OUT = ("hidden", "start", "ready", "end", "size")
"""Columns to leave out on a narrow terminal, the first one first."""
SPARED = (
    "by",
    "size",
    "hidden",
    "waiting",
    "of best",
    "bandwidth",
    "skew",
    "transfer",
    "count",
    "of possible",
    "late rank",
)
"""Likewise, of the table of collectives."""
LISTED = 24
"""Maximum number of buckets that are listed; other formats list all."""


def bar(part: float, whole: float, width: int = WIDTH) -> str:
    """``part`` as a bar, eighths of a character included; ``whole`` is ``width`` characters."""
    eighths = round(8 * width * min(1.0, max(0.0, part / whole))) if whole else 0
    last: str = " ▏▎▍▌▋▊▉"[eighths % 8]
    return ("█" * (eighths // 8) + last).rstrip()


def show_explanation(console: Console, one: Explanation) -> None:
    """Print the verdict, the parts of the step, the causes, the buckets and the remedies."""
    console.print(one.verdict, style="bold", markup=False)
    console.print()
    console.print(f"{one.name}: {title(one)}", style="bold", markup=False)
    _show_parts(console, one)
    _show_causes(console, one)
    _show_ranks(console, one)
    _show_collectives(console, one)
    _show_messages(console, one)
    _show_remedies(console, one)
    for remark in one.remarks:
        console.print(f"Note: {remark}.", markup=False)


def _show_parts(console: Console, one: Explanation) -> None:
    table = empty_table([*(column.heading(TERMINAL) for column in PARTS), ""], ENDS)
    for part in parts(one):
        table.add_row(*texts(PARTS, part), "" if part.seconds is None else bar(part.seconds, one.step_time))
    console.print(table)


def _show_causes(console: Console, one: Explanation) -> None:
    console.print()
    console.print(table_of(COSTS, costs(one), ENDS))


def _show_ranks(console: Console, one: Explanation) -> None:
    if len(one.ranks) > 1:
        console.print()
        console.print(table_of(RANKS, rank_rows(one)))


def _show_collectives(console: Console, one: Explanation) -> None:
    """Print a line for each kind of collective in each process group, with as many columns as fit."""
    if one.collectives:
        console.print()
        print_fitting(console, group_columns(one), one.collectives, leave_out=SPARED)


def _show_messages(console: Console, one: Explanation) -> None:
    """Print a line for each message, with as many columns as fit."""
    if not one.buckets:
        return
    console.print()
    shown = most_exposed(one.buckets, LISTED)
    print_fitting(console, messages(one), shown, leave_out=LEFT_OUT)
    if whose_messages(one):
        console.print(whose_messages(one), markup=False)
    if len(one.buckets) > len(shown):
        words = f"The {len(shown)} of {len(one.buckets)} messages with the most exposed time; for all: --format csv."
        console.print(words, markup=False)


def _show_remedies(console: Console, one: Explanation) -> None:
    """Print a table of the remedies that help, and a line each for those that do not and those without a price."""
    useful = helping(one.remedies)
    if useful:
        console.print()
        console.print(table_of(REMEDIES, useful, ENDS))
    for number, words in enumerate(others(one.remedies)):
        if number == 0 and words.startswith("Would not help"):
            console.print()
        console.print(words, markup=False)
