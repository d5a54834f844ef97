"""Whether a sweep is the same on every engine, and what a second worker gives.

    python benchmarks/sweep_engines.py [--points 640] [--repeats 5] [--json]

Computes a grid of sharded plans, of some milliseconds a point, in this process, in two processes, and on a Dask
cluster of four workers of which one is killed midway; the records of all must be equal. Then times the same grid on
Dask clusters of one and of two workers by turns, each started before the clock: `pip install 'osfmodel[dask]'`.
Takes some minutes; run it on a quiet machine of two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from distributed import Client, LocalCluster

import osfmodel as osf

AIM = 1.7
"""Rate of two workers over that of one."""
COUNTS = [8 * count for count in range(1, 41)]


def grid_of(points: int) -> dict[str, Any]:
    """A grid of so many points, a multiple of 16."""
    return {
        "workloads": [f"{model}:h100,seq4096,batch1,bf16" for model in ("llama3-8b", "mistral-7b")],
        "clusters": ["nccl:h100x8,400Gbps,ib", "nccl:h100x8,200Gbps,ib"],
        "workers": COUNTS[: points // 16],
        "plans": ["fsdp2", "hsdp", "fsdp2:keep", "fsdp1"],
    }


def on_dask(grid: dict[str, Any], workers: int, disturb: bool = False) -> tuple[list[dict[str, Any]], float]:
    """Records, and seconds from the first batch's start to the last record."""
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:  # every worker has loaded what it needs before the clock starts
            client.run(lambda: list(osf.sweep({**grid_of(16), "workers": [8]})))
        killed: list[int] = []

        def progress(there: int, before: int, whole: int) -> None:
            if disturb and there > whole / 4 and not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.pid)
                worker.process.process.kill()

        begun = time.perf_counter()
        found = list(osf.sweep(grid, dask=cluster.scheduler_address, progress=progress))
        seconds = time.perf_counter() - begun
    if disturb and not killed:
        raise SystemExit("no worker was killed: give more points")
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    grid = grid_of(arguments.points)
    begun = time.perf_counter()
    serial = list(osf.sweep(grid))
    each = (time.perf_counter() - begun) / len(serial)
    engines: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "two processes": lambda: list(osf.sweep(grid, jobs=2)),
        "Dask, four workers, one killed": lambda: on_dask(grid, 4, disturb=True)[0],
    }
    same = {}
    for name, engine in engines.items():
        print(name, file=sys.stderr, flush=True)
        same[name] = engine() == serial
    ratios = []
    for repeat in range(arguments.repeats):
        print(f"turn {repeat + 1} of {arguments.repeats}", file=sys.stderr, flush=True)
        ratios.append(on_dask(grid, 1)[1] / on_dask(grid, 2)[1])
    found = {"points": len(serial), "milliseconds_each": each * 1e3, "same": same,
             "two_workers_over_one": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}  # fmt: skip
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{len(serial)} points of {each * 1e3:.1f} ms in one process")
    for name, equal in same.items():
        print(f"{name}: {'the same records' if equal else 'OTHER RECORDS'}")
    verdict = "met" if found["two_workers_over_one"] >= AIM else "MISSED"
    print(f"two Dask workers over one: {statistics.median(ratios):.2f} times the rate "
          f"({min(ratios):.2f} to {max(ratios):.2f}), aim {AIM}: {verdict}")  # fmt: skip
    if not all(same.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
