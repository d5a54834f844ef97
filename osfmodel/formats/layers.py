"""Layers without a trace: tables, DDP's log, PipeDream's graph.

Tables are the simplest hand-made profiles: name, bytes, forward and backward times, from input to output, in CSV or a
JSON list of objects with the same names. Columns: ``name`` (or layer, tensor); ``gradient_bytes`` (or bytes,
parameter_bytes), or ``params`` of 4 bytes; ``forward_ms`` and ``backward_ms`` (or fwd_, bwd_, and _us or _s);
optionally ``dtype`` and ``activation_bytes``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from osfmodel.entities.errors import LONGEST_TIME, DataError
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.source_text import Hints, Text, columns_of, parse, parse_list, pick, require

NAMES = ("name", "layer", "tensor", "node")
BYTES = ("gradient_bytes", "parameter_bytes", "bytes", "params", "elements")
UNITS = {"_us": 1e-6, "_ms": 1e-3, "_s": 1.0}
FORWARD = tuple(f"{word}{unit}" for word in ("forward", "fwd", "forward_time") for unit in UNITS)
BACKWARD = tuple(f"{word}{unit}" for word in ("backward", "bwd", "backward_time", "t_backward") for unit in UNITS)


def sniff_csv(head: str) -> bool:
    """Whether the header has a name, bytes, and a forward and a backward time."""
    columns = columns_of(head)
    return all(pick(columns, *names) is not None for names in (NAMES, BYTES, FORWARD, BACKWARD))


def read_csv(text: Text, hints: Hints) -> list[Workload]:
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


def sniff_ddp(head: str) -> bool:
    """Whether it is a JSON object that mentions rebuilt buckets."""
    return head.lstrip().startswith("{") and '"rebuilt_bucket_sizes"' in head


def read_ddp(text: Text, hints: Hints) -> list[Workload]:
    """DDP's own log, ``model._get_ddp_logging_data()`` dumped as JSON: its buckets, and average times.

    The log has no sizes of single tensors, so each bucket becomes a layer; its total forward and backward times (ns)
    are spread over the buckets by their bytes. Good enough to price other networks and worker counts, not to regroup
    tensors.

    One workload with a layer per bucket. Raises DataError if sizes or times are missing.
    """
    log = parse(text)
    sizes = [text.whole(1, size) for size in require(text, log, "rebuilt_bucket_sizes", str).split(",") if size.strip()]
    forward, backward = (_seconds(text, log, f"avg_{way}_compute_time") for way in ("forward", "backward"))
    total = sum(sizes)
    if not total:
        raise DataError("names no buckets: log after a few steps, when DDP has rebuilt them")
    layers = [
        Layer(f"bucket{number}", forward * size / total, backward * size / total, size)
        for number, size in enumerate(sizes)
    ]
    note = "a layer per DDP bucket; average forward and backward spread by bytes; update as 0"
    source = text.source(note)
    return [Workload(hints.name, tuple(reversed(layers)), hints.batch_size, 0.0, source)]


def _seconds(text: Text, log: dict[str, object], field: str) -> float:
    value = log.get(field)
    if not isinstance(value, int | float) or not 0 < value < LONGEST_TIME * 1e9:
        remedy = "let DDP time each step with model._set_ddp_runtime_logging_sample_rate(1)"
        raise DataError(f"{field} is {value!r:.40}: {remedy}")
    return value * 1e-9


FIGURES = " -- forward_compute_time="
NODE = re.compile(r"(node\d+) -- (.*)")
TIMES = re.compile(
    r"([^,]+), backward_compute_time=([^,]+), activation_size=(\[[^\]]*\]|[^,]+), "
    r"parameter_size=([^, ]+)(?: -- stage_id=\d+)?"
)
"""The rest of a line after FIGURES. Matched separately, or a long line would take a square of its length."""


def sniff_pipedream(head: str) -> bool:
    """Whether the first line begins with a node and states a forward_compute_time."""
    first = head.lstrip().partition("\n")[0]
    return first.startswith("node") and "forward_compute_time=" in first


def read_pipedream(text: Text, hints: Hints) -> list[Workload]:
    """PipeDream's graph.txt: a node per layer with times in ms and sizes in bytes, and edges, which are ignored.

        node4 -- Embedding(32320, 1024) -- forward_compute_time=0.073, backward_compute_time=6.949,
        activation_size=6291456.0, parameter_size=132382720.000        (one line)

    Input nodes, which hold the loading of data, are left out; layers are in the order of the file.

    One workload. Raises DataError for a line that is neither a node nor an edge.
    """
    layers: list[Layer] = []
    for number, line in text.lines():
        if not line.strip() or re.fullmatch(r"\s*node\d+ -- node\d+\s*", line):
            continue
        head, _, tail = line.strip().rpartition(FIGURES)
        node, times = NODE.fullmatch(head), TIMES.fullmatch(tail)
        if node is None or times is None:
            raise text.fault(number, line, "is neither a node nor an edge of PipeDream's graph")
        text.limit(number, 6 * len(layers))
        if not node[2].startswith("Input"):
            layers.append(_pipedream_layer(text, number, node[1], times))
    if not layers:
        raise DataError("has no nodes with times")
    source = text.source("PipeDream graph, input nodes left out; update as 0")
    return [Workload(hints.name, tuple(layers), hints.batch_size, 0.0, source)]


def _pipedream_layer(text: Text, number: int, name: str, times: re.Match[str]) -> Layer:
    sizes = [text.whole(number, size) for size in times[3].strip("[]").split(";")]
    forward, backward = text.number(number, times[1]) * 1e-3, text.number(number, times[2]) * 1e-3
    return Layer(name, forward, backward, text.whole(number, times[4]), activation_bytes=sum(sizes))
