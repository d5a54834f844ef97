"""Whether what ran is said to fit, and what ran out of memory is not:

    OSFMODEL_DATA=... python benchmarks/verdicts.py [--rows] [--each N] [--json]

Runs that ran: those that ``profiles/make_peaks.py`` learns from, each judged by the errors of all other sources.
Those that did not: ``profiles/published/out-of-memory.csv``, reports with their settings, of which nothing is learned.
Also: seconds for the verdicts of 1,000 layouts of one model.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload
from osfmodel.counting.groups import OPTIONS, Parallelism
from osfmodel.planning.predictions import PricedSubjects
from osfmodel.planning.scaling import strategies
from osfmodel.planning.scaling.curve import ScalePoint
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask
from osfmodel.planning.scaling.strategies import room_of
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.verdicts import NO, TIGHT, YES, chance_to_fit, verdict_of

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "profiles"))
from make_peaks import PublishedPeak, nanotron, ran, simumax, torchtitan  # noqa: E402

LAYOUTS = 1000
"""Layouts of which the verdicts are timed."""


def point_of(run: PublishedPeak, subjects: PricedSubjects) -> ScalePoint:
    """The point of a run."""
    cluster = load_cluster(run.cluster)
    alone = run.groups == Parallelism()
    made = load_workload(run.words) if alone else replica_workload(run.words, cluster, run.groups)
    options = ScaleOptions(
        (run.plan,),
        room_of(load_workload(run.words), run.groups),
        WhatIf(accumulate=run.micro_batches),
        groups=run.groups,
    )
    return ScaleTask.of(made, cluster, options, subjects).point(made, run.gpus)


def judged(run: PublishedPeak, subjects: PricedSubjects) -> tuple[str, float]:
    """The verdict of a run without what was learned from its source, and its chance."""
    with patch.object(strategies, "chance_to_fit", partial(chance_to_fit, without=run.source)):
        chance = point_of(run, subjects).best.chance
    assert chance is not None
    return verdict_of(chance), chance


def reports() -> Iterator[PublishedPeak]:
    """The reports of runs that ran out of memory."""
    with (ROOT / "profiles/published/out-of-memory.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            words = iter(shlex.split(row["options"]))
            given = dict(zip(words, words, strict=True))
            groups = Parallelism(**{kind: int(given.get(f"--{option}", 1)) for kind, option in OPTIONS.items()})
            counts = int(row["gpus"]), row["plan"], groups, 1
            yield PublishedPeak(row["source"], row["words"], row["cluster"], *counts, None, reserved=True)


def layouts_per_second() -> float:
    """Seconds of the verdicts of LAYOUTS layouts: Llama 3 70B on 64 to 4,096 H100, with each strategy and --tp."""
    cluster, subjects = load_cluster("nccl:h100x8,400Gbps"), PricedSubjects()
    begun, made = time.perf_counter(), 0
    while made < LAYOUTS:
        for tensor in (1, 2, 4, 8):
            groups = Parallelism(tensor=tensor)
            words = f"llama3-70b:h100,seq8192,batch{1 + made // 140},bf16,ac=full"
            workload = load_workload(words) if tensor == 1 else replica_workload(words, cluster, groups)
            task = ScaleTask.of(workload, cluster, ScaleOptions(groups=groups), subjects)
            for power in range(6, 13):
                made += len(task.point(workload, 2**power).rows)
    return (time.perf_counter() - begun) * LAYOUTS / made


def main() -> None:
    """Print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", action="store_true", help="a line for each report, and for each run that is said no")
    parser.add_argument("--each", type=int, default=4, help="every N-th run that ran (4)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    subjects = PricedSubjects()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in [*simumax(folder), *torchtitan(), *nanotron(), *ran(folder)][:: arguments.each]:
            said, chance = judged(run, subjects)
            found.setdefault(run.source, Counter())[said] += 1
            if arguments.rows and said == NO:
                print(f"{said:5} {chance:6.1%} ran: {run.source} {run.words} {run.gpus} {run.plan} {run.groups.words}")
    found["out of memory"] = Counter()
    for run in reports():
        said, chance = judged(run, subjects)
        found["out of memory"][said] += 1
        if arguments.rows:
            print(f"{said:5} {chance:6.1%} {run.source} {run.words} {run.gpus} {run.plan} {run.groups.words}")
    seconds = layouts_per_second()
    if arguments.json:
        print(json.dumps({"verdicts": found, "seconds_for_1000_layouts": seconds}, indent=1))
        return
    for source, said in found.items():
        print(f"{source:14} {said[YES]:4} yes {said[TIGHT]:4} tight {said[NO]:4} no")
    every = sum((said for source, said in found.items() if source != "out of memory"), Counter[str]())
    whole, failed = sum(every.values()), found["out of memory"]
    print(f"that ran: {1 - every[NO] / whole:.1%} yes or tight, {every[TIGHT] / whole:.1%} tight")
    print(f"out of memory: {1 - failed[YES] / sum(failed.values()):.1%} no or tight")
    print(f"1,000 layouts: {seconds:.2g} s")


if __name__ == "__main__":
    main()
