"""Causes that ``osf explain`` names, of real jobs with one thing wrong in each: a confusion matrix.

    python benchmarks/planted_causes.py [--recordings 10] [--keep FOLDER | --read FOLDER] [CASE...]

Needs root, iproute2 and PyTorch. Jobs of DDP and FSDP2 over gloo run between emulated hosts, each so many times, and
are traced on every rank (tests/live/explained.py). A row of the matrix is what was planted, a column what was named
first. The last lines have the largest part of a step that the causes do not add up to, and the largest that the replay
leaves unexplained. Some 40 seconds a recording of all cases.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import osfmodel as osf
from osfmodel.diagnosis import CAUSES, COMPUTE
from tests.live import explained


def kept(folder: Path, cases: Mapping[str, explained.Case]) -> Iterator[tuple[str, list[list[Path]]]]:
    """The traces of each case that were kept, as ``explained.record`` has them."""
    for name, case in cases.items():
        first = sorted(folder.glob(f"*-{name}-0.json"), key=lambda path: int(path.name.partition("-")[0]))
        first = [path for path in first if path.name.partition("-")[2] == f"{name}-0.json"]
        yield name, [[path.with_name(f"{path.name[:-6]}{rank}.json") for rank in range(case.ranks)] for path in first]


def main() -> None:
    """The matrix, the share that is right, and how far causes are from the step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=int, default=10)
    parser.add_argument("--keep", help="keep the traces in this folder")
    parser.add_argument("--read", help="explain the traces that were kept in this folder")
    parser.add_argument("cases", nargs="*", help="names of cases; all, if none is given")
    asked = parser.parse_args()
    cases = {name: explained.CASES[name] for name in asked.cases or explained.CASES}
    named: dict[str, Counter[str]] = {}
    off, missed = 0.0, {}
    with ExitStack() as stack:
        folder = Path(asked.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        recorded = (
            kept(Path(asked.read), cases) if asked.read else explained.record(folder, cases, turns=asked.recordings)
        )
        for name, recordings in recorded:
            found = [osf.explain(paths) for paths in recordings]
            named[name] = Counter(one.cause for one in found)
            for one in found:
                told = sum(one.gains.values()) + one.left
                off = max(off, abs(told / one.step_time - 1))
            missed[name] = max(one.missed / one.step_time for one in found)
    causes = sorted({cause for counts in named.values() for cause in counts}, key=[*CAUSES, COMPUTE].index)
    print(f"| planted | expected | {' | '.join(causes)} | unexplained, at most |")
    print("|---|---|" + "---|" * (len(causes) + 1))
    for name, counts in named.items():
        cells = " | ".join(str(counts[cause] or "") for cause in causes)
        print(f"| {name} | {explained.EXPECTED[name]} | {cells} | {missed[name]:.1%} |")
    right = sum(counts[explained.EXPECTED[name]] for name, counts in named.items())
    every = sum(counts.total() for counts in named.values())
    print(f"\n{right} of {every} recordings ({right / every:.0%}) have the planted cause named first.")
    print(f"Causes and computation add up to the step within {off:.1%}: the rest is what the replay does not explain.")


if __name__ == "__main__":
    main()
