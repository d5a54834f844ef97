"""LaySA's claims beside what our planner is predicted to bring: ``python benchmarks/memory_claims.py [WORKLOAD...]``.

LaySA (IEEE Access'21) claims 80.5 % less memory and more than 150 % more throughput; its set-ups are unknown, so these
are no reproductions but figures to stand beside. For each workload on 10 Gbit/s Ethernet (a ring of 50 us):

* the conflict, at the profile's batch size: what a step keeps dense under DDP; with everything that saves memory (all
  recomputed, each gradient released by itself); sparse alone, with residuals; both naively, where gradients of sparse
  layers are made dense and kept until the update; and as planned within the memory of the saving plus a tenth of what
  it saves;
* throughput at the batch that pays most within 1, 2 and 4 GiB, against DDP's defaults at their largest: dense, and
  sparse at 1 %, with selection free and with what it took its authors on a V100.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.sparse import sparsely
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import one_by_one
from osfmodel.entities.units import MIB
from osfmodel.planning.memory import MemoryBudget
from osfmodel.planning.memory.search import tune_memory
from osfmodel.targets import CONFIG_TARGETS

NETWORK = "ring:50us,10Gbps"
WORKLOADS = ("resnet50-memory",)
WORKERS = (8, 16, 32)
LIMITS = (1, 2, 4)
DENSITY = 0.01
SELECTION = 5e-10 * 20 / 4
"""Seconds per byte to choose a tensor's largest entries: x elements take 5e-10 x log2(x) seconds on a V100 according to
MG-WFBP's authors (utils.py of their repository), here at a million elements."""
MARGIN = 0.1
"""Part of the saving that the planned combination may give up."""


def variants(workload: osf.Workload, pricing: Pricing) -> Iterator[tuple[str, osf.Plan, str]]:
    """(name, plan, who keeps gradients) of all but the planned one."""
    again = tuple(segment.name for segment in workload.segments)
    default = CONFIG_TARGETS["ddp"].convert.default(workload, pricing)
    yield "dense, DDP", default, "ddp"
    yield (
        "memory saved: recomputed and released",
        replace(one_by_one(workload), recompute=again, release=True),
        "runtime",
    )
    yield "sparse alone, residuals", sparsely(default, DENSITY), "runtime"
    yield "sparse and recomputed, naively", replace(sparsely(default, DENSITY), recompute=again), "runtime"


def conflict(workload: osf.Workload, cluster: osf.Cluster, workers: int) -> list[list[str]]:
    """Rows of the first table."""
    pricing = pricing_of(cluster, workers)
    peaks: dict[str, int] = {}
    times: dict[str, float] = {}
    for name, plan, keeper in variants(workload, pricing):
        timeline = predict_timeline(workload, plan, pricing)
        peaks[name] = memory_of(workload, plan, timeline, workers, keeper).peak.bytes
        times[name] = timeline.iteration_time
    dense, saved, *_ = peaks.values()
    limit = saved + round(MARGIN * (dense - saved))
    for density in (None, DENSITY):
        name = f"planned, {'dense' if density is None else 'sparse'}"
        try:
            demand = MemoryBudget(limit, density=density, batch_size=workload.batch_size)
            fit = tune_memory(workload, cluster, workers, demand).after
        except PlanError:
            continue
        peaks[name], times[name] = fit.memory.peak.bytes, fit.iteration_time
    return [
        [
            name,
            show_bytes(peak),
            f"{peak / dense - 1:+.1%}",
            f"{(dense - peak) / (dense - saved):.0%}",
            show_time(times[name]),
        ]
        for name, peak in peaks.items()
    ]


def gains(workload: osf.Workload, cluster: osf.Cluster) -> Iterator[list[str]]:
    """Rows of the second table."""
    selecting = replace(cluster, effects=replace(cluster.effects, select=SELECTION))
    for gibibytes in LIMITS:
        for workers in WORKERS:
            row = [f"{gibibytes} GiB", str(workers)]
            for seen, density in ((cluster, None), (cluster, DENSITY), (selecting, DENSITY)):
                try:
                    tuning = tune_memory(workload, seen, workers, MemoryBudget(gibibytes * 1024 * MIB, density=density))
                except PlanError:
                    row += ["does not fit"] * (3 if density is None else 2)
                    continue
                if density is None:
                    before = tuning.before
                    row.append("does not fit" if before is None else f"{before.batch_size}: {before.throughput:.0f}/s")
                gain = "" if tuning.gain is None else f"{tuning.gain:+.0%}"
                row += [f"{tuning.after.batch_size}: {tuning.after.throughput:.0f}/s", gain]
            yield row


def table(columns: list[str], rows: list[list[str]]) -> None:
    """Print with columns as wide as their contents."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def main(names: list[str]) -> None:
    """Both tables of each workload."""
    cluster = osf.load_cluster(NETWORK)
    for name in names or WORKLOADS:
        workload = osf.load_workload(name)
        print(f"{name}, a batch of {workload.batch_size} per worker, 16 workers on {NETWORK}")
        table(["", "peak", "against dense", "of the saving", "iteration"], conflict(workload, cluster, 16))
        print(f"{name}, batch: samples per second at the largest batch that pays")
        sparse = f"tuned, {DENSITY:.0%} sparse"
        columns = [
            "limit",
            "workers",
            "DDP's defaults",
            "tuned",
            "gain",
            sparse,
            "gain",
            "selection as on a V100",
            "gain",
        ]
        table(columns, list(gains(workload, cluster)))


if __name__ == "__main__":
    main(sys.argv[1:])
