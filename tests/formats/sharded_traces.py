"""Jobs of FSDP2 on a GPU that never ran, written as torch.profiler writes them: host notes, launches and kernels."""

from __future__ import annotations

import json

from tests.sharded_jobs import MILLI, ShardedJob, times_of

GAP = 20.0
"""Microseconds on the host from one launch to the next."""
GATHER, SCATTER = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"


class Writer:
    """The events of one rank; ``now`` is the time on the host, ``start`` that of the step on the device."""

    def __init__(self, job: ShardedJob) -> None:
        self.job, self.times = job, times_of(job)
        self.events: list[dict] = []
        self.now = self.start = 1000.0
        self.launches = 0

    def add(self, cat, name, start, duration, tid=1, **args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration, "args": args}
        )

    def note(self, name, inside=(), cat="user_annotation"):
        """A note around some actions."""
        begin = self.now
        self.now += 1
        for action in inside:
            action()
        self.now += 1
        self.add(cat, name, begin, self.now - begin)

    def launch(self, operation, kernel, **args):
        """The launch of an operation, and its kernel."""
        _, begin, end = self.times[operation]
        self.launches += 1
        self.add("cuda_runtime", "cudaLaunchKernel", self.now + GAP / 2, 2.0, correlation=self.launches)
        told = {"correlation": self.launches, "stream": 7, "device": 0} | args
        self.add("kernel", kernel, self.start + begin * 1000, (end - begin) * 1000, 7, **told)
        self.now += GAP

    def shards(self, kind, operation, place, group):
        """A collective of a group in its own note."""
        size = self.job.elements[place]
        gathers = kind == "all_gather"
        put, got = (size, 2 * size) if gathers else (2 * size, size)
        args = {"Collective name": "_allgather_base" if gathers else "_reduce_scatter_base", "dtype": "Float"}
        args |= {"In msg nelems": put, "Out msg nelems": got, "Group size": 2, "stream": 20}
        args["Process Group Name"] = "scatters" if not gathers and self.job.separate else "shards"
        note = "all_gather" if gathers else "post_backward_reduce"
        self.note(labelled(note, group), [lambda: self.launch(operation, GATHER if gathers else SCATTER, **args)])

    def gather(self, way, number):
        """The all-gather of a block, or of the root."""
        name = "root" if number is None else number
        if f"gather {way} {name}" in self.times:
            self.shards("all_gather", f"gather {way} {name}", 0 if number is None else number + 1, number)

    def reduce(self, number):
        """The reduce-scatter of a block, or of the root."""
        name, place = ("root", 0) if number is None else (number, number + 1)
        self.note(labelled("post_backward_accumulate", number))
        self.shards("reduce_scatter", f"scatter {name}", place, number)

    def step(self, number):
        """A whole step."""
        begin, blocks = self.now, range(len(self.job.forward) - 1)
        self.note(labelled("pre_forward", None), [lambda: self.gather("forward", None)])
        self.launch("forward root", "embedding")
        for block in blocks:
            self.note(labelled("pre_forward", block), [lambda block=block: self.gather("forward", block)])
            self.launch(f"forward {block}", "gemm")
            self.note(labelled("post_forward", block))
        self.launch("forward head", "gemm")
        self.note(labelled("post_forward", None))
        for block in (None, *reversed(blocks)):
            before = len(blocks) - 1 if block is None else block - 1
            inside = [lambda before=before: self.gather("backward", before)] if before >= 0 else []
            self.note(labelled("pre_backward", block), inside)
            operation = "backward head" if block is None else f"backward {block}"
            node = "autograd::engine::evaluate_function: MmBackward0"
            self.note(node, [lambda operation=operation: self.launch(operation, "gemm")], "cpu_op")
            if block is not None:
                self.reduce(block)
        node = "autograd::engine::evaluate_function: EmbeddingBackward0"
        self.note(node, [lambda: self.launch("backward root", "embedding")], "cpu_op")
        self.note("FSDP::root_post_backward_callback", [lambda: self.reduce(None)])
        done = max(end for _, _, end in self.times.values())
        self.times["update"] = (done, done, done + self.job.update)
        self.note("Optimizer.step#SGD.step", [lambda: self.launch("update", "sgd")])
        del self.times["update"]
        end = self.start + (done + self.job.update) * 1000
        self.add("user_annotation", f"ProfilerStep#{number}", begin, self.now - begin)
        self.start = end
        self.now = max(self.now + GAP, end)


def labelled(action, block):
    """The name of a note of FSDP2."""
    return f"FSDP::{action}" + ("" if block is None else f" (layers.{block})")


def text(job: ShardedJob) -> str:
    """The trace of one rank of two, as JSON."""
    writer = Writer(job)
    for number in range(job.steps):
        writer.step(number)
    told = {"backend": "nccl", "rank": 0, "world_size": 2}
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "distributedInfo": told}
    return json.dumps({**header, "traceEvents": writer.events})


def length(job: ShardedJob) -> float:
    """Seconds of a step."""
    return (max(end for _, _, end in times_of(job).values()) + job.update) * MILLI
