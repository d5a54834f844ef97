"""OSU micro-benchmarks: size and average latency in microseconds, under a comment that names the test."""

from __future__ import annotations

import re

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, require_workers

TITLE = re.compile(r"^#\s*OSU\b.*\b(Allreduce|Reduce_scatter|Allgather)\b", re.IGNORECASE | re.MULTILINE)
COLLECTIVES = {"allreduce": "all_reduce", "reduce_scatter": "reduce_scatter", "allgather": "all_gather"}


def sniff(head: str) -> bool:
    """Whether a comment begins with OSU and names a collective."""
    return TITLE.search(head) is not None


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster with one table; the file does not say between how many workers."""
    title = TITLE.search(text.content)
    if title is None:
        raise DataError("has no title of an OSU collective")
    workers = require_workers(None, hints)
    points: list[Point] = []
    for number, line in text.lines():
        fields = line.split()
        if not fields or line.lstrip().startswith("#"):
            continue
        if len(fields) < 2:
            raise text.fault(number, line, "is not a size with a latency")
        size, time = text.whole(number, fields[0]), text.number(number, fields[1])
        text.limit(number, 2 * len(points))
        kind = COLLECTIVES[title[1].lower()]
        whole = size * workers if kind == "all_gather" else size  # OSU counts what each worker gives to an all-gather
        points.append(Point(workers, whole, time * 1e-6, number, kind))
    return [cluster_of(text, points, hints, f"{title[0].lstrip('# ').strip()}, average latency, {workers} workers")]
