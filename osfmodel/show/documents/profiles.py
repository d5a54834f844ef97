"""Workloads, clusters and plans as documents, the same as in their files, and as rows."""

from __future__ import annotations

from typing import Any

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.files.documents import document_of
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.show.tables import json_row
from osfmodel.show.tables.profiles import BUCKETS, LAYERS, bucket_rows, figures, layer_rows


class FileContent:
    """The content of a file of ours."""

    def __init__(self, noun: Workload | Cluster | Plan) -> None:
        self.noun = noun

    def document(self) -> dict[str, Any]:
        return document_of(self.noun)

    def rows(self) -> list[dict[str, Any]]:
        if isinstance(self.noun, Workload):
            return [json_row(LAYERS, row) for row in layer_rows(self.noun)]
        if isinstance(self.noun, Plan):
            return [json_row(BUCKETS, row) for row in bucket_rows(self.noun)]
        return figures(self.noun)
