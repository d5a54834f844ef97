"""Logs as NCCL Inspector writes them: a file for each rank of a job, in which some ranks are late at times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PARTS = {"AllReduce": 2.0, "ReduceScatter": 1.0, "AllGather": 1.0}
TOTAL = {"AllReduce": False, "ReduceScatter": True, "AllGather": True}
"""Whether the whole size is that of one rank's part times the ranks."""


@dataclass(frozen=True)
class Logged:
    """A job whose collectives take ``latency`` and bytes over ``rate``, in microseconds and bytes for each."""

    ranks: int = 8
    nodes: int = 1
    communicator: str = "0x7f8c496ae9f661"
    kinds: Sequence[str] = ("AllReduce",)
    sizes: Sequence[int] = (2**20, 2**22, 2**24)
    repeats: int = 3
    latency: float = 20.0
    rate: float = 50_000.0
    version: str = "v4.2"
    waits: int = 0
    """Microseconds that a rank waits for the last one in a call, unless it is the last itself."""

    def time(self, kind: str, size: int) -> int:
        """Microseconds of a collective between ranks that begin together; ``size`` is one rank's part."""
        whole = size * (self.ranks if TOTAL[kind] else 1)
        return round(self.latency + PARTS[kind] * (self.ranks - 1) / self.ranks * whole / self.rate)


def header(job: Logged, rank: int) -> dict[str, object]:
    return {"id": job.communicator, "rank": rank, "n_ranks": job.ranks, "nnodes": job.nodes}


def metadata(job: Logged, rank: int) -> dict[str, object]:
    return {
        "inspector_output_format_version": job.version,
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202,
        "hostname": f"node-{rank * job.nodes // job.ranks}",
        "pid": 4000 + rank,
    }


def calls(job: Logged, rank: int) -> Iterator[dict[str, object]]:
    """The collectives of a rank: in each call another rank is the last to begin."""
    for kind in job.kinds:
        for number in range(job.repeats * len(job.sizes)):
            size = job.sizes[number % len(job.sizes)]
            time = job.time(kind, size) + (job.waits if number % job.ranks != rank else 0)
            whole = size * (job.ranks if TOTAL[kind] else 1)
            rate = whole / time / 1e3
            yield {
                "coll": kind,
                "coll_algo": "RING",
                "coll_proto": "SIMPLE",
                "coll_sn": number,
                "coll_msg_size_bytes": size,
                "coll_exec_time_us": time,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": round(rate, 6),
                "coll_busbw_gbs": round(PARTS[kind] * (job.ranks - 1) / job.ranks * rate, 6),
            }


def lines(job: Logged, rank: int = 0) -> Iterator[str]:
    """The lines of a rank's file; from v4.3 on the communicator stands in the line that begins a dump only."""
    common = {"header": header(job, rank), "metadata": metadata(job, rank)}
    if job.version >= "v4.2":
        count = job.repeats * len(job.sizes) * len(job.kinds)
        yield json.dumps(common | {"dump_stats": {"coll_records": count, "coll_dropped_since_last_dump": 0}})
    for call in calls(job, rank):
        yield json.dumps(({} if job.version >= "v4.3" else common) | {"coll_perf": call})


def text(job: Logged, rank: int = 0) -> str:
    """The file of a rank."""
    return "".join(line + "\n" for line in lines(job, rank))
