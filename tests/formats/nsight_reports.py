"""Exports as Nsight Systems writes them, of the jobs whose PyTorch traces tests/formats/traces.py makes."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.formats import traces

COMMUNICATOR, COMM_SCHEMA, CALL_SCHEMA = 0xABC, 1001, 1002
TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
 category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
 domainId INTEGER, jsonTextId INTEGER, jsonText TEXT, binaryData BLOB);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, flags INTEGER,
 type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
 globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
 shortName INTEGER NOT NULL, gridX INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER);
"""
FIELDS = [
    (COMM_SCHEMA, 0, "NCCL communicator ID", None), (COMM_SCHEMA, 1, "No. of ranks", 8), (COMM_SCHEMA, 2, "Rank", 12),
    (CALL_SCHEMA, 0, "NCCL communicator ID", None), (CALL_SCHEMA, 1, "Message size [bytes]", 8),
    (CALL_SCHEMA, 2, "Reduction operation", 16),
]  # fmt: skip


def blob(schema: int, payload: bytes) -> bytes:
    """A payload as it is exported, behind its header."""
    return struct.pack("<QQQQ", 1, schema, len(payload), 32) + payload


class Report:
    """A report being written; times in microseconds."""

    def __init__(self, path: Path, blobs: bool = True, by_id: bool = False) -> None:
        self.blobs, self.by_id = blobs, by_id
        self.strings: dict[str, int] = {}
        path.unlink(missing_ok=True)
        self.database = sqlite3.connect(path)
        self.database.executescript(TABLES)
        self.add("TARGET_INFO_SYSTEM_ENV", 0, "", "Hostname", 0, "node-0")
        self.add("TARGET_INFO_SESSION_START_TIME", traces.BASE, "", "")
        self.add("TARGET_INFO_GPU", 0, 0, "GPU X", "")
        for schema, place, name, offset in FIELDS:
            self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", 1, schema, place, None, 18, name, None, None, offset)

    def add(self, table: str, *row: object) -> None:
        """Add a row."""
        self.database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def string(self, text: str) -> int:
        """The number of a text."""
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", self.strings[text], text)
        return self.strings[text]

    def nvtx(self, name: str, start: float, end: float, thread: int, payload: bytes | None = None) -> None:
        """A range, with its name in the row or as a number."""
        text, number = (None, self.string(name)) if self.by_id else (name, None)
        row = (round(start * 1000), round(end * 1000), 59, None, None, None, text, thread, None, number, 1, None, None)
        self.add("NVTX_EVENTS", *row, payload if self.blobs else None)

    def kernel(self, name: str, start: float, end: float, stream: int, correlation: int, process: int) -> None:
        """A kernel."""
        key = self.string(name)
        times = round(start * 1000), round(end * 1000)
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", *times, 0, 1, stream, correlation, process << 24, key, self.string("x"), 1
        )

    def launch(self, start: float, end: float, thread: int, correlation: int) -> None:
        """A call of the runtime."""
        key = self.string("cudaLaunchKernel_v7000")
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", round(start * 1000), round(end * 1000), 0, thread, correlation, key, 0)

    def save(self) -> None:
        """Write it."""
        self.database.commit()
        self.database.close()


def write(path: Path, job: traces.Job, ranks: Sequence[int] = (0,), step: str = "step {}", **kinds: bool) -> Path:
    """The report of a node on which these ranks of a job ran, each a process."""
    report = Report(path, **kinds)
    for rank in ranks:
        _write_rank(report, job, rank, step)
    report.save()
    return path


def _write_rank(report: Report, job: traces.Job, rank: int, step: str) -> None:
    process = 4000 + rank
    threads = {traces.THREAD: (process << 24) + 1, traces.BACKWARD_THREAD: (process << 24) + 2}
    joined = struct.pack("<QII", COMMUNICATOR, job.ranks, rank)
    report.nvtx("ncclCommInitRankConfig", 1, 2, threads[traces.THREAD], blob(COMM_SCHEMA, joined))
    events: Any = traces.trace(job, rank)["traceEvents"]
    buckets = iter([sum(bucket) for _ in range(job.steps) for bucket in job.buckets])
    nodes = [one for one in events if "evaluate_function" in one["name"]]
    for one in events:
        start, end, name = one["ts"], one["ts"] + one["dur"], one["name"]
        thread = threads.get(one["tid"], 0)
        if name.startswith("ProfilerStep#"):
            report.nvtx(step.format(name.partition("#")[2]), start, end, thread)
            inside = [node for node in nodes if start <= node["ts"] < end]
            first, last = inside[0]["ts"], max(node["ts"] + node["dur"] for node in inside)
            report.nvtx("backward", first, last, threads[traces.THREAD])
        elif name.startswith("Optimizer.step"):
            report.nvtx("optimizer step", start, end, thread)
        elif one["cat"] == "cuda_runtime":
            report.launch(start, end, thread, one["args"]["correlation"])
        elif one["cat"] == "kernel":
            report.kernel(name, start, end, one["args"]["stream"], one["args"]["correlation"], process)
        elif name == "record_param_comms":
            payload = blob(CALL_SCHEMA, struct.pack("<QQI", COMMUNICATOR, 4 * next(buckets), 0))
            report.nvtx("ncclGroupStart", start, start + 0.5, thread)
            report.nvtx("ncclAllReduce", start + 0.6, start + 1.4, thread, payload)
            report.nvtx("ncclGroupEnd", start + 1.5, end, thread)
