"""Horovod between emulated hosts under many settings: measured, predicted, and what its own tuner finds.

    python benchmarks/live_horovod.py                    # what the bundled runs say, in a second
    python benchmarks/live_horovod.py FOLDER             # measure everything anew into FOLDER: an hour and a quarter
    python benchmarks/live_horovod.py FOLDER --tuner     # let Horovod tune itself, and measure what it finds
    python benchmarks/live_horovod.py FOLDER --keep      # put what FOLDER holds among the project's profiles

Measuring needs root, iproute2 and Horovod built for the installed torch (docs/how-to/check-horovod.md). What is in
FOLDER is not measured again, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import live  # noqa: E402
from osfmodel import load_cluster  # noqa: E402
from osfmodel.engine.horovod_loop import Loop  # noqa: E402
from osfmodel.entities.files import profiles  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements, save_measurements  # noqa: E402
from osfmodel.entities.measurement import Measurement, Source  # noqa: E402
from osfmodel.formats.horovod import Autotune, autotune  # noqa: E402
from osfmodel.formats.source_text import Text  # noqa: E402
from osfmodel.ledger.check import side_by_side  # noqa: E402
from osfmodel.ledger.results import Beside  # noqa: E402
from osfmodel.ledger.sources import emulated_ddp  # noqa: E402
from osfmodel.runtime.horovod import HorovodTurns  # noqa: E402
from osfmodel.runtime.job import Watchdog, place_of, together  # noqa: E402
from tests.live.cluster import emulated  # noqa: E402

WORKERS, RATES = 4, ("2500mbit", "1gbit")
SCALES = {"googlenet-k80": 1.0, "resnet50-v100": 5.0}
"""How many times as slow computation is replayed: one all-reduce of everything takes 0.9 to 2.4 times as long."""
THRESHOLDS, CYCLES = ("0B", "1MiB", "4MiB", "16MiB", "64MiB", "128MiB"), (1, 5, 20)
ITERATIONS, REPEATS, WARM_UPS = 10, 3, 3
TUNED_ITERATIONS, TUNED_REPEATS = 15, 4
MACHINE = "machine.txt"
"""File beside the runs with properties of the machine that they do not state."""
NAME, BESIDE_TUNER = "emulated-horovod", "beside Horovod's tuner"
LOGS = ROOT / "tests/ledger/data"
"""Logs of Horovod's tuner."""


class Setting(NamedTuple):
    """One file of runs."""

    rate: str
    workload: str

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        return f"emulated-horovod-{WORKERS}x{self.rate}"

    @property
    def tuned(self) -> str:
        """The name of the file of runs beside what Horovod's tuner found."""
        return f"{self.workload}-{WORKERS}x{self.rate}-tuned.json"

    @property
    def file(self) -> str:
        """The name of the file of runs."""
        return f"{self.workload}-{WORKERS}x{self.rate}-horovod.json"


TUNED = (Setting("2500mbit", "googlenet-k80"),)
"""Settings at which Horovod tunes itself."""
TUNER_STEPS = 1300
FIXED = {"HOROVOD_HIERARCHICAL_ALLGATHER": "0", "HOROVOD_TORUS_ALLREDUCE": "0", "HOROVOD_CACHE_CAPACITY": "1024"}
"""Switches that change nothing here, or for the worse: left to itself the tuner goes through threshold and cycle time
again for each of them, and had not come to an end after 1,450 steps."""


def settings() -> Iterator[Setting]:
    """All of them, what is short first."""
    for workload in SCALES:
        yield from (Setting(rate, workload) for rate in RATES)


def plans() -> list[str]:
    """Every threshold with every cycle time, the defaults under their own name, and the best that is found."""
    grid = [f"horovod:{threshold},{cycle}ms" for threshold in THRESHOLDS for cycle in CYCLES]
    return ["horovod", *(name for name in grid if name != "horovod:128MiB,1ms"), "horovod:best"]


def measure(folder: Path) -> None:
    """Everything that is not in ``folder``, one setting after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting in settings():
        if (folder / setting.file).exists():
            continue
        with emulated(WORKERS, setting.rate) as hosts:
            cluster_file = folder / f"{setting.cluster}.json"
            if not cluster_file.exists():
                network = f"{WORKERS} network namespaces on a bridge, egress shaped to {setting.rate} by tc tbf"
                words = ["bench", "--executor", "horovod", "--max-size", "128MiB", "--repeat", "12"]
                live.osf(hosts, [*words, "--network", network, "-o", str(cluster_file)])
            words = live.run_words(setting.workload, SCALES[setting.workload], cluster_file)
            words += ["--executor", "horovod", *(word for plan in plans() for word in ("--plan", plan))]
            words += ["--iterations", str(ITERATIONS), "--repeat", str(REPEATS), "--warm-up", str(WARM_UPS)]
            partial = folder / f"unfinished-{setting.file}"
            live.osf(hosts, [*words, "-o", str(partial)])
            (folder / MACHINE).write_text(live.machine_of(hosts))
            partial.rename(folder / setting.file)
            print(setting.file, flush=True)


def tune(folder: Path) -> None:
    """Horovod's own tuner to its end, then what it found beside the default and ours, by turns.

    It tunes as it does unless told otherwise, 3 settings of 50 steps to warm up and 20 of threshold and cycle time, but
    for its switches, which are fixed.
    """
    for setting in TUNED:
        log = folder / f"{setting.workload}-{WORKERS}x{setting.rate}-autotune.csv"
        cluster_file = folder / f"{setting.cluster}.json"
        with emulated(WORKERS, setting.rate) as hosts:
            if not log.exists():
                words = [__file__, "--as-rank", setting.workload, str(log)]
                for one in hosts.run([sys.executable, *words], timeout=3600):
                    if one.status:
                        sys.exit(f"rank {one.rank}: {one.stderr[-500:]}")
            if (folder / setting.tuned).exists():
                continue
            found = autotune(Text(str(log), log.read_text()))
            if found.converged is None:
                sys.exit(f"{log}: Horovod's tuner did not come to an end in {TUNER_STEPS} steps")
            words = live.run_words(setting.workload, SCALES[setting.workload], cluster_file)
            words += ["--executor", "horovod", "--plan", "horovod", "--plan", "horovod:best"]
            words += ["--plan", found.converged.plan, "--iterations", str(TUNED_ITERATIONS)]
            words += ["--repeat", str(TUNED_REPEATS)]
            live.osf(hosts, [*words, "-o", str(folder / setting.tuned)])
            print(setting.tuned, found.converged.plan, f"{found.steps()} steps", flush=True)


def as_rank(workload: str, log: str) -> None:
    """A rank that trains while Horovod tunes itself."""
    place = place_of(os.environ, "run").on("gloo")
    subject = {"name": workload, "scale": SCALES[workload], "workload": None, "device": "cpu"}
    task = {"task": "train", "subject": subject, "groups": [], "warm_ups": 0, "iterations": TUNER_STEPS}

    def work(watch: Watchdog) -> None:
        watch.beat("while Horovod tuned itself")
        noted = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": log if place.rank == 0 else None}
        unset = dict.fromkeys(["HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"])  # what is set is not tuned
        HorovodTurns(place, 60, watch).run(Loop(), task, {**noted, **unset, **FIXED})

    together(place, 60, work)


def keep(folder: Path) -> None:
    """Put the clusters, the runs and what Horovod's tuner logged where the profiles and the tests are."""
    for path in sorted({folder / f"{setting.cluster}.json" for setting in settings()}):
        cluster = load_cluster(path)
        source = replace(cluster.source, licence=live.LICENCE)
        profiles.save(replace(cluster, source=source), ROOT / "profiles/clusters" / path.name)
    save_measurements(NAME, list(kept(folder)), ROOT / f"profiles/measurements/{NAME}.json")
    for path in sorted(folder.glob("*-autotune.csv")):
        (LOGS / path.name).write_text(path.read_text())


def kept(folder: Path) -> Iterator[Measurement]:
    """All runs, with bundled names in the place of files, and one source."""
    for setting in settings():
        for file in (setting.file, setting.tuned):
            own = (("set", BESIDE_TUNER),) if file == setting.tuned else ()
            for run in load_measurements(folder / file) if (folder / file).exists() else ():
                source = source_of(folder)
                yield replace(run, cluster=setting.cluster, source=source, conditions=run.conditions + own)


def source_of(folder: Path) -> Source:
    """The source of runs in ``folder``."""
    machine = (folder / MACHINE).read_text().strip() if (folder / MACHINE).exists() else live.UNSTATED
    said = (
        f"Horovod with gloo between network namespaces on {machine}; {ITERATIONS} iterations after {WARM_UPS} of "
        f"warm-up, {REPEATS} repeats ({TUNED_ITERATIONS} and {TUNED_REPEATS} beside its tuner), each turn in processes "
        "of its own, settings taking turns; computation by sleeping"
    )
    return Source("measured with benchmarks/live_horovod.py", said, live.LICENCE)


def show() -> str:
    """The kept runs as tables: each cell, the errors, and what tuning gained."""
    runs = load_measurements(NAME)
    groups = side_by_side(runs, emulated_ddp.judge(runs).rows)
    steady = [turns for group in groups for turns in live.steady(group)]
    unsteady = sum(turns.error is not None for group in groups for turns in group.turns) - len(steady)
    errors = [abs(turns.error) for turns in steady]
    words = f"median |error| {median(errors):.2%}, worst {max(errors):.2%}; {unsteady} not counted"
    missing = [setting.file.removesuffix("-horovod.json") for setting in settings() if not _there(setting, runs)]
    said = [f"{len(steady)} cells, {words}", f"not measured: {', '.join(missing) or 'nothing'}"]
    return "\n".join([*live.cells(groups), "", *said, "", *_gains(groups)])


def _there(setting: Setting, runs: Sequence[Measurement]) -> bool:
    return any((run.workload, run.cluster) == (setting.workload, setting.cluster) for run in runs)


def _gains(groups: Sequence[Beside]) -> Iterator[str]:
    """The best settings found by prediction, beside the default and the fastest of what else was run."""
    head = "workload, ranks x rate | beside | default, ms | ours, ms | best beside it, ms | ours over that | live steps"
    yield f"| {head} |"
    yield "|---|---|---|---|---|---|---|"
    for group in groups:
        tuner = dict(group.conditions).get("set") == BESIDE_TUNER
        ours = next(turns for turns in group.turns if turns.plan == "horovod:best")
        best = min((turns for turns in group.turns if turns is not ours), key=lambda turns: turns.measured)
        steps = f"{logged(group).steps()} (Horovod's), 0 (ours)" if tuner else "0"
        row = [
            f"{group.workload} {group.cluster.rpartition('-')[2]}",
            "Horovod's tuner" if tuner else "the grid",
            f"{group.default.measured * 1e3:.1f}",
            f"{ours.measured * 1e3:.1f}",
            f"{best.measured * 1e3:.1f} ({best.plan})",
            f"{ours.measured / best.measured - 1:+.1%}",
            steps,
        ]
        yield f"| {' | '.join(row)} |"


def logged(group: Beside) -> Autotune:
    """The log of Horovod's tuner for that workload and cluster."""
    path = LOGS / f"{group.workload}-{group.cluster.rpartition('-')[2]}-autotune.csv"
    return autotune(Text(str(path), path.read_text()))


def main() -> None:
    """Measure, or say what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--tuner", action="store_true", help="let Horovod tune itself in the place of the grid")
    parser.add_argument("--as-rank", nargs=2, metavar=("WORKLOAD", "LOG"), help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="put what FOLDER holds among the profiles, measure nothing")
    arguments = parser.parse_args()
    if arguments.folder is None and (arguments.tuner or arguments.keep):
        parser.error("give a FOLDER as well")
    if arguments.as_rank:
        as_rank(*arguments.as_rank)
    elif arguments.tuner:
        tune(arguments.folder)
    elif arguments.keep:
        keep(arguments.folder)
    elif arguments.folder is None:
        print(show())
    else:
        measure(arguments.folder)


if __name__ == "__main__":
    main()
