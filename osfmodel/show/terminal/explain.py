"""What a person sees of an explained trace: the verdict, a bar per part of the step, the buckets, what would help."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osfmodel.diagnosis import Explanation
from osfmodel.diagnosis.explanation import BucketRow
from osfmodel.entities.units import show_time
from osfmodel.show.tables.explained import (
    RANK_HEADS,
    WORDS,
    costs,
    faster,
    helping,
    message_cells,
    message_heads,
    most_exposed,
    others,
    parts,
    rank_cells,
    title,
    whose_messages,
)

WIDTH = 40
"""Characters of the bar of a whole step."""
LEFT_OUT = ("hidden", "start", "ready", "end", "size")
"""Columns that a narrow terminal has no room for, the first to go first."""
ANY_WIDTH = 1000
LISTED = 24
"""Most buckets that are listed; all are in the other formats."""


def bar(part: float, whole: float, width: int = WIDTH) -> str:
    """``part`` as a bar, eighths of a character included; ``whole`` is ``width`` characters."""
    eighths = round(8 * width * min(1.0, max(0.0, part / whole))) if whole else 0
    last: str = " ▏▎▍▌▋▊▉"[eighths % 8]
    return ("█" * (eighths // 8) + last).rstrip()


def show_explanation(console: Console, one: Explanation) -> None:
    """The verdict first; then where the time went, the causes, the buckets, and the remedies."""
    console.print(one.verdict, style="bold", markup=False)
    console.print()
    console.print(f"{one.name}: {title(one)}", style="bold", markup=False)
    _show_parts(console, one)
    _show_causes(console, one)
    _show_ranks(console, one)
    _show_messages(console, one)
    _show_remedies(console, one)
    for remark in one.remarks:
        console.print(f"Note: {remark}.", markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _show_parts(console: Console, one: Explanation) -> None:
    table = _table("where it went", "time", "", "")
    table.columns[-1].justify = "left"
    for name, seconds in parts(one):
        if seconds is None:
            table.add_row(WORDS[name], "not known", "", "")
        else:
            share = f"{seconds / one.step_time:.1%}"
            table.add_row(WORDS[name], show_time(seconds), share, bar(seconds, one.step_time))
    console.print(table)


def _show_causes(console: Console, one: Explanation) -> None:
    console.print()
    table = _table("cause", "costs", "", "without it")
    table.columns[-1].justify = "left"
    for name, seconds, meaning in costs(one):
        table.add_row(name, show_time(seconds), f"{seconds / one.step_time:.1%}", meaning)
    console.print(table)


def _show_ranks(console: Console, one: Explanation) -> None:
    if len(one.ranks) < 2:
        return
    console.print()
    table = _table(*RANK_HEADS)
    for rank in one.ranks:
        table.add_row(*rank_cells(rank, len(one.steps)))
    console.print(table)


def _show_messages(console: Console, one: Explanation) -> None:
    """As many columns as there is room for, each message on a line."""
    if not one.buckets:
        return
    console.print()
    heads, shown = message_heads(one), most_exposed(one.buckets, LISTED)
    for count in range(len(LEFT_OUT) + 1):
        table = _messages(heads, shown, LEFT_OUT[:count])
        if console.measure(table, options=console.options.update(width=ANY_WIDTH)).maximum <= console.width:
            break
    console.print(table)
    if whose_messages(one):
        console.print(whose_messages(one), markup=False)
    if count:
        console.print(f"No room for {' and '.join(LEFT_OUT[:count])}: a wider terminal, or --format csv.", markup=False)
    if len(one.buckets) > len(shown):
        words = f"The {len(shown)} of {len(one.buckets)} messages with most exposed; all: --format csv."
        console.print(words, markup=False)


def _messages(heads: Sequence[str], rows: Sequence[BucketRow], left_out: Sequence[str]) -> Table:
    kept = [place for place, head in enumerate(heads) if head not in left_out]
    table = _table(*(heads[place] for place in kept))
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        cells = message_cells(row)
        table.add_row(*(escape(cells[place]) for place in kept))
    return table


def _show_remedies(console: Console, one: Explanation) -> None:
    """A table of those that help; those that do not, and those without a price, in a line each."""
    useful = helping(one.remedies)
    if useful:
        console.print()
        table = _table("what would help", "step", "samples/s", "by", "")
        table.columns[-1].justify = "left"
        for remedy in useful:
            step = show_time(remedy.step_time or 0.0)
            table.add_row(escape(remedy.what), step, faster(remedy), remedy.by, escape(remedy.note))
        console.print(table)
    for number, words in enumerate(others(one.remedies)):
        if number == 0 and words.startswith("Would not help"):
            console.print()
        console.print(words, markup=False)
