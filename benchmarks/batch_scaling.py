"""Step times at other batch sizes, predicted from one batch size of a model that the rule has not seen.

    OSFMODEL_DATA=FOLDER python benchmarks/batch_scaling.py

FOLDER holds the published figures: AdaptDL's step times on one T4, at 7 to 21 batch sizes of four models. Each pair of
sizes shows a share of the smaller one's time that does not grow; for each model share and spread are learned from the
other three (the median over models of medians over pairs, and the largest 90 % quantile of errors; NeuMF, bound by
its host, gives no spread). ``covered``: pairs, up and down, within the spread learned without the model.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from osfmodel.entities.batches import FIXED_SHARE, SPREAD, time_ratio

DATA = Path(os.environ.get("OSFMODEL_DATA", ""))
MODELS = ("imagenet", "cifar10", "deepspeech2", "ncf")
BOUND_BY_HOST = "ncf"
ALONE = "1"
QUANTILE = 0.9
Times = Mapping[int, float]
"""Seconds of a step by batch size."""


def measured(data: Path, model: str) -> Times:
    """Step times on one GPU."""
    with open(data / f"scaling/pollux-adaptdl/{model}_placements.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["placement"] == ALONE]
    return {int(row["local_bsz"]): float(row["step_time"]) for row in rows}


def share(times: Times) -> float:
    """Share of the smaller batch's time that does not grow: the median over pairs."""
    return median(1 - (times[b] / times[a] - 1) / (b / a - 1) for a, b in combinations(sorted(times), 2))


def errors(times: Times, fixed: float) -> list[tuple[float, float]]:
    """(factor, predicted / measured - 1) of each pair, up and down."""
    pairs = [pair for a, b in combinations(sorted(times), 2) for pair in ((a, b), (b, a))]
    return [(b / a, times[a] * time_ratio(b / a, fixed) / times[b] - 1) for a, b in pairs]


def spread(times: Times, fixed: float) -> float:
    """90 % quantile of errors, each over the binary logarithm of its factor, at most 1."""
    found = sorted(abs(error) / min(1.0, abs(math.log2(factor))) for factor, error in errors(times, fixed))
    return found[math.ceil(QUANTILE * len(found)) - 1]


def learned(times: Sequence[Times], device_bound: Sequence[Times]) -> tuple[float, float]:
    """The share over all of ``times``, and the largest spread of those that are not bound by the host."""
    fixed = median(map(share, times))
    return fixed, max(spread(one, fixed) for one in device_bound)


def main() -> None:
    """Print the held-out table, then what all models give and what the package has."""
    known = {model: measured(DATA, model) for model in MODELS}
    print("| model | share of its own | learned share | learned spread | median error | in proportion | covered |")
    print("|---|---|---|---|---|---|---|")
    for model, times in known.items():
        others = {name: one for name, one in known.items() if name != model}
        fixed, wide = learned(list(others.values()), [one for name, one in others.items() if name != BOUND_BY_HOST])
        found = errors(times, fixed)
        inside = sum(abs(error) <= wide * min(1.0, abs(math.log2(factor))) for factor, error in found)
        typical, before = (median(abs(error) for _, error in rows) for rows in (found, errors(times, 0.0)))
        cells = [f"{share(times):.2f}", f"{fixed:.2f}", f"{wide:.2f}", f"{typical:.0%}", f"{before:.0%}"]
        print(f"| {model} | {' | '.join(cells)} | {inside / len(found):.0%} |")
    fixed, wide = learned(list(known.values()), [one for name, one in known.items() if name != BOUND_BY_HOST])
    print(f"all models: share {fixed:.3f}, spread {wide:.3f}; in the package {FIXED_SHARE}, {SPREAD}")


if __name__ == "__main__":
    main()
