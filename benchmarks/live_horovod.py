"""Horovod between emulated hosts under many settings: measured, predicted, and what its own tuner finds.

    python benchmarks/live_horovod.py                    # what the bundled runs say, in a second
    python benchmarks/live_horovod.py FOLDER             # measure everything anew into FOLDER: an hour and a quarter
    python benchmarks/live_horovod.py FOLDER --keep      # put what FOLDER holds among the project's profiles

Measuring needs root, iproute2 and Horovod built for the installed torch (docs/how-to/check-horovod.md). What is in
FOLDER is not measured again, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import live  # noqa: E402
from osfmodel.measurements import load_measurements, save_measurements  # noqa: E402
from tests.live.cluster import emulated  # noqa: E402

WORKERS, RATES = 4, ("2500mbit", "1gbit")
SCALES = {"googlenet-k80": 1.0, "resnet50-v100": 5.0}
"""How many times as slow computation is replayed: one all-reduce of everything takes 0.9 to 2.4 times as long."""
THRESHOLDS, CYCLES = ("0B", "1MiB", "4MiB", "16MiB", "64MiB", "128MiB"), (1, 5, 20)
ITERATIONS, REPEATS, WARM_UPS = 10, 3, 3


class Setting(NamedTuple):
    """One file of runs."""

    rate: str
    workload: str

    @property
    def wires(self) -> str:
        """The name of the cluster."""
        return f"emulated-horovod-{WORKERS}x{self.rate}"

    @property
    def file(self) -> str:
        """The name of the file of runs."""
        return f"{self.workload}-{WORKERS}x{self.rate}-horovod.json"


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
            wires = folder / f"{setting.wires}.json"
            if not wires.exists():
                network = f"{WORKERS} network namespaces on a bridge, egress shaped to {setting.rate} by tc tbf"
                words = ["bench", "--executor", "horovod", "--max-size", "128MiB", "--repeat", "12"]
                live.osf(hosts, [*words, "--network", network, "-o", str(wires)])
            words = ["run", setting.workload, "--scale", f"{SCALES[setting.workload]:g}", "--cluster", str(wires)]
            words += ["--executor", "horovod", *(word for plan in plans() for word in ("--plan", plan))]
            words += ["--iterations", str(ITERATIONS), "--repeat", str(REPEATS), "--warm-up", str(WARM_UPS)]
            partial = folder / f"unfinished-{setting.file}"
            live.osf(hosts, [*words, "-o", str(partial)])
            machine = live.machine_of(hosts)
            runs = [replace(run, source=live.source_of(machine)) for run in load_measurements(partial)]
            save_measurements(partial.stem, runs, partial)
            partial.rename(folder / setting.file)
            print(setting.file, flush=True)


def main() -> None:
    """Measure, or say what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    measure(arguments.folder)


if __name__ == "__main__":
    main()
