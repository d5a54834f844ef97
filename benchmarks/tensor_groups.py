"""Predict a published series with and without tensor groups from words alone. Prints a table:

    python benchmarks/tensor_groups.py

InternEvo's runs of InternLM-7B with ZeRO-1 over all ranks, one GPU a replica and two. Efficiencies of computation are
those that come with osfmodel, to which the runs of one GPU a replica on 8 GPUs belong; those of two do not. Gradients
are taken as float32, as in ``osf scale``; InternEvo's are bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload
from osfmodel.counting.groups import Parallelism
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, scale
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit

CONFIG = Path(__file__).resolve().parent.parent / "profiles/published/internlm-7b.json"
ROOM = MemoryLimit(10**12)
"""No limit: weights and gradients of those runs take less than float32."""


def table() -> Iterator[str]:
    """The lines of the table."""
    yield "| GPUs | GPUs of a replica | tokens/s of each GPU, measured | predicted | error |"
    yield "|---|---|---|---|---|"
    for size in (1, 2):
        yield from _series(str(CONFIG), size)


def _series(config: str, size: int) -> Iterator[str]:
    wanted = {"zero_group": "all", "tensor_parallel": str(size), "packed": "no"}
    runs = [
        run
        for run in load_measurements("internevo")
        if all(run.condition(name) == value for name, value in wanted.items())
    ]
    first, groups = runs[0], Parallelism(tensor=size)
    words = f"{config}:a100,seq2048,batch{first.condition('batch_size')},bf16"
    cluster = load_cluster(first.cluster)
    workload = load_workload(words) if size == 1 else replica_workload(words, cluster, groups)
    what_if = WhatIf(accumulate=int(first.condition("micro_batches")))
    options = ScaleOptions(("zero-1",), ROOM, what_if, groups=groups)
    points = {one.workers: one for one in scale(workload, cluster, [run.workers for run in runs], options).points}
    errors = []
    for run in runs:
        point = points[run.workers]
        assert point.samples is not None
        assert point.rate_per_gpu is not None
        measured = point.samples * 2048 / run.iteration_time / run.workers
        errors.append(point.rate_per_gpu / measured - 1)
        yield f"| {run.workers} | {size} | {measured:.0f} | {point.rate_per_gpu:.0f} | {errors[-1]:+.1%} |"
    yield f"| all | {size} | | | median {median(map(abs, errors)):.1%}, largest {max(map(abs, errors)):.1%} |"


if __name__ == "__main__":
    print("\n".join(table()))
