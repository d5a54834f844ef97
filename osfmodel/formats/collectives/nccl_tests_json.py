"""The JSON of nccl-tests -J: config with devices, results with out_of_place and in_place times in us.

Results that were wrong (nwrong above 0) are left out. Truth values are the strings "true" and "false" there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.formats.collectives.naming import PROGRAM, NamedCollective, collective_of
from osfmodel.formats.collectives.one_cluster import layout_of, told_gpus_per_node
from osfmodel.formats.source_text import Hints, Point, Text, cluster_of, parse, require, require_workers

SIDES = ("out_of_place", "in_place")


def sniff(head: str) -> bool:
    """Whether it is a JSON object with nccl_version, or with the first keys of files without it; traces excluded."""
    others = ('"deviceProperties"', '"traceEvents"', '"pg_config"', '"collective_seq_id"')
    other = not head.lstrip().startswith("{") or any(sign in head for sign in others)
    return not other and ('"nccl_version"' in head or ('"args"' in head and "_perf" in head))


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster with one table. Raises DataError that names the wrong result."""
    document = parse(text)
    devices = _devices(document)
    workers = require_workers(len(devices), hints, "config.devices")
    results = require(text, document, "results", list)
    kind = collective_of(text, _seen(document, results), workers, hints)
    points = [
        _point(place, result, workers, kind) for place, result in enumerate(results) if _right(text, place, result)
    ]
    _tell_how_it_ended(text, document, points)
    named = [device.get("host") or device.get("hostname") for device in devices]
    layout = layout_of("the list of devices", [host for host in named if isinstance(host, str)])
    version = f"NCCL {document.get('nccl_version')!s:.20}"
    conditions = f"nccl-tests -J {kind}, {version}; the faster of out of place and in place"
    told = replace(hints, gpus_per_node=told_gpus_per_node(text, [layout], hints))
    return [cluster_of(text, points, told, conditions)]


def _devices(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices of one communicator: of the first group, if nccl-tests split them into several."""
    config = document.get("config")
    found = config.get("devices") if isinstance(config, dict) else document.get("devices")
    devices = [device for device in found if isinstance(device, dict)] if isinstance(found, list) else []
    return [device for device in devices if device.get("group") == devices[0].get("group")]


def _half(result: Any, side: str) -> dict[str, Any]:
    half = result.get(side) if isinstance(result, dict) else None
    return half if isinstance(half, dict) else {}


def _figure(value: Any) -> float:
    """A number above 0, also in quotes; 0 for anything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if 0 < number < float("inf") else 0.0


def _seen(document: dict[str, Any], results: list[Any]) -> NamedCollective:
    args = document.get("args")
    program = PROGRAM.search(str(args[0])[-200:]) if isinstance(args, list) and args else None
    first = results[0] if results and isinstance(results[0], dict) else {}
    halves = [_half(result, side) for result in results for side in SIDES]
    bandwidths = [(_figure(half.get("alg_bw")), _figure(half.get("bus_bw"))) for half in halves]
    pairs = [(alg, bus) for alg, bus in bandwidths if alg and bus]
    redop, root = str(first.get("redop", "none")), str(first.get("root", "")).strip()
    return NamedCollective(program[1] if program else "", "", redop, root, pairs, "results[0]")


def _right(text: Text, place: int, result: Any) -> bool:
    """Whether the results of the collective were right; if not, tell the user."""
    wrong = [half["nwrong"] for half in (_half(result, side) for side in SIDES) if _figure(half.get("nwrong"))]
    if wrong:
        text.tell(f"results[{place}]: has {' and '.join(map(str, wrong))} wrong results and is left out")
    return not wrong


def _tell_how_it_ended(text: Text, document: dict[str, Any], points: list[Point]) -> None:
    """Tell the user what failed, and whether the test was cut off."""
    for field, value in document.items():
        if isinstance(value, dict) and str(value.get("okay")).lower() == "false":
            text.tell(f"{field}: nccl-tests reports a failure: {value!s:.100}")
    config = document.get("config")
    largest = _figure(config.get("maximum_bytes")) if isinstance(config, dict) else 0.0
    reached = max((point.size for point in points), default=0)
    if not {"out_of_bounds", "average_bus_bandwidth"} & set(document) and not 0 < largest <= reached:
        text.tell(
            f"results[{len(points) - 1}]: the test was cut off after {reached} bytes: no average bandwidth follows"
        )


def _point(place: int, result: Any, workers: int, collective: str) -> Point:
    where = f"results[{place}]"
    if not isinstance(result, dict):
        raise DataError(f"{where}: is not a JSON object")
    measured = [_half(result, side).get("time") for side in SIDES]
    times = [time for time in measured if isinstance(time, int | float) and 0 < time < float("inf")]
    size = result.get("size")
    if not times or not isinstance(size, int) or size < 0:
        raise DataError(f"{where}: needs a size and an out_of_place or in_place time above 0")
    return Point(workers, size, min(times) * 1e-6, place, collective)
