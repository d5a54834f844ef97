"""Two ways to shard the same job, measured and predicted, as ratios of their times. Run it from anywhere:

    python benchmarks/sharded_pairs.py [--json]

Of the sources ``modalities-leonardo`` (FSDP over HSDP) and ``internevo`` (ZeRO-1 over all ranks, over the 8 of a node)
all pairs of runs whose other settings are the same; above 1 the way with replicas is faster. Nothing was fitted on
either run of a pair, but the pace of computation where one of them is the first of its series.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Hashable, Iterable
from statistics import median
from typing import NamedTuple

from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.ledger import LEDGER

DIFFERENT = 0.03
"""Difference of measured times from which on the sign of a pair counts."""


class Pair(NamedTuple):
    """Two runs that differ in how they shard: times between all GPUs over times with replicas."""

    source: str
    job: str
    workers: int
    measured: float
    predicted: float

    @property
    def differs(self) -> bool:
        return abs(self.measured - 1) > DIFFERENT

    @property
    def right(self) -> bool:
        """Whether the prediction says which of both is faster."""
        return (self.measured > 1) == (self.predicted > 1)

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def whole(run: Measurement) -> bool:
    """Whether it shards between all GPUs."""
    return dict(run.conditions).get("zero_group", "all") == "all" and not run.plan.startswith("hsdp")


def pairs() -> list[Pair]:
    found = []
    for source in ("modalities-leonardo", "internevo"):
        runs = load_measurements(source)
        rows = LEDGER[source].judge(runs).rows
        alike: dict[Hashable, dict[bool, tuple[float, float]]] = {}
        for run, row in zip(runs, rows, strict=True):
            if row.predicted is not None:
                same = tuple(pair for pair in run.conditions if pair[0] != "zero_group")
                key = run.workload, run.workers, same
                alike.setdefault(key, {})[whole(run)] = run.iteration_time, row.predicted
        for (workload, workers, same), ways in alike.items():
            if len(ways) == 2:
                (slow, slow_predicted), (fast, fast_predicted) = ways[True], ways[False]
                said = f"{workload}, {dict(same)['batch_size']} x {dict(same)['micro_batches']}"
                found.append(Pair(source, said, workers, slow / fast, slow_predicted / fast_predicted))
    return found


def show(rows: list[Pair]) -> Iterable[str]:
    """The pairs that differ, and the errors of all, as Markdown tables; --json has every pair."""
    yield "| source | model, samples x micro-batches | GPUs | measured | predicted |"
    yield "|---|---|---|---|---|"
    for row in filter(lambda one: one.differs, rows):
        yield f"| {row.source} | {row.job} | {row.workers} | {row.measured:.2f} | {row.predicted:.2f} |"
    yield ""
    yield "| source | pairs | median error of the ratio | pairs that differ by more than 3 % | sign right |"
    yield "|---|---|---|---|---|"
    for name in (*dict.fromkeys(row.source for row in rows), "both"):
        own = [row for row in rows if name in (row.source, "both")]
        signs = [row.right for row in own if row.differs]
        errors = median(abs(row.error) for row in own)
        yield f"| {name} | {len(own)} | {errors:.1%} | {len(signs)} | {sum(signs)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    rows = pairs()
    as_json = json.dumps([row._asdict() for row in rows], indent=1)
    print(as_json if parser.parse_args().json else "\n".join(show(rows)))


if __name__ == "__main__":
    main()
