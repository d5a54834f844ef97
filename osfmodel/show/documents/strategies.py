"""The result of ``osf tune --for any`` in every format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osfmodel.entities.files.documents import SCHEMA_VERSION, document_of
from osfmodel.planning.scaling.strategies import StrategyChoice, StrategyTuning
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.strategies import STRATEGY, ChoiceRow, choice_rows


class StrategiesTuned:
    """The strategies at each worker count, and the settings of the one to take at the last."""

    def __init__(self, made: StrategyTuning, options: Mapping[str, Any] | None = None) -> None:
        self.made, self.endings, self.verdict, self.options = made, made.endings, made.verdict, options

    def document(self) -> dict[str, Any]:
        made = self.made
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": made.workload.name,
            "cluster": made.cluster.name,
            "target": "any",
            "limit_bytes": made.limit,
            **({"what_if": made.what_if.document} if made.what_if.document else {}),
            **self._choice(made.last),
            "verdict": made.verdict,
            "notes": [*made.warnings, *made.notes],
            "tuned": None if made.tuned is None else json_row(STRATEGY, ChoiceRow(made.last, made.tuned)),
            "options": self.options,
            "plan": None if made.plan is None else document_of(made.plan),
            "rendered": made.written(""),
            "sweep": [self._choice(choice) for choice in made.choices],
        }

    def _choice(self, choice: StrategyChoice) -> dict[str, Any]:
        return {
            "workers": choice.workers,
            "base": None if choice.base is None else choice.base.name,
            "recommended": None if choice.chosen is None else choice.chosen.name,
            "strategies": [json_row(STRATEGY, row) for row in choice_rows(choice)],
        }

    def rows(self) -> list[dict[str, Any]]:
        common = {"workload": self.made.workload.name, "cluster": self.made.cluster.name}
        return [
            {**common, "workers": choice.workers, **csv_row(STRATEGY, row)}
            for choice in self.made.choices
            for row in choice_rows(choice)
        ]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import strategies as screen

        screen.show_strategies(console, self.made, self.made.written(""))

    def warnings(self) -> list[str]:
        return list(self.made.warnings)

    def code(self, ending: str) -> str:
        """The lines to paste, as a file with this ending has them."""
        return self.made.written(ending)
