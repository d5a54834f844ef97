"""PyTorch's flight recorder: the last collectives of a rank, dumped as a pickle or as JSON.

A dump has no computation, so it is no trace of steps: its durations give prices by size. They are recorded with
TORCH_NCCL_ENABLE_TIMING=1; times at which the watchdog looked are none (FlightRecorder.hpp of c10d).

Pickles are read of plain data only; anything that could run code is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from osfmodel.entities.cluster import COLLECTIVES, LIBRARIES, Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.dtypes import ELEMENT_BYTES
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import parse_json
from osfmodel.formats.collectives.calls import (
    LARGEST,
    CommunicatorShape,
    JobCalls,
    RankCall,
    RankFile,
    Recorder,
    members_in,
    quoted,
    read_calls,
    time_in,
    whole_number,
)
from osfmodel.formats.kineto.collectives import dtype_of, elements_of, kind_of
from osfmodel.formats.source_text import Files, Hints
from osfmodel.formats.streams.archives import limited
from osfmodel.formats.streams.pickles import is_pickle, plain_data

MOST_STEPS = 3_000_000
"""Maximum steps of a pickle."""
MANY = "more objects than a dump has: record with a smaller TORCH_FR_BUFFER_SIZE"
ENDINGS = (*"0123456789", ".pkl", ".pickle", ".json", ".json.gz")
"""PyTorch names dumps after ranks, such as nccl_trace_rank_0."""
LARGEST_DUMP = 2**25
"""Maximum bytes of a dump: PyTorch keeps 2000 collectives, in some 2 MB."""
TOO_LARGE = "the maximum for a dump of the flight recorder: record with a smaller TORCH_FR_BUFFER_SIZE"
SIGNS = ("pg_config", "pg_status", "collective_seq_id")
RANKS = re.compile(r"\d{1,9}")


@dataclass(slots=True)
class FlightDumps:
    """The calls in the dumps of a job, and its collectives that had not ended: (number, description) of the first."""

    calls: JobCalls = field(default_factory=JobCalls)
    pending: int = 0
    first_pending: tuple[int, str] | None = None
    libraries: set[str] = field(default_factory=set)


def sniff(head: str) -> bool:
    """Whether a file begins as a dump of the flight recorder: a dictionary in a pickle, or in JSON."""
    if is_pickle(head):
        return any(sign in head for sign in SIGNS)
    return head.lstrip()[:1] == "{" and sum(f'"{sign}"' in head for sign in (*SIGNS, "profiling_name")) > 1


RECORDER = Recorder(
    "PyTorch's flight recorder",
    "a dump of PyTorch's flight recorder",
    sniff,
    ENDINGS,
    "record with TORCH_NCCL_ENABLE_TIMING=1 (only NCCL has durations)",
    "all-reduce, all-gather and reduce-scatter of floating-point types",
)


def read_job(files: Files, hints: Hints) -> list[Cluster]:
    """One cluster from the dumps of a job's ranks, as :func:`read_calls` makes it."""
    found = FlightDumps()

    def add(file: RankFile) -> None:
        content = b"".join(limited(file.pieces, LARGEST_DUMP, TOO_LARGE))
        _add_dump(_dump(content), (file.number, file.name), found, hints)

    cluster = read_calls(files, hints, RECORDER, found.calls, add, lambda tell: _tell(tell, found))
    return [replace(cluster, library=found.libraries.pop() if len(found.libraries) == 1 else "")]


def _dump(content: bytes) -> Mapping[str, Any]:
    pickled = is_pickle(content[:2].decode("utf-8", "replace"))
    dump = plain_data(content, MOST_STEPS, MANY) if pickled else parse_json(content)
    if not isinstance(dump, dict) or not isinstance(dump.get("pg_config", {}), dict):
        raise DataError("is not a dump of the flight recorder: it holds no dictionary with process groups")
    return dump


def _add_dump(dump: Mapping[str, Any], place: tuple[int, str], found: FlightDumps, hints: Hints) -> None:
    """Add one rank's collectives."""
    entries = dump.get("entries", [])
    if not isinstance(entries, list):
        raise DataError("entries is not a list")
    groups = dict(_groups(dump.get("pg_config", {})))
    for number, entry in enumerate(entries):
        try:
            _add_entry(entry, (place, groups), found, hints)
        except DataError as error:
            raise DataError(f"entry {number}: {error}") from None


def _groups(config: Mapping[Any, Any]) -> Iterator[tuple[str, tuple[str, int]]]:
    """(name, (its members, their number)) of each process group that names its members."""
    for name, group in config.items():
        members = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(name, str) and isinstance(members, str) and (count := len(RANKS.findall(members))):
            yield name, (members, count)


Place = tuple[tuple[int, str], Mapping[str, tuple[str, int]]]


def _add_entry(entry: Any, place: Place, found: FlightDumps, hints: Hints) -> None:
    """Add one collective: a timed one as a call, any other to the counts."""
    if not isinstance(entry, dict):
        raise DataError("is not a dictionary")
    name = entry.get("profiling_name")
    if not isinstance(name, str):
        raise DataError("has no profiling_name")
    (rank, file), groups = place
    library, _, bare = name.rpartition(":")
    number = whole_number(entry, "collective_seq_id")
    group, description = _group(entry)
    if entry.get("state") in ("scheduled", "started") and entry.get("retired") is False:
        what = f"{bare[:40]!a} number {number} of group {description[:40]!a}, {entry['state']}, in {file}"
        found.pending += 1
        found.first_pending = min(found.first_pending or (number, what), (number, what))
        return
    if entry.get("is_p2p") is True:
        found.calls.point_to_point += 1
        return
    kind = None if "barrier" in bare else kind_of(bare)
    if kind not in COLLECTIVES:
        found.calls.leave_out(bare)
        return
    duration = time_in(entry, "duration_ms") if entry.get("duration_ms") is not None else 0.0
    if not duration:
        found.calls.untimed += 1
        return
    part = _bytes(entry, "output" if kind == "reduce_scatter" else "input")
    if part is None:
        found.calls.leave_out(f"{bare} of another type")
        return
    communicator, count = members_in(groups, group, hints, description)
    if count > 1:
        size = part if kind == "all_reduce" else part * count
        found.calls.add(RankCall(CommunicatorShape(count), communicator, rank, kind, size, duration * 1e-3, number))
        found.libraries |= {library} & set(LIBRARIES)


def _group(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description of an entry's process group."""
    group = entry.get("process_group")
    if not isinstance(group, list | tuple) or len(group) != 2 or not all(isinstance(word, str) for word in group):
        raise DataError("has no process_group with a name and a description")
    return str(group[0]), str(group[1] or group[0])


def _bytes(entry: Mapping[str, Any], side: str) -> int | None:
    """Bytes of one rank's tensors; None for a type that no gradient has. Raises DataError without sizes."""
    shapes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(shapes, list) or not isinstance(dtypes, list) or not shapes or not dtypes:
        raise DataError(f"has no {side}_sizes with {side}_dtypes")
    total = 0
    for place, shape in enumerate(shapes):
        elements = 1 if shape == [] else elements_of(shape)
        if elements is None or elements >= LARGEST:
            raise DataError(f"has {side}_sizes {quoted(shape)}, not the shape of a tensor")
        dtype = dtype_of(dtypes[min(place, len(dtypes) - 1)]) or ""
        width = ELEMENT_BYTES.get("float8" if dtype.startswith("float8") else dtype)
        if width is None:
            return None
        total += elements * width
    if total >= LARGEST:
        raise DataError(f"has {side}_sizes of more bytes than any job has")
    return total


def _tell(tell: Callable[[str], None], found: FlightDumps) -> None:
    """A remark on collectives that did not end."""
    if found.first_pending:
        tell(f"{how_many(found.pending, 'collective')} had not ended when dumped; the first: {found.first_pending[1]}")
