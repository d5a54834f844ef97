"""CPU time of the tests, against the budget of each folder:

    python benchmarks/suite.py [--slowest 20] [arguments for pytest, such as -n logical or tests/solve]

Seconds are of CPU, with processes that a test starts and waits for, so that a busy machine changes them little. What a
session shares (a fixture, a tuned plan) counts for the first test that asks. Ends with 1 where a folder that was run as
a whole is over its budget.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTES = "OSFMODEL_SUITE_SECONDS"
"""Names the folder of notes: a file for each process of pytest, with a line ``seconds test`` for each test."""

BUDGETS = {
    "planning": 107, "ledger": 54, "repository": 54, "conformance": 47, "formats": 46, "show": 46, "cli": 40,
    "solve": 35, "diagnosis": 25, "engine": 22, "targets": 22, "counting": 18, "cost": 15, "entities": 10, "golden": 8,
    "runtime": 5,
}  # fmt: skip
"""CPU seconds of each folder of tests, without PyTorch, with nothing kept: with the start, five minutes of two cores.
Lower one when its tests were shortened."""


def note(seconds: float, what: str) -> None:
    """Append a line to this process's file."""
    with (Path(os.environ[NOTES]) / str(os.getpid())).open("a") as file:
        file.write(f"{seconds:.3f} {what}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test takes, with its fixtures."""
    start = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        note(sum(os.times()[:4]) - start, item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: Any) -> Iterator[None]:
    """Note what start and collection take in this process."""
    try:
        return (yield)
    finally:
        note(sum(os.times()[:4]), "start and collection")


def main() -> int:
    """Run pytest, print the slowest tests and the folders."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slowest", type=int, default=20)
    asked, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.suite", *others]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, NOTES: folder}, check=False).returncode
        lines = [line for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
    tests = sorted(((float(seconds), name) for seconds, name in (line.split(" ", 1) for line in lines)), reverse=True)
    return max(status, report(tests, asked.slowest))


def report(tests: list[tuple[float, str]], slowest: int) -> int:
    """Print the slowest files and tests, and each folder against its budget; 1 where one is over it."""
    by_file, by_folder = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for seconds, name in tests:
        file = name.partition("::")[0]
        by_file[file].append(seconds)
        by_folder[file.rpartition("/")[0].removeprefix("tests/") or file].append(seconds)
    print("\nCPU s  test")
    for seconds, name in tests[:slowest]:
        print(f"{seconds:5.1f}  {name}")
    print("\nCPU s  tests  file")
    for file, spent in sorted(by_file.items(), key=lambda row: -sum(row[1]))[:slowest]:
        print(f"{sum(spent):5.1f}  {len(spent):5}  {file}")
    print("\nCPU s  budget  tests  folder")
    over = False
    for name, spent in sorted(by_folder.items(), key=lambda row: -sum(row[1])):
        budget = BUDGETS.get(name)
        late = budget is not None and sum(spent) > budget
        over |= late
        print(f"{sum(spent):5.0f}  {budget or '-':>6}  {len(spent):5}  {name}{'  OVER' if late else ''}")
    print(f"{sum(seconds for seconds, _ in tests):5.0f}  {sum(BUDGETS.values()):6}  {len(tests):5}  all")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
