"""Type commands drawn from a grammar, and what the refusals propose; say how many get an answer:

    python benchmarks/commands.py [--seed 1] [--count 300] [--all] [--only NUMBER]

The commands are those of tests/grammar.py; ``--all`` also prints those that were answered, ``--only`` one of them. The
names, units and files of the grammar are given to each side of the tool that takes them as well: where one takes what
another refuses, that is a finding. Ends with 1 where there are findings.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).resolve().parents[1]))
os.environ["OSFMODEL_NO_CONFIG"] = "1"

from tests.grammar import GOOD, SIDES, VERDICTS, Bench, drawn, judged, one_sided


def main() -> int:
    """Judge the commands, and print the figures and the findings."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", type=int)
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    numbers = range(asked.count) if asked.only is None else [asked.only]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for number in numbers:
            draw = drawn(Random(f"{asked.seed} {number}"))
            found = judged(draw.words, bench, draw.meant)
            counts[found.verdict] += 1
            if asked.all or found.verdict not in GOOD:
                print(f"{number}: {found.verdict}: osf {shlex.join(found.words)}")
                if found.line:
                    print(f"    {found.line}")
                for words, said in found.tried:
                    print(f"    > osf {shlex.join(words)}\n      {said}")
        apart = [] if asked.only is not None else [row for noun in SIDES for row in one_sided(noun, bench)]
        for row in apart:
            print(f"one side only: {row}")
    print(", ".join(f"{verdict}: {counts[verdict]}" for verdict in VERDICTS), f"; one side only: {len(apart)}", sep="")
    return int(bool(apart) or any(counts[verdict] for verdict in VERDICTS if verdict not in GOOD))


if __name__ == "__main__":
    sys.exit(main())
