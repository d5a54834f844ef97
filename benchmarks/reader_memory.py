"""How much memory large files take to read. Run it where some gigabytes of disk are free:

    python benchmarks/reader_memory.py [--megabytes 2000] [--formats nsight-systems ...] [--folder FOLDER]

It writes files of a made-up job in the layout of the tools that write them: an SQLite export of Nsight Systems, logs of
NCCL Inspector, a Chakra execution trace, dumps of PyTorch's flight recorder. Each is given to the ``osf`` commands that
read it, in a process of its own, whose largest resident set is printed beside the aim of 300 MiB. A step has 1,900
kernels of a microsecond's distance, 24 collectives in 4 sizes, and calls of the host for each, as a transformer's has.
Dumps of the flight recorder are rings of a set length: theirs are as large as any that is read. --folder keeps the
files for a further run. Some five minutes of two cores.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.trace_import import run
from tests.formats import chakra_traces, flight_dumps, inspector_logs
from tests.formats.nsight_reports import CALL_SCHEMA, COMM_SCHEMA, COMMUNICATOR, FIELDS, TABLES, blob

MOST_MIB = 300
KERNELS, COLLECTIVES, RANKS = 1900, 24, 8
SIZES = (2**20, 2**22, 2**24, 2**25)
PROCESS = 4000
WIDE = """, contextInfo INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER, gridY INTEGER,
 gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER,
 localMemoryPerThread INTEGER, localMemoryTotal INTEGER, gridId INTEGER, sharedMemoryExecuted INTEGER,
 sharedMemoryLimitConfig INTEGER);"""
"""The columns of kernels that Nsight Systems writes beside those which are read."""
WIDTH = (0, 0, 0, 40, 1, 1, 512, 1, 1, 4224, 0, 0, 137363456, 0, 65536, 0)
PLAIN_CALLS = ("cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020")
BATCH = 50


class NsightWriter:
    """Writes step after step of one process; times in nanoseconds."""

    def __init__(self, path: Path) -> None:
        self.path, self.random = path, Random(9)
        self.host, self.device, self.number = 10**9, 10**9, 0
        self.strings: dict[str, int] = {}
        self.database = sqlite3.connect(path)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "page_size = 4096"):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.executescript(TABLES.replace("gridX INTEGER);", "gridX INTEGER" + WIDE))
        self.kernels: list[tuple[Any, ...]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.ranges: list[tuple[Any, ...]] = []
        self.add("TARGET_INFO_SYSTEM_ENV", [(0, "", "Hostname", 0, "node-0")])
        self.add("TARGET_INFO_SESSION_START_TIME", [(1711964646000000000, "", "")])
        self.add("TARGET_INFO_GPU", [(0, 0, "NVIDIA H100 80GB HBM3", "")])
        fields = [(1, schema, place, None, 18, name, None, None, offset) for schema, place, name, offset in FIELDS]
        self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", fields)
        self._range("ncclCommInitRankConfig", 1, 2, blob(COMM_SCHEMA, struct.pack("<QII", COMMUNICATOR, RANKS, 0)))

    def add(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows."""
        if rows:
            self.database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def string(self, text: str) -> int:
        """The number of a text."""
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", [(self.strings[text], text)])
        return self.strings[text]

    def step(self, number: int) -> None:
        """Kernels on one stream, and collectives beside the second half of them on another."""
        begin = self.host
        every = KERNELS // 2 // COLLECTIVES
        arrived = self.device
        for place in range(KERNELS):
            self._launch("cudaLaunchKernel_v7000", 4000)
            start = max(self.device + 1000, self.host + 3000)
            self.device = start + self.random.randrange(4_000, 40_000)
            self._kernel(f"sm90_xmma_gemm_bf16_{place % 90}_tilesize128x128x64", start, self.device, 7)
            self._call(PLAIN_CALLS[place % 2], 700)
            if place * 2 >= KERNELS and place % every == 0:
                arrived = self._collective(SIZES[place // every % len(SIZES)], arrived)
        self.device = max(self.device, arrived)
        middle = begin + (self.host - begin) // 2
        self._range("backward", middle, self.host)
        self._range("optimizer step", self.host, self.host + 90_000)
        self.host += 100_000
        self._range(f"step {number}", begin, self.host)
        self.host = max(self.host, self.device - 5_000_000)

    def _collective(self, size: int, arrived: int) -> int:
        begin = self.host
        self._launch("cudaLaunchKernelExC_v11060", 8000)
        payload = blob(CALL_SCHEMA, struct.pack("<QQI", COMMUNICATOR, size, 0))
        self._range("ncclGroupStart", begin, begin + 500)
        self._range("ncclAllReduce", begin + 600, begin + 1400, payload)
        self._range("ncclGroupEnd", begin + 1500, self.host)
        start = max(self.device, arrived) + 1000
        end = start + 20_000 + size // 100
        self._kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start, end, 20)
        return end

    def _launch(self, name: str, time: int) -> None:
        self.number += 1
        self._call(name, time)

    def _call(self, name: str, time: int) -> None:
        start, self.host = self.host, self.host + self.random.randrange(time // 2, time)
        row = (start, self.host, 0, (PROCESS << 24) + 1, self.number, self.string(name), 0)
        self.calls.append(row)

    def _kernel(self, name: str, start: int, end: int, stream: int) -> None:
        key = self.string(name)
        self.kernels.append((start, end, 0, 1, stream, self.number, PROCESS << 24, key, key, 64, *WIDTH))

    def _range(self, name: str, start: int, end: int, payload: bytes | None = None) -> None:
        thread = (PROCESS << 24) + 1
        self.ranges.append((start, end, 59, None, None, None, name, thread, None, None, 1, None, None, payload))

    def flush(self) -> None:
        """Write what has come together."""
        for table, rows in (("KERNEL", self.kernels), ("RUNTIME", self.calls)):
            self.add(f"CUPTI_ACTIVITY_KIND_{table}", rows)
            rows.clear()
        self.add("NVTX_EVENTS", self.ranges)
        self.ranges.clear()
        self.database.commit()


def write_nsight(folder: Path, length: float) -> str:
    """A report of one process."""
    writer = NsightWriter(folder / "report.sqlite")
    for number in count():
        writer.step(number)
        if number % BATCH == 0:
            writer.flush()
            if writer.path.stat().st_size >= length:
                break
    writer.flush()
    writer.database.close()
    return f"{number + 1:,} steps"


def write_inspector(folder: Path, length: float) -> str:
    """The logs of eight ranks."""
    job = inspector_logs.Logged(ranks=RANKS, sizes=SIZES, repeats=500, version="v4.3")
    lines = 0
    for rank in range(RANKS):
        with (folder / f"node-0-pid{rank}.log").open("wb") as file:
            while file.tell() < length / RANKS:
                content = inspector_logs.text(job, rank).encode()
                file.write(content)
                lines += content.count(b"\n")
    return f"{lines:,} lines"


def write_chakra(folder: Path, length: float) -> str:
    """The trace of one rank, with the nodes of a step over and over."""
    job = chakra_traces.Traced(ranks=RANKS, sizes=SIZES, repeats=COLLECTIVES // len(SIZES), computing=KERNELS)
    begin, *nodes = chakra_traces.messages(job)
    block = b"".join(nodes)
    with (folder / "rank.0.et").open("wb") as file:
        file.write(begin)
        for steps in count(1):
            file.write(block)
            if file.tell() >= length:
                return f"{steps:,} steps"
    raise AssertionError


def write_dump(folder: Path, length: float) -> str:
    """A dump as JSON, of the largest size that is read."""
    return _dumped(folder / "rank0.json", flight_dumps.text, 31e6)


def write_pickle(folder: Path, length: float) -> str:
    """A dump as a pickle, of the largest size that is read."""
    return _dumped(folder / "nccl_trace_rank_0", flight_dumps.pickled, 8e6)


def _dumped(path: Path, written: Callable[[Any, int], str | bytes], length: float) -> str:
    repeats = 200
    size = len(written(flight_dumps.Dumped(repeats=repeats), 0))
    repeats = int(repeats * length / size)
    content = written(flight_dumps.Dumped(repeats=repeats), 0)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return f"{repeats * 3:,} collectives"


WRITERS: Mapping[str, tuple[Callable[[Path, float], str], Sequence[Sequence[str]]]] = {
    "nsight-systems": (write_nsight, (["import", "-o"], ["explain"])),
    "nccl-inspector": (write_inspector, (["import", "-o"],)),
    "chakra": (write_chakra, (["import", "-o"],)),
    "flight-recorder": (write_dump, (["import", "-o"],)),
    "flight-recorder-pickle": (write_pickle, (["import", "-o"],)),
}
"""Formats: what writes a folder of such files, and the commands that read it."""


def measured(name: str, folder: Path, megabytes: float) -> Iterator[dict[str, object]]:
    """A row for each command."""
    write, commands = WRITERS[name]
    if not folder.exists():
        folder.mkdir(parents=True)
        print(f"writing {name}", file=sys.stderr, flush=True)
        print(write(folder, megabytes * 1e6), file=sys.stderr, flush=True)
    length = sum(path.stat().st_size for path in folder.iterdir())
    with tempfile.TemporaryDirectory() as output:
        for command in commands:
            given = [command[0], str(folder), *(["-o", f"{output}/"] if "-o" in command else [])]
            begin = time.perf_counter()
            found = run([sys.executable, "-m", "osfmodel", *given])
            yield {
                "format": name,
                "mb": round(length / 1e6),
                "command": f"osf {command[0]}",
                "seconds": round(time.perf_counter() - begin, 1),
                "memory_mib": round(found.memory),
                "aim_mib": MOST_MIB,
                "met": found.memory <= MOST_MIB,
            }


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--formats", nargs="+", choices=WRITERS, default=list(WRITERS))
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    columns = ("format", "mb", "command", "seconds", "memory_mib", "aim_mib", "met")
    print("".join(f"{column:>26}" for column in columns))
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        into = chosen.folder or Path(folder)
        for name in chosen.formats:
            for row in measured(name, into / name, chosen.megabytes):
                print("".join(f"{row[column]!s:>26}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
