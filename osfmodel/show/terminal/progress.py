"""A bar on the terminal while large files are read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 1.0
"""Seconds before a bar appears."""


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function (bytes read, bytes in all) that draws a bar on stderr once reading takes longer than a second.

    Yields None, and draws nothing, if stderr is not a terminal. The bar is removed at the end.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(title)
    try:
        yield bar.hear
    finally:
        bar.remove()


class _Bar:
    def __init__(self, title: str) -> None:
        self._title, self._begun = title, time.monotonic()
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

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn())
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.start()
        return progress, progress.add_task(escape(self._title), total=total)

    def remove(self) -> None:
        """Clear the line of the bar."""
        if self._drawn is not None:
            self._drawn[0].stop()
