"""Small jobs of DDP and FSDP2 with one thing wrong in each, traced by torch.profiler on every rank.

``python -m tests.live.explained rank FOLDER TURNS CASE...`` is one rank of them;
``python -m tests.live.explained store [CASE...]`` runs these, or all, between emulated hosts and keeps the traces in
tests/formats/data/explained.
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.live import cluster

STORED = cluster.ROOT / "tests/formats/data/explained"
MILLI = 1e-3
KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Case:
    """A model of layers that sleep, and what is wrong.

    rate:     of the link of each host
    ranks:    how many, a host each
    sizes:    bytes of the parameters from the input on, as many in each layer; those of a layer are ready at once
    layers:   how many
    backward: seconds of backward in all; forward takes half of it
    cap:      of buckets, MiB
    slowness: by rank, what computation takes, as a multiple
    stall:    seconds for which the data loader keeps every step waiting
    reverse:  whether the layers are defined in the reverse of the order in which they run, and one is never used
    sharded:  whether FSDP2 trains it, each layer a group; in the background, unless ``blocking``
    keep:     whether parameters stay whole from the first micro-batch to the update
    micro_batches: of a step; gradients are reduced in each, or ``once`` in the last
    busy:     seconds of Python between forward and backward, in which the host gives the device nothing to do
    beside:   bytes of each rank in an all-gather of another process group, which starts with backward, or with
              forward if ``early``, and is waited for after backward, as of activations
    exchange: by rank, bytes that others send to it in an all-to-all of each layer's forward, as to experts
    """

    rate: str = "1gbit"
    ranks: int = 2
    sizes: tuple[int, ...] = (128 * KIB,) * 8
    layers: int = 8
    backward: float = 80 * MILLI
    cap: float = 0.1
    slowness: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    stall: float = 0.0
    reverse: bool = False
    sharded: bool = False
    blocking: bool = False
    keep: bool = False
    micro_batches: int = 1
    once: bool = False
    busy: float = 0.0
    exchange: tuple[int, ...] = ()
    beside: int = 0
    early: bool = False


CASES = {
    "healthy": Case(backward=120 * MILLI),
    "slow-link": Case(rate="50mbit", sizes=(256 * KIB,) * 8),
    "slow-rank": Case(slowness=(1.0, 1.8)),
    "tiny-buckets": Case(ranks=4, sizes=(1 * KIB, 4 * KIB, 2 * KIB) * 20, layers=2, backward=20 * MILLI, cap=1e-9),
    "giant-bucket": Case(sizes=(MIB,) * 8, backward=120 * MILLI, cap=1000.0),
    "input-stall": Case(stall=100 * MILLI),
    "find-unused": Case(sizes=(MIB,) * 8, backward=120 * MILLI, cap=0.5, reverse=True),
    "busy-host": Case(busy=60 * MILLI),
    "micro-batches": Case(rate="100mbit", sizes=(256 * KIB,) * 8, micro_batches=4),
    "uneven-exchange": Case(
        rate="100mbit", ranks=4, sizes=(16 * KIB,) * 8, exchange=(16 * KIB, 16 * KIB, 208 * KIB, 16 * KIB)
    ),
    "shared-network": Case(rate="100mbit", sizes=(160 * KIB,) * 8, backward=120 * MILLI, beside=MIB),
    "fsdp2-healthy": Case(backward=400 * MILLI, sharded=True),
    "fsdp2-blocking": Case(rate="100mbit", backward=160 * MILLI, sharded=True, blocking=True),
    "fsdp2-micro-batches": Case(rate="100mbit", sizes=(512 * KIB,) * 8, sharded=True, keep=True, micro_batches=4),
    "fsdp2-slow-link": Case(rate="50mbit", sizes=(512 * KIB,) * 8, sharded=True),
    "fsdp2-slow-rank": Case(slowness=(1.0, 1.8), sharded=True),
}
EXPECTED = {
    "healthy": "compute",
    "slow-link": "bandwidth",
    "slow-rank": "imbalance",
    "tiny-buckets": "latency",
    "giant-bucket": "late-bucket",
    "input-stall": "input",
    "find-unused": "find-unused",
    "busy-host": "host",
    "micro-batches": "every-micro-batch",
    "uneven-exchange": "uneven-exchange",
    "shared-network": "shared-network",
    "fsdp2-healthy": "compute",
    "fsdp2-blocking": "blocking",
    "fsdp2-micro-batches": "every-micro-batch",
    "fsdp2-slow-link": "bandwidth",
    "fsdp2-slow-rank": "imbalance",
}
"""The cause that is planted in each."""
MENDED = {
    "slow-link+network-2": replace(CASES["slow-link"], rate="100mbit"),
    "slow-rank+balance": replace(CASES["slow-rank"], slowness=(1.0, 1.0)),
    "tiny-buckets+plan": replace(CASES["tiny-buckets"], cap=25.0),
    "giant-bucket+plan": replace(CASES["giant-bucket"], cap=0.5),
    "giant-bucket+half": replace(CASES["giant-bucket"], sizes=(MIB // 2,) * 8),
    "input-stall+input": replace(CASES["input-stall"], stall=0.0),
    "find-unused+static-graph": replace(CASES["find-unused"], reverse=False),
    "micro-batches+once": replace(CASES["micro-batches"], once=True),
    "uneven-exchange+even-exchange": replace(CASES["uneven-exchange"], exchange=(64 * KIB,) * 4),
    "shared-network+own-networks": replace(CASES["shared-network"], early=True),
    "fsdp2-blocking+background": replace(CASES["fsdp2-blocking"], blocking=False),
    "fsdp2-micro-batches+once": replace(CASES["fsdp2-micro-batches"], once=True),
    "fsdp2-slow-link+network-2": replace(CASES["fsdp2-slow-link"], rate="100mbit"),
    "fsdp2-slow-rank+balance": replace(CASES["fsdp2-slow-rank"], slowness=(1.0, 1.0)),
}
"""Cases with a remedy of ``osf explain`` applied, by the names of both."""
TELLING = ("AccumulateGrad", "reducer", "c10d", "Backward")
"""Operations that are kept in stored traces although others contain them."""
ARGUMENTS = ("Input Dims", "Input type", "name", "labels", "Fwd thread id", "Sequence number", "sort_index")


def train(case: Case, rank: int, path: Path) -> None:
    """A few steps, the last of them traced to ``path``; buckets are as they stay from the third step on."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    model, finish = (_sharded if case.sharded else _replicated)(case, _model(case, case.slowness[rank]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = _beside(case.beside)
    steps = iter(torch.utils.data.DataLoader(_Stalled(case.stall), batch_size=1))
    traced = schedule(wait=2, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], schedule=traced, record_shapes=True) as recorder:
        for _ in range(6):
            (batch,) = next(steps)
            optimizer.zero_grad()
            for micro_batch in range(case.micro_batches):
                last = micro_batch == case.micro_batches - 1
                if case.sharded:
                    model.set_reshard_after_backward(last or not case.keep)
                    model.set_requires_gradient_sync(last or not case.once)
                with nullcontext() if case.sharded or last or not case.once else model.no_sync():
                    through = start() if case.early else None
                    loss = model(batch).sum()
                    _spin(case.busy)
                    through = through or start()
                    loss.backward()
                    through()
            finish()
            optimizer.step()
            recorder.step()
    recorder.export_chrome_trace(str(path))


def _spin(seconds: float) -> None:
    """Keep the host busy with something that no trace shows."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _beside(size: int):
    """A function that starts an all-gather of ``size`` bytes of each rank in another group, and gives what waits."""
    import torch
    import torch.distributed as dist

    if not size:
        return lambda: lambda: None
    group, mine = _activations(), torch.ones(size // 4)
    whole = torch.empty(mine.numel() * dist.get_world_size())
    return lambda: dist.all_gather_into_tensor(whole, mine, group=group, async_op=True).wait


@cache
def _activations():
    """A second process group of all ranks, made once."""
    import torch.distributed as dist

    return dist.new_group(group_desc="activations")


def exchange(sizes: tuple[int, ...]) -> None:
    """An all-to-all in which each rank sends so many bytes to each."""
    import torch
    import torch.distributed as dist

    there, mine = [size // 4 for size in sizes], [sizes[dist.get_rank()] // 4] * len(sizes)
    dist.all_to_all_single(torch.empty(sum(mine)), torch.ones(sum(there)), mine, there)


def _replicated(case: Case, model):
    """The model under DDP, and what to do before the update."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(model, bucket_cap_mb=case.cap, find_unused_parameters=case.reverse)
    return wrapped, lambda: None


def _sharded(case: Case, model):
    """The model under FSDP2, and what to do before the update; a group ahead is gathered where nothing blocks."""
    from torch.distributed.fsdp import fully_shard

    from osfmodel.runtime.sharded.communication import ShardedCommunication

    layers = list(model.layers)
    for layer in layers:
        fully_shard(layer, reshard_after_forward=not case.keep)
    fully_shard(model, reshard_after_forward=not case.keep)
    if case.blocking:
        return model, lambda: None
    for before, after in pairwise(layers):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])
    communication = ShardedCommunication(asynchronous=True, inputs=2, waiting=nullcontext)
    communication.use(model)
    return model, communication.finish


def _Stalled(stall: float):  # noqa: N802
    import torch

    class Stalled(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, place):
            time.sleep(stall)
            return (torch.ones(4),)

    return Stalled()


def _model(case: Case, slowness: float):
    """Layers whose gradient is ready once their backward has slept; the layers are defined in either order."""
    import torch

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs, seconds, *parameters):
            ctx.seconds, ctx.sizes = seconds, [one.numel() for one in parameters]
            time.sleep(seconds / 2)
            return inputs.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(ctx.seconds)
            return gradient.clone(), None, *torch.ones(sum(ctx.sizes)).split(ctx.sizes)

    class Layer(torch.nn.Module):
        def __init__(self, sizes):
            super().__init__()
            self.parameters_ = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(size // 4)) for size in sizes)

        def forward(self, values):
            return Sleep.apply(values, slowness * case.backward / case.layers, *self.parameters_)

    class Blocks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            count = len(case.sizes) // case.layers
            parts = [case.sizes[place * count : (place + 1) * count] for place in range(case.layers)]
            self.layers = torch.nn.ModuleList(map(Layer, parts))

        def forward(self, values):
            for layer in self.layers:
                values = layer(values)
            return values

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            sizes = case.sizes[::-1] if case.reverse else case.sizes
            self.parameters_ = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(size // 4)) for size in sizes)
            self.unused = torch.nn.Parameter(torch.ones(1)) if case.reverse else None

        def forward(self, values):
            ordered = list(self.parameters_)[::-1] if case.reverse else list(self.parameters_)
            count = len(ordered) // case.layers
            for layer in range(case.layers):
                if case.exchange:
                    exchange(case.exchange)
                mine = ordered[layer * count : (layer + 1) * count]
                values = Sleep.apply(values, slowness * case.backward / case.layers, *mine)
            return values

    return Blocks() if case.sharded else Model()


def one_rank(folder: Path, turns: int, names: list[str]) -> None:
    """The cases one after the other on this rank, all of them so many times; TURN-CASE-RANK.json each."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for turn in range(turns):
        for name in names:
            train((CASES | MENDED)[name], dist.get_rank(), folder / f"{turn}-{name}-{dist.get_rank()}.json")
    gc.collect()  # DDP is part of a cycle and holds the group: freed only at exit, gloo may abort
    dist.destroy_process_group()


def _links(case: Case) -> tuple[str, int, bool]:
    """Rate and number of hosts, and whether they receive at that rate too: a hot rank gets more than it sends."""
    return case.rate, case.ranks, bool(case.exchange)


def record(
    folder: Path, cases: Mapping[str, Case] = CASES, *, turns: int = 1
) -> Iterator[tuple[str, list[list[Path]]]]:
    """Run ``cases``, of CASES or MENDED, between emulated hosts; by name, the traces of each turn, a rank each."""
    for rate, ranks, both in dict.fromkeys(map(_links, cases.values())):
        names = [name for name, case in cases.items() if _links(case) == (rate, ranks, both)]
        with cluster.emulated(ranks, rate, receiving=both) as hosts:
            command = [sys.executable, "-m", "tests.live.explained", "rank", str(folder), str(turns), *names]
            ended = hosts.run(command, timeout=100 + 50 * turns)
        assert [one.status for one in ended] == [0] * ranks, "".join(one.stderr[-2000:] for one in ended)
        for name in names:
            yield name, [[folder / f"{turn}-{name}-{rank}.json" for rank in range(ranks)] for turn in range(turns)]


def stripped(document: dict[str, Any]) -> dict[str, Any]:
    """The same without arrows, operations inside operations that say nothing, and arguments that nobody asks for."""
    last: dict[Any, float] = {}
    kept = []
    for event in sorted(document["traceEvents"], key=lambda one: (one.get("ts", 0), -one.get("dur", 0))):
        if event.get("ph") not in ("X", "M"):
            continue
        if event.get("cat") == "cpu_op":
            end = event["ts"] + event["dur"]
            if end <= last.get(event["tid"], 0) and not any(word in event["name"] for word in TELLING):
                continue
            last[event["tid"]] = max(last.get(event["tid"], 0), end)
        arguments = {name: value for name, value in event.get("args", {}).items() if name in ARGUMENTS}
        kept.append({**event, "args": arguments})
    return {**document, "traceEvents": kept, "traceName": ""}


def paths_of(name: str) -> list[Path]:
    """The stored traces of a case, a rank each."""
    return [STORED / f"{name}-{rank}.json.gz" for rank in range(CASES[name].ranks)]


def store(names: Sequence[str] = tuple(CASES)) -> None:
    """Keep what :func:`record` makes of these cases, packed."""
    STORED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, (paths,) in record(Path(folder), {name: CASES[name] for name in names}):
            for path, kept in zip(paths, paths_of(name), strict=True):
                document = stripped(json.loads(path.read_text(encoding="utf-8")))
                packed = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)
                kept.write_bytes(packed)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        one_rank(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        store(sys.argv[2:] or tuple(CASES))
