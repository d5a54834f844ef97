"""The result of ``osf scale`` in every format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.planning.results import Tuning
from osfmodel.planning.scaling.curve import ScaleCurve
from osfmodel.planning.scaling.goals import Answer, Cheapest
from osfmodel.show.documents.results import Lines
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.scale import COMBINATION, POINT


class Scaled:
    """A scaling curve, the answers to inverse questions, and a framework's settings at its last point, if asked for."""

    drawn = (".html", ".png", ".svg")

    def __init__(
        self,
        curve: ScaleCurve,
        answers: Sequence[Answer] = (),
        tuning: Tuning | None = None,
        lines: Lines | None = None,
    ) -> None:
        self.curve, self.answers, self.tuning, self.lines = curve, answers, tuning, lines
        self.endings = () if lines is None else lines.endings

    def document(self) -> dict[str, Any]:
        curve = self.curve
        every = [json_row(COMBINATION, one) for one in curve.combinations]
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": curve.workload.name,
            "cluster": curve.cluster.name,
            "limit_bytes": None if curve.limit is None else curve.limit.bytes,
            **({} if curve.anchored is None else {"anchor_factor": curve.anchored}),
            **({"what_if": curve.what_if.document} if curve.what_if.document else {}),
            **({"groups": curve.groups.document} if curve.groups.document else {}),
            "points": [json_row(POINT, point) for point in curve.points],
            **({"combinations": every} if every else {}),
            "strategies": curve.turns,
            "answers": [
                {
                    "goal": one.goal,
                    "asks": one.asks,
                    "workers": one.at,
                    **one.values,
                    "words": one.words,
                    **({} if one.present is None else {"present_bytes_per_s_per_gpu": one.present}),
                }
                for one in self.answers
            ],
            **self._settings(),
            "notes": [*curve.warnings, *curve.notes],
        }

    def _settings(self) -> dict[str, Any]:
        if self.tuning is None:
            return {}
        return {"target": self.tuning.target, "config": self.tuning.config, "rendered": self.code("")}

    def code(self, ending: str) -> str:
        """The settings to paste, as a file with this ending has them; "" if none were asked for."""
        return "" if self.lines is None else self.lines.written(ending)

    def rows(self) -> list[dict[str, Any]]:
        common = {"workload": self.curve.workload.name, "cluster": self.curve.cluster.name}
        found = [csv_row(COMBINATION, one) for one in self.curve.combinations]
        return [{**common, **row} for row in found or [csv_row(POINT, point) for point in self.curve.points]]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal.scale import show_scale

        show_scale(console, self.curve, [one.words for one in self.answers])
        if self.tuning is not None:
            last = self.curve.points[-1].workers
            console.print(f"\nSettings of {self.tuning.target} for {last} GPUs:\n", style="bold", markup=False)
            console.print(self.code(""), markup=False, soft_wrap=True)

    def warnings(self) -> list[str]:
        own = () if self.tuning is None else self.tuning.warnings
        return list(dict.fromkeys((*self.curve.warnings, *own)))


class ScaledMachines:
    """Scaling curves on several clusters, and the cheapest machine for each goal."""

    endings = ()

    def __init__(self, each: Sequence[Scaled], found: Sequence[Cheapest]) -> None:
        self.each, self.found = each, found

    def document(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "machines": [one.document() for one in self.each],
            "cheapest": [
                {
                    "goal": one.goal,
                    **{end: None if machine is None else machine._asdict() for end, machine in one.values.items()},
                    "price_per": "hour" if one.hourly else "training",
                    "words": one.words,
                }
                for one in self.found
            ],
        }

    def rows(self) -> list[dict[str, Any]]:
        return [row for one in self.each for row in one.rows()]

    def show(self, console: Any) -> None:
        for one in self.each:
            one.show(console)
            console.print()
        for found in self.found:
            console.print(found.words, style="bold", markup=False)

    def warnings(self) -> list[str]:
        return list(dict.fromkeys(warning for one in self.each for warning in one.warnings()))
