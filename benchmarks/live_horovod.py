"""Horovod between emulated hosts under many settings: measured, predicted, and what its own tuner finds.

    python benchmarks/live_horovod.py                    # what the bundled runs say, in a second
    python benchmarks/live_horovod.py FOLDER             # measure everything anew into FOLDER: an hour and a quarter
    python benchmarks/live_horovod.py FOLDER --keep      # put what FOLDER holds among the project's profiles
    python benchmarks/live_horovod.py --groups           # which tensors its timelines say that it fused, and predicted
    python benchmarks/live_horovod.py FOLDER --groups    # measure those anew into FOLDER: ten minutes (and --keep)

Measuring needs root, iproute2 and Horovod built for the installed torch (docs/how-to/check-horovod.md). What is in
FOLDER is not measured again, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import live  # noqa: E402
from osfmodel import Cluster, documents, load_cluster, load_workload  # noqa: E402
from osfmodel.cost.curves import FREE  # noqa: E402
from osfmodel.effects import HOROVOD, REPLAYED_ON_CPU  # noqa: E402
from osfmodel.formats.horovod_timeline import timeline  # noqa: E402
from osfmodel.formats.source_text import Text  # noqa: E402
from osfmodel.measurements import load_measurements, save_measurements  # noqa: E402
from osfmodel.plans import make_plan  # noqa: E402
from osfmodel.pricing import Pricing, pricing_of  # noqa: E402
from tests.live.cluster import Hosts, emulated  # noqa: E402

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
                _bench(hosts, wires, setting.rate)
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


def _bench(hosts: Hosts, wires: Path, rate: str) -> None:
    network = f"{len(hosts.prefixes)} network namespaces on a bridge, egress shaped to {rate} by tc tbf"
    words = ["bench", "--executor", "horovod", "--max-size", "128MiB", "--repeat", "12"]
    live.osf(hosts, [*words, "--network", network, "-o", str(wires)])


GROUPS = Path(__file__).with_name("live_horovod_groups.json")
"""What was formed, iteration by iteration, with the wires that predictions are made from."""
SMALL, LARGE = ("0B", "512KiB", "1MiB"), ("16MiB", "64MiB")
"""Thresholds at which tensors of a model are fused by a few, and at which the clock decides how many batches are."""


class Pace(NamedTuple):
    """How fast is replayed, over links of which rate, under which settings; ``scale`` None: as slow as in SCALES."""

    words: str
    rate: str
    cycle: int
    thresholds: tuple[str, ...]
    scale: float | None = None


PACES = (
    Pace("one cycle finds all", "10gbit", 1000, SMALL, 0.001),
    Pace("as computed", RATES[0], 5, SMALL + LARGE),
)


class Noted(NamedTuple):
    """What one timeline says: bytes of each group of each whole iteration.

    ``formed``: [how many iterations in a row, bytes of their groups in order]
    """

    workload: str
    ranks: int
    pace: str
    scale: float
    threshold: str
    cycle: int
    formed: list[list[Any]]


def measure_groups(folder: Path) -> None:
    """Timelines that are not in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for ranks in (2, WORKERS):
        for pace in PACES:
            for workload in SCALES:
                target = folder / f"groups-{workload}-{ranks}-{PACES.index(pace)}.json"
                if not target.exists():
                    with emulated(ranks, pace.rate) as hosts:
                        rows = _noted(hosts, folder, workload, pace)
                    target.write_text(_lines(row._asdict() for row in rows))
                    print(target.name, flush=True)


def _noted(hosts: Hosts, folder: Path, workload: str, pace: Pace) -> list[Noted]:
    ranks, scale = len(hosts.prefixes), SCALES[workload] if pace.scale is None else pace.scale
    noted = folder / f"timelines-{workload}-{ranks}-{PACES.index(pace)}"
    words = ["run", workload, "--scale", f"{scale:g}", "--executor", "horovod", "--timeline", str(noted)]
    words += [word for limit in pace.thresholds for word in ("--plan", f"horovod:{limit},{pace.cycle}ms")]
    words += ["--iterations", "1", "--repeat", "1", "-o", str(folder / f"{noted.name}.json")]
    wires = wires_of(folder, ranks)
    if pace.rate in wires.name and not wires.exists():
        _bench(hosts, wires, pace.rate)
    live.osf(hosts, words)
    paths = sorted(noted.iterdir(), key=lambda path: int(path.name.partition("-")[0]))
    return [
        Noted(workload, ranks, pace.words, scale, threshold, pace.cycle, formed(path))
        for threshold, path in zip(pace.thresholds, paths, strict=True)
    ]


def wires_of(folder: Path, ranks: int) -> Path:
    """Where the cluster file for so many ranks is."""
    return folder / f"emulated-horovod-{ranks}x{RATES[0]}.json"


def formed(path: Path) -> list[list[Any]]:
    """Bytes by group of each whole iteration, as [how many in a row, bytes].

    The first has the ranks' meeting in it, and the end of a timeline may be missing from the last.
    """
    found = timeline(Text(str(path), path.read_text()))
    sizes = [[group.bytes for group in found.iterations[place]] for place in found.training]
    return [[len(list(alike)), groups] for groups, alike in groupby(sizes)]


def _lines(rows: Iterable[Any]) -> str:
    """JSON with one row on a line."""
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def keep_groups(folder: Path) -> None:
    """Put what was formed, and the wires, beside this file."""
    rows = [row for path in sorted(folder.glob("groups-*.json")) for row in json.loads(path.read_text())]
    paths = [wires_of(folder, ranks) for ranks in (2, WORKERS)]
    wires = [documents.document_of(load_cluster(path)) for path in paths if path.exists()]
    GROUPS.write_text(_lines([*wires, *rows]))


def kept_groups() -> tuple[dict[int, Cluster], list[Noted]]:
    """The wires by ranks, and what was formed."""
    rows = json.loads(GROUPS.read_text())
    wires = [documents.decode_cluster(json.dumps(row).encode()) for row in rows if "kind" in row]
    noted = [Noted(**row) for row in rows if "kind" not in row]
    return {cluster.tables[0].workers: cluster for cluster in wires}, noted


def expected(noted: Noted, wires: Mapping[int, Cluster]) -> list[int]:
    """The bytes of the groups that are predicted, in order; prices do not matter where one cycle finds all."""
    workload = load_workload(noted.workload).scaled(noted.scale)
    pricing = Pricing.of(FREE, workers=noted.ranks)
    if noted.pace == PACES[1].words:
        pricing = pricing_of(wires[noted.ranks], noted.ranks).under({"executor": HOROVOD} | REPLAYED_ON_CPU)
    plan = make_plan(f"horovod:{noted.threshold},{noted.cycle}ms", workload, pricing)
    return [bucket.size for bucket in plan.buckets]


def show_groups() -> str:
    """A line for each timeline: how many iterations are exactly as predicted, and how many groups there are."""
    wires, rows = kept_groups()
    found = ["| pace | workload | ranks | threshold | iterations | exact | groups that differ | predicted | measured |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for noted in rows:
        wanted = expected(noted, wires)
        iterations = [groups for count, groups in noted.formed for _ in range(count)]
        exact = sum(groups == wanted for groups in iterations)
        strange = median(sum((Counter(groups) - Counter(wanted)).values()) for groups in iterations)
        counts = sorted(map(len, iterations))
        span = f"{counts[0]}" if counts[0] == counts[-1] else f"{median(counts):g} ({counts[0]} to {counts[-1]})"
        cells = (noted.pace, noted.workload, noted.ranks, noted.threshold, len(iterations), exact, f"{strange:g}",
                 len(wanted), span)  # fmt: skip
        found.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*found, "", *_verdicts(rows, wires), _missing(rows)])


def _verdicts(rows: Sequence[Noted], wires: Mapping[int, Cluster]) -> Iterator[str]:
    for pace in PACES:
        for thresholds, words in ((SMALL, "formed exactly as predicted"), (LARGE, "of as many groups, or one off")):
            chosen = [row for row in rows if row.pace == pace.words and row.threshold in thresholds]
            held = [_share(row, expected(row, wires), thresholds is SMALL) for row in chosen]
            if chosen:
                whole = sum(share == 1 for share in held)
                yield (
                    f"{pace.words}, {' '.join(thresholds)}: {words} in all iterations of {whole} of {len(chosen)} "
                    f"timelines, in {sum(held) / len(held):.0%} of iterations"
                )


def _missing(rows: Sequence[Noted]) -> str:
    there = {(row.pace, row.workload, row.ranks) for row in rows}
    every = [(pace.words, workload, ranks) for pace in PACES for workload in SCALES for ranks in (2, WORKERS)]
    missing = [f"{workload} on {ranks} ranks, {pace}" for pace, workload, ranks in every
               if (pace, workload, ranks) not in there]  # fmt: skip
    return f"not measured: {'; '.join(missing) or 'nothing'}"


def _share(noted: Noted, wanted: Sequence[int], exact: bool) -> float:
    """The share of iterations that are as predicted."""
    held = sum(
        count for count, groups in noted.formed
        if (groups == wanted if exact else abs(len(groups) - len(wanted)) <= 1)
    )  # fmt: skip
    return held / sum(count for count, _ in noted.formed)


def groups(folder: Path | None, keep: bool) -> None:
    """Measure which tensors are fused, keep what was, or show what is kept."""
    if folder is None:
        print(show_groups())
    elif keep:
        keep_groups(folder)
    else:
        measure_groups(folder)


def main() -> None:
    """Measure, or say what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--groups", action="store_true", help="which tensors are fused, not how long it takes")
    parser.add_argument("--keep", action="store_true", help="keep what FOLDER holds, measure nothing")
    arguments = parser.parse_args()
    if arguments.groups:
        groups(arguments.folder, arguments.keep)
    else:
        measure(arguments.folder)


if __name__ == "__main__":
    main()
