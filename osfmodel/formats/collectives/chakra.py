"""Chakra execution traces in protobuf: the kernels of a rank's collectives, with bytes and durations.

Chakra's converter makes them of PyTorch's execution trace linked with a trace of torch.profiler. It notes how long
nodes took and not when they began, so no step can be told: durations give prices by size. Numbers of fields and kinds
are those of et_def.proto (Chakra, schema/protobuf).

A file is a stream of messages of Protocol Buffers, each behind its length. Only what the encoding itself says is read:
numbers of fields with whole numbers, bytes, or values of fixed width.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from osfmodel.formats.source_text import Files, Hints

LONGEST = 2**24
"""Maximum bytes of a message."""
MOST_DIGITS = 10
"""Maximum bytes of a whole number."""
FIXED = {1: 8, 5: 4}
"""Bytes of the types of values with a fixed width."""
WHOLE, BYTES = 0, 2
"""Types of values: whole numbers, and bytes behind their length."""


def delimited(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """(number, message, whether it is whole) for each message, from 0 on; only the last may be cut off.

    Raises DataError for lengths that no message has.
    """
    rest = iter(pieces)
    held, place, number = b"", 0, 0
    while True:
        try:
            length, start = varint(held, place)
            cut = start + length > len(held)
        except IndexError:
            length, start, cut = 0, place, True
        except DataError as error:
            raise DataError(f"message {number}: {error}") from None
        if length > LONGEST:
            raise DataError(f"message {number}: is longer than {LONGEST >> 20} MiB, the maximum for a node")
        if not cut:
            yield number, held[start : start + length], True
            place, number = start + length, number + 1
            continue
        more = _taken(rest, max(1, start + length - len(held)))
        held, place = held[place:] + more, 0
        if not more:
            if held:
                yield number, held, False
            return


def _taken(rest: Iterator[bytes], count: int) -> bytes:
    """The next pieces with so many bytes at least, if there are so many."""
    found: list[bytes] = []
    while count > 0 and (piece := next(rest, None)) is not None:
        found.append(piece)
        count -= len(piece)
    return b"".join(found)


def varint(content: bytes, place: int) -> tuple[int, int]:
    """A whole number at a place, and the place behind it. Raises IndexError where the content ends before it does."""
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
        shift += 7
        if shift >= 7 * MOST_DIGITS:
            raise DataError("has a number of more than 64 bits")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field in order: whole numbers as such, all else as bytes.

    Raises DataError for a message that is damaged.
    """
    place, end = 0, len(message)
    while place < end:
        try:
            key, place = varint(message, place)
            kind = key & 7
            if kind == WHOLE:
                value, place = varint(message, place)
                yield key >> 3, value
                continue
            if kind == BYTES:
                length, place = varint(message, place)
            elif kind in FIXED:
                length = FIXED[kind]
            else:
                raise DataError(f"has a field of type {kind}, which no message has")
        except IndexError:
            raise DataError("ends within a number") from None
        if place + length > end:
            raise DataError("ends within a field")
        yield key >> 3, message[place : place + length]
        place += length


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
