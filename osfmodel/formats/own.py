"""osfmodel's own workload and cluster files, so that they can be imported like any other."""

from __future__ import annotations

from dataclasses import replace

from osfmodel.cost import COST_MODELS
from osfmodel.entities import lookup
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import KINDS, decode_cluster, decode_workload
from osfmodel.entities.workload import Workload
from osfmodel.formats.source_text import Hints, Text, content, parse


def sniff(head: str) -> bool:
    """Whether it is a JSON object with a schema_version."""
    return head.lstrip().startswith("{") and '"schema_version"' in head


def read(text: Text, hints: Hints) -> list[Workload | Cluster]:
    """The workload or the cluster, under its own name. Raises DataError for anything else."""
    document = parse(text)
    kind = document.get("kind") or next((name for name, field in KINDS.items() if field in document), "document")
    if kind == "workload":
        return [_told(decode_workload(content(text)), hints)]
    if kind == "cluster":
        cluster = decode_cluster(content(text))
        lookup.require(cluster.cost_model, COST_MODELS, "cost model")
        return [cluster]
    raise DataError(f"is a file of osfmodel, of kind {kind!s:.40}: only workloads and clusters are imported")


def _told(workload: Workload, hints: Hints) -> Workload:
    """The workload with the user's batch size, if the file has none."""
    return workload if workload.batch_size is not None else replace(workload, batch_size=hints.batch_size)
