"""The result of ``osf sweep`` in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from osfmodel.entities.display import how_many
from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.planning.sweep.influences import Influences
from osfmodel.planning.sweep.results import Sweep
from osfmodel.show.tables import json_row
from osfmodel.show.tables.sweep import INFLUENCES, Record

SHOWN = 20
"""Largest number of points that people are shown, unless they ask for the best."""


class Swept:
    """Points of a sweep, and the influences on a goal.

    asked:      the questions, JSON-ready
    points:     () -> the records that are asked for; the best come whole, others as a long list
    influences: None if not asked for
    chart:      draws the points on a console; None for none
    """

    def __init__(
        self,
        sweep: Sweep,
        asked: Mapping[str, Any],
        points: Callable[[], Iterable[Record]],
        influences: Influences | None = None,
        chart: Callable[[Any], None] | None = None,
    ) -> None:
        self.sweep, self.asked, self.points, self.chart = sweep, asked, points, chart
        self.goal = None if influences is None else influences.goal
        self.remarks = [] if influences is None else influences.remarks
        self.influences = None if influences is None else [json_row(INFLUENCES, one) for one in influences.columns]

    def document(self) -> dict[str, Any]:
        influences = {} if self.influences is None else {"influences": {"goal": self.goal, "columns": self.influences}}
        return {
            "schema_version": SCHEMA_VERSION,
            "grid": self.sweep.name,
            **self.asked,
            **influences,
            "points": list(self.points()),
            "notes": [*self.sweep.remarks, *self.remarks],
        }

    def rows(self) -> list[dict[str, Any]]:
        return [dict(one) for one in self.points()] if self.influences is None else self.influences

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal.sweep import show_influences, show_points

        if "best" in self.asked:
            show_points(console, list(self.points()))
            if self.chart is not None:
                self.chart(console)
        elif self.influences is None:
            points = list(islice(self.points(), SHOWN + 1))
            show_points(console, points[:SHOWN])
            if len(points) > SHOWN:
                console.print(f"The first {SHOWN}: --best GOAL shows the best, --format csv all.", markup=False)
        if self.influences is not None:
            show_influences(console, str(self.goal), self.influences)
        failed = [record["error"] is not None for record in self.sweep]
        console.print(f"{how_many(len(failed), 'point')}, {sum(failed)} without a prediction", markup=False)

    def warnings(self) -> list[str]:
        return self.remarks
