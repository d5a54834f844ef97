"""Record the traces of FSDP in ``data/fsdp``: ``python -m tests.formats.record_fsdp`` (torch 2.13, gloo, two cores).

A small model with uneven blocks, its embedding and its head in the root group. Of each trace only the events and
arguments that are read are kept.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "fsdp"
HIDDEN = (96, 384, 64)
WIDTH, WORDS = 64, 301
RUNS = {
    "reshard": (2, (0, 1)),
    "keep": (2, (0,)),
    "ahead": (2, (0,)),
    "mixed": (2, (0,)),
    "twice": (2, (0,)),
    "hsdp": (4, (0,)),
    "fsdp1": (2, (0,)),
}
"""By name, the number of ranks, and those whose traces are kept."""
TOLD = ("gloo:", "c10d::", "fsdp::", "torch::autograd::AccumulateGrad", "autograd::engine")
"""Beginnings of the names of events whose arguments are read."""
KEPT = ("Input Dims", "Input type", "Sequence number", "Fwd thread id")


def model():
    """An embedding, blocks of different sizes, and a head."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, hidden):
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
            self.layers = nn.ModuleList(map(Block, HIDDEN))

        def forward(self, words):
            x = self.embedding(words)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Net(), Block


def sharded(run: str, ranks: int):
    """The model of a run."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    net, block = model()
    if run == "fsdp1":
        policy = ModuleWrapPolicy({block})
        return FullyShardedDataParallel(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    shape, names = ((2, 2), ("replicas", "shards")) if run == "hsdp" else ((ranks,), ("shards",))
    given = {"mesh": init_device_mesh("cpu", shape, mesh_dim_names=names)}
    if run == "keep":
        given["reshard_after_forward"] = False
    if run == "mixed":
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in net.layers:
        fully_shard(layer, **given)
    fully_shard(net, **given)
    if run == "ahead":
        for place, layer in enumerate(net.layers):
            layer.set_modules_to_forward_prefetch(list(net.layers[place + 1 : place + 3]))
            layer.set_modules_to_backward_prefetch(list(net.layers[max(0, place - 2) : place])[::-1])
    return net


def train(rank: int, run: str, ranks: int, port: int, folder: str) -> None:
    """One rank: five steps, of which three are recorded."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    net = sharded(run, ranks)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    words = torch.randint(0, WORDS, (8, 32))
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=1, active=3),
        on_trace_ready=lambda done: done.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profiler:
        for _ in range(5):
            for _ in range(2 if run == "twice" else 1):
                net(words).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


def stripped(text: str) -> str:
    """The trace without what is not read: operators inside others, and arguments but those of collectives."""
    trace = json.loads(text)
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("cpu_op", "user_annotation")]
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    kept, ends = [], {}
    for event in events:
        end = event["ts"] + event["dur"]
        if event["name"].startswith("aten::"):
            if end <= ends.get(event["tid"], 0):
                continue
            ends[event["tid"]] = end
        told = event.get("args", {}) if event["name"].startswith(TOLD) else {}
        told = {name: value for name, value in told.items() if name in KEPT}
        kept.append(
            {"ph": "X", **{key: event[key] for key in ("cat", "name", "pid", "tid", "ts", "dur")}, "args": told}
        )
    header = {
        key: trace[key] for key in ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds")
    }
    return json.dumps({**header, "traceEvents": kept}, separators=(",", ":"))


def main(runs: list[str]) -> None:
    """Record these runs, or all."""
    from torch import multiprocessing

    FOLDER.mkdir(exist_ok=True)
    for run in runs or RUNS:
        ranks, kept = RUNS[run]
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            multiprocessing.spawn(train, (run, ranks, port, folder), nprocs=ranks)
            for rank in kept:
                packed = gzip.compress(stripped((Path(folder) / f"rank{rank}.json").read_text()).encode(), mtime=0)
                (FOLDER / f"{run}-rank{rank}.json.gz").write_bytes(packed)


if __name__ == "__main__":
    main(sys.argv[1:])
