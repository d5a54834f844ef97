"""How fast profiler traces are imported, and in how much memory. Run it on a machine that does little else:

    python benchmarks/trace_import.py [--repeats 5] [--small 240] [--large 2000] [--json] [--hta [PYTHON]]

It writes traces of a DDP job, step after step of some 8,000 events with the layout, names and args of Kineto's, packs
them, and gives each to ``osf import`` in a process of its own, in turn with ``gzip -dc`` of the same file and with
reading alone, without what the events mean. Sizes are megabytes unpacked. Seconds are medians of rounds, of the whole
process with its start-up; the aim is at most twice the seconds of gzip plus 1.5 (``spare_s`` is what remains). Memory
is the largest resident set of a process. A miss of an aim is printed as a miss. Some five minutes on two quiet cores,
and 200 MB of disk.

--hta instead gives the small trace, by turns, to ``osf explain``, ``osf import`` and HolisticTraceAnalysis, which
parses it and says how communication overlaps computation (get_comm_comp_overlap, get_temporal_breakdown). PYTHON is the
interpreter where HolisticTraceAnalysis is installed. The aim is that it takes at least five times as long.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

BEYOND_GZIP_S = 1.5
MOST_MIB = {"small": 700, "large": 300}
"""Memory that an import may take."""
READ_ALONE = """
import sys
from pathlib import Path
from osfmodel.formats.kineto.events import read_events
wanted = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "user_annotation")
print(sum(1 for one in read_events([Path(sys.argv[1])], lambda cat, name: cat in wanted) for _ in one.events))
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_dir=sys.argv[1])
if len(sys.argv) > 2:
    trace.get_comm_comp_overlap(visualize=False), trace.get_temporal_breakdown(visualize=False)
"""
NO_HTA = (
    "HolisticTraceAnalysis is not installed for {}: python -m venv hta && hta/bin/pip install HolisticTraceAnalysis "
    "'pandas<3', then --hta hta/bin/python"
)
LEAST_TIMES = 5.0
"""Seconds of HolisticTraceAnalysis in those of osf explain, at least."""
HOST, AUTOGRAD, COMPUTE, COMMUNICATION = 2910249, 2919752, 7, 40
FORWARD = (
    "aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution", "aten::batch_norm",
    "aten::_batch_norm_impl_index", "aten::cudnn_batch_norm", "aten::relu_", "aten::clamp_min_", "aten::add_",
)  # fmt: skip
BACKWARD = ("autograd::engine::evaluate_function: ConvolutionBackward0", "ConvolutionBackward0",
            "aten::convolution_backward", "aten::empty", "aten::detach", "detach")  # fmt: skip
ACCUMULATE = ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "torch::autograd::AccumulateGrad",
              "aten::copy_")  # fmt: skip
KERNELS = (
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct, float const*, "
    "cudnnTensorStruct, float*, float const*, float const*, float, float, float*, float*, float*, float)",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1",
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3> >(int, at::detail::Array<char*, 3>)",
)
BUCKETS = (2049000, 7875584, 6563840, 6637568, 2431040)
LAYERS = 161
HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA A100-PG509-200", "totalGlobalMem": 42297524224, "numSms": 108
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
  "traceEvents": [
"""
FOOTER = """
  ],
  "traceName": "trace.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1711964646000000000
}
"""


class Writer:
    """Writes the events of step after step, each later than the one before; ``length`` in bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.random = file, random.Random(9)
        self.now, self.device, self.arrived = 4458676416788.0, 0.0, 0.0
        self.number, self.steps, self.length = 0, 0, 0

    def write(self, text: str) -> None:
        """As it stands."""
        content = text.encode()
        self.file.write(content)
        self.length += len(content)

    def step(self) -> None:
        """Forward and backward of 161 tensors, five collectives beside the backward, an update."""
        begin = self.now
        self.device = max(self.device, begin)
        events = [*self._forward(), *self._backward(), *self._update()]
        self.now = max(self.now, self.device) + 50
        events.append(self._annotation(f"ProfilerStep#{self.steps}", begin, self.now))
        self.write((",\n" if self.steps else "") + ",\n".join(events))
        self.steps += 1

    def _forward(self) -> Iterator[str]:
        begin = self.now
        for layer in range(LAYERS):
            yield from self._frames(layer)
            yield from self._operators(FORWARD, HOST, self._sequence(layer, 0))
            for _ in range(2):
                yield from self._kernel(HOST)
        yield self._annotation("DistributedDataParallel.forward", begin, self.now)

    def _backward(self) -> Iterator[str]:
        ends = [LAYERS * (bucket + 1) // len(BUCKETS) - 1 for bucket in range(len(BUCKETS))]
        for layer in range(LAYERS):
            yield from self._operators(BACKWARD, AUTOGRAD, self._sequence(LAYERS - 1 - layer, 1))
            for _ in range(3):
                yield from self._kernel(AUTOGRAD)
            yield from self._operators(ACCUMULATE, AUTOGRAD)
            if layer in ends:
                yield from self._collective(BUCKETS[ends.index(layer)])

    def _update(self) -> Iterator[str]:
        begin, self.device = self.now, max(self.device, self.arrived)
        for _ in range(LAYERS // 4):
            yield from self._operators(("aten::_foreach_add_",), HOST)
            yield from self._kernel(HOST)
        yield self._annotation("Optimizer.step#SGD.step", begin, self.now)

    def _later(self, most: float) -> float:
        self.now += self.random.uniform(0.5, most)
        return self.now

    def _complete(self, category: str, name: str, thread: str, span: tuple[float, float], args: str) -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", {thread},\n'
            f'    "ts": {span[0]:.3f}, "dur": {span[1] - span[0]:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'
        )

    def _host(self, category: str, name: str, thread: int, span: tuple[float, float], more: str = "") -> str:
        self.number += 1
        args = f'"External id": {self.number},"Record function id": {self.number}, "Ev Idx": {self.number}{more}'
        return self._complete(category, name, f'"pid": {HOST}, "tid": {thread}', span, args)

    def _annotation(self, name: str, begin: float, end: float) -> str:
        return self._host("user_annotation", name, HOST, (begin, end))

    def _frames(self, layer: int) -> Iterator[str]:
        for depth in range(12):
            name = f"torch/nn/modules/module.py({1500 + depth}): _call_impl_{layer % 40}"
            args = f'"Python parent id": {self.number}, "Python id": {self.number + 1}, "Ev Idx": {self.number}'
            begin = self._later(1.0)
            thread = f'"pid": {HOST}, "tid": {HOST}'
            yield self._complete("python_function", name, thread, (begin, begin + 40 - 2 * depth), args)

    def _sequence(self, layer: int, thread: int) -> str:
        return f', "Sequence number": {self.steps * LAYERS + layer}, "Fwd thread id": {thread}'

    def _operators(self, names: Sequence[str], thread: int, more: str = "") -> Iterator[str]:
        for depth, name in enumerate(names):
            begin = self._later(3.0)
            yield self._host("cpu_op", name, thread, (begin, begin + 30 - 2 * depth), more)

    def _launch(self, thread: int, device: int, begin: float) -> Iterator[str]:
        flow = f'"id": {self.number}, "pid": {{}}, "tid": {{}}, "ts": {{:.3f}},\n    "cat": "ac2g", "name": "ac2g"'
        args = f'"External id": {self.number},      "cbid": 211, "correlation": {self.number}'
        launched = (self.now, self._later(12.0))
        yield self._complete("cuda_runtime", "cudaLaunchKernel", f'"pid": {HOST}, "tid": {thread}', launched, args)
        yield f'  {{\n    "ph": "s", {flow.format(HOST, thread, launched[0])}\n  }}'
        yield f'  {{\n    "ph": "f", {flow.format(0, device, begin)}, "bp": "e"\n  }}'

    def _kernel(self, thread: int) -> Iterator[str]:
        self.number += 1
        begin = max(self.device, self.now + 5)
        self.device = begin + self.random.uniform(2, 90)
        yield self._on_device(KERNELS[self.number % len(KERNELS)], COMPUTE, (begin, self.device), "")
        yield from self._launch(thread, COMPUTE, begin)

    def _collective(self, elements: int) -> Iterator[str]:
        self.number += 1
        begin = max(self.device, self.arrived) + 10
        self.arrived = begin + elements / 2000
        args = (
            f', "Collective name": "allreduce", "In msg nelems": {elements}, "Out msg nelems": {elements}, '
            '"Group size": 2, "dtype": "Float", "In split size": "[]", "Out split size": "[]", '
            '"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"'
        )
        name = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
        yield self._on_device(name, COMMUNICATION, (begin, self.arrived), args)
        yield from self._launch(AUTOGRAD, COMMUNICATION, begin)

    def _on_device(self, name: str, stream: int, span: tuple[float, float], more: str) -> str:
        args = (
            f'"External id": {self.number},      "queued": 0, "device": 0, "context": 1,      "stream": {stream}, '
            f'"correlation": {self.number},      "registers per thread": 40,      "shared memory": 4224,      '
            '"blocks per SM": 0.592593,      "warps per SM": 9.481482,      "grid": [64, 1, 1],      '
            f'"block": [512, 1, 1],      "est. achieved occupancy %": 15{more}'
        )
        return self._complete("kernel", name, f'"pid": 0, "tid": {stream}', span, args)


def write_trace(path: Path, megabytes: float) -> tuple[int, int]:
    """A packed trace of at least so many megabytes; (bytes unpacked, steps)."""
    with gzip.open(path, "wb", compresslevel=6) as file:
        writer = Writer(file)
        writer.write(HEADER)
        while writer.length < megabytes * 1e6:
            writer.step()
        writer.write(FOOTER)
    return writer.length, writer.steps


class Run(NamedTuple):
    """Costs of one process: seconds on the clock, seconds of processors, MiB at most."""

    seconds: float
    processor: float
    memory: float


def run(command: Sequence[str]) -> Run:
    """A process that must succeed."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    said = process.communicate()[1].decode()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ... ended with {process.returncode}: {said}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def measured(path: Path, repeats: int) -> dict[str, list[Run]]:
    """Each way once per round, all ways in turn."""
    output = str(path.with_suffix(".out.json"))
    ways = {
        "gzip -dc": ["gzip", "-dc", str(path)],
        "osf import": [sys.executable, "-m", "osfmodel", "import", str(path), "--kind", "workload", "-o", output],
        "reading alone": [sys.executable, "-c", READ_ALONE, str(path)],
    }
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(repeats):
        print(f"{path.name}: round {number + 1} of {repeats}", file=sys.stderr, flush=True)
        for name, command in ways.items():
            found[name].append(run(command))
    return found


def row_of(size: str, way: str, found: dict[str, list[Run]], length: int) -> dict[str, object]:
    """Medians over the rounds, against gzip in the same round, and the aims."""
    pairs = list(zip(found[way], found["gzip -dc"], strict=True))
    memory = max(one.memory for one in found[way])
    row: dict[str, object] = {"trace_mb": round(length / 1e6), "way": way}
    row["seconds"] = round(statistics.median(one.seconds for one in found[way]), 2)
    row["processor_s"] = round(statistics.median(one.processor for one in found[way]), 2)
    row["times_gzip"] = round(statistics.median(one.seconds / zipped.seconds for one, zipped in pairs), 2)
    row["memory_mib"] = round(memory)
    if way == "osf import":
        spare = statistics.median(2 * zipped.seconds + BEYOND_GZIP_S - one.seconds for one, zipped in pairs)
        row |= {"spare_s": round(spare, 2), "aim_mib": MOST_MIB[size]}
        row["met"] = memory < MOST_MIB[size] and (size != "small" or spare >= 0)
    return row


def beside_hta(python: str, folder: Path, megabytes: float, repeats: int) -> None:
    """Print the seconds of HolisticTraceAnalysis on a trace, in those of osf, by turns as whole processes."""
    if subprocess.run([python, "-c", "import hta"], capture_output=True, check=False).returncode:
        raise SystemExit(NO_HTA.format(python))
    traces = folder / "hta"
    traces.mkdir()
    path = traces / "rank0.json.gz"
    length, steps = write_trace(path, megabytes)
    osf = [sys.executable, "-m", "osfmodel"]
    ways = {
        "hta, all": [python, "-c", HTA, str(traces), "all"],
        "hta, parsing": [python, "-c", HTA, str(traces)],
        "osf explain": [*osf, "explain", str(path)],
        "osf import": [*osf, "import", str(path), "--kind", "workload", "-o", str(folder / "out.json")],
        "osf, reading": [sys.executable, "-c", READ_ALONE, str(path)],
    }
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(repeats + 1):  # the first compiles, and does not count
        print(f"round {number} of {repeats}", file=sys.stderr, flush=True)
        for name, command in ways.items():
            used = run(command)
            found[name] += [used] if number else []
    print(f"{length / 1e6:.0f} MB, {steps} steps, {repeats} rounds; medians of whole processes")
    for name, runs in found.items():
        seconds, memory = statistics.median(one.seconds for one in runs), max(one.memory for one in runs)
        print(f"{name:>14}: {seconds:8.2f} s, {memory:6.0f} MiB")
    for theirs, ours in (("hta, all", "osf explain"), ("hta, all", "osf import"), ("hta, parsing", "osf, reading")):
        pairs = list(zip(found[theirs], found[ours], strict=True))
        times = [one.seconds / other.seconds for one, other in pairs]
        of_processor = statistics.median(one.processor / other.processor for one, other in pairs)
        median = statistics.median(times)
        aim = f"; aim {LEAST_TIMES:g}: {'met' if median >= LEAST_TIMES else 'missed'}" if ours == "osf explain" else ""
        print(
            f"{theirs} / {ours}: {median:.1f} times the seconds ({min(times):.1f} to {max(times):.1f}), "
            f"{of_processor:.1f} times the processor's{aim}"
        )


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", type=float, default=240, metavar="MB")
    parser.add_argument("--large", type=float, default=2000, metavar="MB", help="0 for none")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hta", nargs="?", const=sys.executable, metavar="PYTHON")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled, as what is installed is
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        if chosen.hta:
            beside_hta(chosen.hta, Path(folder), chosen.small, chosen.repeats)
            return
        for size, megabytes in (("small", chosen.small), ("large", chosen.large)):
            path = Path(folder) / f"{size}.json.gz"
            if megabytes:
                print(f"writing {megabytes:g} MB", file=sys.stderr, flush=True)
                length, steps = write_trace(path, megabytes)
                print(f"{steps} steps, {path.stat().st_size / 1e6:.0f} MB packed", file=sys.stderr, flush=True)
                found = measured(path, chosen.repeats)
                rows += [row_of(size, way, found, length) for way in found]
    if chosen.json:
        print(json.dumps(rows, indent=2))
        return
    columns = ("trace_mb", "way", "seconds", "processor_s", "times_gzip", "spare_s", "memory_mib", "aim_mib", "met")
    for cells in (dict(zip(columns, columns, strict=True)), *rows):
        print("".join(f"{cells.get(column, '')!s:>15}" for column in columns))


if __name__ == "__main__":
    main()
