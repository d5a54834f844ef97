"""The JSON that nccl-tests writes with -J: config with devices, results with out_of_place and in_place times in us."""

from __future__ import annotations

from typing import Any

from osfmodel.cluster import Cluster
from osfmodel.errors import DataError
from osfmodel.formats.json_text import parse, require
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, require_workers


def sniff(head: str) -> bool:
    """A JSON object with nccl_version and results."""
    return head.lstrip().startswith("{") and '"nccl_version"' in head


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster with one table. Raises DataError naming the result that is wrong."""
    document = parse(text)
    config = document.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    devices = devices if isinstance(devices, list) else []
    workers = require_workers(text, len(devices), hints)
    results = require(text, document, "results", list)
    points = [_point(text, place, result, workers) for place, result in enumerate(results)]
    named = [device.get("host") or device.get("hostname") for device in devices if isinstance(device, dict)]
    hosts = {host for host in named if isinstance(host, str)}
    layout = Hints(hints.name, workers, hints.gpus_per_node or (workers // len(hosts) if hosts else None))
    conditions = f"nccl-tests -J, NCCL {document.get('nccl_version')!s:.20}; the faster of out of place and in place"
    return [cluster_of(text, points, layout, conditions)]


def _point(text: Text, place: int, result: Any, workers: int) -> Point:
    where = f"results[{place}]"
    if not isinstance(result, dict):
        raise DataError(f"{where}: is no object")
    times = []
    for side in ("out_of_place", "in_place"):
        half = result.get(side)
        time = half.get("time") if isinstance(half, dict) else None
        if isinstance(time, int | float) and 0 < time < float("inf"):
            times.append(float(time))
    size = result.get("size")
    if not times or not isinstance(size, int) or size < 0:
        raise DataError(f"{where}: needs a size and an out_of_place or in_place time above 0")
    return Point(workers, size, min(times) * 1e-6, place)
