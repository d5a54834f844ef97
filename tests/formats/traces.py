"""Traces of jobs that never ran, written as torch.profiler writes them, and what must be read from them.

Each rank computes forward, then gradient after gradient, each of which its hook copies into its bucket; a full bucket
is all-reduced on a stream of its own, when all ranks have come to it; then the update. Times are whole microseconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

BASE = 1_700_000_000_000_000_000
THREAD, BACKWARD_THREAD, COMPUTE, COMMUNICATION = 100, 101, 7, 20


@dataclass(frozen=True)
class Job:
    """A job to trace.

    buckets:  elements of each gradient of each bucket, in ready order
    late:     microseconds by which a rank's forward is longer, by rank
    clocks:   microseconds by which a rank's clock is ahead
    lead:     microseconds by which the host runs ahead of the device
    sizes:    where sizes are written: kernel, host, dims or nowhere
    shapes:   whether gradients have Input Dims
    gap:      microseconds between the update and the next forward
    metric:   microseconds that a last all-reduce takes after the update, which nobody waits for
    """

    buckets: tuple[tuple[int, ...], ...] = ((100, 200), (300,), (50, 60, 70))
    steps: int = 3
    micro_batches: int = 1
    forward: int = 400
    gradient: int = 50
    update: int = 80
    latency: int = 30
    late: tuple[int, ...] = (0,)
    clocks: tuple[int, ...] = (0,)
    lead: int = 200
    sizes: str = "kernel"
    shapes: bool = True
    kernel: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    annotated: bool = True
    sequence: bool = False
    gap: int = 0
    metric: int = 0

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.late)

    def transfer(self, bucket: int) -> int:
        """Microseconds that a bucket takes once all have come to it."""
        return self.latency + sum(self.buckets[bucket]) // 10


@dataclass
class Expected:
    """Expected intervals of one step of one rank's device, in microseconds of the job; ``first``: its first work."""

    start: int
    first: int = 0
    end: int = 0
    forward: tuple[int, int] = (0, 0)
    backward: tuple[int, int] = (0, 0)
    update: tuple[int, int] = (0, 0)
    ready: list[int] = field(default_factory=list)
    reductions: list[tuple[int, int]] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)


def expected(job: Job) -> list[list[Expected]]:
    """By rank and step."""
    found: list[list[Expected]] = [[] for _ in range(job.ranks)]
    free = [1000] * job.ranks
    for number in range(job.steps):
        steps = [Expected(found[rank][-1].end if number else free[rank]) for rank in range(job.ranks)]
        for rank, step in enumerate(steps):
            _compute(job, step, free[rank], job.late[rank])
        _communicate(job, steps)
        for rank, step in enumerate(steps):
            begin = max(step.backward[1], step.reductions[-1][1])
            step.update = (begin, begin + job.update)
            free[rank] = step.update[1] + job.gap
            last = number + 1 == job.steps
            step.end = step.update[1] + (job.metric if last else min(job.metric, job.gap))
            found[rank].append(step)
    return found


def _compute(job: Job, step: Expected, now: int, late: int) -> None:
    step.first = now
    count = sum(map(len, job.buckets))
    for _ in range(job.micro_batches):
        step.forward = (now, now + job.forward + late)
        step.ready = [step.forward[1] + job.gradient * (place + 1) for place in range(count)]
        step.backward = (step.forward[1], step.ready[-1])
        now = step.ready[-1]


def _communicate(job: Job, steps: list[Expected]) -> None:
    done, place = [0] * len(steps), -1
    for number, bucket in enumerate(job.buckets):
        place += len(bucket)
        starts = [max(step.ready[place], done[rank]) for rank, step in enumerate(steps)]
        end = max(starts) + job.transfer(number)
        for rank, step in enumerate(steps):
            step.reductions.append((starts[rank], end))
            step.arrivals.append(max(starts))
            done[rank] = end


class Writer:
    """The events of one rank."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.clock, self.events, self.correlation, self.node = job, job.clocks[rank], [], 0, 0
        self.counts = 0

    def event(self, cat: str, name: str, start: float, end: float, tid: object, **args: object) -> None:
        """One complete event on the rank's own clock."""
        times = {"ts": start + self.clock, "dur": end - start}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times, "args": args})

    def kernel(
        self, name: str, start: int, end: int, stream: int, launched: float, thread: int, **args: object
    ) -> None:
        """A kernel and the call that submitted it."""
        self.correlation += 1
        where = {"stream": stream, "correlation": self.correlation}
        self.event("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, thread, correlation=self.correlation)
        self.event("kernel", name, start, end, stream, **where, **args)

    def node_of(self, name: str, start: float, end: float, **args: object) -> None:
        """A node of autograd's."""
        self.event("cpu_op", f"autograd::engine::evaluate_function: {name}", start, end, BACKWARD_THREAD, **args)


def trace(job: Job, rank: int = 0) -> dict[str, object]:
    """The file of one rank."""
    writer = Writer(job, rank)
    first = [step.first - job.lead - 5 for step in expected(job)[rank]]
    for number, step in enumerate(expected(job)[rank]):
        begin, end = first[number], first[number + 1] if number + 1 < len(first) else step.end - job.lead + 5
        if job.annotated:
            writer.event("user_annotation", f"ProfilerStep#{number + 5}", begin, end, THREAD)
        _write_step(writer, step, job.late[rank])
    told = {"backend": "nccl", "rank": rank, "world_size": job.ranks}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU X"}],
        "distributedInfo": told,
        "traceEvents": writer.events,
        "baseTimeNanoseconds": BASE,
    }


def text(job: Job, rank: int = 0) -> str:
    """The same as JSON."""
    return json.dumps(trace(job, rank))


def _write_step(writer: Writer, step: Expected, late: int) -> None:
    job, lead = writer.job, writer.job.lead
    length = job.forward + late + job.gradient * sum(map(len, job.buckets))
    for batch in range(job.micro_batches):
        start = step.first + batch * length
        writer.kernel("forward", start, start + job.forward + late, COMPUTE, start - lead, THREAD)
        _write_backward(writer, step, start + job.forward + late, last=batch == job.micro_batches - 1)
    begin, end = step.update
    writer.event("user_annotation", "Optimizer.step#SGD.step", begin - lead - 1, begin - lead + 3, THREAD)
    writer.kernel("update", begin, end, COMPUTE, begin - lead, THREAD)
    if job.metric:
        writer.kernel(job.kernel, end, end + job.metric, COMMUNICATION, begin - lead + 3, THREAD)


def _write_backward(writer: Writer, step: Expected, start: int, last: bool) -> None:
    job = writer.job
    writer.node += 1000
    for number, bucket in enumerate(job.buckets):
        for elements in bucket:
            launched = start - job.lead
            told = {"Sequence number": writer.node, "Fwd thread id": 1}
            writer.node_of("MmBackward0", launched - 1, launched + 2, **told)
            writer.kernel("gradient", start, start + job.gradient, COMPUTE, launched, BACKWARD_THREAD)
            dims = {"Input Dims": [[elements]], "Input type": ["float"]} if job.shapes else {}
            name = "torch::autograd::AccumulateGrad"
            writer.event("cpu_op", name, launched + 4, launched + 5, BACKWARD_THREAD, **dims)
            writer.node_of(name, launched + 3, launched + 15)
            start += job.gradient
            writer.node -= 1
        if last:
            _write_reduction(writer, step, number, start - job.gradient - job.lead + 8)
    writer.node += 1000


def _write_reduction(writer: Writer, step: Expected, number: int, launched: float) -> None:
    job = writer.job
    elements = sum(job.buckets[number])
    told = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float"}
    told |= {"Group size": job.ranks, "Process Group Name": "0"} | ({"Seq": writer.counts} if job.sequence else {})
    writer.counts += 1
    host = told if job.sizes == "host" else {}
    writer.event("cpu_op", "record_param_comms", launched - 2, launched + 3, BACKWARD_THREAD, **host)
    dims = {"Input Dims": [[elements]], "Input type": ["float"]} if job.sizes == "dims" else {}
    writer.event("user_annotation", "nccl:all_reduce", launched - 1, launched + 2, BACKWARD_THREAD, **dims)
    start, end = step.reductions[number]
    args = told if job.sizes == "kernel" else {}
    writer.kernel(job.kernel, start, end, COMMUNICATION, launched, BACKWARD_THREAD, **args)
    writer.event("gpu_user_annotation", "nccl:all_reduce", start, end, COMMUNICATION)
