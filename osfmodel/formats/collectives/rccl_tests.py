"""The file that rccl-tests writes with -x: a row for each size, out of place or in place, in JSON or (-Z csv) CSV.

JSON is a list, or in old versions an object in each line. Built with MPI, it writes all ranks and, as ``ranksPerNode``,
those of the communicator: they tell how ranks lie on nodes only where they are fewer and the bandwidths are of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import parse_object
from osfmodel.formats.collectives.measured_runs import cluster_of_runs
from osfmodel.formats.collectives.naming import NAMES, factor
from osfmodel.formats.collectives.nccl_log import LoggedTest
from osfmodel.formats.source_text import Hints, Text, columns_of

KINDS = {name.replace("_", ""): name for name in NAMES}
SIDE = ("time", "algbw", "busbw", "wrong")
NEEDED = ("name", "size", "inplace", *SIDE)
SHAPE = ("name", "gpus", "ranks", "gpusperrank", "rankspernode")
OBJECT = re.compile(r"\{[^{}]*(\}?)")


def sniff(head: str) -> bool:
    """Whether the first object, or the header, has rccl-tests' names, in any case."""
    first = re.match(r"\s*\[?\s*(\{[^}]*)", head)
    return {*NEEDED} <= {*map(_key, re.findall(r'"([^"]{1,20})"\s{0,9}:', first[1]) if first else columns_of(head))}


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster with a table for each collective and number of GPUs. Raises DataError for a wrong row."""
    runs: dict[tuple[str, ...], LoggedTest] = {}
    text = replace(text, unit="entry") if text.content.lstrip().startswith(("{", "[")) else text
    rows = [(number, {_key(name): str(value).strip() for name, value in row.items()}) for number, row in _rows(text)]
    for number, row in rows:
        for name in NEEDED:
            text.column(number, row, (name,))
    for key, same in groupby(rows, lambda row: [row[1].get(name, "") for name in (*SHAPE, "size", "numcycle")]):
        sides = list(same)
        run = runs.setdefault(
            tuple(key[: len(SHAPE)]), LoggedTest(sides[0][0], names=["size", *(*SIDE[:3], "#wrong") * 2])
        )
        fields = [str(text.whole(sides[0][0], key[-2]))]
        for number, row in sides[:2]:
            fields += [*(str(text.number(number, row[name])) for name in SIDE[:3]), row["wrong"]]
        run.rows.append((sides[0][0], [*fields, *["N/A"] * (9 - len(fields))]))
    for shape, run in runs.items():
        _place(text, hints, run, dict(zip(SHAPE, shape, strict=True)))
    return [cluster_of_runs(text, hints, list(runs.values()), "rccl-tests -x")]


def _key(name: str) -> str:
    return name.strip(' "#').lower().replace("collective", "name")


def _rows(text: Text) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(place, row) of each; a last object that was cut is told and left out."""
    if text.unit == "line":
        yield from text.rows()
        return
    for number, found in enumerate(OBJECT.finditer(text.content), 1):
        text.limit(number, number * len(NEEDED))
        try:
            yield number, parse_object(found[0].encode())
        except DataError as error:
            if found[1] or found.end() < len(text.content):
                raise text.fault(number, found[0], str(error)) from None
            text.remark(number, found[0], "was cut and is left out")


def _place(text: Text, hints: Hints, run: LoggedTest, shape: Mapping[str, str]) -> None:
    """Set the collective of a test and the hosts of its workers."""
    name = shape["name"].lower().replace("_", "")
    run.stated, run.ended = KINDS.get(name, name), True
    each, ranks, there = (text.whole(run.line, shape[key] or "1") for key in ("gpusperrank", "ranks", "rankspernode"))
    counts = [text.whole(run.line, shape["gpus"])] if shape["gpus"] else [ranks * each, there * each]
    alg, bus = max((float(row[2]), float(row[3])) for _, row in run.rows)
    workers = min(counts, key=lambda count: abs(bus - factor(run.stated, max(count, 1)) * alg))
    text.limit(run.line, 20 * workers)
    on_node = workers if shape["gpus"] else there * each if there * each < workers else hints.gpus_per_node or 1
    run.ranks = {rank: ("", str(rank // max(on_node, 1))) for rank in range(workers)}
    if hints.gpus_per_node is None and 1 == on_node < min(workers, there * each):
        text.tell(
            "how ranks lie on nodes is not in the file: each is taken to be on a node of its own: give --gpus-per-node"
        )
