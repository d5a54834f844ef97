"""The columns of a comparison of two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from osfmodel.diagnosis.causes import label_of
from osfmodel.diagnosis.comparing.comparison import (
    HOPELESS,
    CollectiveDifference,
    Difference,
    Fact,
    RunComparison,
    TimedChange,
)
from osfmodel.diagnosis.comparing.readings import CollectiveUse
from osfmodel.diagnosis.explanation import COMPUTE
from osfmodel.entities.display import show_bus_rate, show_bytes, show_share, show_time
from osfmodel.show.tables import Column, column

LISTED = 12
"""Maximum number of rows of a list for people; JSON and CSV have all."""
SMALL = 0.0005
"""Part of a step below which a change is not listed for people."""
COMPUTE_WORDS = "computation and copies"


def signed_time(seconds: float) -> str:
    """Seconds with their sign: ``+1.20 ms``."""
    return f"{'-' if seconds < 0 else '+'}{show_time(abs(seconds))}"


def signed_share(part: float) -> str:
    """A relative change with its sign."""
    return show_share(part, "+")


def noise_floor(noise: float) -> str:
    """The smallest change that could have shown; one that is larger than any number says is not shown as one."""
    return show_share(noise) if noise < HOPELESS else f"over {show_share(HOPELESS)}"


SUBJECTS: tuple[Column[TimedChange], ...] = (
    column("name", "compared", lambda one: one.name),
    column("baseline_s", "baseline", lambda one: one.change.baseline, show_time),
    column("candidate_s", "candidate", lambda one: one.change.candidate, show_time),
    column("change", "change", lambda one: one.change.median, signed_share),
    column("low", None, lambda one: one.change.low),
    column("high", None, lambda one: one.change.high),
    column(None, "interval", lambda one: one.change.interval),
    column("noise_floor", "noise floor", lambda one: one.change.noise or None, noise_floor),
    column("verdict", "verdict", lambda one: one.change.verdict),
    column("runs", None, lambda one: list(one.change.runs)),
    column("steps", None, lambda one: list(one.change.steps)),
)
"""Columns of what is compared."""


def part_words(name: str) -> str:
    """The name of a part of a step as tables show it."""
    return COMPUTE_WORDS if name == COMPUTE else label_of(name)


def difference_columns(head: str, words: Callable[[str], str] = str) -> tuple[Column[Difference], ...]:
    """Columns of parts of a step, or of modules."""
    return (
        column("name", head, lambda one: one.name, words),
        column("baseline_s", "baseline", lambda one: one.baseline, show_time),
        column("candidate_s", "candidate", lambda one: one.candidate, show_time),
        column("change_s", "change", lambda one: one.change, signed_time),
    )


PARTS = difference_columns("cause", part_words)
"""Columns of the parts of a step by cause."""
MODULES = difference_columns("module")
"""Columns of computation by module."""


def _side(
    which: str, name: str, value: Callable[[CollectiveUse], Any], head: str | None, write: Callable[[Any], str] = str
) -> Column[CollectiveDifference]:
    def found(one: CollectiveDifference) -> Any:
        use = getattr(one, which)
        return None if use is None else value(use)

    return column(f"{which}_{name}", head, found, write)


def _count(number: float) -> str:
    return f"{number:.4g}"


COLLECTIVES: tuple[Column[CollectiveDifference], ...] = (
    column("kind", "collective", lambda one: one.either.kind),
    column("group", "group", lambda one: one.either.group or None),
    column("workers", "workers", lambda one: one.either.workers or None),
    _side("baseline", "count", lambda use: use.count, "count", _count),
    _side("candidate", "count", lambda use: use.count, "count now", _count),
    _side("baseline", "bytes", lambda use: use.bytes, "bytes", show_bytes),
    _side("candidate", "bytes", lambda use: use.bytes, "bytes now", show_bytes),
    _side("baseline", "s", lambda use: use.time, "time", show_time),
    _side("candidate", "s", lambda use: use.time, "time now", show_time),
    column("change_s", "change", lambda one: one.change, signed_time),
    _side("baseline", "bytes_per_s", lambda use: use.bandwidth, "bus bandwidth", show_bus_rate),
    _side("candidate", "bytes_per_s", lambda use: use.bandwidth, "bus bandwidth now", show_bus_rate),
)
"""Columns of collectives."""
FACTS: tuple[Column[Fact], ...] = (
    column("name", "condition", lambda one: one.name),
    column("baseline", "baseline", lambda one: one.baseline),
    column("candidate", "candidate", lambda one: one.candidate),
)
"""Columns of conditions that differ."""

Record = TypeVar("Record")


class ListedRows(NamedTuple):
    """A list of a comparison for people: its title, its columns, its rows, and how many were left out."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    left_out: int = 0


def lists(one: RunComparison) -> list[ListedRows]:
    """The lists that have rows, without small changes: subjects, conditions, causes, collectives, modules."""
    leading = one.leading
    least = SMALL * leading.change.baseline
    found = [
        _first("", SUBJECTS, one.subjects),
        _first("Conditions that differ", FACTS, one.facts),
        _first("Causes of the change", PARTS, [row for row in leading.parts if abs(row.change) >= least]),
        _first("Collectives", COLLECTIVES, [row for row in one.collectives if row.change]),
        _first("Computation by module", MODULES, [row for row in one.modules if abs(row.change) >= least]),
    ]
    return [table for table in found if table.rows]


def _first(title: str, columns: Sequence[Column[Record]], rows: Iterable[Record]) -> ListedRows:
    every = list(rows)
    return ListedRows(title, columns, every[:LISTED], len(every[LISTED:]))


def left_out(table: ListedRows) -> str:
    """A sentence on the rows that are not shown; "" if all are."""
    return f"{table.left_out} more with smaller changes: --format json." if table.left_out else ""
