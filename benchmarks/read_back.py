"""Compare the results of ``osf tune`` with those of ``osf predict --plan FILE`` on its files.

    python benchmarks/read_back.py [--pairs 500] [--seed 1] [TARGET...]

Workloads, clusters, worker counts and options are drawn, over all targets in turn (tests/read_back.py). Step time,
exposed communication, bound and error band must be equal to the last digit. Prints the pairs that differ, how many
there are of each target, and with each option; ends with 1 where any differ. 500 pairs take some five minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["OSFMODEL_NO_CONFIG"] = "1"

from tests.read_back import pairs


def main() -> int:
    """Draw pairs, and print those that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets to tune for; all, if none is given")
    asked = parser.parse_args()
    drawn, differing, given = Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for pair in pairs(asked.seed, asked.pairs, Path(folder), asked.targets):
            drawn[pair.target] += 1
            given.update({word for word in pair.command[6:] if word.startswith("--") and word != "--for"})
            if pair.differences:
                differing[pair.target] += 1
                print(pair)
    for target, count in drawn.items():
        print(f"{target}: {count} pairs, {differing[target]} different")
    print("with", ", ".join(f"{option} {count}" for option, count in given.most_common()))
    print(f"seed {asked.seed}: {drawn.total()} pairs, {differing.total()} different")
    return int(differing.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
