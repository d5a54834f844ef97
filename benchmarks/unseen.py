"""Predict torchtitan's published runs by words alone. Prints a table:

    python benchmarks/unseen.py

``profiles/published/torchtitan.csv`` has the figures of benchmarks/ in pytorch/torchtitan (BSD-3-Clause): tokens per
second and memory of Llama 3.1 8B, 70B and 405B with FSDP2, tensor, pipeline and context parallelism. Its H100 have
HBM2e of 2.4 TB/s and 500 W, where the data sheet has 3.35 TB/s and 700 W: ``h100-96gb`` in words. Memory is what
PyTorch's allocator reserved, and is predicted to reserve.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.words import model_of, parse_words
from osfmodel.entities.errors import UsageError
from osfmodel.planning.scaling.curve import ScalePoint
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, scale
from osfmodel.planning.what_if import WhatIf

RUNS = Path(__file__).parent.parent / "profiles" / "published" / "torchtitan.csv"


class Unseen(NamedTuple):
    """A run, and its prediction over what was measured, less 1."""

    row: dict[str, str]
    rate: float
    memory: float
    inside: bool | None


def judged() -> Iterator[Unseen | str]:
    """The runs, each with its errors, or the reason why words cannot say it."""
    with RUNS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                point = predicted(row)
            except UsageError as error:
                yield str(error)
                continue
            rate, reserved = point.rate_per_gpu, point.reserved
            assert reserved is not None
            measured, band = float(row["tokens_per_s_per_gpu"]), point.band
            slower = rate / measured
            inside = None if band is None else 1 + band.below <= slower <= 1 + band.above
            yield Unseen(row, slower - 1, reserved / 2**30 / float(row["memory_gib"]) - 1, inside)


def predicted(row: dict[str, str]) -> ScalePoint:
    """The point of a run. Raises UsageError for one that words cannot say."""
    words = row["workload"] + ",overlap=tp" * (row["async_tp"] == "yes")
    cluster = load_cluster(f"nccl:{parse_words(row['workload']).setting.gpu}x8,400Gbps")
    model_of(parse_words(words))
    groups = Parallelism(int(row["tp"]), int(row["pp"]), int(row["cp"]))
    workload = load_workload(words) if groups == Parallelism() else replica_workload(words, cluster, groups)
    what_if = WhatIf(accumulate=int(row["micro_batches"]))
    options = ScaleOptions(("fsdp2",), what_if=what_if, groups=groups)
    return scale(workload, cluster, [int(row["gpus"])], options).points[0]


def pairs_of(found: Sequence[Unseen]) -> list[tuple[Unseen, Unseen]]:
    """Runs that differ in asynchronous tensor parallelism alone, that without it first."""
    same = ("workload", "gpus", "tp", "pp", "cp")
    plain, overlapping = ([one for one in found if (one.row["async_tp"] == "yes") == kind] for kind in (False, True))
    return [
        (one, other) for one in plain for other in overlapping if all(one.row[name] == other.row[name] for name in same)
    ]


def table(most: int | None = None) -> Iterator[str]:
    """The lines of the table, or of the ``most`` runs with the largest errors of time or memory, and of medians."""
    yield "| run | GPUs | tp/pp/cp | error of tokens/s | in band | error of memory |"
    yield "|---|---|---|---|---|---|"
    each = list(judged())
    found = [one for one in each if isinstance(one, Unseen)]
    errors = (lambda one: -abs(one.rate)), (lambda one: -abs(one.memory))
    largest = [one for error in errors for one in sorted(found, key=error)[:most]]
    for one in found:
        if one not in largest:
            continue
        row = one.row
        groups = f"{row['tp']}/{row['pp']}/{row['cp']}{' (async)' if row['async_tp'] == 'yes' else ''}"
        inside = {True: "yes", False: "no", None: "no band"}[one.inside]
        yield (f"| `{row['workload']}` | {row['gpus']} | {groups} | {one.rate:+.1%} | {inside} | {one.memory:+.0%} |")
    banded = [one.inside for one in found if one.inside is not None]
    rates, rooms = (
        [abs(value) for value in own] for own in zip(*((one.rate, one.memory) for one in found), strict=True)
    )
    yield (
        f"| all {len(found)}: median of the sizes of errors | | | {median(rates):.1%} | {sum(banded)} of "
        f"{len(banded)} | {median(rooms):.0%} |"
    )
    yield ""
    for plain, overlapping in pairs_of(found):
        times = [float(one.row["tokens_per_s_per_gpu"]) for one in (plain, overlapping)]
        promised = (times[1] * (1 + overlapping.rate)) / (times[0] * (1 + plain.rate)) - 1
        yield (
            f"`{plain.row['workload']}` on {plain.row['gpus']} GPUs gains {times[1] / times[0] - 1:.1%} with "
            f"asynchronous tensor parallelism, and `overlap=tp` promises {promised:.1%}."
        )
    yield from (f"Left out: {one}." for one in each if isinstance(one, str))


if __name__ == "__main__":
    print("\n".join(table()))
