"""NCCL Inspector's logs: a JSON object per collective that a rank ran in a real job, with its size and GPU time.

Inspector is a profiler plugin of NCCL (plugins/profiler/inspector in its repository). Each process writes one file.
Formats up to v4.2 put the communicator into every line; v4.3 puts it into the line that begins a dump. A size is that
of a rank's own part, so all-gather and reduce-scatter move it once for each rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import DataError
from osfmodel.formats.collectives import factor
from osfmodel.formats.collectives.calls import (
    LARGEST,
    CommunicatorShape,
    JobCalls,
    RankCall,
    RankFile,
    Recorder,
    read_calls,
    time_in,
    whole_number,
)
from osfmodel.formats.source_text import Files, Hints, Text
from osfmodel.formats.streams import lines_of

ENDINGS = (".log", ".log.gz", ".jsonl", ".jsonl.gz")
KINDS: Mapping[str, str] = {"AllReduce": "all_reduce", "ReduceScatter": "reduce_scatter", "AllGather": "all_gather"}
"""Inspector's names of the collectives that carry gradients and parameters."""
SIGN, BODIES = '"inspector_output_format_version"', ('"coll_perf"', '"p2p_perf"', '"dump_stats"', '"proxy_trace"')
AGREES = 0.02
"""Relative difference that is accepted between a line's bus bandwidth and that of its size and time."""


@dataclass(slots=True)
class InspectorLog:
    """The calls in the files of a job, and counts of the lines that are not used."""

    calls: JobCalls = field(default_factory=JobCalls)
    host_timed: int = 0
    dropped: int = 0


def sniff(head: str) -> bool:
    """Whether a file begins with a line of NCCL Inspector."""
    first = head.lstrip().partition("\n")[0]
    return first.startswith("{") and SIGN in first and any(body in first for body in BODIES)


RECORDER = Recorder(
    "NCCL Inspector",
    "a log of NCCL Inspector",
    sniff,
    ENDINGS,
    "only times of kernels are read (coll_timing_source kernel_gpu)",
)


def read_job(files: Files, hints: Hints) -> list[Cluster]:
    """One cluster from the files of a job's processes, as :func:`read_calls` makes it; errors name the line."""
    found = InspectorLog()
    cluster = read_calls(
        files, hints, RECORDER, found.calls, lambda file: _scan(file, found), lambda tell: _tell(tell, found)
    )
    return [replace(cluster, library="nccl")]


def _scan(file: RankFile, found: InspectorLog) -> None:
    """Add the lines of one file."""
    header: Mapping[str, Any] | None = None
    for number, line, ended in lines_of(file.pieces):
        record = _record(line)
        if record is None:
            if ended:
                raise _fault(number, line, "is not a JSON object")
            file.tell(f"line {number}: was cut off and is left out")
            return
        header = _own_header(number, line, record) or header
        if "dump_stats" in record:
            found.dropped += _dropped(record["dump_stats"])
        elif "p2p_perf" in record:
            found.calls.point_to_point += 1
        elif "coll_perf" in record:
            if header is None:
                raise _fault(number, line, "names no communicator, nor does a line before it: give the whole file")
            _add(number, line, (header, record["coll_perf"]), found)


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _own_header(number: int, line: bytes, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    header = record.get("header")
    if header is not None and not isinstance(header, dict):
        raise _fault(number, line, "has a header that is not a JSON object")
    return header


def _dropped(stats: Any) -> int:
    """Collectives that Inspector lost since its dump before."""
    count = stats.get("coll_dropped_since_last_dump") if isinstance(stats, dict) else 0
    return count if isinstance(count, int) and 0 < count < LARGEST else 0


def _add(number: int, line: bytes, parts: tuple[Mapping[str, Any], Any], found: InspectorLog) -> None:
    """Add a line with a collective."""
    header, perf = parts
    if not isinstance(perf, dict):
        raise _fault(number, line, "has a coll_perf that is not a JSON object")
    name = perf.get("coll")
    if not isinstance(name, str):
        raise _fault(number, line, "does not name its collective")
    if name not in KINDS:
        found.calls.leave_out(name)
        return
    source = perf.get("coll_timing_source", "kernel_gpu")
    if source == "collective_cpu":  # the call on the host, not the collective
        found.calls.untimed += 1
        return
    try:
        call = _call(header, perf)
    except DataError as error:
        raise _fault(number, line, str(error)) from None
    if call.shape.ranks < 2:
        return
    if not call.time:
        found.calls.untimed += 1
        return
    _require_bandwidth(number, line, call, perf.get("coll_busbw_gbs"))
    found.host_timed += source != "kernel_gpu"
    found.calls.add(call)


def _call(header: Mapping[str, Any], perf: Mapping[str, Any]) -> RankCall:
    """The call in a line, with the whole size: Inspector counts one rank's part."""

    shape = CommunicatorShape(
        whole_number(header, "n_ranks"), whole_number(header, "nnodes") if "nnodes" in header else 0
    )
    kind = KINDS[perf["coll"]]
    size = whole_number(perf, "coll_msg_size_bytes") * (1 if kind == "all_reduce" else shape.ranks)
    if size >= LARGEST or shape.nodes > shape.ranks:
        raise DataError("has a size or a number of nodes that no job has")
    communicator = header.get("id")
    if not isinstance(communicator, str) or len(communicator) > 100:
        raise DataError("has no id of its communicator")
    return RankCall(
        shape,
        communicator,
        whole_number(header, "rank"),
        kind,
        size,
        time_in(perf, "coll_exec_time_us") * 1e-6,
        whole_number(perf, "coll_sn"),
    )


def _require_bandwidth(number: int, line: bytes, call: RankCall, stated: Any) -> None:
    """Raise DataError if the line's bus bandwidth is not that of its size and time."""
    if not isinstance(stated, int | float) or not stated > 0:
        return
    expected = factor(call.kind, call.shape.ranks) * call.size / call.time / 1e9
    if abs(stated - expected) > AGREES * expected + 1e-5:
        said = f"says {stated:.4g} GB/s of bus bandwidth, but its size and time give {expected:.4g}"
        raise _fault(number, line, said)


def _fault(number: int, line: bytes, what: str) -> DataError:
    return Text("", "").fault(number, line.decode("utf-8", "replace"), what)


def _tell(tell: Callable[[str], None], found: InspectorLog) -> None:
    """Remarks on collectives that Inspector lost, and on times that are not of the GPU."""
    if found.host_timed:
        tell(f"{how_many(found.host_timed, 'collective')} timed by the host, whose delays the times include")
    if found.dropped:
        tell(f"Inspector lost {how_many(found.dropped, 'collective')}: raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE")
