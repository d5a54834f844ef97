"""Chakra execution traces as its converter writes them of a PyTorch job, by an encoder of protobuf of its own.

The numbers of fields are those of et_def.proto (Chakra, schema/protobuf). The converter notes how long nodes took, and
not when they began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = {"AllReduce": 0, "AllGather": 2, "Broadcast": 5, "ReduceScatter": 7}
TOTAL = {"AllReduce": 1.0, "AllGather": 0.5, "ReduceScatter": 0.5, "Broadcast": 0.5}
"""Bytes that cross the network, in those of the whole message, roughly."""
METADATA, COMPUTATION, SEND, COLLECTIVE = 1, 4, 5, 7


@dataclass(frozen=True)
class Traced:
    """A job; ``sizes`` are the bytes that one rank puts in."""

    ranks: int = 4
    kinds: Sequence[str] = ("AllReduce",)
    sizes: Sequence[int] = (2**20, 2**22, 2**24)
    repeats: int = 3
    waits: int = 0
    """Microseconds that a rank waits for the last one in a call, unless it is the last itself."""
    timed: bool = True
    listed: bool = True
    group: str = "0"
    computing: int = 4
    schema: str = "1.1.1-chakra.0.0.4"

    def whole(self, kind: str, size: int) -> int:
        """The bytes that cost models count."""
        return size * (self.ranks if kind == "AllGather" else 1)

    def time(self, kind: str, size: int) -> int:
        """Microseconds of a collective between ranks that begin together."""
        return round(30 + TOTAL[kind] * self.whole(kind, size) / 20_000)


def varint(value: int) -> bytes:
    """A whole number, seven bits a byte, the lowest first."""
    found = bytearray()
    while True:
        found.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(found)


def field(number: int, value: int | bytes | str) -> bytes:
    """A number, or bytes behind their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def attribute(name: str, number: int, value: int | str) -> bytes:
    """A named value; its number is that of its type: 9 of int64, 13 of uint64, 27 of bool, 29 of a text."""
    return field(1, name) + field(number, value)


def delimited(message: bytes) -> bytes:
    """A message behind its length."""
    return varint(len(message)) + message


def start(job: Traced) -> bytes:
    """The message that begins a file."""
    values = (
        attribute("schema", 29, job.schema), attribute("pid", 13, 4000), attribute("time", 29, "2025-03-01 10:00:00"),
        attribute("start_ts", 13, 17_119_646), attribute("finish_ts", 13, 17_129_646),
    )  # fmt: skip
    return delimited(b"".join(field(2, one) for one in values))


def node(number: int, name: str, kind: int, time: int = 0, values: str = "[]", more: Sequence[bytes] = ()) -> bytes:
    """A node with the fields that the converter sets."""
    put = field(1, values) + field(2, "[[]]") + field(3, "['Tensor(float)']")
    common = (
        attribute("rf_id", 9, number), attribute("fw_parent", 9, 0), attribute("seq_id", 9, 2**64 - 1),
        attribute("scope", 9, 0), attribute("tid", 9, 1), attribute("fw_tid", 9, 0), attribute("op_schema", 29, ""),
        attribute("is_cpu_op", 27, int(kind in (METADATA, COMPUTATION))), attribute("stream", 9, 20),
    )  # fmt: skip
    timed = field(7, time) if time else b""
    head = field(1, number) + field(2, name) + field(3, kind) + field(5, varint(max(0, number - 1)))
    return delimited(
        head + timed + field(8, put) + field(9, put) + b"".join(field(10, one) for one in (*common, *more))
    )


def collective(job: Traced, number: int, kind: str, size: int, time: int) -> bytes:
    """The node of a collective's kernel."""
    group = [attribute("pg_name", 29, job.group)] if job.group else []
    more = [attribute("comm_type", 9, KINDS[kind]), attribute("comm_size", 9, size), *group]
    name = f"ncclDevKernel_{kind}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return node(number, name, COLLECTIVE, time, more=more)


def groups(job: Traced) -> str:
    """The process groups as PyTorch notes them: a text in a list."""
    listed: list[dict[str, Any]] = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": job.ranks, "ranks": []},
        {"pg_name": "1", "pg_desc": "pairs", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]},
    ]
    return str([json.dumps(listed)])


def messages(job: Traced, rank: int = 0) -> Iterator[bytes]:
    """The messages of a rank's file."""
    yield start(job)
    if job.listed:
        yield node(1, "## process_group:init ##", METADATA, values=groups(job))
    number, call = 1, 0
    for kind in job.kinds:
        for _ in range(job.repeats):
            for size in job.sizes:
                for _ in range(max(1, job.computing // (job.repeats * len(job.sizes) * len(job.kinds)))):
                    number += 1
                    yield node(number, "aten::mm", COMPUTATION, 25, values="[[12, 13, 0, 4194304, 4, 'cuda:0']]")
                number += 1
                time = job.time(kind, size) + (job.waits if call % job.ranks != rank else 0)
                yield collective(job, number, kind, size, time if job.timed else 0)
                call += 1


def content(job: Traced, rank: int = 0) -> bytes:
    """The file of a rank."""
    return b"".join(messages(job, rank))
