"""The result of ``osf doctor`` in every format."""

from __future__ import annotations

from typing import Any

from osfmodel.diagnosis.doctor.checkup import Checkup
from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.doctor import HYPOTHESES, PARTS, SIZES


class Examined:
    """The result of ``osf doctor``: verdict, place among other machines, probabilities of faults, and experiments."""

    def __init__(self, checkup: Checkup) -> None:
        self.checkup = checkup

    def document(self) -> dict[str, Any]:
        one = self.checkup
        return {
            "schema_version": SCHEMA_VERSION,
            "machine": one.name,
            "against": one.against,
            "cause": one.cause,
            "verdict": one.verdict,
            "hypotheses": [json_row(HYPOTHESES, hypothesis) for hypothesis in one.hypotheses],
            "ruled_out": list(one.ruled_out),
            "experiments": [{"fault": name, "experiment": words} for name, words in one.experiments],
            "parts": [json_row(PARTS, part) for part in one.classes],
            "sizes": [json_row(SIZES, size) for size in one.sizes],
            "notes": list(one.remarks),
        }

    def rows(self) -> list[dict[str, Any]]:
        return [{"machine": self.checkup.name, **csv_row(SIZES, size)} for size in self.checkup.sizes]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import doctor as doctor_screen

        doctor_screen.show_checkup(console, self.checkup)

    def warnings(self) -> list[str]:
        return []
