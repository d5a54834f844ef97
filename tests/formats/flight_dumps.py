"""Dumps as PyTorch's flight recorder writes them for NCCL with timing, as JSON and as a pickle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NAMES = {"all_reduce": "all_reduce", "all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}


@dataclass(frozen=True)
class Dumped:
    """A job of one process group; ``elements`` of one rank's input, in the default group and in ``inner``."""

    ranks: int = 4
    kinds: Sequence[str] = ("all_reduce",)
    elements: Sequence[int] = (2**18, 2**20, 2**22)
    dtype: str = "BFloat16"
    repeats: int = 3
    waits: float = 0.0
    """Milliseconds that a rank waits for the last one in a call, unless it is the last itself."""
    hung: int = 0
    timed: bool = True
    width: int = 2

    def time(self, size: int) -> float:
        """Milliseconds of a collective of so many bytes in all."""
        return 0.02 + size / 50e6

    def whole(self, kind: str, elements: int) -> int:
        """The bytes that cost models count."""
        return elements * self.width * (self.ranks if kind == "all_gather" else 1)


def entry(job: Dumped, rank: int, number: int, kind: str, elements: int) -> dict[str, Any]:
    """A collective on a rank; each is begun last by another rank."""
    output = {"all_reduce": elements, "all_gather": elements * job.ranks, "reduce_scatter": elements // job.ranks}[kind]
    timed = {"duration_ms": job.time(job.whole(kind, elements)) + (job.waits if number % job.ranks != rank else 0.0)}
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "140205709429632",
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": f"nccl:{NAMES[kind]}",
        "time_created_ns": 1795628272260278722 + 10**6 * number,
        **(timed if job.timed else {}),
        "input_sizes": [[elements]],
        "input_dtypes": [job.dtype],
        "output_sizes": [[output]],
        "output_dtypes": [job.dtype],
        "state": "completed",
        "time_discovered_started_ns": 1795628272260278722 + 10**6 * number,
        "time_discovered_completed_ns": 1795628272360278722 + 10**6 * number,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


def dump(job: Dumped, rank: int = 0) -> dict[str, Any]:
    """A rank's dump."""
    calls = [(kind, elements) for kind in job.kinds for _ in range(job.repeats) for elements in job.elements]
    entries = [entry(job, rank, number, *call) for number, call in enumerate(calls)]
    for late in entries[len(entries) - job.hung :]:
        late |= {"state": "started", "retired": False, "time_discovered_completed_ns": None}
        late.pop("duration_ms", None)
    members = json.dumps(list(range(job.ranks)))
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
        "nccl_version": "2.27.3",
        "pg_status": {"0": {"last_enqueued_collective": len(calls)}},
        "entries": entries,
    }


def text(job: Dumped, rank: int = 0) -> str:
    """The dump as JSON, whose keys PyTorch sorts."""
    return json.dumps(dump(job, rank), sort_keys=True)


def pickled(job: Dumped, rank: int = 0) -> bytes:
    """The dump as the pickle that is written when a job hangs."""
    return pickle.dumps(dump(job, rank), protocol=2)
