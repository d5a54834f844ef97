"""PyTorch profiler traces (Kineto), of one rank or of all: the steps of a job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from osfmodel.entities.errors import LARGEST_COUNT, DataError
from osfmodel.entities.trace import RankTrace, Trace
from osfmodel.formats.kineto.collectives import Found, collectives
from osfmodel.formats.kineto.events import ENDINGS, LABEL, LARGEST, TraceFile, is_trace, read_events
from osfmodel.formats.kineto.recorded import Recorded, record, wanted, wanted_of_host
from osfmodel.formats.kineto.sharding import HostUse, by_threads, grouped, meshed, process_groups
from osfmodel.formats.kineto.steps import steps_of
from osfmodel.formats.kineto.windows import PROFILER_STEP
from osfmodel.formats.source_text import Files, Hints, silent
from osfmodel.formats.traces.ranks import joined, numbered_alike, sized
from osfmodel.formats.traces.usual import (
    Writer,
    continued,
    cycles_of,
    places_of,
    require_different,
    with_shared_steps,
    with_steps,
)

__all__ = ["ENDINGS", "LABEL", "sniff", "trace_of"]

RANK = re.compile(r"(?:rank|worker)[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)

UNSEEN = re.compile(r"GraphLaunch|backward|(?:bn|_)bw(?:d|_|$)|_grad|[dw]grad|multi_tensor_apply|adam|sgd", re.I)
"""Names of work that operators of the host need not show: replayed graphs, kernels of backward and of optimizers."""
HOST_LIBRARIES = ("gloo", "mpi")
"""Libraries that communicate on hosts, so that no device is seen to communicate."""


def sniff(head: str) -> bool:
    """Whether it is a JSON object of trace events, as torch.profiler writes it."""
    return is_trace(head)


@dataclass(frozen=True, slots=True)
class _File:
    """Content of one file: its clock counts from ``base`` microseconds; ``operators``: whether they show all work."""

    path: str
    checksum: str
    kept: Recorded
    header: Mapping[str, Any]
    base: float
    collectives: tuple[Found, ...]
    uses: tuple[HostUse, ...]
    operators: bool = False

    @property
    def distributed(self) -> Mapping[str, Any]:
        """The header's information on the job."""
        told = self.header.get("distributedInfo")
        return told if isinstance(told, Mapping) else {}

    @property
    def host(self) -> str:
        """The host's own name; "" if the header has none."""
        return str(self.header.get("host_name") or "")

    @property
    def writer(self) -> Writer:
        """The process that wrote the file."""
        annotated = any(note.name.startswith(PROFILER_STEP) for note in self.kept.notes)
        return Writer(f"{self.host} {self.kept.process}" if self.kept.process else "", annotated)

    @property
    def world(self) -> int | None:
        """The number of ranks of the job, from the header."""
        return _whole(self.distributed.get("world_size"))

    @property
    def first(self) -> float:
        """Start of the record, on the job's clock."""
        return self.kept.first + self.base


def trace_of(files: Files, hints: Hints) -> Trace:
    """The job shown by the traces of its ranks.

    ``hints`` give a name, and what traces may lack: workers, sizes from
    DDP's log or a model. Other gaps are named in the trace's remarks. Raises DataError, naming the file, for
    one that is not a trace or has no steps.
    """
    found = _files(files)
    if not found:
        raise DataError("holds no trace of torch.profiler")
    origin = min(file.first for file in found)
    title = hints.name
    remarks: list[str] = []
    writers = [file.writer for file in found]
    ranks = _placed(found, [_rank(file, origin, remarks) for file in found], writers)
    require_different(ranks)
    _require_one_world(found)
    ranks = numbered_alike(ranks)
    cycles = []
    for places in cycles_of(ranks, writers):
        cycle, said = _cycle([ranks[place] for place in places], [found[place] for place in places])
        cycles.append(cycle)
        remarks += said
    job, said = continued(cycles)
    remarks += said
    workers = len(job) if len(job) > 1 else hints.workers
    trace = Trace(title, tuple(replace(rank, workers=rank.workers or workers) for rank in job))
    with_shared_steps(trace)  # refuses ranks of different steps
    if hints.steps is not None:
        first, last = hints.steps
        trace = with_steps(trace, range(first, last + 1))
    trace = sized(trace, hints)
    trace = replace(trace, recorded_host=all(file.operators for file in found))
    return replace(trace, remarks=tuple(dict.fromkeys([*remarks, *_missing(trace)])))


def _cycle(ranks: Sequence[RankTrace], files: Sequence[_File]) -> tuple[tuple[RankTrace, ...], list[str]]:
    """The ranks of one cycle on one clock, and remarks on it."""
    if len(ranks) == 1:
        return tuple(ranks), []
    return joined(ranks, [file.host for file in files])


def _files(files: Files) -> list[_File]:
    """Each rank's file; host operators, most of a trace, are read only if the host computes."""
    found = _read(files, on_host=False)
    # A host may list GPUs that the job does not use.
    if any(file.header.get("deviceProperties") for file in found) and all(map(_on_host, found)):
        return _read(replace(files, tell=silent), on_host=True)
    return found


def _on_host(file: _File) -> bool:
    """Whether no device worked and the communication library runs on hosts."""
    return not file.kept.on_device and _backend(file.kept) in HOST_LIBRARIES


def _read(files: Files, on_host: bool) -> list[_File]:
    """Each rank's file, with operators of the host in all, or only in those without a list of devices."""
    hosts, operators, unseen = on_host, False, False

    def keep(cat: str, name: str) -> bool:
        nonlocal operators, unseen
        operators = operators or name.startswith("aten::")
        unseen = unseen or UNSEEN.search(name) is not None
        return wanted_of_host(cat, name) if hosts else wanted(cat, name)

    found = []
    for file in read_events(files.paths, keep, files.tell, files.progress):
        hosts = on_host or not file.header.get("deviceProperties")
        found.append(_file(file, record(file.events, hosts)))
        found[-1], operators, unseen = replace(found[-1], operators=operators and not unseen), False, False
    return found


def _file(file: TraceFile, kept: Recorded) -> _File:
    base = file.header.get("baseTimeNanoseconds")
    microseconds = base / 1000 if isinstance(base, int | float) and abs(base) < LARGEST else 0.0
    if not math.isfinite(kept.first):
        raise DataError(f"{file.path}: holds no events of training: record some steps with torch.profiler")
    found, uses = grouped(kept, collectives(kept))
    found = by_threads(file.header, meshed(file.header, found))
    return _File(file.path, file.checksum, kept, file.header, microseconds, tuple(found), tuple(uses))


def _placed(files: Sequence[_File], read: Sequence[RankTrace], writers: Sequence[Writer]) -> list[RankTrace]:
    """The ranks, numbered by file name or by the order of their process if they do not state a rank."""
    if len(files) == 1:
        return [replace(read[0], rank=_rank_number(files[0], None))]
    return [
        replace(rank, rank=_rank_number(file, place))
        for file, rank, place in zip(files, read, places_of(read, writers), strict=True)
    ]


def _require_one_world(files: Sequence[_File]) -> None:
    """Raise DataError, naming two files, if their headers belong to jobs of different sizes."""
    told = [(file.world, file.path) for file in files if file.world]
    for world, path in told:
        if world != told[0][0]:
            raise DataError(
                f"{told[0][1]} is of a job of {told[0][0]} ranks, {path} of one of {world}: give the files of one run"
            )


def _rank(file: _File, origin: float, remarks: list[str]) -> RankTrace:
    """The steps of one file, whose rank is still to be set; remarks on it are added to ``remarks``."""
    listed = process_groups(file.header)
    sizes = {group.name: group.size for group in listed}
    known = [one._replace(workers=one.workers or sizes.get(one.group) or file.world) for one in file.collectives]
    try:
        steps, said = steps_of(file.kept, known, file.uses, origin - file.base)
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from None
    if said:
        remarks.append(said)
    if file.kept.compiled:
        remarks.append(
            "the model is compiled: its collectives may be of the compiled graph, whose buckets DDP's caps do not set"
        )
    return RankTrace(
        rank=0,
        steps=tuple(steps),
        workers=file.world,
        device=_device(file),
        backend=str(file.distributed.get("backend") or _backend(file.kept)),
        file=file.path,
        checksum=file.checksum,
        host=file.host,
        gpu=_gpu(file),
        host_computes=not file.kept.on_device,
        groups=listed,
    )


def _rank_number(file: _File, place: int | None) -> int:
    """The rank from the header, else from the file's name, else ``place``; 0 for a single file that does not say."""
    told = _whole(file.distributed.get("rank"), least=0)
    if told is not None:
        return told
    named = RANK.search(file.path.rpartition(":")[2].rpartition("/")[2])
    return 0 if place is None else int(named[1]) if named else place


def _whole(value: Any, least: int = 1) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and least <= value <= LARGEST_COUNT else None


def _device(file: _File) -> str:
    """The name of the first device; all of a job are taken to be alike."""
    if not file.kept.on_device:
        return "cpu"
    told = file.header.get("deviceProperties")
    first = told[0] if isinstance(told, list) and told else None
    return str(first.get("name") or "") if isinstance(first, Mapping) else ""


def _gpu(file: _File) -> str:
    """The number of the GPU that communicates, if the header lists it: old traces had other numbers."""
    listed = file.header.get("deviceProperties")
    known = {str(number) for number in range(len(listed))} if isinstance(listed, list) else set()
    found = min(file.kept.gpus, default="")
    return found if len(file.kept.gpus) == 1 and found in known else ""


def _backend(kept: Recorded) -> str:
    """The communication library, as collectives are named after it."""
    names = {span.name.partition(":")[0] for span in kept.issues if ":" in span.name and "::" not in span.name}
    if not names and kept.kernels:
        return "nccl"
    return min(names) if len(names) == 1 else ""


def _missing(trace: Trace) -> list[str]:
    """Remarks on gaps of the traces, and how to record what is missing."""
    ranks = trace.ranks
    steps = [step for rank in ranks for step in rank.steps]
    found = [one for step in steps for one in step.collectives]
    said = []
    if len(steps) == len(ranks):
        said.append("holds one step only, in which a profiler that just started may be seen: record several")
    if found and any(one.elements is None for one in found):
        unsized = sum(one.elements is None for one in found)
        said.append(
            f"{unsized} of {len(found)} collectives have no size: record with record_shapes=True or a newer PyTorch, "
            "or give --ddp-logging or --model"
        )
    workers = max((rank.workers or 1 for rank in ranks), default=1)
    if found and len(ranks) < workers:
        said.append(
            f"{len(ranks)} of {workers} ranks: how long a collective waits for others is not known: give the traces "
            "of all ranks"
        )
    if trace.inference:
        return said
    if not any(step.gradients for step in steps):
        said.append("holds no backward of autograd's: when gradients are ready is not known")
    elif any(gradient.elements is None for step in steps for gradient in step.gradients):
        said.append("gradients have no sizes: record with record_shapes=True")
    return said
