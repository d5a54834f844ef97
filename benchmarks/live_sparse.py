"""Sparse buckets between emulated hosts, predicted and measured, beside the best dense plan.

    python benchmarks/live_sparse.py                 # show the runs that were kept, held against predictions
    python benchmarks/live_sparse.py FOLDER          # measure what is not in FOLDER yet: half an hour
    python benchmarks/live_sparse.py FOLDER --keep   # put what FOLDER holds among the project's profiles

Needs root, iproute2 and torch. For each rate the network, and what sparse buckets compute, are measured once with ``osf
bench`` right before; then each workload is replayed under all plans, by turns. To choose what is sent is real work of
all ranks at once on the cores of this machine, in the bench as in the runs. Lest ranks that compute keep the cores from
those that communicate, the machine's time slice of real-time processes is set to 1 ms (a tick) meanwhile, and then to
what it was; after a kill -9 it stays (/proc/sys/kernel/sched_rr_timeslice_ms, 100 by default). Nothing else should run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import live  # noqa: E402

from osfmodel import load_cluster  # noqa: E402
from osfmodel.entities.executors import RUNTIME  # noqa: E402
from osfmodel.entities.files import profiles  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements, save_measurements  # noqa: E402
from osfmodel.entities.measurement import Measurement  # noqa: E402
from osfmodel.ledger.check import side_by_side  # noqa: E402
from osfmodel.ledger.results import Beside, PlanRuns  # noqa: E402
from osfmodel.ledger.sources import emulated_ddp  # noqa: E402
from tests.live.cluster import emulated  # noqa: E402

NAME = "emulated-sparse"
HOSTS = ((2, "1gbit"), (2, "500mbit"), (4, "500mbit"))
"""How many, and their links. Two have a core each here; four share two of them, when they choose and when they send."""
SCALES = {"googlenet-k80-tensors": 1.0, "transformer-6x256-cpu": 0.8}
"""How many times as slow computation is replayed."""
ITERATIONS = 20
CORES = 2
"""Cores of the machine that the kept runs are from."""
DENSITIES, KINDS, BUCKETS = ("1%", "10%"), ("", ",release,mirror"), "cap:4MiB"
DENSE = ("ddp", f"{RUNTIME.prefix}{BUCKETS}")
"""Stock DDP by default, and the executor with the buckets that are sparse in the others."""
SPARSE = tuple(f"{RUNTIME.prefix}sparse:{density},{BUCKETS}{kind}" for density in DENSITIES for kind in KINDS)
ORIGIN = "measured with benchmarks/live_sparse.py"


SLICE, SLICE_MS = Path("/proc/sys/kernel/sched_rr_timeslice_ms"), 1


@contextmanager
def sliced() -> Iterator[None]:
    """Short time slices, in which ranks take turns."""
    before = SLICE.read_text(encoding="ascii")
    SLICE.write_text(str(SLICE_MS), encoding="ascii")
    try:
        yield
    finally:
        SLICE.write_text(before, encoding="ascii")


class Setting(NamedTuple):
    """One file of runs."""

    workload: str
    workers: int
    rate: str

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        return f"{NAME}-{self.workers}x{self.rate}"

    @property
    def file(self) -> str:
        """The name of the file of runs."""
        return f"{self.workload}-{self.workers}x{self.rate}.json"


def settings() -> Iterator[Setting]:
    """All of them, in the order in which they are measured."""
    for workers, rate in HOSTS:
        for workload in SCALES:
            yield Setting(workload, workers, rate)


def measure(folder: Path) -> None:
    """Everything that is not in ``folder``, one setting after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting in settings():
        if (folder / setting.file).exists():
            continue
        with sliced(), emulated(setting.workers, setting.rate) as hosts:
            cluster_file = folder / f"{setting.cluster}.json"
            if not cluster_file.exists():
                network = f"{setting.workers} network namespaces on a bridge, egress shaped to {setting.rate} by tc tbf"
                words = ["bench", "--max-size", "64MiB", "--repeat", "10", "--compute", "none", "--network", network]
                words += ["--collective", "all_reduce", "--collective", "all_gather"]
                live.osf(hosts, [*words, "-o", str(cluster_file)])
            words = live.run_words(setting.workload, SCALES[setting.workload], cluster_file)
            words += ["--gradient-as-bucket-view"]
            words += [word for plan in (*DENSE, *SPARSE) for word in ("--plan", plan)]
            words += ["--iterations", str(ITERATIONS), "--repeat", str(live.REPEATS)]
            partial = folder / f"unfinished-{setting.file}"
            live.osf(hosts, [*words, "-o", str(partial)])
            machine = f"{live.machine_of(hosts)}, slices of {SLICE_MS} ms"
            source = replace(live.source_of(machine, ITERATIONS), origin=ORIGIN)
            runs = [replace(run, source=source) for run in load_measurements(partial)]
            save_measurements(partial.stem, runs, partial)
            partial.rename(folder / setting.file)
            print(setting.file, flush=True)


def keep(folder: Path) -> None:
    """Put the clusters and the runs where the profiles are."""
    for name in dict.fromkeys(setting.cluster for setting in settings()):
        cluster = load_cluster(folder / f"{name}.json")
        source = replace(cluster.source, licence=live.LICENCE)
        profiles.save(replace(cluster, source=source), ROOT / f"profiles/clusters/{name}.json")
    runs: list[Measurement] = []
    for setting in settings():
        runs += [replace(run, cluster=setting.cluster) for run in load_measurements(folder / setting.file)]
    counts = " or ".join(map(str, sorted({len(run.samples) for run in runs})))
    source = replace(
        runs[0].source, conditions=re.sub(r"\d+ iterations", f"{counts} iterations", runs[0].source.conditions)
    )
    save_measurements(NAME, [replace(run, source=source) for run in runs], ROOT / f"profiles/measurements/{NAME}.json")


def sparse(turns: PlanRuns) -> bool:
    """Whether these turns are of a plan with sparse buckets."""
    return ":sparse:" in turns.plan


def groups() -> list[Beside]:
    """The kept runs, each workload and rate with its plans."""
    runs = load_measurements(NAME)
    return side_by_side(runs, emulated_ddp.judge(runs).rows)


def show() -> str:
    """The kept runs as tables."""
    found = groups()
    return "\n".join([*errors(found), "", *gains(found), "", *live.cells(found)])


def errors(found: Sequence[Beside]) -> Iterator[str]:
    """Median and worst, of sparse plans and of the others, apart where hosts share cores."""
    for words, wanted in (("sparse", True), ("dense", False)):
        for hosts, shared in (("a core for each of 2 hosts", False), ("2 cores for 4 hosts", True)):
            groups = [group for group in found if (group.workers > CORES) == shared]
            every = [turns for group in groups for turns in group.turns if sparse(turns) == wanted]
            counted = [abs(turns.error) for turns in every if turns.steady and turns.error is not None]
            said = f"median |error| {median(counted):.2%}, worst {max(counted):.2%}; " if counted else ""
            yield f"{words}, {hosts}: {len(counted)} cells, {said}{len(every) - len(counted)} not counted"


def gains(found: Sequence[Beside]) -> Iterator[str]:
    """Gains of sparse plans over the best dense one, predicted / measured: a column for each plan."""
    plans = list(dict.fromkeys(turns.plan for group in found for turns in group.turns if sparse(turns)))
    yield f"| workload, ranks x rate | {' | '.join(plan.partition(':')[2] for plan in plans)} |"
    yield "|---|" + "---|" * len(plans)
    for group in found:
        best = min((turns for turns in group.turns if not sparse(turns)), key=lambda turns: turns.measured)
        cells = {
            turns.plan: f"{1 - turns.predicted / best.predicted:.1%} / {1 - turns.measured / best.measured:.1%}"
            for turns in group.turns
            if sparse(turns) and turns.predicted and best.predicted
        }
        name = f"{group.workload} {group.cluster.rpartition('-')[2]}"
        yield f"| {name} | {' | '.join(cells.get(plan, '') for plan in plans)} |"


if __name__ == "__main__":
    live.show_or_measure(__doc__, show, measure, keep)
