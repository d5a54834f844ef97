"""What comes with osfmodel, as rows: profiles with their sources, and the entries of each table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from osfmodel import documents, profiles
from osfmodel.cost import COST_MODELS
from osfmodel.predict import DESCRIPTIONS, NAMED_PLANS
from osfmodel.targets import CONFIG_TARGETS


def _list_workloads() -> list[dict[str, Any]]:
    rows = []
    for name, path in profiles.names("workload").items():
        workload = profiles.read(path, documents.decode_workload)
        rows.append(
            {
                "name": name,
                "tensors": len(workload.gradients),
                "gradient_mib": round(workload.gradient_bytes / 2**20, 1),
                "compute_ms": round(workload.compute_time * 1e3, 1),
                "batch_size": workload.batch_size,
                "conditions": workload.source.conditions,
                "source": workload.source.origin,
                "licence": workload.source.licence,
            }
        )
    return rows


def _list_clusters() -> list[dict[str, Any]]:
    rows = []
    for name, path in profiles.names("cluster").items():
        cluster = profiles.read(path, documents.decode_cluster)
        rows.append(
            {
                "name": name,
                "workers": ",".join(map(str, cluster.measured_workers)) or "any",
                "cost_model": cluster.cost_model,
                "conditions": cluster.source.conditions,
                "source": cluster.source.origin,
                "licence": cluster.source.licence,
            }
        )
    return rows


def _list_plans() -> list[dict[str, Any]]:
    return [{"name": name, "meaning": DESCRIPTIONS[name]} for name in NAMED_PLANS]


def _list_targets() -> list[dict[str, Any]]:
    return [{"name": name} for name in CONFIG_TARGETS]


def _list_cost_models() -> list[dict[str, Any]]:
    return [{"name": name} for name in COST_MODELS]


LISTINGS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "workloads": _list_workloads,
    "clusters": _list_clusters,
    "plans": _list_plans,
    "targets": _list_targets,
    "cost-models": _list_cost_models,
}
