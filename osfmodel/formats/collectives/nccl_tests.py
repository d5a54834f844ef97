"""Output of nccl-tests and rccl-tests -> a cluster with a table for each collective and worker count.

Times are microseconds; the smaller of out-of-place and in-place is taken, as DDP reduces in place. Runs of the same are
repeats, of which the median is taken. Rows whose results were wrong (#wrong above 0) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import parse_object
from osfmodel.formats.collectives import (
    NAMES,
    PROGRAM,
    NamedCollective,
    RunLayout,
    collective_of,
    factor,
    layout_of,
    told_gpus_per_node,
)
from osfmodel.formats.collectives.nccl_log import FIGURE, TAGS, LoggedTest, runs_of
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, columns_of, parse, require, require_workers

SHOWN = 1.0
"""Bandwidth in GB/s from which its two decimals say enough to compare it with the time."""
APART = 2.0
"""Factor by which time and bandwidth of a row may differ; more than that is another unit, or a damaged row."""


def cluster_of_runs(text: Text, hints: Hints, runs: Sequence[LoggedTest], program: str) -> Cluster:
    """One cluster with a table per run of ``program``. Raises DataError for another unit, and for runs that differ."""
    points: list[Point] = []
    layouts: list[RunLayout] = []
    told: list[str] = []
    for run in runs:
        if len(run.ranks) == 1:
            raise DataError(
                f"{text.unit} {run.line}: the test ran on one GPU alone: for several processes build it with MPI=1"
            )
        workers = require_workers(len(run.hosts()), hints, f"{text.unit} {run.line}")
        kind = collective_of(text, _seen(text, run), workers, hints)
        points += _points(text, run, workers, kind)
        layouts.append(layout_of(f"the run in {text.unit} {run.line}", run.hosts()))
        told.append(f"{kind}, {workers} workers on {layouts[-1].nodes or 'an unknown number of'} nodes")
    layout = replace(hints, gpus_per_node=told_gpus_per_node(text, layouts, hints))
    conditions = f"{program} {'; '.join(_counted(told))}; the faster of out of place and in place"
    found = cluster_of(text, points, layout, conditions)
    devices = set().union(*(run.devices for run in runs))
    return found if len(devices) != 1 else replace(found, source=replace(found.source, gpu=devices.pop()))


def _counted(told: Sequence[str]) -> list[str]:
    """Each remark once, with the number of times that it was made."""
    counts = {words: told.count(words) for words in told}
    return [words if count == 1 else f"{words} (median of {count} runs)" for words, count in counts.items()]


def _column(run: LoggedTest, fields: Sequence[str], name: str) -> list[str]:
    """The values in the columns of that name, out of place and in place."""
    return [fields[place] for place, found in enumerate(run.names) if found == name]


def _seen(text: Text, run: LoggedTest) -> NamedCollective:
    number, fields = run.rows[0]
    pairs = [
        pair
        for _, row in run.rows
        for pair in zip(_column(run, row, "algbw"), _column(run, row, "busbw"), strict=False)
    ]
    bandwidths = [(float(alg), float(bus)) for alg, bus in pairs if _is_figure(alg) and _is_figure(bus)]
    redop, root = (next(iter(_column(run, fields, name)), other) for name, other in (("redop", "none"), ("root", "")))
    return NamedCollective(run.stated, run.mentioned, redop, root, bandwidths, f"{text.unit} {number}")


def _is_figure(word: str) -> bool:
    return re.fullmatch(FIGURE, word) is not None


def _points(text: Text, run: LoggedTest, workers: int, collective: str) -> list[Point]:
    """The points of the rows; one note counts the lines that cannot be told. Raises DataError if none is right."""
    contradictory = _contradictory(text, run)
    lost = sorted([*run.lost, *contradictory])
    points = []
    for number, fields in run.rows:
        line = " ".join(fields)
        wrong = [word for word in _column(run, fields, "#wrong") if word not in ("0", "N/A") and _is_figure(word)]
        if any(float(word) > 0 for word in wrong):
            text.remark(number, line, f"has {' and '.join(wrong)} wrong results and is left out")
        elif (number, line) not in contradictory:
            points.append(_point(text, run, (number, fields), (workers, collective)))
    if lost:
        others = f", with {how_many(len(lost) - 1, 'more line')}" if len(lost) > 1 else ""
        text.remark(*lost[0], f"cannot be told as a row of the table and is left out{others}")
    if not points:
        raise DataError(
            f"{text.unit} {run.line}: all rows of the test that begins here have wrong results or contradict themselves"
        )
    return points


def _contradictory(text: Text, run: LoggedTest) -> set[tuple[int, str]]:
    """The rows whose times and bandwidths contradict. Raises DataError if fewer agree: that is another unit."""
    found: dict[tuple[int, str], str] = {}
    compared = set()
    for number, fields in run.rows:
        for time, rate in zip(_column(run, fields, "time"), _column(run, fields, "algbw"), strict=False):
            if _is_figure(time) and _is_figure(rate) and float(rate) >= SHOWN:
                compared.add(number)
                stated = int(fields[0]) / float(rate) / 1e3
                if not stated / APART < float(time) < stated * APART:
                    found[number, " ".join(fields)] = f"takes {time} us, but {stated:.4g} us by its algbw"
    if 2 * len(found) > len(compared):
        raise text.fault(*max(found), found[max(found)])
    return set(found)


def _point(text: Text, run: LoggedTest, row: tuple[int, list[str]], what: tuple[int, str]) -> Point:
    number, fields = row
    measured = [text.number(number, time) for time in _column(run, fields, "time") if _is_figure(time)]
    if not measured:
        raise text.fault(number, " ".join(fields), "has neither an out-of-place nor an in-place time")
    return Point(what[0], text.whole(number, fields[0]), min(measured) * 1e-6, number, what[1])


TABLE = re.compile(r"(?:\A|[\r\n])[^\r\n\"{]{0,200}?#[ \t]+size[ \t]+count[ \t]+type[ \t]")


def sniff(head: str) -> bool:
    """Whether a comment line, after any prefix, names size, count and type."""
    return TABLE.search(TAGS.sub("", head)) is not None


def read(text: Text, hints: Hints) -> list[Cluster]:
    """Text of nccl-tests: old and new column layouts, interleaved log lines, several runs, any prefix of a line.

    Lines may be indented, quoted on a page, or tagged by whoever collected them. Rows that cannot be told are left out,
    in one counted note. One cluster with a table per run. Raises DataError for a table of another unit, and for runs
    that differ.
    """
    runs = runs_of(text)
    if not runs:
        raise DataError("has the header of nccl-tests but no rows")
    return [cluster_of_runs(text, hints, runs, "nccl-tests")]


SIDES = ("out_of_place", "in_place")


def sniff_json(head: str) -> bool:
    """Whether it is a JSON object with nccl_version, or with the first keys of files without it; traces excluded."""
    others = ('"deviceProperties"', '"traceEvents"', '"pg_config"', '"collective_seq_id"')
    other = not head.lstrip().startswith("{") or any(sign in head for sign in others)
    return not other and ('"nccl_version"' in head or ('"args"' in head and "_perf" in head))


def read_json(text: Text, hints: Hints) -> list[Cluster]:
    """The JSON of nccl-tests -J: config with devices, results with out_of_place and in_place times in us.

    Results that were wrong (nwrong above 0) are left out. Truth values are the strings "true" and "false" there.

    One cluster with one table. Raises DataError that names the wrong result.
    """
    document = parse(text)
    devices = _devices(document)
    workers = require_workers(len(devices), hints, "config.devices")
    results = require(text, document, "results", list)
    kind = collective_of(text, _seen_in(document, results), workers, hints)
    points = [
        _point_of(place, result, workers, kind) for place, result in enumerate(results) if _right(text, place, result)
    ]
    _tell_how_it_ended(text, document, points)
    named = [device.get("host") or device.get("hostname") for device in devices]
    layout = layout_of("the list of devices", [host for host in named if isinstance(host, str)])
    version = f"NCCL {document.get('nccl_version')!s:.20}"
    conditions = f"nccl-tests -J {kind}, {version}; the faster of out of place and in place"
    told = replace(hints, gpus_per_node=told_gpus_per_node(text, [layout], hints))
    return [cluster_of(text, points, told, conditions)]


def _devices(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices of one communicator: of the first group, if nccl-tests split them into several."""
    config = document.get("config")
    found = config.get("devices") if isinstance(config, dict) else document.get("devices")
    devices = [device for device in found if isinstance(device, dict)] if isinstance(found, list) else []
    return [device for device in devices if device.get("group") == devices[0].get("group")]


def _half(result: Any, side: str) -> dict[str, Any]:
    half = result.get(side) if isinstance(result, dict) else None
    return half if isinstance(half, dict) else {}


def _figure(value: Any) -> float:
    """A number above 0, also in quotes; 0 for anything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if 0 < number < float("inf") else 0.0


def _seen_in(document: dict[str, Any], results: list[Any]) -> NamedCollective:
    args = document.get("args")
    program = PROGRAM.search(str(args[0])[-200:]) if isinstance(args, list) and args else None
    first = results[0] if results and isinstance(results[0], dict) else {}
    halves = [_half(result, side) for result in results for side in SIDES]
    bandwidths = [(_figure(half.get("alg_bw")), _figure(half.get("bus_bw"))) for half in halves]
    pairs = [(alg, bus) for alg, bus in bandwidths if alg and bus]
    redop, root = str(first.get("redop", "none")), str(first.get("root", "")).strip()
    return NamedCollective(program[1] if program else "", "", redop, root, pairs, "results[0]")


def _right(text: Text, place: int, result: Any) -> bool:
    """Whether the results of the collective were right; if not, tell the user."""
    wrong = [half["nwrong"] for half in (_half(result, side) for side in SIDES) if _figure(half.get("nwrong"))]
    if wrong:
        text.tell(f"results[{place}]: has {' and '.join(map(str, wrong))} wrong results and is left out")
    return not wrong


def _tell_how_it_ended(text: Text, document: dict[str, Any], points: list[Point]) -> None:
    """Tell the user what failed, and whether the test was cut off."""
    for field, value in document.items():
        if isinstance(value, dict) and str(value.get("okay")).lower() == "false":
            text.tell(f"{field}: nccl-tests reports a failure: {value!s:.100}")
    config = document.get("config")
    largest = _figure(config.get("maximum_bytes")) if isinstance(config, dict) else 0.0
    reached = max((point.size for point in points), default=0)
    if not {"out_of_bounds", "average_bus_bandwidth"} & set(document) and not 0 < largest <= reached:
        text.tell(
            f"results[{len(points) - 1}]: the test was cut off after {reached} bytes: no average bandwidth follows"
        )


def _point_of(place: int, result: Any, workers: int, collective: str) -> Point:
    where = f"results[{place}]"
    if not isinstance(result, dict):
        raise DataError(f"{where}: is not a JSON object")
    measured = [_half(result, side).get("time") for side in SIDES]
    times = [time for time in measured if isinstance(time, int | float) and 0 < time < float("inf")]
    size = result.get("size")
    if not times or not isinstance(size, int) or size < 0:
        raise DataError(f"{where}: needs a size and an out_of_place or in_place time above 0")
    return Point(workers, size, min(times) * 1e-6, place, collective)


KINDS = {name.replace("_", ""): name for name in NAMES}
SIDE = ("time", "algbw", "busbw", "wrong")
NEEDED = ("name", "size", "inplace", *SIDE)
SHAPE = ("name", "gpus", "ranks", "gpusperrank", "rankspernode")
OBJECT = re.compile(r"\{[^{}]*(\}?)")


def sniff_rccl(head: str) -> bool:
    """Whether the first object, or the header, has rccl-tests' names, in any case."""
    first = re.match(r"\[?\s*(\{[^}]*)", head.lstrip())  # of blanks alone \s*\[?\s* would take a square
    return {*NEEDED} <= {*map(_key, re.findall(r'"([^"]{1,20})"\s{0,9}:', first[1]) if first else columns_of(head))}


def read_rccl(text: Text, hints: Hints) -> list[Cluster]:
    """The file that rccl-tests writes with -x: a row for each size, out of place or in place, in JSON or (-Z csv) CSV.

    JSON is a list, or in old versions an object in each line. Built with MPI, it writes all ranks and, as
    ``ranksPerNode``, those of the communicator: they tell how ranks lie on nodes only where they are fewer and the
    bandwidths are of all.

    One cluster with a table for each collective and number of GPUs. Raises DataError for a wrong row.
    """
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
