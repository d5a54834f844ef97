"""Tables, charts and progress on a terminal: a heading line, no frame, words to the left and figures to the right."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from osfmodel.entities.display import how_many, listed
from osfmodel.show.table import TERMINAL, Column, Record, for_people, texts

if TYPE_CHECKING:
    import rich.console
    from rich.progress import Progress, TaskID
    from rich.table import Table

Console: TypeAlias = "rich.console.Console"

FIRST, ENDS = (0,), (0, -1)
"""Columns of words: the first alone, or the last as well."""
BETWEEN = 2
"""Characters between two columns."""
LEAST = 20
"""Minimum characters of a column that may be wrapped or cut."""
ANY_WIDTH = 1000
FIGURE = re.compile(r"[-+]?[0-9][0-9.,]*")


def empty_table(heads: Sequence[str], words: Sequence[int] = FIRST) -> Table:
    """A table without rows; the columns ``words`` are aligned to the left, the others to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    left = [place % len(heads) for place in words]
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number in left else "right")
    return table


def table_of(columns: Sequence[Column[Record]], records: Iterable[Record], words: Sequence[int] = FIRST) -> Table:
    """A table of ``records``, with the ``columns`` that a terminal shows; figures alone are aligned to the right."""
    from rich.markup import escape

    shown = for_people(columns, TERMINAL)
    rows = [texts(shown, record) for record in records]
    left = [place % len(shown) for place in words]
    table = empty_table(
        [one.heading(TERMINAL) for one in shown],
        [place for place in left if not _figures([row[place] for row in rows])],
    )
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _figures(cells: Sequence[str]) -> bool:
    """Whether all cells that are not empty are plain numbers."""
    return any(cells) and all(FIGURE.fullmatch(cell) for cell in cells if cell)


def print_fitting(
    console: Console,
    columns: Sequence[Column[Record]],
    records: Iterable[Record],
    words: Sequence[int] = FIRST,
    leave_out: Sequence[str] = (),
    wrapped: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """Print a table without cutting names and figures; on a narrow terminal leave out columns, and name them below.

    ``leave_out``: headings of these columns, the first one first; ``wrapped`` and ``cut``: headings of columns whose
    cells may be wrapped or cut. A pipe gets every column, however wide.
    """
    rows = list(records)
    every = for_people(columns, TERMINAL)
    heads = [one.heading(TERMINAL) for one in every]
    left = {heads[place] for place in (place % len(heads) for place in words)}
    soft = {*wrapped, *cut}
    dropped: list[str] = []
    candidates = [head for head in leave_out if head in heads] if console.is_terminal else []
    while True:
        shown = [one for one in every if one.heading(TERMINAL) not in dropped]
        widths = _widths([(one.heading(TERMINAL), [one.shown(row) for row in rows]) for one in shown], soft)
        least = sum(width for width, _ in widths) + BETWEEN * (len(widths) - 1)
        if least <= console.width or len(dropped) == len(candidates):
            break
        dropped.append(candidates[len(dropped)])
    places = [place for place, one in enumerate(shown) if one.heading(TERMINAL) in left]
    table = table_of(shown, rows, places)
    spare = max(console.width - least, 0)
    # Headings get the rest of the room first, and columns that may be wrapped or cut what is left.
    order = sorted(range(len(shown)), key=lambda place: shown[place].heading(TERMINAL) in soft)
    for place in order:
        narrow, full = widths[place]
        head = shown[place].heading(TERMINAL)
        more = min(full - narrow, spare) if head in soft or full - narrow <= spare else 0
        spare -= more
        table.columns[place].width = narrow + more
        table.columns[place].no_wrap = head in cut
        table.columns[place].overflow = "ellipsis" if head in cut else "fold"
    width = console.width
    console.width = max(least, width)
    console.print(table)
    console.width = width
    if dropped:
        console.print(f"No room for {listed(dropped)}: widen the terminal, or --format csv.", markup=False)


def _widths(cells: Sequence[tuple[str, Sequence[str]]], soft: Iterable[str]) -> list[tuple[int, int]]:
    """The least and the full width of each column; a heading may be wrapped between its words."""
    from rich.cells import cell_len

    found = []
    for head, column in cells:
        longest = max(map(cell_len, column), default=0)
        least = min(longest, LEAST) if head in soft else longest
        found.append((max(least, *map(cell_len, head.split() or [""])), max(longest, cell_len(head))))
    return found


def fits(console: Console, table: Table) -> bool:
    """Whether the table needs no wrapping."""
    return console.measure(table, options=console.options.update(width=ANY_WIDTH)).maximum <= console.width


def show_title(console: Console, title: str) -> None:
    """Print a title or a verdict by itself, so that a narrow table does not wrap it."""
    console.print(title, style="bold", markup=False)


MOST_NOTES = 4
"""Maximum number of notes under a table without --notes."""
ACTED_ON = ("careful:", "wide error band:", "no error band:", "no GPU is named", "memory is not compared:")
"""Beginnings of notes that change what to do first."""
RESTATED = ("counted:", "network:", "effects applied:", "usual effects")
"""Beginnings of notes that state what was given, or taken for it."""


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Print each note in a sentence, what is to be acted on first; without --notes MOST_NOTES of them."""
    said = sorted(notes, key=lambda note: note.startswith(RESTATED) - note.startswith(ACTED_ON))
    most = MOST_NOTES if getattr(console, "few_notes", False) else len(said)
    for note in said[:most]:
        console.print(f"Note: {note}.", markup=False)
    if len(said) > most:
        console.print(f"{how_many(len(said) - most, 'more note')}: --notes")


NARROWEST, WIDEST = 12, 160
"""Minimum and maximum columns of a chart."""
CURVE_ROWS = 9
"""Rows of a curve."""


def chart_width(console: Console, margin: int) -> int:
    """Columns for a chart beside a margin."""
    return int(min(max(console.width - margin - 1, NARROWEST), WIDEST))


PATIENCE = 1.0
"""Seconds before a bar appears."""


@contextmanager
def progress_bar(title: str, counted: str = "") -> Iterator[Callable[[int, int], None] | None]:
    """A function (bytes read, bytes in all) that draws a bar on stderr once reading takes longer than a second.

    counted: what is counted instead of bytes

    Yields None, and draws nothing, if stderr is not a terminal. The bar is removed at the end.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(title, counted)
    try:
        yield bar.hear
    finally:
        bar.remove()


class _Bar:
    def __init__(self, title: str, counted: str) -> None:
        self._title, self._counted, self._begun = title, counted, time.monotonic()
        self._drawn: tuple[Progress, TaskID] | None = None

    def hear(self, done: int, total: int) -> None:
        """Draw the progress, once PATIENCE is over."""
        if self._drawn is None and time.monotonic() - self._begun >= PATIENCE:
            self._drawn = self._draw(total)
        if self._drawn is not None:
            progress, task = self._drawn
            progress.update(task, completed=done, total=total)

    def _draw(self, total: int) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        of = f"{{task.completed:,.0f}} of {{task.total:,.0f}} {self._counted}"
        done = TextColumn(of) if self._counted else DownloadColumn(True)
        columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.start()
        return progress, progress.add_task(escape(self._title), total=total)

    def remove(self) -> None:
        """Clear the line of the bar."""
        if self._drawn is not None:
            self._drawn[0].stop()
