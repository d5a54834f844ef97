"""Regret of layouts: measured time of what we name first, over the best measured of the same model and GPUs, minus 1.

    python benchmarks/layouts.py [benchmarks_1b_8b.csv] [--tp 8] [--groups]

The rows are those of nanotron's sweep (docs/sources.md): groups of a model and a number of GPUs with 10 rows or more,
TP of 8 at most. A choice is made among the layouts that were measured. Rows whose DP x micro-batch x accumulation is
not the global batch of 256 are left out: their rates are not of that layout. A row is disturbed if it takes more than
five times as long as the same layout with the next smaller or larger micro-batch; results are with and without these.
The rule of thumb: the least TP x PP that runs, then the largest micro-batch.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import osfmodel as osf
from osfmodel.engine.bands import quantile
from osfmodel.planning.scaling.layouts import LayoutSearch
from osfmodel.planning.scaling.spaces import Layout

SAMPLES, TOKENS, LEAST, DISTURBED = 256, 4096, 10, 5.0
MODELS = {"1B": "llama3.2-1b", "8B": "llama3-8b"}
CLUSTER = "nccl:h100x8,400Gbps,efa"
FILE = "sharded/nanotron-ultrascale/benchmarks_1b_8b.csv"


@dataclass(frozen=True)
class Measured:
    """A measured layout: seconds of its step."""

    model: str
    gpus: int
    layout: Layout
    plan: str
    seconds: float

    @property
    def group(self) -> tuple[str, int]:
        """The model and the number of GPUs."""
        return self.model, self.gpus


def read(path: Path, tensor: int) -> list[Measured]:
    """The rows whose batch is that of the sweep, with ``tensor`` GPUs in a tensor group at most."""
    found = []
    with path.open(encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            tp, pp, dp, batch, accumulated = (
                int(row[name])
                for name in (
                    "tensor_parallel",
                    "pipeline_parallel",
                    "data_parallel",
                    "microbatch_samples",
                    "grad_accumulation",
                )
            )
            if dp * batch * accumulated == SAMPLES and tp <= tensor and row["model"] in MODELS:
                layout = Layout(osf.Parallelism(tp, pp), batch, accumulated, "none")
                plan = "zero-1" if row["zero_stage"] == "1" else "ddp"
                seconds = SAMPLES * TOKENS / float(row["tokens_per_s"])
                found.append(Measured(row["model"], int(row["gpus"]), layout, plan, seconds))
    return sorted(found, key=lambda one: one.group)


def undisturbed(rows: Sequence[Measured]) -> list[Measured]:
    """The rows without those that take DISTURBED times as long as a neighbour in micro-batches."""
    alike: dict[object, list[Measured]] = {}
    for row in sorted(rows, key=lambda one: one.layout.batch):
        alike.setdefault((row.group, row.layout.groups, row.plan), []).append(row)
    slow = set()
    for own in alike.values():
        for one, other in pairwise(own):
            for this, that in ((one, other), (other, one)):
                if this.seconds > DISTURBED * that.seconds:
                    slow.add(this)
    return [row for row in rows if row not in slow]


def priced(rows: Sequence[Measured]) -> Iterator[tuple[Measured, tuple[int, float]]]:
    """Rows with their turn by verdict, those that surely fit first, and their predicted seconds."""
    cluster = osf.load_cluster(CLUSTER)
    for (model, gpus), own in groupby(rows, lambda one: one.group):
        words = f"{MODELS[model]}:h100,seq{TOKENS},batch1,bf16,stack=nanotron"
        plans = ("zero-1", "ddp")
        each = {one: LayoutSearch(words, cluster, gpus, osf.ScaleOptions((one,))) for one in plans}
        for row in own:
            point = each[row.plan].price(row.layout)
            turn = ("yes", "tight", "no").index(point.fits or "yes") if point else 3
            yield row, (turn, point.time if point else 0.0)


def regrets(rows: Sequence[Measured], key: Callable[[Measured], object], most: int = 1) -> dict[tuple[str, int], float]:
    """The regret of the best of the first ``most`` by ``key``, for each group."""
    found = {}
    for group, members in groupby(rows, lambda one: one.group):
        own = list(members)
        if len(own) >= LEAST:
            first = sorted(own, key=key)[:most]  # type: ignore[arg-type]
            found[group] = min(one.seconds for one in first) / min(one.seconds for one in own) - 1
    return found


def main() -> None:
    """Print the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("file", nargs="?", type=Path, default=Path(os.environ.get("OSFMODEL_DATA", ".")) / FILE)
    asked.add_argument("--tp", type=int, default=8)
    asked.add_argument("--groups", action="store_true", help="also each group")
    given = asked.parse_args()
    every = read(given.file, given.tp)
    times = dict(priced(every))
    print("| rows | choice | groups | median | p90 | worst |\n|---|---|---|---|---|---|")
    for said, rows in ((f"all {len(every)}", every), ("undisturbed", undisturbed(every))):
        name = said if rows is every else f"{len(rows)} {said}"
        by = {
            "predicted fastest": regrets(rows, times.__getitem__),
            "best of the first three": regrets(rows, times.__getitem__, 3),
            "rule of thumb": regrets(rows, lambda one: (one.layout.groups.gpus, -one.layout.batch)),
        }
        for choice, found in by.items():
            lost = sorted(found.values())
            cells = (f"{quantile(lost, part):.1%}" for part in (0.5, 0.9, 1.0))
            print(f"| {name} | {choice} | {len(lost)} | {' | '.join(cells)} |")
        if given.groups:
            for group in by["rule of thumb"]:
                print(f"  {group}: " + ", ".join(f"{choice} {found[group]:.1%}" for choice, found in by.items()))


if __name__ == "__main__":
    main()
