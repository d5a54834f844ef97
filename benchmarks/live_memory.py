"""Throughput at the batch that fits, before and after ``osf tune --memory``, between emulated hosts.

    python benchmarks/live_memory.py                 # show the runs that were kept, held against predictions
    python benchmarks/live_memory.py FOLDER          # measure what is not in FOLDER yet: ten minutes
    python benchmarks/live_memory.py FOLDER --keep   # put what FOLDER holds among the project's profiles

The network is that of benchmarks/live_sparse.py, as measured there. ResNet-50 with the times of a V100 is
replayed, so many times as slow as the network is slower than 10 Gbit/s Ethernet between 16 workers. For each limit
three runs: DDP with its defaults at its largest batch that fits, and the executor with the plan and the batch that the
planner finds, dense, and sparse with mirror weights. A replay has no activations, so whether plans fit is not seen here
(benchmarks/memory.py holds such plans against tensors). Entries are chosen at the real speed of a core while all else
is slowed, so that choosing is cheaper beside the rest than on a GPU at 10 Gbit/s. Needs root, iproute2 and torch, and
nothing else should run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import live  # noqa: E402
import live_sparse  # noqa: E402

import osfmodel as osf  # noqa: E402
from osfmodel.entities.executors import RUNTIME  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements, save_measurements  # noqa: E402
from osfmodel.entities.units import MIB  # noqa: E402
from osfmodel.ledger.sources import emulated_ddp  # noqa: E402
from osfmodel.planning.memory import Candidate, MemoryBudget  # noqa: E402
from osfmodel.planning.memory.search import tune_memory  # noqa: E402
from tests.live.cluster import emulated  # noqa: E402

NAME = "emulated-memory"
WORKLOAD, SCALE = "resnet50-memory", 16.0
WORKERS, RATE = 4, "500mbit"
LIMITS = (1, 2)
"""GiB for all that a step keeps."""
DENSITY = 0.01
ITERATIONS, REPEATS = 5, 2
BEFORE, DENSE, SPARSE = "before", "dense", "sparse"
ORIGIN = "measured with benchmarks/live_memory.py"


class Case(NamedTuple):
    """One run: DDP before, or a plan after, at its batch."""

    limit: int
    way: str
    fit: Candidate

    @property
    def plan(self) -> str:
        """As the kept runs name it."""
        return f"ddp within {self.limit}GiB" if self.way == BEFORE else f"{self.way} within {self.limit}GiB"

    @property
    def stem(self) -> str:
        """Stem of its file names."""
        return f"{self.limit}GiB-{self.way}"


def cases() -> Iterator[Case]:
    """The planner's results for the network as it was measured."""
    cluster = osf.load_cluster(f"{live_sparse.NAME}-{WORKERS}x{RATE}")
    workload = osf.load_workload(WORKLOAD).scaled(SCALE)
    for limit in LIMITS:
        room = limit * 1024 * MIB
        dense = tune_memory(workload, cluster, WORKERS, MemoryBudget(room))
        sparse = tune_memory(workload, cluster, WORKERS, MemoryBudget(room, density=DENSITY, mirror=True))
        if dense.before is not None:
            yield Case(limit, BEFORE, dense.before)
        yield Case(limit, DENSE, dense.after)
        yield Case(limit, SPARSE, sparse.after)


def measure(folder: Path) -> None:
    """Every case that is not in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [case for case in cases() if not (folder / f"{case.stem}.json").exists()]
    with live_sparse.sliced(), emulated(WORKERS, RATE) as hosts:
        machine = f"{live.machine_of(hosts)}, slices of {live_sparse.SLICE_MS} ms"
        source = replace(live.source_of(machine, ITERATIONS, REPEATS), origin=ORIGIN)
        for case in missing:
            plan = folder / f"plan-{case.stem}.json"
            osf.save(case.fit.plan, plan)
            words = ["run", WORKLOAD, "--scale", f"{SCALE:g}", "--batch-size", str(case.fit.batch_size)]
            words += ["--plan", "ddp" if case.way == BEFORE else f"{RUNTIME.prefix}{plan}"]
            words += ["--iterations", str(ITERATIONS), "--repeat", str(REPEATS)]
            partial = folder / f"unfinished-{case.stem}.json"
            live.osf(hosts, [*words, "-o", str(partial)])
            runs = [replace(run, plan=case.plan, source=source) for run in load_measurements(partial)]
            save_measurements(case.stem, runs, partial)
            partial.rename(folder / f"{case.stem}.json")
            print(case.plan, flush=True)


def keep(folder: Path) -> None:
    """Put the runs where the profiles are."""
    cluster = f"{live_sparse.NAME}-{WORKERS}x{RATE}"
    stems = [f"{limit}GiB-{way}" for limit in LIMITS for way in (BEFORE, DENSE, SPARSE)]
    files = [folder / f"{stem}.json" for stem in stems]
    runs = [run for file in files if file.exists() for run in load_measurements(file)]
    save_measurements(
        NAME, [replace(run, cluster=cluster) for run in runs], ROOT / f"profiles/measurements/{NAME}.json"
    )


def show() -> Iterator[str]:
    """The kept runs: samples per second of all workers, and what was gained."""
    yield "| within | plan | batch | samples/s predicted | measured | spread | error | gain predicted | measured |"
    yield "|---|---|---|---|---|---|---|---|---|"
    runs = load_measurements(NAME)
    rows = emulated_ddp.judge(runs).rows
    first: dict[str, tuple[float, float]] = {}
    for plan in dict.fromkeys(run.plan for run in runs):
        turns = [(run, row) for run, row in zip(runs, rows, strict=True) if run.plan == plan]
        run, row = turns[0]
        times = sorted(run.iteration_time for run, _ in turns)
        batch = int(run.condition("batch_size"))
        found, predicted = (
            run.workers * batch / seconds for seconds in (sum(times) / len(times), row.predicted or 0.0)
        )
        way, _, limit = plan.partition(" within ")
        start = first.setdefault(limit, (predicted, found))
        gains = (
            ["", ""]
            if way == "ddp"
            else [f"{one / two - 1:+.0%}" for one, two in zip((predicted, found), start, strict=True)]
        )
        error = f"{found / predicted - 1:+.1%}"
        cells = [
            limit,
            way,
            str(batch),
            f"{predicted:.1f}",
            f"{found:.1f}",
            f"{times[-1] / times[0] - 1:.1%}",
            error,
            *gains,
        ]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    live.show_or_measure(__doc__, lambda: "\n".join(show()), measure, keep)
