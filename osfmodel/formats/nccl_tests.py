"""The text that nccl-tests prints: old and new column layouts, mpirun prefixes, interleaved log lines.

Times are microseconds; the smaller of out-of-place and in-place is taken, as DDP reduces in place.
"""

from __future__ import annotations

import re

from osfmodel.cluster import Cluster
from osfmodel.errors import DataError
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, require_workers

PREFIX = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:\s?")
HEADER = re.compile(r"^#\s+size\s+count\s+type\s+redop")
RANK = re.compile(r"^#\s+Rank\s+\d+\s.*\bon\s+(\S+)\s+device")
STARTING = re.compile(r"(all_reduce|reduce_scatter|all_gather)_perf")
COLUMNS = {12: 4, 13: 5, 8: 4, 9: 5}
"""How many fields a row has -> at which the first time stands (without and with the column "root")."""


def sniff(head: str) -> bool:
    """A comment line that names size, count, type and redop."""
    return any(HEADER.match(PREFIX.sub("", line)) for line in head.splitlines())


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster with one table. Raises DataError for a row that is cut or garbled."""
    hosts: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    collective, expected = "", 0
    for number, raw in text.lines():
        line = PREFIX.sub("", raw)
        if match := RANK.match(line):
            hosts.append(match[1])
        if line.startswith("#") and (found := STARTING.search(line)):
            collective = found[1]
        if HEADER.match(line):
            expected = len(line.split()) - 1
        elif expected and line.lstrip()[:1].isdigit() and "NCCL" not in line:
            fields = line.split()
            if len(fields) != expected or expected not in COLUMNS:
                raise text.fault(number, line, f"has {len(fields)} fields where the header has {expected}")
            rows.append((number, fields))
            text.limit(number, len(rows) * expected)
    if not rows:
        raise DataError("has the header of nccl-tests but no rows")
    workers = require_workers(text, len(hosts), hints)
    kind = collective or _by_operation(text, rows[0])
    points = [_point(text, number, fields, workers, kind) for number, fields in rows]
    nodes = len(set(hosts)) or None
    layout = Hints(hints.name, workers, hints.gpus_per_node or (workers // nodes if nodes else None))
    conditions = f"nccl-tests {kind}, {workers} workers on {nodes or 'an unknown number of'} nodes; the faster of "
    return [cluster_of(text, points, layout, conditions + "out of place and in place")]


def _by_operation(text: Text, row: tuple[int, list[str]]) -> str:
    """Reducing collectives state their operation; of these, all-reduce unless the file says otherwise."""
    number, fields = row
    if fields[3] == "none":
        raise text.fault(number, " ".join(fields), "reduces nothing, and the file does not name the collective")
    return "all_reduce"


def _point(text: Text, number: int, fields: list[str], workers: int, collective: str) -> Point:
    first = COLUMNS[len(fields)]
    times = [fields[first], *fields[first + 4 : first + 5]]
    measured = [text.number(number, time) for time in times if time != "N/A"]
    if not measured:
        raise text.fault(number, " ".join(fields), "has neither an out-of-place nor an in-place time")
    return Point(workers, text.whole(number, fields[0]), min(measured) * 1e-6, number, collective)
