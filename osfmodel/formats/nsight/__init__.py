"""SQLite exports of Nsight Systems: the steps of a job, from NVTX ranges, kernels and NCCL's calls.

The records go the way of PyTorch's traces (formats/kineto), which forms the steps and the collectives. A report may
hold several processes, each of which is a rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import TELLING, checksum_of
from osfmodel.entities.trace import RankTrace, Trace
from osfmodel.formats.kineto.collectives import Found, collectives
from osfmodel.formats.kineto.events import NO_ARGS, Args, Event
from osfmodel.formats.kineto.recorded import Recorded, record
from osfmodel.formats.kineto.steps import steps_of
from osfmodel.formats.kineto.windows import OPTIMIZER_STEP, PROFILER_STEP
from osfmodel.formats.nsight.database import (
    MAGIC,
    NO_PROCESS,
    Database,
    NcclCall,
    ProcessGpu,
    ProcessRanges,
    calls_of,
    number_in,
    opened_database,
    pid_of,
    process_of,
    ranges_of,
)
from osfmodel.formats.nsight.device import KERNELS, Excerpt, add_work, chosen_steps, collectives_of, excerpt_of
from osfmodel.formats.source_text import Files, Hints
from osfmodel.formats.streams import paths_of_files
from osfmodel.formats.traces.ranks import joined, numbered_alike, sized
from osfmodel.formats.traces.usual import with_shared_steps, with_steps

LABEL = "an SQLite export of Nsight Systems"
ENDINGS = (".sqlite", ".sqlite3", ".db")
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
EXPORT = "nsys export --type sqlite --include-blobs=true"
MARK = 'with torch.cuda.nvtx.range("step 12"):'


def sniff(head: str) -> bool:
    """Whether it is an SQLite database; whether it is Nsight's shows in its tables."""
    return head.startswith(MAGIC.decode())


@dataclass(frozen=True, slots=True)
class _Process:
    """A process of a report that worked on a GPU, with the number of its kernels there."""

    path: Path
    checksum: str
    place: ProcessGpu
    kernels: int
    ranges: ProcessRanges


@dataclass(frozen=True, slots=True)
class _Rank:
    """The record of a process; ``base`` is when its clock began, in microseconds."""

    of: _Process
    host: str
    device: str
    base: float
    kept: Recorded
    found: tuple[Found, ...]

    @property
    def file(self) -> str:
        """The path of the report."""
        return str(self.of.path)

    @property
    def world(self) -> tuple[int, int] | None:
        """Ranks of the largest communicator, and this one's number in it."""
        return max(self.of.ranges.ranks.values(), default=None)


def trace_of(files: Files, hints: Hints) -> Trace:
    """The job shown by the reports of its processes. Raises DataError, with the file, for a report without steps."""
    remarks: list[str] = []
    there: list[_Process] = []
    for path in paths_of_files(files, sniff, ENDINGS, LABEL):
        try:
            there += _processes_of(path, remarks)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    chosen, told_of = chosen_steps([(one.ranges.steps, one.kernels) for one in there], hints.steps)
    remarks += [told_of] if told_of else []
    read = [_rank(one, chosen) for one in there]
    _require_different(read)
    origin = min(rank.kept.first + rank.base for rank in read)
    told = [rank.world for rank in read]
    numbers = [world[1] if world else place for place, world in enumerate(told)]
    if len(set(numbers)) < len(numbers):
        numbers = list(range(len(read)))
    ranks = [
        _steps(rank, number, origin) for rank, number in sorted(zip(read, numbers, strict=True), key=itemgetter(1))
    ]
    job, said = joined(numbered_alike(ranks), [rank.host for rank in ranks]) if len(ranks) > 1 else (tuple(ranks), [])
    workers = len(job) if len(job) > 1 else hints.workers
    trace = Trace(hints.name, tuple(replace(rank, workers=rank.workers or workers) for rank in job))
    with_shared_steps(trace)  # refuses ranks of different steps
    if chosen is None and hints.steps is not None:
        chosen = range(hints.steps[0], hints.steps[1] + 1)
    if chosen is not None:
        trace = with_steps(trace, chosen)
    trace = sized(trace, hints)
    return replace(trace, remarks=tuple(dict.fromkeys([*remarks, *said, *_missing(trace)])))


def _require_different(ranks: Sequence[_Rank]) -> None:
    """Raise DataError, naming both files, if two hold the same process."""
    seen: dict[tuple[object, ...], str] = {}
    for rank in ranks:
        key = rank.of.checksum, rank.of.place.process, rank.kept.first, len(rank.kept.work)
        if key in seen:
            raise DataError(f"{seen[key]} and {rank.file} are the same report twice: leave one out")
        seen[key] = rank.file


def _processes_of(path: Path, remarks: list[str]) -> Iterator[_Process]:
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
        for place, kernels in _places(database, remarks).items():
            own = ranges.get(place.process)
            if own is None and place.process == NO_PROCESS and len(ranges) == 1:
                own = next(iter(ranges.values()))
            if own is None or not own.steps:
                pid = pid_of(place.process)
                raise DataError(f"process {pid} has no NVTX ranges of steps: wrap each step in `{MARK}`")
            yield _Process(path, checksum_of(start), place, kernels, own)


def _places(database: Database, remarks: list[str]) -> dict[ProcessGpu, int]:
    """The number of kernels of each process on its device; of several devices that of most kernels."""
    named = "globalPid" if database.has(KERNELS, "globalPid") else str(NO_PROCESS)
    counts: dict[int, Counter[int]] = {}
    for own, device, count in database.rows(f"SELECT {named}, deviceId, COUNT(*) FROM {KERNELS} GROUP BY 1, 2"):
        process = process_of(number_in(own, KERNELS))
        counts.setdefault(process, Counter())[number_in(device, KERNELS)] += count
    if not counts:
        raise DataError(f"has no kernels (the table {KERNELS} is empty): record with nsys profile -t cuda,nvtx")
    for process, devices in counts.items():
        if len(devices) > 1:
            most = devices.most_common(1)[0][0]
            remarks.append(f"process {pid_of(process)} uses {len(devices)} GPUs: only GPU {most} is read")
    most_used = [(process, devices.most_common(1)[0]) for process, devices in sorted(counts.items())]
    return {ProcessGpu(process, device): count for process, (device, count) in most_used}


def _rank(one: _Process, chosen: range | None) -> _Rank:
    """The record of a process. Raises DataError, with the file, for rows that are damaged."""
    try:
        with opened_database(one.path) as database:
            return _read(database, one, excerpt_of(one.ranges.steps, chosen))
    except DataError as error:
        raise DataError(f"{one.path}: {error}") from None


def _read(database: Database, one: _Process, part: Excerpt) -> _Rank:
    calls = calls_of(database, one.place.process, part.since, part.until)
    kept = record(_host_events(one.ranges, part, calls))
    add_work(kept, database, one.place, part)
    kernels = record(collectives_of(kept, database, one.place, part))
    kept.kernels, kept.gpus, kept.first = kernels.kernels, kernels.gpus, min(kept.first, kernels.first)
    found = tuple(_in_elements(each) for each in collectives(kept))
    host = _one(database, "TARGET_INFO_SYSTEM_ENV", "value", "name", "Hostname")
    device = _one(database, "TARGET_INFO_GPU", "name", "id", one.place.device)
    epoch = _one(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    base = epoch / 1e3 if isinstance(epoch, int) and 0 <= epoch < 2**62 else 0.0
    return _Rank(one, str(host or ""), str(device or ""), base, kept, found)


def _one(database: Database, table: str, column: str, key: str = "", value: object = None) -> object:
    """The first value of a column, or that of a row; None if the report has none."""
    if not database.has(table, column, *([key] if key else [])):
        return None
    where, values = (f" WHERE {key} = ?", [value]) if key else ("", [])
    return next((row[0] for row in database.rows(f"SELECT {column} FROM {table}{where} LIMIT 1", *values)), None)


def _host_events(ranges: ProcessRanges, part: Excerpt, calls: Sequence[NcclCall]) -> Iterator[Event]:
    """The host's records of a process as events of a profiler's trace, in microseconds."""
    for number, start, end in part.steps:
        yield _event("user_annotation", f"{PROFILER_STEP}{number}", start, end)
    for start, end in ranges.updates:
        if part.since <= start < part.until:
            yield _event("user_annotation", f"{OPTIMIZER_STEP}#", start, end)
    for start, end in ranges.backward:
        if part.since <= start < part.until:
            yield _event("cpu_op", "NvtxBackward0", start, end)
    for call in calls:
        group = "" if call.communicator is None else f"{call.communicator:#x}"
        ranks = ranges.ranks.get(call.communicator or 0, (None, 0))[0]
        args = Args(collective=call.kind, in_bytes=call.bytes, group_name=group or None, group_size=ranks)
        yield _event("user_annotation", f"nccl:{call.kind}", call.start, call.end, args)


def _event(cat: str, name: str, start: int, end: int, args: Args = NO_ARGS) -> Event:
    if end < start:
        raise DataError(f"{name[:40]!a} ends before it starts")
    return Event("X", cat, name, start / 1e3, (end - start) / 1e3, "", "", args)


def _in_elements(one: Found) -> Found:
    """A collective with the elements of its kernel's type that one rank puts in, from its bytes.

    Kernels that only copy do not name a type: their elements are bytes. NCCL notes what a rank gets of a
    reduce-scatter.
    """
    if one.bytes is None or (one.kind == "reduce_scatter" and not one.workers):
        return one
    size = one.bytes * ((one.workers or 1) if one.kind == "reduce_scatter" else 1)
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
        checksum=rank.of.checksum,
        host=rank.host,
        gpu=str(rank.of.place.device),
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
