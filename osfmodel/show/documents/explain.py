"""The result of ``osf explain`` in every format."""

from __future__ import annotations

from typing import Any

from osfmodel.diagnosis.explanation import Explanation
from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.explained import COSTS, GROUP_PARTS, MESSAGES, RANKS, REMEDIES, SECONDS, causes, rank_rows


class Explained:
    """The result of ``osf explain``: verdict, parts of a step, causes, buckets and remedies."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    def document(self) -> dict[str, Any]:
        one = self.explanation
        return {
            "schema_version": SCHEMA_VERSION,
            "trace": one.name,
            "workers": one.workers,
            "cluster": one.cluster,
            "verdict": one.verdict,
            "cause": one.cause,
            "network_cause": one.network,
            "straggler_rank": one.straggler,
            "step_time_s": one.step_time,
            "replayed_step_time_s": one.replayed,
            "parts": json_row(SECONDS, one.parts),
            "causes": [json_row(COSTS, cost) for cost in causes(one)],
            "ranks": [json_row(RANKS, row) for row in rank_rows(one)],
            "steps": [
                {"step": step.number, "time_s": step.time, **json_row(SECONDS, step.parts)} for step in one.steps
            ],
            "collectives": [json_row(GROUP_PARTS, row) for row in one.collectives],
            "buckets_of_rank": one.sender,
            "buckets": [json_row(MESSAGES, row) for row in one.buckets],
            "remedies": [json_row(REMEDIES, remedy) for remedy in one.remedies],
            "notes": list(one.remarks),
        }

    def rows(self) -> list[dict[str, Any]]:
        return [{"trace": self.explanation.name, **csv_row(MESSAGES, row)} for row in self.explanation.buckets]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import explain as explain_screen

        explain_screen.show_explanation(console, self.explanation)

    def warnings(self) -> list[str]:
        return []
