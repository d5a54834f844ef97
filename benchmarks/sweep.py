"""How fast `osf sweep` is, how its time grows with the number of points, and the memory that it takes.

    python benchmarks/sweep.py [--most 100000] [--kinds ddp sharded] [--json]

10,000 points are 20 workloads x 10 clusters x 10 worker counts x 5 plans; fewer points have fewer workloads, 100,000
have ten batch sizes each. Plans that replicate parameters are measured on bundled profiles, sharded ones on language
models in words. Each row is a process of its own, which writes a CSV file: points for each second of the clock with 1
and with 2 jobs, and for each second of a core; growth is seconds per point over those of the row above, 1 if linear.
Memory is the largest resident set of the process and of its largest child. Takes some 10 minutes on two quiet cores up
to 10,000 points, and says on stderr which row it is at. Aims are for two cores; a miss is printed as a miss.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import osfmodel as osf

COUNTS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
BATCHES = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
GRIDS: dict[str, dict[str, Any]] = {
    "ddp": {
        "workloads": [
            "resnet50-v100", "resnet101-reconstructed", "resnet50-h100", "bert-large-seq64-reconstructed", "vgg13-h100",
            "resnet50-v100-dgxs", "resnet152-reconstructed", "resnext50-32x4d-reconstructed", "resnet50-reconstructed",
            "resnext101-32x8d-reconstructed", "densenet161-reconstructed", "densenet201-reconstructed",
            "inception-v4-reconstructed", "vgg16-reconstructed", "bert-base-seq64-reconstructed", "resnet50-pipedream",
            "resnet18-reconstructed", "googlenet-k80-tensors", "inception-v3-pipedream", "alexnet-pipedream",
        ],
        "clusters": [
            "v100-10gbe", "v100-56gib", "k80-10gbe-ring", "nccl-v100-dgx1", "nccl-a100-hdr", "nccl-h100-ndr",
            "nccl:h100x8,400Gbps,efa", "ring:50us,10Gbps", "hierarchical:8,5us,200GB/s,50us,25Gbps",
            "nccl:h100x8,400Gbps,ib",
        ],
        "plans": ["ddp", "wfbp", "single", "cap:100MiB", "megatron"],
    },
    "sharded": {
        "workloads": [
            f"{model}:h100,seq{tokens},batch{batch},bf16"
            for tokens, batch in ((4096, 1), (2048, 1), (8192, 1), (2048, 4))
            for model in ("llama3-8b", "gemma2-9b", "qwen2.5-7b", "mistral-7b", "qwen3-8b")
        ],
        "clusters": [
            "nccl-a100-hdr", "nccl-h100-ndr", "nccl:h100x8,200Gbps,ib", "nccl:h100x4,400Gbps,ib",
            "nccl:h100x8,400Gbps,ib", "nccl:h100x8,3200Gbps/node,ib", "nccl:h200x8,400Gbps,ib",
            "nccl:a100x8,200Gbps,ib", "nccl:b200x8,400Gbps,ib", "nccl:h100x8,400Gbps,efa",
        ],
        "plans": ["fsdp2", "hsdp", "fsdp2:keep", "fsdp1", "torchtitan"],
    },
}  # fmt: skip
AIMS = {"ddp": 1000.0, "sharded": 100.0}
"""Points per second with 2 jobs."""
MEMORY = 300.0
"""Most MiB of a process."""
EACH = 500
"""Points of a workload."""


def grid_of(kind: str, points: int) -> dict[str, Any]:
    """A grid of so many points, a multiple of EACH."""
    grid = {**GRIDS[kind], "workers": COUNTS}
    if points > EACH * len(grid["workloads"]):
        return {**grid, "batch_sizes": BATCHES[: points // (EACH * len(grid["workloads"]))]}
    return {**grid, "workloads": grid["workloads"][: points // EACH]}


def measured(kind: str, points: int, jobs: int) -> dict[str, Any]:
    """Seconds of a sweep in this process, and what it took."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        found = osf.sweep(grid_of(kind, points), Path(folder) / "points.csv", jobs=jobs)
        seconds = time.perf_counter() - begun
        failed = [record["error"] for record in found if record["error"]]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cores = sum(one.ru_utime + one.ru_stime for one in used)
    memory = max(one.ru_maxrss for one in used) / 1024
    return {"kind": kind, "points": points, "jobs": jobs, "seconds": seconds, "core_seconds": cores,
            "memory_mib": memory, "errors": len(failed)}  # fmt: skip


def row_of(kind: str, points: int, jobs: int) -> dict[str, Any]:
    """The same in a process of its own."""
    print(f"{kind}: {points:,} points, {jobs} jobs", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--row", kind, str(points), str(jobs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10_000, help="largest number of points")
    parser.add_argument("--kinds", nargs="+", choices=GRIDS, default=list(GRIDS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--row", nargs=3, metavar=("KIND", "POINTS", "JOBS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        kind, points, jobs = arguments.row
        print(json.dumps(measured(kind, int(points), int(jobs))))
        return
    sizes = [points for points in (1000, 10_000, 100_000) if points <= arguments.most]
    rows = [row_of(kind, points, jobs) for kind in arguments.kinds for jobs in (1, 2) for points in sizes]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    before: dict[str, Any] = {}
    for row in rows:
        rate, each = row["points"] / row["seconds"], row["seconds"] / row["points"]
        aims = [f"aim {AIMS[row['kind']]:g}: {_verdict(rate >= AIMS[row['kind']])}"] if row["jobs"] == 2 else []
        if before and row["points"] > before["points"]:
            aims.append(f"growth {each / before['seconds'] * before['points']:.2f}")
        aims.append(f"{row['memory_mib']:.0f} MiB, aim {MEMORY:g}: {_verdict(row['memory_mib'] <= MEMORY)}")
        core = row["points"] / row["core_seconds"]
        what = f"{row['kind']}, {row['points']:,} points, {row['jobs']} jobs, {row['errors']} errors"
        print(f"{what:<44} {rate:7.1f} points/s, {core:7.1f} for each core  {', '.join(aims)}")
        before = row


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


if __name__ == "__main__":
    main()
