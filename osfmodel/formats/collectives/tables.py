"""A CSV of measured collectives: columns of bytes, times and workers, and columns that distinguish set-ups.

The time is the smaller of ``time_us`` and ``inplace_time_us``, or a median. If the same worker count and size are
in several rows, columns of words (a device, a version), then the layout over nodes, tell clusters apart; what is left
are repeats, of which the median is taken. Rows without a worker count are left out. A table of published fits
(``alpha_s``, ``beta_s_per_byte``) gives Hockney clusters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from osfmodel.entities.cluster import AlphaBeta, Cluster
from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, columns_of, is_number, pick, require_workers

SIZES = ("bytes", "size_bytes", "bytes_pow2", "msg_size", "size")
WORKERS = ("n_gpus", "workers", "ranks", "world_size", "n_nodes", "nodes")
TIMES = {"time_us": 1e-6, "time_us_median": 1e-6, "time_us_derived": 1e-6, "us": 1e-6, "latency_us": 1e-6,
         "time_ms": 1e-3, "time_s": 1.0}  # fmt: skip
LAYOUT = ("gpus_per_node", "n_nodes", "n_racks")
FIGURES = ("dtype", "size_label")
"""Columns of words that do not distinguish set-ups."""

Rows = Sequence[tuple[int, dict[str, str]]]


def sniff_csv(head: str) -> bool:
    """Whether it has a header with bytes and a time, or with alpha and beta."""
    columns = columns_of(head)
    measured = pick(columns, *SIZES) is not None and pick(columns, *TIMES) is not None
    return measured or {"alpha_s", "beta_s_per_byte"} <= set(columns)


def read_csv(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster per set-up. Raises DataError for a wrong row."""
    rows = list(text.rows())
    if not rows:
        raise DataError("has a header but no rows")
    columns = rows[0][1]
    if {"alpha_s", "beta_s_per_byte"} <= set(columns):
        return [_fits(text, group, label, hints) for label, group in _groups(rows, _words(columns)).items()]
    for names in (SIZES, tuple(TIMES)):
        text.column(1, columns, names)
    keys = _telling_apart(text, rows, hints)
    count = pick(columns, *WORKERS)
    counted = [(number, row) for number, row in rows if count is None or row[count].strip()]
    if not counted:
        raise DataError(f"no row states its workers: fill the column {count}")
    return [_table(text, group, label, hints) for label, group in _groups(counted, keys).items()]


def _words(columns: dict[str, str]) -> list[str]:
    """The columns whose first value is not a number, without FIGURES."""
    return [name for name, value in columns.items() if name not in FIGURES and not is_number(value)]


def _groups(rows: Rows, keys: Sequence[str]) -> dict[str, Rows]:
    """Rows grouped by their values in these columns, with a label as the group's name."""
    labels: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for number, row in rows:
        labels.setdefault("-".join(row[key] for key in keys), []).append((number, row))
    return dict(labels)


def _telling_apart(text: Text, rows: Rows, hints: Hints) -> list[str]:
    """The fewest columns, words before layout, that make each worker count and size as unique as all of them do.

    Rows that are then alike are repeats. GPUs per node tell clusters apart only if no one layout holds all rows.
    """
    columns = rows[0][1]
    size = pick(columns, *SIZES) or ""
    workers = pick(columns, *WORKERS)
    layout = [name for name in LAYOUT if name in columns and name != workers]
    words = _words(columns)
    versions = [name for name in columns if name in ("nccl", "version")]

    def seen(keys: Sequence[str]) -> int:
        return len({(*(row[key] for key in keys), row.get(workers or ""), row[size]) for _, row in rows})

    every = [*words, *versions, *layout]
    tried = [[], words, [*words, *versions], every]
    keys = next(keys for keys in tried if seen(keys) == seen(every))
    if "gpus_per_node" in layout and workers and hints.gpus_per_node is None:
        counts = [(number, row) for number, row in rows if row[workers].strip()]
        groups = _groups(counts, [key for key in keys if key not in layout]).values()
        if not all(_in_one_layout(text, group, workers) for group in groups):
            keys = every
            text.tell(
                "rows of one set-up have several numbers of GPUs per node: each number makes a cluster, and --fit fits "
                "each by itself; for one cluster keep the rows of one number"
            )
    return list(dict.fromkeys(keys))


def _in_one_layout(text: Text, rows: Rows, workers: str) -> bool:
    """Whether nodes of one size hold all rows: those on several nodes fill them, a run on one node may use fewer."""
    pairs = {(text.whole(n, row[workers]), text.whole(n, row["gpus_per_node"])) for n, row in rows}
    spread = {each for count, each in pairs if count > each > 0}
    return not spread or (len(spread) == 1 and max(each for _, each in pairs) == max(spread))


def _table(text: Text, rows: Rows, label: str, hints: Hints) -> Cluster:
    columns = rows[0][1]
    size, workers = pick(columns, *SIZES) or "", pick(columns, *WORKERS)
    time = pick(columns, *TIMES) or ""
    points = []
    for number, row in rows:
        count = require_workers(text.whole(number, row[workers]) if workers else None, hints, f"line {number}")
        points.append(Point(count, text.whole(number, row[size]), _seconds(text, number, row, time), number))
    layout = replace(hints, gpus_per_node=hints.gpus_per_node or _gpus_per_node(text, rows, workers))
    conditions = f"{time}{' or inplace_time_us, the smaller' if 'inplace_time_us' in columns else ''}; {label}".rstrip(
        "; "
    )
    return cluster_of(text, points, layout, conditions, _name(hints, label))


def _seconds(text: Text, number: int, row: dict[str, str], time: str) -> float:
    """The smaller of the times of a row. Raises DataError if it has none."""
    units = {time: TIMES[time], "inplace_time_us": 1e-6}
    times = [text.number(number, row[name]) * unit for name, unit in units.items() if row.get(name, "").strip()]
    if not times:
        raise text.fault(number, ",".join(row.values()), f"has no time ({time})")
    return min(times)


def _gpus_per_node(text: Text, rows: Rows, workers: str | None) -> int | None:
    """GPUs per node, as stated or from the nodes: the most workers that one node holds."""
    _, row = rows[0]
    if "gpus_per_node" in row:
        return max(text.whole(n, r["gpus_per_node"]) for n, r in rows) or None
    if workers and workers != "n_nodes" and "n_nodes" in row:
        return max(-(-text.whole(n, r[workers]) // max(1, text.whole(n, r["n_nodes"]))) for n, r in rows)
    return None


def _fits(text: Text, rows: Rows, label: str, hints: Hints) -> Cluster:
    workers = pick(rows[0][1], *WORKERS) or ""
    fits = tuple(
        AlphaBeta(
            text.whole(number, row.get(workers, "")),
            text.number(number, row["alpha_s"]),
            text.number(number, row["beta_s_per_byte"]),
        )
        for number, row in rows
    )
    source = text.source(label or "not stated")
    return Cluster(_name(hints, label), "hockney", gpus_per_node=hints.gpus_per_node or 1, fits=fits, source=source)


def _name(hints: Hints, label: str) -> str:
    words = "".join(letter if letter.isalnum() else "-" for letter in label.lower())
    return "-".join(part for part in [hints.name, *words.split("-")] if part)


TITLE = re.compile(r"^#\s*OSU\b.*\b(Allreduce|Reduce_scatter|Allgather)\b", re.IGNORECASE | re.MULTILINE)
COLLECTIVES = {"allreduce": "all_reduce", "reduce_scatter": "reduce_scatter", "allgather": "all_gather"}


def sniff_osu(head: str) -> bool:
    """Whether a comment begins with OSU and names a collective."""
    return TITLE.search(head) is not None


def read_osu(text: Text, hints: Hints) -> list[Cluster]:
    """OSU micro-benchmarks: size and average latency in microseconds, under a comment that names the test.

    One cluster with one table; the file does not say between how many workers.
    """
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
