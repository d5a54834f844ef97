"""The file that rccl-tests writes with -x: a row for each size, out of place or in place, in JSON or (-Z csv) CSV.

JSON is a list, or in old versions an object in each line. Times are microseconds; the faster of both places is taken,
of cycles the median. Built with MPI, it writes all ranks and, as ``ranksPerNode``, those of the communicator: they tell
how ranks lie on nodes only where they are fewer and the bandwidths are of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import parse_json
from osfmodel.formats.collectives.naming import NAMES, NamedCollective, agrees, collective_of
from osfmodel.formats.collectives.one_cluster import RunLayout, told_gpus_per_node
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, columns_of, parse_list, require_workers

KINDS = {name.replace("_", ""): name for name in NAMES}
NEEDED = ("size", "time", "algbw", "busbw", "inplace")
Row = tuple[int, Mapping[str, str]]


def sniff(head: str) -> bool:
    """Whether the first object, or the header, has rccl-tests' names, in any case."""
    start = head.lstrip()
    if start.startswith(("{", "[")):
        return all(f'"{name}"' in start.partition("}")[0].lower() for name in NEEDED)
    return set(NEEDED) <= {_key(name) for name in columns_of(start)}


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster with a table for each collective and number of GPUs. Raises DataError for a wrong row."""
    text = replace(text, unit="entry") if text.content.lstrip().startswith("[") else text
    tests: dict[tuple[str, ...], list[Row]] = {}
    for number, entry in _entries(text):
        row = {_key(name): str(value).strip() for name, value in entry.items()}
        for name in NEEDED:
            text.column(number, row, (name,))
        key = tuple(row.get(name, "") for name in ("name", "gpus", "ranks", "gpusperrank", "rankspernode"))
        tests.setdefault(key, []).append((number, row))
    points: list[Point] = []
    layouts = [_add_points(text, rows, hints, points) for rows in tests.values()]
    told = replace(hints, gpus_per_node=told_gpus_per_node(text, layouts, hints))
    if points and told.gpus_per_node is None:
        text.tell(
            "how ranks lie on nodes is not in the file: each is taken to be on a node of its own: give --gpus-per-node"
        )
    return [cluster_of(text, points, told, "rccl-tests -x; the faster of out of place and in place")]


def _key(name: str) -> str:
    return name.strip(' "#').lower().replace("collective", "name")


def _entries(text: Text) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(place, row) of each; a line of JSON that was cut is told and left out."""
    if not text.content.lstrip().startswith(("{", "[")):
        yield from text.rows()
        return
    for number, entry in enumerate(parse_list(text), 1) if text.unit == "entry" else _lines(text):
        if not isinstance(entry, dict):
            raise text.fault(number, repr(entry), "is not a JSON object")
        text.limit(number, number * len(NEEDED))
        yield number, entry


def _lines(text: Text) -> Iterator[tuple[int, Any]]:
    for number, line in text.lines():
        try:
            if line.strip():
                yield number, parse_json(line.encode())
        except DataError:
            text.remark(number, line, "is not JSON and is left out")


def _add_points(text: Text, rows: Sequence[Row], hints: Hints, points: list[Point]) -> RunLayout:
    """Add the points of a test, whose layout on nodes is returned."""
    number, first = rows[0]
    place = f"{text.unit} {number}"
    name = first.get("name", "").lower().replace("_", "")
    pairs = [(text.number(n, row["algbw"]), text.number(n, row["busbw"])) for n, row in rows]
    seen = NamedCollective(KINDS.get(name, name), "", first.get("redop", "none"), "-1", pairs, place)
    each, ranks, there = (text.whole(number, first.get(key) or "1") for key in ("gpusperrank", "ranks", "rankspernode"))
    counts = [text.whole(number, first["gpus"])] if "gpus" in first else [ranks * each, there * each]
    found = next((count for count in counts if count > 1 and agrees(seen, seen.stated, count)), counts[0])
    workers = require_workers(found, hints, place)
    kind = collective_of(text, seen, workers, hints)
    for (size, _), same in groupby(rows, lambda row: (row[1]["size"], row[1].get("numcycle"))):
        right = [(n, row) for n, row in same if _is_right(text, n, row)]
        times = [text.number(n, row["time"]) * 1e-6 for n, row in right]
        if times:
            points.append(Point(workers, text.whole(right[0][0], size), min(times), right[0][0], kind))
    on_one = workers if "gpus" in first else there * each if there * each < workers else 0
    return RunLayout(place, on_one, on_one and -(-workers // on_one))


def _is_right(text: Text, number: int, row: Mapping[str, str]) -> bool:
    """Whether no result was wrong; if some were, tell the user."""
    wrong = row.get("wrong", "0")
    if wrong.isdecimal() and int(wrong):
        text.remark(number, row["size"], f"has {wrong} wrong results and is left out")
    return not (wrong.isdecimal() and int(wrong))
