"""A rank that trains a small model under DDP and gloo with torch.profiler on: python -m tests.live.tracing FOLDER WAY..

Each WAY leaves FOLDER/WAY/rankN.json, and a line on stdout with what DDP logged of it; the way ``cycles`` what
TensorBoard's handler writes in two cycles. ``python -m tests.live.tracing store`` keeps these in tests/formats/data.
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from tests.live.explained import STORED, stripped
from tests.live.launching import found

WIDTH, LAYERS, CAP_MB, ACTIVE, MICRO_BATCHES = 384, 4, 1.0, 3, 3
STORED_CYCLES = STORED.parent / "cycles"

FUSED = {"coalesced": "coalesced", "concatenated": "concat"}
"""Ways in which Inductor fuses the all-reduces of a compiled backward, with what its pass calls them."""


def model() -> torch.nn.Module:
    """Four hidden layers and a head: ten tensors."""
    torch.manual_seed(1)
    hidden = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(WIDTH, 10))


def train(way: str, folder: Path) -> dict[str, object]:
    """A few steps; what DDP logged."""
    replica = DistributedDataParallel(model(), bucket_cap_mb=CAP_MB)
    backend = "aot_eager" if way == "compiled" else "inductor" if way in FUSED or way == "inductor" else None
    run = torch.compile(replica, backend=backend) if backend else replica
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(64 * 16, WIDTH), batch_size=64)
    batches = iter(loader)
    target = folder / way / f"rank{dist.get_rank()}.json"
    target.parent.mkdir(exist_ok=True)
    cycles = 2 if way == "cycles" else 1
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=3, active=ACTIVE, repeat=cycles),
        on_trace_ready=tensorboard_trace_handler(str(target.parent), use_gzip=True)
        if way == "cycles"
        else lambda found: found.export_chrome_trace(str(target)),
        record_shapes=way != "bare",
    ) as profiler:
        for _ in range(cycles * (3 + ACTIVE)):
            optimizer.zero_grad()
            batch = next(batches)
            for micro in range(MICRO_BATCHES if way == "accumulated" else 1):
                held = way == "accumulated" and micro < MICRO_BATCHES - 1
                with replica.no_sync() if held else nullcontext():
                    loss = run(batch).mean()
                    with backward_graph() if way in FUSED else nullcontext():
                        loss.backward()
            optimizer.step()
            profiler.step()
    logged = replica._get_ddp_logging_data()
    return {key: logged.get(key, "") for key in ("rebuilt_bucket_sizes", "dtypes")}


def backward_graph():
    """Within it backward is compiled as one graph."""
    from torch._dynamo import compiled_autograd

    return compiled_autograd._enable(torch.compile(backend="inductor", fullgraph=True))


@contextmanager
def settings(way: str) -> Iterator[None]:
    """For a way of FUSED, a graph whose all-reduces Inductor fuses, with DDP's own reducer off."""
    if way not in FUSED:
        yield
        return
    import torch._dynamo.config
    import torch._inductor.config

    torch._dynamo.reset()
    passes = [f"fuse_ddp_with_{FUSED[way]}_op", "schedule_comm_wait"]
    fused = {"_fuse_ddp_communication": True, "_fuse_ddp_bucket_size": CAP_MB, "_fuse_ddp_communication_passes": passes}
    reducer = torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True)
    with reducer, torch._inductor.config.patch(fused):
        yield


def main(folder: str, *ways: str) -> None:
    """Each way, one after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for way in ways:
        with settings(way):
            print(json.dumps({way: train(way, Path(folder))}), flush=True)
    gc.collect()  # DDP is part of a cycle and holds the group: freed only at exit, gloo may abort
    dist.destroy_process_group()


def store() -> None:
    """Keep what two ranks write in cycles, without what nothing is read of."""
    STORED_CYCLES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        found("tests.live.tracing", [folder, "cycles"], 2)
        for path in (Path(folder) / "cycles").iterdir():
            document = stripped(json.loads(gzip.decompress(path.read_bytes())))
            packed = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)
            (STORED_CYCLES / path.name).write_bytes(packed)


if __name__ == "__main__":
    if sys.argv[1:] == ["store"]:
        store()
    else:
        main(*sys.argv[1:])
