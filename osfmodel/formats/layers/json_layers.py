"""A JSON list of layers, each an object with the columns of :mod:`~osfmodel.formats.csv_layers`, input to output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from osfmodel.formats.csv_layers import BACKWARD, BYTES, FORWARD, NAMES, workload_of
from osfmodel.formats.json_text import parse_list
from osfmodel.formats.source_text import Hints, Text
from osfmodel.workload import Workload


def sniff(head: str) -> bool:
    """A JSON list of objects that have a name, bytes, and a forward and a backward time."""
    start = head.lstrip()
    listed = start.startswith("[") and start[1:].lstrip().startswith("{")
    first = start.partition("}")[0]
    return listed and all(any(f'"{name}"' in first for name in names) for names in (NAMES, BYTES, FORWARD, BACKWARD))


def read(text: Text, hints: Hints) -> list[Workload]:
    """One workload. Raises DataError that counts the entries, the first being 1."""
    entries = replace(text, unit="entry")
    return [workload_of(entries, _rows(entries, parse_list(text)), hints)]


def _rows(text: Text, entries: list[Any]) -> Iterator[tuple[int, dict[str, str]]]:
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise text.fault(number, repr(entry), "is no object")
        yield number, {key: _cell(text, number, value) for key, value in entry.items()}


def _cell(text: Text, number: int, value: Any) -> str:
    """What a CSV would say."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise text.fault(number, repr(value), "is neither text nor a number")
    return "" if value is None else str(value)
