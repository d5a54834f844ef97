"""Read step times from plain text, CSV or JSON lines: a number a line, or a column of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from osfmodel.diagnosis.comparing.readings import Reading, Timed
from osfmodel.diagnosis.comparing.statistics import StepSeries
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import parse_json
from osfmodel.formats.source_text import Text

COLUMN = re.compile(
    r"(?:step|iteration|iter|train|batch)?[ _]?(?:time|duration|seconds|latency)(?:[ _(]*(s|ms|us|ns)\)?)?"
)
"""Names of columns of step times, with their unit; in seconds without one."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
RUN = ("run", "repeat")
"""Names of a column that tells runs apart."""
LONGEST = 1e6
"""Seconds from which a number is taken for a time of day."""
FORMS = "a number a line, a CSV column or JSON-lines field such as step_time_s (_ms, _us)"


def times_reading(text: Text, name: str) -> Reading:
    """The step times of a text file; a column ``run`` or ``repeat`` tells several runs apart.

    Raises DataError, with the line, for anything but step times above zero.
    """
    head = next((line for _, line in text.lines() if line.strip() and not line.startswith("#")), "")
    if head.lstrip().startswith("{"):
        rows = _in_json(text)
    elif _is_number(head) or ("," not in head and "\t" not in head and ";" not in head):
        rows = _in_lines(text)
    else:
        rows = _in_table(text)
    runs: dict[str, list[float]] = {}
    for line, run, time in rows:
        if not 0 < time < LONGEST:
            raise text.fault(line, f"{time:g}", "is not a step time: seconds above zero, and no time of day")
        runs.setdefault(run, []).append(time)
        text.limit(line, sum(map(len, runs.values())) if line % 4096 == 0 else 0)
    if not runs:
        raise DataError(f"has no step times: give {FORMS}")
    return Reading(name, "times", (Timed("step", tuple(StepSeries(tuple(times)) for times in runs.values())),))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _in_lines(text: Text) -> Iterator[tuple[int, str, float]]:
    """A number a line; the first line may name the unit, as ``step_time_ms`` does; # begins a comment."""
    scale = None
    for line, content in text.lines():
        value = content.partition("#")[0].strip()
        if not value:
            continue
        if scale is None:
            scale = _scale(value.lower())
            if scale is not None:
                continue
            scale = 1.0
        if not _is_number(value):
            raise text.fault(line, content, f"is not a step time; expected {FORMS}")
        yield line, "", float(value) * scale


def _scale(name: str) -> float | None:
    """Seconds per unit of a column of step times; None for any other column."""
    match = COLUMN.fullmatch(name.strip().strip('"'))
    return None if match is None else UNITS[match[1] or "s"]


def _chosen(names: Mapping[str, Any]) -> tuple[str, float] | None:
    """The column of step times, and its unit: the first whose name begins with step, iteration or the like."""
    found = [(name, scale) for name in names if (scale := _scale(name.lower())) is not None]
    return min(found, key=lambda one: one[0].lower().startswith(("time", "duration", "seconds")), default=None)


def _in_table(text: Text) -> Iterator[tuple[int, str, float]]:
    chosen = None
    for line, row in text.rows():
        chosen = chosen or _chosen(row)
        if chosen is None:
            raise text.fault(1, ", ".join(row), "has no column of step times, such as step_time_s or step_time_ms")
        column, scale = chosen
        yield line, _run(row), text.number(line, row[column]) * scale


def _in_json(text: Text) -> Iterator[tuple[int, str, float]]:
    """An object a line; those without a step time, such as a first one with the settings, are left out."""
    for line, content in text.lines():
        if not content.strip():
            continue
        try:
            row = parse_json(content.encode("utf-8", "surrogatepass"))
        except DataError:
            raise text.fault(line, content, "is not a JSON object; expected " + FORMS) from None
        if not isinstance(row, dict):
            raise text.fault(line, content, "is not a JSON object")
        chosen = _chosen(row)
        if chosen is None or row[chosen[0]] is None:
            continue
        value = row[chosen[0]]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise text.fault(line, content, f"{chosen[0]} is not a number")
        try:
            yield line, _run(row), float(value) * chosen[1]
        except OverflowError:
            raise text.fault(line, content, f"{chosen[0]} is no step time") from None


def _run(row: Mapping[str, Any]) -> str:
    return next((str(row[name]) for name in RUN if name in row), "")
