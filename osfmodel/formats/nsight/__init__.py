"""SQLite exports of Nsight Systems: the steps of a job, from NVTX ranges, kernels and NCCL's calls.

The records go the way of PyTorch's traces (formats/kineto), which forms the steps and the collectives. A report may
hold several processes, each of which is a rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError
from osfmodel.entities.source import TELLING, checksum_of
from osfmodel.entities.trace import RankTrace, Trace
from osfmodel.formats.kineto.collectives import Found, collectives
from osfmodel.formats.kineto.events import NO_ARGS, Args, Event
from osfmodel.formats.kineto.recorded import LAUNCH, Recorded, record
from osfmodel.formats.kineto.steps import steps_of
from osfmodel.formats.kineto.windows import OPTIMIZER_STEP, PROFILER_STEP
from osfmodel.formats.nsight.database import MAGIC, Database, opened_database
from osfmodel.formats.nsight.ranges import ProcessRanges, process_of, ranges_of, time_of
from osfmodel.formats.source_text import Files, Hints
from osfmodel.formats.streams.trace_files import paths_of_files
from osfmodel.formats.traces.ranks import joined, numbered_alike
from osfmodel.formats.traces.sizes import sized
from osfmodel.formats.traces.usual import with_shared_steps, with_steps

ENDINGS = (".sqlite", ".sqlite3", ".db")
KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
EXPORT = "nsys export --type sqlite --include-blobs=true"
MARK = "torch.cuda.nvtx.range('step 12')"
NO_PROCESS = 0
"""Stands for all processes where kernels do not name theirs."""


def sniff(head: str) -> bool:
    """Whether it is an SQLite database; whether it is Nsight's shows in its tables."""
    return head.startswith(MAGIC.decode())


@dataclass(slots=True)
class _Rank:
    """The record of one process of a report; ``base`` is when its clock began, in microseconds."""

    file: str
    checksum: str
    process: int
    host: str
    device: str
    gpu: str
    base: float
    kept: Recorded
    found: tuple[Found, ...]
    ranges: ProcessRanges

    @property
    def world(self) -> tuple[int, int] | None:
        """Ranks of the largest communicator, and this one's number in it."""
        return max(self.ranges.ranks.values(), default=None)


def trace_of(files: Files, hints: Hints) -> Trace:
    """The job shown by the reports of its processes. Raises DataError, with the file, for a report without steps."""
    read: list[_Rank] = []
    remarks: list[str] = []
    for path in paths_of_files(files, sniff, ENDINGS):
        try:
            read += _ranks(path, remarks)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    _require_different(read)
    origin = min(rank.kept.first + rank.base for rank in read)
    told = [rank.world for rank in read]
    numbers = [world[1] if world else place for place, world in enumerate(told)]
    if len(set(numbers)) < len(numbers):
        numbers = list(range(len(read)))
    ranks = [_steps(rank, number, origin) for rank, number in sorted(zip(read, numbers, strict=True), key=_by_number)]
    job, said = joined(numbered_alike(ranks), [rank.host for rank in ranks]) if len(ranks) > 1 else (tuple(ranks), [])
    workers = len(job) if len(job) > 1 else hints.workers
    trace = Trace(hints.name, tuple(replace(rank, workers=rank.workers or workers) for rank in job))
    with_shared_steps(trace)  # refuses ranks of different steps
    if hints.steps is not None:
        trace = with_steps(trace, range(hints.steps[0], hints.steps[1] + 1))
    trace = sized(trace, hints)
    return replace(trace, remarks=tuple(dict.fromkeys([*remarks, *said, *_missing(trace)])))


def _require_different(ranks: Sequence[_Rank]) -> None:
    """Raise DataError, naming both files, if two hold the same process."""
    seen: dict[tuple[object, ...], str] = {}
    for rank in ranks:
        key = rank.checksum, rank.process, rank.kept.first, len(rank.kept.work)
        if key in seen:
            raise DataError(f"{seen[key]} and {rank.file} are the same report twice: leave one out")
        seen[key] = rank.file


def _by_number(rank: tuple[_Rank, int]) -> int:
    return rank[1]


def _ranks(path: Path, remarks: list[str]) -> Iterator[_Rank]:
    """The processes of a report that worked on a GPU."""
    with path.open("rb") as file:
        start = file.read(TELLING)
    if not start.startswith(MAGIC):
        raise DataError("is a packed SQLite database: unpack it first")
    with opened_database(path) as database:
        if KERNELS not in database.columns:
            what = "has no kernels" if "StringIds" in database.columns else "is no export of Nsight Systems"
            raise DataError(f"{what} (no table {KERNELS}): record with nsys profile -t cuda,nvtx, then {EXPORT}")
        database.require(KERNELS, "start", "end", "correlationId", "streamId", "deviceId")
        database.require("StringIds", "id", "value")
        if GRAPHS in database.columns:
            remarks.append("CUDA graphs are left out: record with nsys profile --cuda-graph-trace=node")
        ranges = ranges_of(database)
        for process, device in _processes(database, remarks):
            own = ranges.get(process) or (_all(ranges) if process == NO_PROCESS else None)
            if own is None or not own.steps:
                raise DataError(f"process {process & 0xFFFFFF} has no NVTX ranges of steps: put each into {MARK}")
            yield _rank(database, (str(path), checksum_of(start)), (process, device), own)


def _all(ranges: Mapping[int, ProcessRanges]) -> ProcessRanges | None:
    """The ranges of the only process; None of several."""
    return next(iter(ranges.values())) if len(ranges) == 1 else None


def _processes(database: Database, remarks: list[str]) -> list[tuple[int, int]]:
    """(process, device) of each rank: of a process with several devices that of most kernels."""
    named = "globalPid" if database.has(KERNELS, "globalPid") else f"{NO_PROCESS} << 24"
    counts: dict[int, Counter[int]] = {}
    for own, device, count in database.rows(f"SELECT {named}, deviceId, COUNT(*) FROM {KERNELS} GROUP BY 1, 2"):
        process = process_of(time_of(own, KERNELS))
        counts.setdefault(process, Counter())[time_of(device, KERNELS)] += count
    if not counts:
        raise DataError(f"has no kernels (the table {KERNELS} is empty): record with nsys profile -t cuda,nvtx")
    for process, devices in counts.items():
        if len(devices) > 1:
            most = devices.most_common(1)[0][0]
            remarks.append(f"process {process & 0xFFFFFF} uses {len(devices)} GPUs: read is GPU {most}")
    return [(process, devices.most_common(1)[0][0]) for process, devices in sorted(counts.items())]


def _rank(database: Database, file: tuple[str, str], place: tuple[int, int], ranges: ProcessRanges) -> _Rank:
    kept = record(_events(database, place, ranges))
    found = tuple(_in_elements(one, ranges) for one in collectives(kept))
    host = _one(database, "TARGET_INFO_SYSTEM_ENV", "value", "name", "Hostname")
    device = _one(database, "TARGET_INFO_GPU", "name", "id", place[1])
    epoch = _one(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    base = epoch / 1e3 if isinstance(epoch, int) and 0 <= epoch < 2**62 else 0.0
    return _Rank(*file, place[0], str(host or ""), str(device or ""), str(place[1]), base, kept, found, ranges)


def _one(database: Database, table: str, column: str, key: str = "", value: object = None) -> object:
    """The first value of a column, or that of a row; None if the report has none."""
    if not database.has(table, column, *([key] if key else [])):
        return None
    where, values = (f" WHERE {key} = ?", [value]) if key else ("", [])
    return next((row[0] for row in database.rows(f"SELECT {column} FROM {table}{where} LIMIT 1", *values)), None)


def _events(database: Database, place: tuple[int, int], ranges: ProcessRanges) -> Iterator[Event]:
    """The records of a process as events of a profiler's trace, in microseconds."""
    before = -1
    for number, start, end in ranges.steps:
        before = before + 1 if number is None else number
        yield _event("user_annotation", f"{PROFILER_STEP}{before}", start, end)
    for start, end in ranges.updates:
        yield _event("user_annotation", f"{OPTIMIZER_STEP}#", start, end)
    for start, end in ranges.backward:
        yield _event("cpu_op", "NvtxBackward0", start, end)
    for call in ranges.calls:
        group = "" if call.communicator is None else f"{call.communicator:#x}"
        ranks = ranges.ranks.get(call.communicator or 0, (None, 0))[0]
        args = Args(collective=call.kind, in_elements=call.bytes, group_name=group or None, group_size=ranks)
        yield _event("user_annotation", f"nccl:{call.kind}", call.start, call.end, args)
    yield from _device_events(database, place)
    yield from _launches(database, place[0])


def _event(cat: str, name: str, start: int, end: int, args: Args = NO_ARGS, pid: str = "") -> Event:
    if end < start:
        raise DataError(f"{name[:40]!a} ends before it starts")
    return Event("X", cat, name, start / 1e3, (end - start) / 1e3, pid, "", args)


def _own(database: Database, table: str, place: tuple[int, int]) -> tuple[str, list[object]]:
    """The condition that a row of device work is of this process and device."""
    own = ["deviceId = ?"] if database.has(table, "deviceId") else []
    values: list[object] = [place[1]] if own else []
    if place[0] != NO_PROCESS and database.has(table, "globalPid"):
        own.append("globalPid >> 24 = ?")
        values.append(place[0])
    return " AND ".join(own) or "1", values


def _device_events(database: Database, place: tuple[int, int]) -> Iterator[Event]:
    """Kernels, copies and memsets; of the names of kernels only those of collectives matter."""
    named = "demangledName" if database.has(KERNELS, "demangledName") else "shortName"
    database.require(KERNELS, named)
    names = {
        key: str(name)
        for key, name in database.rows(
            f"SELECT id, value FROM StringIds WHERE (value LIKE '%nccl%' OR value LIKE '%rccl%') AND id IN "
            f"(SELECT DISTINCT {named} FROM {KERNELS})"
        )
    }
    columns = "start, end, correlationId, streamId"
    for table, cat in ((KERNELS, "kernel"), *((table, "gpu_memcpy") for table in COPIES)):
        if cat == "gpu_memcpy" and not database.has(table, *columns.split(", ")):
            continue
        own, values = _own(database, table, place)
        name = named if cat == "kernel" else "0"
        for row in database.rows(f"SELECT {columns}, {name} FROM {table} WHERE {own}", *values):
            start, end, correlation, stream = (time_of(value, table) for value in row[:4])
            args = Args(correlation=correlation, stream=stream)
            yield _event(cat, names.get(row[4], "kernel"), start, end, args, str(place[1]))


def _launches(database: Database, process: int) -> Iterator[Event]:
    """The calls of the runtime that submit work."""
    if not database.has(RUNTIME, "start", "end", "correlationId", "nameId", "globalTid"):
        return
    called = {key for key, name in database.rows(
        f"SELECT id, value FROM StringIds WHERE id IN (SELECT DISTINCT nameId FROM {RUNTIME})"
    ) if LAUNCH.search(str(name))}  # fmt: skip
    own, values = ("globalTid >> 24 = ?", [process]) if process != NO_PROCESS else ("1", [])
    for row in database.rows(f"SELECT start, end, correlationId, nameId FROM {RUNTIME} WHERE {own}", *values):
        if row[3] in called:
            start, end, correlation = (time_of(value, RUNTIME) for value in row[:3])
            yield _event("cuda_runtime", "cudaLaunchKernel", start, end, Args(correlation=correlation))


def _in_elements(one: Found, ranges: ProcessRanges) -> Found:
    """A collective whose bytes are turned into elements of its kernel's type: those that one rank puts in.

    Kernels that only copy do not name a type: their elements are bytes. NCCL notes what a rank gets of a
    reduce-scatter.
    """
    size = one.elements
    if size is None or (one.kind == "reduce_scatter" and not one.workers):
        return one._replace(elements=None, sized_by="")
    size *= (one.workers or 1) if one.kind == "reduce_scatter" else 1
    if one.dtype is None:
        return one._replace(elements=None if one.kind == "all_reduce" else size, dtype="int8", sized_by="host")
    return one._replace(elements=size // element_bytes(one.dtype), sized_by="host")


def _steps(rank: _Rank, number: int, origin: float) -> RankTrace:
    world = rank.world[0] if rank.world else None
    known = [one._replace(workers=one.workers or world) for one in rank.found]
    try:
        steps, _ = steps_of(rank.kept, known, (), origin - rank.base)
    except DataError as error:
        raise DataError(f"{rank.file}: {error}") from None
    return RankTrace(
        rank=number,
        steps=tuple(steps),
        workers=world,
        device=rank.device,
        backend="nccl" if rank.found else "",
        file=rank.file,
        checksum=rank.checksum,
        host=rank.host,
        gpu=rank.gpu,
    )


def _missing(trace: Trace) -> list[str]:
    """Remarks on gaps of the reports, and how to record what is missing."""
    steps = [step for rank in trace.ranks for step in rank.steps]
    found = [one for step in steps for one in step.collectives]
    unsized = sum(one.elements is None for one in found)
    said = []
    if unsized:
        said.append(f"{unsized} of {len(found)} collectives have no size: export with {EXPORT}")
    if found and len(trace.ranks) < (trace.workers or 1):
        said.append(
            f"{len(trace.ranks)} of {trace.workers} ranks: how long a collective waits for others is not known: give "
            "the reports of all ranks"
        )
    if not any(step.backward for step in steps):
        said.append("has no NVTX ranges named 'backward': forward and backward are not told apart")
    return said
