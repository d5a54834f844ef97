"""The result of ``osf scale`` in every format."""

from __future__ import annotations

from typing import Any

from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.planning.scale import ScaleCurve
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.scale import POINT


class Scaled:
    """A scaling curve."""

    def __init__(self, curve: ScaleCurve) -> None:
        self.curve = curve

    def document(self) -> dict[str, Any]:
        curve = self.curve
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": curve.workload.name,
            "cluster": curve.cluster.name,
            "limit_bytes": None if curve.limit is None else curve.limit.bytes,
            **({} if curve.anchored is None else {"anchor_factor": curve.anchored}),
            **({"what_if": curve.what_if.document} if curve.what_if.document else {}),
            "points": [json_row(POINT, point) for point in curve.points],
            "strategies": curve.turns,
            "notes": [*curve.warnings, *curve.notes],
        }

    def rows(self) -> list[dict[str, Any]]:
        common = {"workload": self.curve.workload.name, "cluster": self.curve.cluster.name}
        return [{**common, **csv_row(POINT, point)} for point in self.curve.points]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal.scale import show_scale

        show_scale(console, self.curve)

    def warnings(self) -> list[str]:
        return list(self.curve.warnings)
