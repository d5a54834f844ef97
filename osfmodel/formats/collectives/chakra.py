"""Chakra execution traces in protobuf: the kernels of a rank's collectives, with bytes and durations.

Chakra's converter makes them of PyTorch's execution trace linked with a trace of torch.profiler. It notes how long
nodes took and not when they began, so no step can be told: durations give prices by size. Numbers of fields and kinds
are those of et_def.proto (Chakra, schema/protobuf).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
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
)
from osfmodel.formats.source_text import Files, Hints, Text
from osfmodel.formats.streams.protobuf import delimited, fields

ENDINGS = (".et", ".et.gz", ".chakra")
VERSION = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}(?:-chakra[0-9.]{0,20})?")
SCHEMA = re.compile(r"\A.{1,3}\x12.\n\x06schema", re.DOTALL)
"""The beginning of the metadata that the converter writes: its first attribute."""
ID, NAME, TYPE, DURATION, INPUTS, ATTRIBUTES = 1, 2, 3, 7, 8, 10
"""Fields of a node; of inputs and of an attribute the first is the values and the name."""
METADATA, SEND, RECEIVE, COLLECTIVE = 1, 5, 6, 7
"""Types of nodes."""
NUMBERS = (7, 9, 11, 13)
"""Fields of an attribute with whole numbers: 32 and 64 bits, with and without a sign."""
TEXT = 29
KINDS: Mapping[int, str] = {0: "all_reduce", 2: "all_gather", 7: "reduce_scatter"}
OTHERS: Mapping[int, str] = {
    1: "reduce", 3: "gather", 4: "scatter", 5: "broadcast", 6: "all_to_all", 8: "reduce_scatter_block", 9: "barrier",
}  # fmt: skip
GROUPS = re.compile(r"\{[^{}]{0,2000000}\}")
GROUP_NAME = re.compile(r'"pg_name"\s{0,9}:\s{0,9}"([^"]{0,100})"')
GROUP_RANKS = re.compile(r'"ranks"\s{0,9}:\s{0,9}\[([0-9, ]{0,1000000})\]')
GROUP_SIZE = re.compile(r'"(?:pg|group)_size"\s{0,9}:\s{0,9}(\d{1,9})')
REMEDY = (
    "Chakra's converter takes them from a trace of torch.profiler that chakra_trace_link has linked, which osfmodel "
    "reads as well"
)
MOST_GROUPS = 100_000


@dataclass(slots=True)
class ChakraTraces:
    """The calls in the traces of a job, and whether all are NCCL's."""

    calls: JobCalls = field(default_factory=JobCalls)
    nccl: bool = True


@dataclass(slots=True)
class _RankNodes:
    """The groups in one file: (its members, their number) by name; ``numbers`` counts the calls of each so far."""

    rank: int
    groups: dict[str, tuple[str, int]] = field(default_factory=dict)
    numbers: Counter[tuple[str, str]] = field(default_factory=Counter)


def sniff(head: str) -> bool:
    """Whether a file begins with the metadata of a Chakra trace: its version, or the schema of PyTorch's trace."""
    if SCHEMA.search(head[:60]):
        return True
    if len(head) < 3 or head[1] != "\n" or ord(head[2]) != ord(head[0]) - 2:
        return False
    return VERSION.fullmatch(head[3 : 3 + ord(head[2])]) is not None


RECORDER = Recorder("Chakra execution trace", "a Chakra execution trace", sniff, ENDINGS, REMEDY)


def read(text: Text, hints: Hints) -> list[Cluster]:
    """One cluster from one rank's trace."""
    return read_job(Files((text,), text.tell), hints)


def read_job(files: Files, hints: Hints) -> list[Cluster]:
    """One cluster from the traces of a job's ranks, as :func:`read_calls` makes it; errors name the node."""
    found = ChakraTraces()
    cluster = read_calls(files, hints, RECORDER, found.calls, lambda file: _scan(file, found, hints))
    return [replace(cluster, library="nccl" if found.nccl else "")]


def _scan(file: RankFile, found: ChakraTraces, hints: Hints) -> None:
    """Add the nodes of one file; message 0 is the metadata."""
    own = _RankNodes(file.number)
    for number, message, whole in delimited(file.pieces):
        if not whole:
            file.tell(f"node {number}: was cut off and is left out")
            return
        if not number:
            continue
        try:
            _add(message, own, found, hints)
        except DataError as error:
            raise DataError(f"node {number}: {error}") from None


def _add(message: bytes, own: _RankNodes, found: ChakraTraces, hints: Hints) -> None:
    """Add a node. Only those of collectives and of groups are read beyond their type."""
    wanted = False
    name = b""
    duration = 0
    values = b""
    attributes: dict[str, int | str] = {}
    for number, value in fields(message):
        if number == TYPE:
            wanted = value in (METADATA, COLLECTIVE)
            found.calls.point_to_point += value in (SEND, RECEIVE)
            kind = value
            if not wanted:
                return
        elif number == NAME and isinstance(value, bytes):
            name = value
        elif number == DURATION and isinstance(value, int):
            duration = value
        elif number == INPUTS and isinstance(value, bytes):
            values = value
        elif number == ATTRIBUTES and isinstance(value, bytes):
            attributes.update(_attribute(value))
    if not wanted:
        return
    if kind == METADATA:
        if b"process_group:init" in name:
            _add_groups(values, own)
        return
    _add_collective(name, duration, attributes, (own, found, hints))


def _attribute(content: bytes) -> Iterator[tuple[str, int | str]]:
    """The name and the value of an attribute with a whole number or a text; none of any other type."""
    name = ""
    value: int | str | None = None
    for number, part in fields(content):
        if number == 1 and isinstance(part, bytes):
            name = part.decode("utf-8", "replace")
        elif number in NUMBERS and isinstance(part, int):
            value = part
        elif number == TEXT and isinstance(part, bytes):
            value = part.decode("utf-8", "replace")
    if value is not None:
        yield name, value


def _add_groups(inputs: bytes, own: _RankNodes) -> None:
    """Add the process groups that PyTorch notes, as JSON in the text of a list; an empty list of ranks is all."""
    values = next((value for number, value in fields(inputs) if number == 1 and isinstance(value, bytes)), b"")
    for group in GROUPS.findall(values.decode("utf-8", "replace")):
        name, ranks, size = GROUP_NAME.search(group), GROUP_RANKS.search(group), GROUP_SIZE.search(group)
        members = ranks[1].replace(" ", "") if ranks else ""
        count = members.count(",") + 1 if members else int(size[1]) if size else 0
        if name and count and len(own.groups) < MOST_GROUPS:
            own.groups[name[1]] = members, count


def _add_collective(
    name: bytes, duration: int, attributes: Mapping[str, int | str], into: tuple[_RankNodes, ChakraTraces, Hints]
) -> None:
    """Add a collective's kernel: a timed one as a call, any other to the counts."""
    own, found, hints = into
    code, size, group = (attributes.get(name) for name in ("comm_type", "comm_size", "pg_name"))
    if not isinstance(code, int):
        raise DataError(f"is a collective without comm_type: {name[:40].decode('utf-8', 'replace')!a}")
    if code not in KINDS:
        found.calls.leave_out(OTHERS.get(code, "other"))
        return
    kind = KINDS[code]
    if not isinstance(size, int) or size >= LARGEST:
        raise DataError(f"{kind}: comm_size is implausible: {quoted(size)}")
    if duration >= LARGEST:
        raise DataError(f"{kind}: duration_micros is implausible: {duration}")
    group = group if isinstance(group, str) else ""
    number = own.numbers[group, kind]
    own.numbers[group, kind] += 1
    if not duration:
        found.calls.untimed += 1
        return
    communicator, count = members_in(own.groups, group, hints)
    if count < 2 or not size:
        return
    whole = size * (count if kind == "all_gather" else 1)
    if whole >= LARGEST or len(own.numbers) > MOST_GROUPS:
        raise DataError("has sizes or groups that no job has")
    found.nccl &= b"nccl" in name
    found.calls.add(RankCall(CommunicatorShape(count), communicator, own.rank, kind, whole, duration * 1e-6, number))
