"""Recognise the format of a file: osfmodel's own formats are asked first, then those of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from osfmodel.entities.errors import DataError
from osfmodel.entities.lookup import usable_others
from osfmodel.formats.format import Format
from osfmodel.formats.source_text import Text
from osfmodel.formats.streams.trace_files import HEAD, recognised

Table = Mapping[str, Format]


def known_of(path: Path | Text, table: Table, wanted: Callable[[Format], bool]) -> str | None:
    """The name of the ``wanted`` format that recognises a file, or the first one known in an archive or a folder.

    None if none does, or if another of osfmodel's own formats does. Raises DataError, with the path, for what cannot be
    read, and for an archive or a folder with nothing in it that is known.
    """
    unknown = None
    try:
        if (known := _asked(path, entries_that(table, wanted))) is not None:
            return known
    except DataError as error:
        unknown = error
    with suppress(DataError):
        if unknown is None and _asked(path, entries_that(table, lambda entry: not wanted(entry))) is not None:
            return None
        if others := entries_that(usable_others(table)[0], wanted):
            return _asked(path, {name: entry._replace(sniff=_guarded(entry.sniff)) for name, entry in others.items()})
    if unknown is not None:
        raise unknown
    return None


def entries_that(table: Table, wanted: Callable[[Format], bool]) -> Table:
    """The ``wanted`` entries of ``table``."""
    return {name: entry for name, entry in table.items() if wanted(entry)}


def _asked(path: Path | Text, table: Table) -> str | None:
    """The name in ``table`` that recognises the file; None if none does."""
    if isinstance(path, Text):
        return next((name for name, entry in table.items() if entry.sniff(path.content[:HEAD])), None)
    sniffs = {name: entry.sniff for name, entry in table.items()}
    return recognised(path, sniffs, [ending for entry in table.values() for ending in entry.endings])


def others_that_know(head: str, table: Table) -> tuple[list[str], list[str]]:
    """The formats of other packages that recognise a beginning, and a sentence on each that does not load."""
    others, problems = usable_others(table)
    return [name for name, entry in others.items() if _guarded(entry.sniff)(head)], problems


def _guarded(sniff: Callable[[str], bool]) -> Callable[[str], bool]:
    """``sniff`` of another package: False where it fails."""

    def guarded(head: str) -> bool:
        try:
            return bool(sniff(head))
        except Exception:
            return False

    return guarded
