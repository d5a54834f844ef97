"""What comes with osfmodel, as rows: profiles with their sources, and the entries of each table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.cost import COST_MODELS, worker_counts
from osfmodel.engine import ENGINES
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.compression import COMPRESSIONS
from osfmodel.entities.effects import EFFECTS
from osfmodel.entities.errors import OsfError
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.source import Source
from osfmodel.entities.workload import Workload
from osfmodel.formats import IMPORT_FORMATS
from osfmodel.planning.launch import SNIPPETS
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.targets.named_plans import FAMILIES, NAMED_PLANS


class Listing(NamedTuple):
    """Rows, and a sentence for each profile that could not be read."""

    rows: list[dict[str, Any]]
    problems: list[str]


def listing(kind: str) -> Listing:
    """The entries of ``kind``, a key of LISTINGS."""
    return LISTINGS[kind]()


def _workloads() -> Listing:
    return _profiles("workload", lambda path: _workload_row(profiles.read(path, documents.decode_workload)))


def _clusters() -> Listing:
    return _profiles("cluster", lambda path: _cluster_row(profiles.read(path, documents.decode_cluster)))


def _profiles(kind: str, row_of: Callable[[Path], dict[str, Any]]) -> Listing:
    """One row per profile; a file that cannot be read does not hide the others."""
    rows, problems = [], profiles.missing_folders()
    for name, path in profiles.names(kind).items():
        try:
            rows.append({"name": name, **row_of(path)})
        except OsfError as error:
            problems.append(str(error))
    return Listing(rows, problems)


def _workload_row(workload: Workload) -> dict[str, Any]:
    return {
        "tensors": len(workload.gradients),
        "gradient_mib": round(workload.gradient_bytes / 2**20, 1),
        "compute_ms": round(workload.compute_time * 1e3, 1),
        "batch_size": workload.batch_size,
        **_source_columns(workload.source),
    }


def _cluster_row(cluster: Cluster) -> dict[str, Any]:
    return {
        "workers": ",".join(map(str, worker_counts(cluster))) or "any",
        "cost_model": cluster.cost_model,
        **_source_columns(cluster.source),
    }


def _source_columns(source: Source) -> dict[str, Any]:
    return {"source": source.origin, "conditions": source.conditions, "licence": source.licence}


def _meanings(table: Mapping[str, Any]) -> Callable[[], Listing]:
    return lambda: Listing([{"name": name, "meaning": entry.meaning} for name, entry in table.items()], [])


def _plans() -> Listing:
    """Those with a fixed name, then examples of those whose names have parameters."""
    families = [pair for family in FAMILIES.values() for pair in family.meanings().items()]
    fixed = [(name, entry.meaning) for name, entry in NAMED_PLANS.items()]
    return Listing([{"name": name, "meaning": meaning} for name, meaning in (*fixed, *families)], [])


def _effects() -> Listing:
    return Listing(
        [
            {
                "name": name,
                "unit": entry.unit,
                "cited": entry.cited,
                "meaning": entry.meaning,
                "evidence": entry.evidence,
            }
            for name, entry in EFFECTS.items()
        ],
        [],
    )


LISTINGS: dict[str, Callable[[], Listing]] = {
    "workloads": _workloads,
    "clusters": _clusters,
    "plans": _plans,
    "targets": _meanings(CONFIG_TARGETS),
    "engines": _meanings(ENGINES),
    "cost-models": _meanings(COST_MODELS),
    "effects": _effects,
    "compressions": _meanings(COMPRESSIONS),
    "formats": _meanings(IMPORT_FORMATS),
    "snippets": _meanings(SNIPPETS),
}
