"""The result of ``osf check`` in every format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.ledger.results import UNSTEADY, Beside, Checked, UsedOverall
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.checks import RUNS, SOURCES, TURNS, Turn

IMPLAUSIBLE = 0.9
"""Median error above which units were most likely mixed up."""


class Judged:
    """The result of ``osf check``; ``overall``: the medians over the sources of their median and 90th percentile.

    ``used``: the sources of real machines as used.
    """

    def __init__(
        self,
        checked: Sequence[Checked],
        overall: tuple[float | None, float | None],
        with_rows: bool,
        used: UsedOverall | None = None,
    ) -> None:
        self.checked, self.overall, self.with_rows, self.used = checked, overall, with_rows, used

    def document(self) -> dict[str, Any]:
        middle, high = self.overall
        used = self.used
        return {
            "schema_version": SCHEMA_VERSION,
            "sources": [self._source(one) for one in self.checked],
            "overall": {
                "median_abs_error": middle,
                "p90_abs_error": high,
                "passed": all(o.passed for o in self.checked),
                "as_used": used and used._asdict(),
            },
        }

    def _source(self, one: Checked) -> dict[str, Any]:
        summary = json_row(SOURCES, one)
        if one.beside:
            summary["side_by_side"] = [_beside(beside) for beside in one.beside]
        return {**summary, "rows": [json_row(RUNS, row) for row in one.rows]} if self.with_rows else summary

    def rows(self) -> list[dict[str, Any]]:
        return [{"source": one.source, **csv_row(RUNS, row)} for one in self.checked for row in one.rows]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import check as check_screen

        check_screen.show_check(console, self.checked, self.overall, self.with_rows, self.used)

    def warnings(self) -> list[str]:
        return (
            [
                f"{one.source}: {_uncounted(one)}"
                if one.median_abs_error is None
                else f"{one.source}: the median error is {one.median_abs_error:.2%}, above its tolerance of "
                f"{one.tolerance:.2%}"
                for one in self.checked
                if not one.passed
            ]
            + [
                f"{one.source}: errors near 100 %: check that iteration times are in seconds"
                for one in self.checked
                if one.tolerance is None and (one.median_abs_error or 0) > IMPLAUSIBLE
            ]
            + [f"{one.source}: {said}" for one in self.checked for said in one.remarks]
        )


def _uncounted(one: Checked) -> str:
    if one.unsteady > one.busy:
        return f"no run counts: repeats differ by more than {UNSTEADY:.0%}"
    return "no run counts: ranks kept the cores busy" if one.busy else "nothing is predicted"


def _beside(beside: Beside) -> dict[str, Any]:
    return {
        "workload": beside.workload,
        "cluster": beside.cluster,
        "workers": beside.workers,
        "scale": None if beside.scale is None else float(beside.scale),
        "plans": [json_row(TURNS, Turn(beside, runs)) for runs in beside.turns],
    }
