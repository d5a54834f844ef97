"""An audit of a job in every format: what it takes, the best layout, and the single changes that gain most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from osfmodel.planning.scaling.audited import Audit, AuditedStep
from osfmodel.show.document import Result
from osfmodel.show.page import Markup, cells, document, element, header, rows_table, section
from osfmodel.show.scale import OPTIONS, POINT, curve_title
from osfmodel.show.table import (
    PAGE,
    Column,
    Sheet,
    column,
    csv_row,
    for_people,
    json_row,
    listed_rows,
    signed_percent,
    texts,
)
from osfmodel.show.terminal import Console, print_fitting, show_notes, show_title


def _of_point(one: Column[Any]) -> Column[AuditedStep]:
    return replace(one, value=lambda step: one.value(step.point), shown=lambda step: one.shown(step.point))


STEP: tuple[Column[AuditedStep], ...] = (
    column("change", "layout", lambda step: step.said),
    column("gain", "saves", lambda step: step.gain, signed_percent),
    column("gain_low", None, lambda step: step.chance and step.chance.low),
    column("gain_high", None, lambda step: step.chance and step.chance.high),
    column(None, "interval", lambda step: step.chance, lambda one: f"{one.low:+.1%} to {one.high:+.1%}"),
    column("gain_is", "doubt", lambda step: step.judged),
    *map(_of_point, (*OPTIONS, *POINT)),
)
"""Columns of a step."""
UNSAID = ("workers", "samples_per_s", "tokens_per_s_per_gpu", "scaling_factor")
"""Keys of columns that people do not see; of options they see those that differ."""
LEFT_OUT = ("memory", "tokens/s", "error band")
"""Columns to leave out on a narrow terminal, the first one first."""


class Audited(Result):
    """An audit of the job in ``file``."""

    drawn = (".html",)

    def __init__(self, audit: Audit, file: str) -> None:
        self.audit, self.file = audit, file

    def content(self) -> dict[str, Any]:
        curve, (now, best, *changes) = self.audit.curve, self.audit.steps
        return {
            "file": self.file,
            "framework": self.audit.job.framework,
            "workload": curve.workload.name,
            "cluster": curve.cluster.name,
            "limit_bytes": None if curve.limit is None else curve.limit.bytes,
            "command": self.audit.command,
            "now": json_row(STEP, now),
            "best": json_row(STEP, best),
            "changes": [json_row(STEP, one) for one in changes],
            "verdict": self.audit.verdict,
            "notes": [*curve.warnings, *curve.notes],
        }

    def rows(self) -> list[dict[str, Any]]:
        return [{"file": self.file, **csv_row(STEP, one)} for one in self.audit.steps]

    def _columns(self) -> list[Column[AuditedStep]]:
        steps, options = self.audit.steps, {one.key for one in OPTIONS}
        return [
            one
            for one in STEP
            if one.key not in UNSAID
            and (one.key not in options or len({one.value(step) for step in steps}) > 1)
            and any(one.value(step) is not None for step in steps)
        ]

    @property
    def title(self) -> str:
        """The file, and how it was read."""
        return f"{self.file} ({self.audit.job.framework}): {curve_title(self.audit.curve)}"

    def show(self, console: Console) -> None:
        show_title(console, self.title)
        print_fitting(console, self._columns(), self.audit.steps, leave_out=LEFT_OUT)
        console.print()
        show_title(console, self.audit.verdict)
        console.print(f"As it is: {self.audit.command}", markup=False, soft_wrap=True)
        show_notes(console, self.audit.curve.notes)

    def sheet(self) -> Sheet:
        """The steps, with the verdict."""
        curve = self.audit.curve
        table = listed_rows("", self._columns(), list(self.audit.steps))
        return Sheet(self.title, [table], self.audit.verdict, [*curve.warnings, *curve.notes])

    def warnings(self) -> list[str]:
        return list(self.audit.curve.warnings)

    def page(self, version: str) -> str:
        """The audit as a page."""
        return document(f"{self.file}: audit", "scale", version, self._sections())

    def _sections(self) -> Iterable[Markup]:
        curve, columns = self.audit.curve, for_people(self._columns(), PAGE)
        yield header(self.file, curve_title(curve), self.audit.verdict)
        rows = (cells(texts(columns, one)) for one in self.audit.steps)
        table = element("div", rows_table("", [one.heading(PAGE) for one in columns], rows), class_="tablebox")
        yield section("audit", "The job, the best layout, and single changes", [table])
        said = (f"{note[:1].upper()}{note[1:]}." for note in (*curve.warnings, *curve.notes))
        yield section("assumed", "Assumptions", [element("ul", *(element("li", one) for one in said))])
        yield section("command", "The job in words", [element("pre", self.audit.command)])
