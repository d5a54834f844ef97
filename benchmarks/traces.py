"""The content of profiler traces, and whether their steps follow from their parts: the table of traces.md.

    [OSFMODEL_DATA=...] python benchmarks/traces.py [TRACE...]

Published traces lie in the folder that OSFMODEL_DATA names; without, only those of this repository are read.

For each trace (or for those given, the files of one job each in a folder or an archive): its workload, the buckets that
it shows and what its collectives took are put together again, and the iteration time of that is held against the
median of its steps. That is self-consistency, no prediction: all parts are of the run itself. It shows whether the
parts are read rightly, and whether a model of an in-order all-reduce beside a backward describes such a step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import osfmodel as osf
from osfmodel.entities.errors import DataError
from osfmodel.entities.trace import Trace
from osfmodel.entities.workload import Workload
from osfmodel.formats import Hints, load_trace
from osfmodel.formats.traces import cluster_of, measurement_of, plan_of, workload_of
from osfmodel.formats.traces.usual import usual_steps

COLUMNS = (
    "trace", "ranks", "steps", "collectives a step", "gradients", "reduced in", "step, ms", "put together, ms", "error",
    "missing",
)  # fmt: skip
MOST_BUCKETS = 5


class Row(NamedTuple):
    """A line of the table; ``error`` is put together / measured - 1, None where something is missing."""

    name: str
    ranks: str
    steps: int
    collectives: int
    gradients: int
    buckets: str
    measured: float
    again: float | None
    missing: str

    @property
    def error(self) -> float | None:
        """Relative."""
        return None if self.again is None else self.again / self.measured - 1

    def __str__(self) -> str:
        again, error = (
            ("", "") if self.error is None else (f"{(self.again or 0) * 1e3:.2f}", f"{round(self.error, 4) + 0.0:+.2%}")
        )
        figures = (
            f"{self.collectives} | {self.gradients} | {self.buckets} | {self.measured * 1e3:.2f} | {again} | {error}"
        )
        return f"| {self.name} | {self.ranks} | {self.steps} | {figures} | {self.missing} |"


def row_of(trace: Trace) -> Row:
    """The content of a trace, and its step put together again."""
    step, workload = usual_steps(trace)[0], workload_of(trace)
    again, missing = _again(trace, workload)
    return Row(
        trace.name,
        f"{len(trace.ranks)} of {trace.workers or 1}",
        len(trace.pace.steps),
        len(step.collectives),
        len(step.gradients),
        _buckets([one.elements for one in step.reductions]),
        measurement_of(trace).iteration_time,
        again,
        missing,
    )


def _again(trace: Trace, workload: Workload) -> tuple[float | None, str]:
    """Seconds of an iteration of the parts, or what is missing for it."""
    if not any(step.collectives for rank in trace.ranks for step in rank.steps):
        said = "" if workload.gradient_bytes else "sizes of gradients"
        return workload.compute_time, ", ".join(filter(None, [said, "no collectives: computation alone"]))
    try:
        plan, cluster = plan_of(trace, workload), cluster_of(trace)
    except DataError as error:
        return None, str(error)
    return osf.predict(workload, cluster, plan, trace.workers or 1).iteration_time, ""


def _buckets(sizes: Sequence[int | None]) -> str:
    if len(sizes) > MOST_BUCKETS or None in sizes:
        return f"{len(sizes)} all-reduces"
    return " ".join(map(str, sizes)) or "-"


def published() -> dict[str, list[Path]]:
    """By the name of the job, the files of the traces in the folder that OSFMODEL_DATA names; none without."""
    folder = os.environ.get("OSFMODEL_DATA")
    found = sorted((Path(folder) / "traces" / "kineto").glob("*.gz")) if folder else []
    return {path.name.partition(".")[0]: [path] for path in found}


def recorded() -> dict[str, list[Path]]:
    """The same of the traces that the tests have of real gloo jobs."""
    folder = Path(__file__).parents[1] / "tests" / "formats" / "data" / "explained"
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        found.setdefault(path.name.rpartition("-")[0], []).append(path)
    return found


def main(paths: Sequence[str]) -> None:
    """Print the table."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    given = {Path(path).name.partition(".")[0]: [Path(path)] for path in paths}
    for name, files in (given or published() | recorded()).items():
        print(row_of(load_trace(files, Hints(name))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
