"""What remedies bring, predicted from one trace and measured: the planted faults of the tests, mended.

    python benchmarks/remedies.py

Needs root, iproute2 and PyTorch. Each job with a fault was traced (tests/formats/data/explained). ``osf explain`` has
its remedies from that trace alone, and the job is run again between emulated hosts with the remedy carried out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import osfmodel as osf
from osfmodel.units import show_time
from tests.live import explained


def main() -> None:
    """A row of a table for each remedy."""
    print("| fault | remedy | step, with the fault | predicted | measured | error |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, paths in explained.record(Path(folder), explained.MENDED):
            fault, _, remedy = name.partition("+")
            sick = osf.explain(explained.paths_of(fault))
            predicted = next(one.step_time for one in sick.remedies if one.name == remedy)
            measured = osf.explain(paths).step_time
            times = " | ".join(map(show_time, (sick.step_time, predicted, measured)))
            print(f"| {fault} | {remedy} | {times} | {predicted / measured - 1:+.1%} |")


if __name__ == "__main__":
    main()
