"""Tables of layers, the simplest hand-made profiles: name, bytes, forward and backward times, from input to output.

A CSV, or a JSON list of objects with the same names.

Columns: ``name`` (or layer, tensor); ``gradient_bytes`` (or bytes, parameter_bytes), or ``params`` of 4 bytes;
``forward_ms`` and ``backward_ms`` (or fwd_, bwd_, and _us or _s); optionally ``dtype`` and ``activation_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.source_text import Hints, Text, columns_of, parse_list, pick

NAMES = ("name", "layer", "tensor", "node")
BYTES = ("gradient_bytes", "parameter_bytes", "bytes", "params", "elements")
UNITS = {"_us": 1e-6, "_ms": 1e-3, "_s": 1.0}
FORWARD = tuple(f"{word}{unit}" for word in ("forward", "fwd", "forward_time") for unit in UNITS)
BACKWARD = tuple(f"{word}{unit}" for word in ("backward", "bwd", "backward_time", "t_backward") for unit in UNITS)


def sniff(head: str) -> bool:
    """Whether the header has a name, bytes, and a forward and a backward time."""
    columns = columns_of(head)
    return all(pick(columns, *names) is not None for names in (NAMES, BYTES, FORWARD, BACKWARD))


def read(text: Text, hints: Hints) -> list[Workload]:
    """One workload. Raises DataError for a wrong row."""
    return [workload_of(text, text.rows(), hints)]


def workload_of(text: Text, rows: Iterable[tuple[int, dict[str, str]]], hints: Hints) -> Workload:
    """The workload in (number, row) pairs. Raises DataError if there are none, or for a wrong one."""
    layers = [_layer(text, number, row) for number, row in rows]
    if not layers:
        raise DataError("has a header but no rows" if text.unit == "line" else "is an empty list")
    source = text.source("times as given; update taken as 0")
    return Workload(hints.name, tuple(layers), hints.batch_size, 0.0, source)


def _layer(text: Text, number: int, row: dict[str, str]) -> Layer:
    name, size, forward, backward = (text.column(number, row, names) for names in (NAMES, BYTES, FORWARD, BACKWARD))
    width = 4 if size in ("params", "elements") else 1
    activation = row.get("activation_bytes", "")
    try:
        return Layer(
            row[name].strip(),
            text.number(number, row[forward]) * UNITS[forward[forward.rindex("_") :]],
            text.number(number, row[backward]) * UNITS[backward[backward.rindex("_") :]],
            width * text.whole(number, row[size]),
            row.get("dtype", "").strip() or "float32",
            activation_bytes=text.whole(number, activation) if activation and activation[0].isdigit() else None,
        )
    except DataError as error:
        if str(error).startswith(f"{text.unit} "):
            raise
        raise text.fault(number, row[name], str(error)) from None


def sniff_json(head: str) -> bool:
    """Whether it is a JSON list of objects with a name, bytes, and a forward and a backward time."""
    start = head.lstrip()
    listed = start.startswith("[") and start[1:].lstrip().startswith("{")
    first = start.partition("}")[0]
    return listed and all(any(f'"{name}"' in first for name in names) for names in (NAMES, BYTES, FORWARD, BACKWARD))


def read_json(text: Text, hints: Hints) -> list[Workload]:
    """One workload. Raises DataError that counts entries from 1."""
    entries = replace(text, unit="entry")
    return [workload_of(entries, _rows(entries, parse_list(text)), hints)]


def _rows(text: Text, entries: list[Any]) -> Iterator[tuple[int, dict[str, str]]]:
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise text.fault(number, repr(entry), "is not a JSON object")
        yield number, {key: _cell(text, number, value) for key, value in entry.items()}


def _cell(text: Text, number: int, value: Any) -> str:
    """The text of a value in a CSV file."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise text.fault(number, repr(value), "is neither text nor a number")
    return "" if value is None else str(value)
