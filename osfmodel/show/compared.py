"""The result of ``osf compare``: the verdict on two runs, and what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

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
from osfmodel.show.document import Result
from osfmodel.show.table import TERMINAL, Column, ListedRows, Sheet, column, filled, json_row, texts
from osfmodel.show.terminal import Console, print_fitting, show_notes, show_title

LISTED = 12
"""Maximum number of rows of a list for people; JSON and CSV have all."""
SMALL = 0.0005
"""Part of a step below which a change is not listed for people."""
COMPUTE_WORDS = "computation and copies"
LEFT_OUT = ("noise floor", "bytes", "group", "workers", "bus bandwidth")
"""Columns to leave out on a narrow terminal, the first one first."""


def signed_time(seconds: float) -> str:
    """Seconds with their sign: ``+1.20 ms``."""
    return f"{'-' if seconds < 0 else '+'}{show_time(abs(seconds))}"


def noise_floor(noise: float) -> str:
    """The smallest change that could have shown; one that is larger than any number says is not shown as one."""
    return show_share(noise) if noise < HOPELESS else f"over {show_share(HOPELESS)}"


SUBJECTS: tuple[Column[TimedChange], ...] = (
    column("name", "compared", lambda one: one.name),
    column("baseline_s", "baseline", lambda one: one.change.baseline, show_time),
    column("candidate_s", "candidate", lambda one: one.change.candidate, show_time),
    column("change", "change", lambda one: one.change.median, lambda part: show_share(part, "+")),
    column("low", None, lambda one: one.change.low),
    column("high", None, lambda one: one.change.high),
    column(None, "interval", lambda one: one.change.interval),
    column("noise_floor", "noise floor", lambda one: one.change.noise or None, noise_floor),
    column("verdict", "verdict", lambda one: one.change.verdict),
    column("runs", None, lambda one: list(one.change.runs)),
    column("steps", None, lambda one: list(one.change.steps)),
)
"""Columns of what is compared."""


def difference_columns(head: str, words: Callable[[str], str] = str) -> tuple[Column[Difference], ...]:
    """Columns of parts of a step, or of modules."""
    return (
        column("name", head, lambda one: one.name, words),
        column("baseline_s", "baseline", lambda one: one.baseline, show_time),
        column("candidate_s", "candidate", lambda one: one.candidate, show_time),
        column("change_s", "change", lambda one: one.change, signed_time),
    )


PARTS = difference_columns("cause", lambda name: COMPUTE_WORDS if name == COMPUTE else label_of(name))
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


class Compared(Result):
    """The result of ``osf compare``: the verdict, and what changed."""

    def __init__(self, comparison: RunComparison) -> None:
        self.comparison, self.verdict = comparison, comparison.sentence

    def content(self) -> dict[str, Any]:
        one, leading = self.comparison, self.comparison.leading
        change = leading.change
        return {
            "kind": f"comparison of {one.kind}",
            "baselines": list(one.baselines),
            "candidates": list(one.candidates),
            "verdict": one.verdict,
            "regression": one.regression,
            "sentence": self.verdict,
            "tolerance": one.tolerance,
            "compared": leading.name,
            "change": {"low": change.low, "median": change.median, "high": change.high},
            "noise_floor": change.noise,
            "baseline_s": change.baseline,
            "candidate_s": change.candidate,
            "subjects": [json_row(SUBJECTS, row) for row in one.subjects],
            "parts": [json_row(PARTS, row) for row in leading.parts],
            "collectives": [json_row(COLLECTIVES, row) for row in one.collectives],
            "modules": [json_row(MODULES, row) for row in one.modules],
            "conditions": [json_row(FACTS, row) for row in one.facts],
            "notes": list(one.remarks),
        }

    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        """A row for each thing that is compared, each part of its step, each collective and each module."""
        one = self.comparison
        for subject in one.subjects:
            row = json_row(SUBJECTS, subject)
            yield _row(
                "compared", subject.name, row["baseline_s"], row["candidate_s"],
                **{key: row[key] for key in ("change", "low", "high", "noise_floor", "verdict")},
            )  # fmt: skip
            for part in subject.parts:
                yield _row("part", f"{subject.name}: {part.name}", part.baseline, part.candidate)
        for use in one.collectives:
            times = [None if side is None else side.time for side in (use.baseline, use.candidate)]
            size = use.either.bytes
            told = [use.either.kind, use.either.group, f"{use.either.workers} workers"]
            told += [] if size is None else [f"{size:.0f} bytes"]
            yield _row("collective", ", ".join(filter(None, told)), *times)
        for module in one.modules:
            yield _row("module", module.name, module.baseline, module.candidate)

    def show(self, console: Console) -> None:
        one = self.comparison
        show_title(console, self.verdict)
        for table in lists(one):
            console.print()
            if table.title:
                show_title(console, table.title)
            print_fitting(console, filled(table.columns, table.rows), table.rows, leave_out=LEFT_OUT)
            if table.left_out:
                console.print(left_out(table), markup=False)
        if one.remarks:
            console.print()
        show_notes(console, one.remarks)

    def sheet(self) -> Sheet:
        """Each list that has rows, with the verdict."""
        one = self.comparison
        sides = (", ".join(names) for names in (one.baselines, one.candidates))
        return Sheet(" -> ".join(sides), lists(one), self.verdict, one.remarks)

    def markdown(self) -> str:
        """The verdict, its tables and notes as text for a pull request."""
        one = self.comparison
        sides = [", ".join(f"`{name}`" for name in side) for side in (one.baselines, one.candidates)]
        blocks = [f"**{self.verdict}**", " -> ".join(sides)]
        for table in lists(one):
            if table.title:
                blocks.append(f"### {table.title}")
            blocks.append(markdown_table(table.columns, table.rows))
            blocks += [left_out(table)] if table.left_out else []
        blocks += ["\n".join(f"- {note}" for note in one.remarks)] if one.remarks else []
        return "\n\n".join(blocks) + "\n"


def _row(table: str, name: str, baseline: float | None, candidate: float | None, **more: Any) -> dict[str, Any]:
    """A row of CSV; ``more`` are the columns that only a verdict has."""
    difference = (candidate or 0.0) - (baseline or 0.0)
    told = {key: more.get(key) for key in ("change", "low", "high", "noise_floor", "verdict")}
    return {
        "table": table,
        "name": name,
        "baseline_s": baseline,
        "candidate_s": candidate,
        "change_s": difference,
    } | told


def markdown_table(columns: Sequence[Column[Any]], records: Sequence[Any]) -> str:
    """A table in Markdown with the columns that a terminal shows, without those that are empty."""
    shown = filled(columns, records)
    rows = [[_escaped(text) for text in texts(shown, record)] for record in records]
    lines = [[one.heading(TERMINAL) for one in shown], ["---"] * len(shown), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(text: str) -> str:
    """A cell of a table in Markdown: no bar ends it, and no name is taken for markup."""
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text
