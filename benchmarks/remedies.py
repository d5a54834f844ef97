"""Gains of remedies, predicted from one trace and measured: the planted faults of the tests, mended.

    python benchmarks/remedies.py [--repeats 5] [FAULT...]

Needs root, iproute2 and PyTorch. Each job with a fault was traced (tests/formats/data/explained). ``osf explain`` has
its remedies from that trace alone, and the job is run again between emulated hosts with the remedy applied, all in
turn, so many times: medians, and the error against each. Some 20 seconds a turn of all
faults.
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
    measured = defaultdict(list)
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for name, (paths,) in explained.record(Path(folder), wanted or explained.MENDED):
                measured[name].append(osf.explain(paths).step_time)
    print("| fault | remedy | step, with the fault | predicted | measured | error | of each run |")
    print("|---|---|---|---|---|---|---|")
    for name, times in measured.items():
        fault, _, remedy = name.partition("+")
        sick = osf.explain(explained.paths_of(fault))
        predicted = next(one.step_time for one in sick.remedies if one.name == remedy)
        errors = sorted(predicted / time - 1 for time in times)
        shown = " | ".join(map(show_time, (sick.step_time, predicted, median(times))))
        error = predicted / median(times) - 1
        print(f"| {fault} | {remedy} | {shown} | {error:+.1%} | {errors[0]:+.1%} to {errors[-1]:+.1%} |")


if __name__ == "__main__":
    main()
