"""A snippet: the row type of SNIPPETS."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from osfmodel.planning.results import Tuning


class Snippet(NamedTuple):
    """An entry of SNIPPETS.

    summary: its use, in half a line
    write:   (tuning) -> the whole file
    """

    summary: str
    write: Callable[[Tuning], str]
