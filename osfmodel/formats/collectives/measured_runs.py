"""Runs of nccl-tests or rccl-tests -> a cluster with a table for each collective and worker count.

Times are microseconds; the smaller of out-of-place and in-place is taken, as DDP reduces in place. Runs of the same are
repeats, of which the median is taken. Rows whose results were wrong (#wrong above 0) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import DataError
from osfmodel.formats.collectives.naming import NamedCollective, collective_of
from osfmodel.formats.collectives.nccl_log import FIGURE, LoggedTest
from osfmodel.formats.collectives.one_cluster import RunLayout, layout_of, told_gpus_per_node
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, require_workers

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
