"""Measure Horovod's own collectives between the ranks of a job, for the file that predictions of its runs need.

The time of a message is the delay that it causes to others submitted with it, so it does not include the wait for
a cycle and the negotiation; those are measured by themselves, from the loop's own marks of
cycles that find nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from osfmodel.engine.horovod_loop import DEFAULT_THRESHOLD, Loop
from osfmodel.entities.cluster import Cluster, Table
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.effects import Effects
from osfmodel.entities.errors import DataError
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.source import NO_GPU, Source
from osfmodel.formats.horovod.iterations import timeline
from osfmodel.formats.source_text import Text
from osfmodel.runtime.bench import BenchRequest
from osfmodel.runtime.bench.conditions import unmet
from osfmodel.runtime.horovod import HorovodTurns
from osfmodel.runtime.horovod.process import beside
from osfmodel.runtime.job.ranks import Place, Watchdog

COPIED = (4 << 20, 16 << 20, 64 << 20)
"""Bytes at which copies into and out of the fusion buffer are measured, as far as these sizes are asked for."""
COPY_REPEATS = 10


def measure_cluster(
    asked: BenchRequest, limit: float, place: Place, tell: Callable[[str], None], watch: Watchdog
) -> Cluster:
    """The cluster as Horovod's collectives see it, on every rank. Raises as :func:`measure`."""
    watch.beat("measuring Horovod's cluster")
    turns = HorovodTurns(place, limit, watch)
    found = measure(turns, asked.request.sizes, asked.request.repeat, tell)
    return cluster_of(found, turns, asked.label, unmet(asked.network).network)


def measure(turns: HorovodTurns, sizes: Sequence[int], repeat: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Seconds by size, and the effects of the loop, on every rank. Raises JobError as ``HorovodTurns.run``."""
    fast = Loop(threshold=0, cycle=0)
    rows = _slowest(turns, fast, {"task": "exchange", "sizes": list(sizes), "repeat": repeat}, ("alone", "queued"))
    table = {row["bytes"]: max((row["queued"] - row["alone"]) / beside(row["bytes"]), 0.0) for row in rows}
    for size, time in table.items():
        tell(f"all_reduce {show_bytes(size)}: {show_time(time)}")
    copied = [size for size in COPIED if size <= max(sizes)] or [max(sizes)]
    rows = _slowest(turns, Loop(DEFAULT_THRESHOLD, 0), {"task": "copies", "sizes": copied, "repeat": COPY_REPEATS},
                    ("alone", "fused"))  # fmt: skip
    extra = plain_sum(row["fused"] - row["alone"] for row in rows)
    copy = max(extra / sum(copied), 0.0)
    tell(f"copies into and out of the fusion buffer {copy * 1e12:.0f} ps/B")
    remembered, missed = (_idle(turns, capacity) for capacity in (Loop().cache_capacity, 0))
    tell(f"negotiation {show_time(remembered)}, without the response cache {show_time(missed)}")
    effects = {"fusion_copy": copy, "negotiation": remembered, "negotiation_miss": missed}
    return {"table": table, "effects": effects, "repeat": repeat}


def _slowest(turns: HorovodTurns, loop: Loop, task: Mapping[str, Any], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """For each size, the medians over repeats of the slowest rank's times."""
    found = []
    for rows in zip(*turns.each(turns.run(loop, task)), strict=True):
        medians = {kind: median(map(max, zip(*(row[kind] for row in rows), strict=True))) for kind in kinds}
        found.append({"bytes": rows[0]["bytes"], **medians})
    return found


def _idle(turns: HorovodTurns, capacity: int) -> float:
    """Median seconds between cycles that find nothing, with cycle time 0, as rank 0 notes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        noted = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
        turns.run(Loop(0, 0, cache_capacity=capacity), {"task": "idle"}, noted)
        told = turns.each(_gap(path) if turns.place.rank == 0 else None)[0]
    if told is None:
        raise DataError("Horovod's timeline marks no cycles: let nothing override HOROVOD_TIMELINE in the job")
    return float(told)


def _gap(path: Path) -> float | None:
    return timeline(Text(path.name, path.read_text())).cycle_gap


def cluster_of(found: Mapping[str, Any], turns: HorovodTurns, name: str, network: str) -> Cluster:
    """The cluster of these measurements."""
    from importlib.metadata import version

    place, table = turns.place, found["table"]
    said = (
        f"{place.world} ranks, {place.per_host} on each host; Horovod {version('horovod')} over gloo, "
        f"network {network}; medians of up to {found['repeat']} repeats of the slowest rank: the delay by a train "
        "of messages of a size; negotiation from the median idle cycle"
    )
    return Cluster(
        name,
        "tabulated",
        gpus_per_node=place.per_host,
        nodes=-(-place.world // place.per_host),
        tables=(Table(place.world, tuple(table), tuple(table.values())),),
        effects=Effects(**found["effects"]),
        library="gloo",
        source=Source("measured by osf bench --executor horovod", said, gpu=NO_GPU),
    )
