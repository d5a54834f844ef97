"""Overhead of ``osf.watch`` by turns, and its agreement with traces of the same steps.

    python benchmarks/watch.py overhead [--replay replay-10gbit] [--pairs 40]
    python benchmarks/watch.py agreement [--turns 3] [--case NAME]...

``overhead``: two gloo ranks on emulated hosts train a replay under DDP, a turn with the watch and a turn without, in
changing order. The ratio of the two median steps of a pair is one sample. A replay hides short work of the host, as a
device does, so steps of a tiny real model are timed as well: microseconds a step. ``agreement``: jobs with one thing
wrong (tests/live/explained.py), replays, and FSDP2, watched and traced by torch.profiler in the same steps. The traces
are read as ``osf explain`` reads them. Needs PyTorch, root and iproute2. Some minutes each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import osfmodel as osf
from osfmodel.diagnosis.scene import SeenStep
from osfmodel.diagnosis.waits import parts_of
from osfmodel.formats import load_trace
from osfmodel.runtime.training.subjects import replayed
from tests.live import cluster, explained

WAIT, ACTIVE = 3, 10
"""Steps before those that are traced, and these."""
STEPS, WARM_UPS = 12, 3
"""Steps of a turn, and those before it that do not count."""
TINY_STEPS, DRAWS = 200, 2000
"""Steps of a turn of the tiny model, and bootstraps of the median."""


def agreeing_rank(folder: Path, turns: int, name: str) -> None:
    """Train a case on this rank, watched and traced; TURN-CASE-RANK.json is the trace, .jsonl the watch's."""
    dist.init_process_group("gloo")
    for turn in range(turns):
        model, step = JOBS[name](name, dist.get_rank())
        _traced(model, step, folder / f"{turn}-{name}-{dist.get_rank()}.json")
    dist.barrier()
    os._exit(0)


def _planted(name: str, rank: int) -> tuple[Any, Callable[[], object]]:
    """A job of tests/live/explained.py."""
    case = explained.CASES[name]
    model = DistributedDataParallel(
        explained._model(case, case.slowness[rank]), bucket_cap_mb=case.cap, find_unused_parameters=case.reverse
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(torch.utils.data.DataLoader(explained._Stalled(case.stall), batch_size=1))

    def step() -> None:
        (batch,) = next(batches)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return model, step


def _replayed(name: str, rank: int) -> tuple[Any, Callable[[], object]]:
    """A replay of a bundled workload under DDP."""
    subject = replayed(osf.load_workload(REPLAYS[name][0]), "cpu")
    model = DistributedDataParallel(subject.model)
    return model, partial(subject.begin(None, None), model)


def _sharded(name: str, rank: int) -> tuple[Any, Callable[[], object]]:
    """Eight layers under FSDP2, of which those of the last rank are slower."""

    class Layer(torch.nn.Linear):
        def forward(self, values: Any) -> Any:
            time.sleep(0.004 * (1 + rank))
            return super().forward(values).relu()

    model = torch.nn.Sequential(*[Layer(512, 512) for _ in range(8)])
    mesh = init_device_mesh("cpu", (2,))
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(4, 512)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return model, step


REPLAYS = {"replay-2gbit": ("resnet50-v100", "2gbit"), "replay-10gbit": ("resnet50-v100", "10gbit")}
"""Replays of bundled workloads, with the links of their hosts."""
PLANTED = ("healthy", "slow-link", "slow-rank", "tiny-buckets", "giant-bucket", "input-stall", "find-unused")
"""Jobs of tests/live/explained.py that are DDP's alone."""
JOBS = dict.fromkeys(PLANTED, _planted) | dict.fromkeys(REPLAYS, _replayed) | {"fsdp2-slow-rank": _sharded}


def _traced(model: Any, step: Callable[[], object], path: Path) -> None:
    planned = schedule(wait=WAIT - 1, warmup=1, active=ACTIVE)
    watch = osf.watch(model, path.with_suffix(".{rank}.jsonl"))
    with profile(activities=[ProfilerActivity.CPU], schedule=planned, record_shapes=True) as recorder:
        for _ in range(WAIT + ACTIVE):
            step()
            watch.step()  # before the profiler stops, which takes as long as a step
            recorder.step()
    watch.close()
    recorder.export_chrome_trace(str(path))


def agreement(turns: int, names: list[str]) -> None:
    """A row for each case: means over ranks and steps, of the trace and of the watch."""
    print("| case | step, trace | watch | exposed, trace | watch | waiting, trace | watch | own work | watch | late |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            case = explained.CASES.get(name, explained.Case(rate=REPLAYS[name][1] if name in REPLAYS else "1gbit"))
            with cluster.emulated(case.ranks, case.rate) as hosts:
                _run(hosts, ["agreeing-rank", folder, str(turns), name], 100 + 50 * turns)
            print(_row(name, Path(folder), turns, case.ranks), flush=True)


def _run(hosts: cluster.Hosts, words: list[str], timeout: float) -> None:
    start = f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import watch; watch.rank(*sys.argv[1:])"
    ended = hosts.run([sys.executable, "-c", start, *words], timeout=timeout)
    assert not any(one.status for one in ended), "".join(one.stderr[-2000:] for one in ended)


def rank(what: str, folder: str, number: str, name: str) -> None:
    """One rank of a measurement."""
    work = {"agreeing-rank": agreeing_rank, "overhead-rank": overhead_rank}[what]
    work(Path(folder), int(number), name)


def _row(name: str, folder: Path, turns: int, ranks: int) -> str:
    traced, watched, late = [], [], set()
    for turn in range(turns):
        paths = [folder / f"{turn}-{name}-{rank}.json" for rank in range(ranks)]
        for rank, trace in enumerate(load_trace(paths).ranks):
            seen = [SeenStep.of(step, trace.host_computes) for step in trace.steps]
            lines = paths[rank].with_suffix(f".{rank}.jsonl").read_text().splitlines()
            records = {one["step"]: one for one in map(json.loads, lines)}
            late |= {one["late_rank"] for one in records.values() if one["step"] >= WAIT}
            for one in seen:
                parts, mine = parts_of(one.step, one.waits), records[one.step.number]
                traced.append((one.step.time, parts.exposed, parts.waiting or 0.0, one.own_work))
                watched.append((mine["time"], mine["exposed"], mine["waiting"], mine["time"] - mine["exposed"]))
    cells = []
    for one, other in zip(zip(*traced, strict=True), zip(*watched, strict=True), strict=True):
        mean, seen_ = fmean(one), fmean(other)
        cells += [f"{mean * 1e3:.2f} ms", f"{seen_ * 1e3:.2f} ms ({seen_ / mean - 1:+.1%})" if mean else "-"]
    return f"| {name} | {' | '.join(cells)} | {', '.join(sorted(map(str, late)))} |"


def overhead_rank(folder: Path, pairs: int, workload: str) -> None:
    """Train the replay on this rank, by turns; rank 0 writes the median step of each turn, without and with."""
    dist.init_process_group("gloo")
    model, step = _replayed(workload, dist.get_rank())
    path = folder / "watch-{rank}.jsonl"
    found = []
    for pair in range(pairs):
        turn = {}
        for watched in (False, True) if pair % 2 else (True, False):
            with osf.watch(model, path) if watched else nullcontext() as watch:
                turn[watched] = _median_step(step, watch)
        found.append((turn[False], turn[True]))
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


def _median_step(step: Any, watch: Any) -> float:
    times = []
    for _ in range(WARM_UPS + STEPS):
        begin = time.perf_counter()
        step()
        if watch is not None:
            watch.step()
        times.append(time.perf_counter() - begin)
    return median(times[WARM_UPS:])


def tiny() -> tuple[float, float]:
    """Processor seconds of a step of a tiny real model alone, and more with the watch: medians of turns."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(8, 64)
    found: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(40):
            for watched in (False, True) if pair % 2 else (True, False):
                with osf.watch(model, f"{folder}/tiny.jsonl") if watched else nullcontext():
                    begin = time.process_time()
                    for _ in range(TINY_STEPS):
                        optimizer.zero_grad()
                        model(batch).sum().backward()
                        optimizer.step()
                    found[watched].append((time.process_time() - begin) / TINY_STEPS)
    more = [one - other for one, other in zip(found[True], found[False], strict=True)]
    return median(found[False]), median(more)


def overhead(workload: str, pairs: int) -> None:
    """The overhead on a replay, its spread over pairs of turns, and microseconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        with cluster.emulated(2, REPLAYS[workload][1]) as hosts:
            _run(hosts, ["overhead-rank", folder, str(pairs), workload], 100 + 20 * pairs)
        found = json.loads((Path(folder) / "found.json").read_text())
    ratios = [with_ / without - 1 for without, with_ in found]
    low, middle, high = quantiles(ratios, n=4)
    draws = sorted(median(random.Random(draw).choices(ratios, k=pairs)) for draw in range(DRAWS))
    print(f"{workload}: {median(one for one, _ in found) * 1e3:.2f} ms a step without the watch")
    print(f"with it {middle:+.2%}, 95 % of bootstraps {draws[DRAWS // 40]:+.2%} to {draws[-DRAWS // 40]:+.2%}")
    print(f"of {pairs} pairs half from {low:+.2%} to {high:+.2%}")
    alone, more = tiny()
    print(f"a tiny model of 20 layers: {alone * 1e6:.0f} us a step, {more * 1e6:+.0f} us with the watch", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("overhead", "agreement"))
    parser.add_argument("--replay", default="replay-10gbit", choices=REPLAYS)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--case", action="append", choices=JOBS)
    options = parser.parse_args()
    if options.what == "overhead":
        overhead(options.replay, options.pairs)
    else:
        agreement(options.turns, options.case or list(JOBS))


if __name__ == "__main__":
    main()
