"""Gains of remedies, predicted from traces with a fault and measured: the planted faults of the tests, mended.

    python benchmarks/remedies.py [--repeats 5] [FAULT...]

Needs root, iproute2 and PyTorch. In each turn the jobs run between emulated hosts with their faults and with the
remedies applied. ``osf explain`` has its remedies from the trace with the fault alone. The table has medians, and the
errors of the turns. Some 60 seconds a turn of all faults.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import osfmodel as osf
from osfmodel.entities.display import show_time
from tests.live import explained


def main() -> None:
    """A row of a table for each remedy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("faults", nargs="*", help="names of faults; all, if none is given")
    asked = parser.parse_args()
    wanted = {name: case for name, case in explained.MENDED.items() if name.partition("+")[0] in asked.faults}
    wanted = wanted or explained.MENDED
    faults = {name.partition("+")[0]: explained.CASES[name.partition("+")[0]] for name in wanted}
    turns = defaultdict(list)
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory() as folder:
            found = {
                name: osf.explain(paths) for name, (paths,) in explained.record(Path(folder), {**faults, **wanted})
            }
        for name in wanted:
            fault, _, remedy = name.partition("+")
            predicted = next(one.step_time for one in found[fault].remedies if one.name == remedy)
            turns[name].append((found[fault].step_time, predicted, found[name].step_time))
    print("| fault | remedy | step, with the fault | predicted | measured | error | of each turn |")
    print("|---|---|---|---|---|---|---|")
    for name, rows in turns.items():
        fault, _, remedy = name.partition("+")
        errors = sorted(predicted / time - 1 for _, predicted, time in rows)
        shown = " | ".join(show_time(median(column)) for column in zip(*rows, strict=True))
        print(f"| {fault} | {remedy} | {shown} | {median(errors):+.1%} | {errors[0]:+.1%} to {errors[-1]:+.1%} |")


if __name__ == "__main__":
    main()
