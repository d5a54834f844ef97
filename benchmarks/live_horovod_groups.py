"""Tensors that real Horovod fuses between emulated hosts, compared with the policy, iteration by iteration.

    python benchmarks/live_horovod_groups.py                    # what the kept timelines say, in a second
    python benchmarks/live_horovod_groups.py FOLDER             # measure them anew into FOLDER: some ten minutes
    python benchmarks/live_horovod_groups.py FOLDER --keep      # keep what FOLDER holds

Measuring needs what benchmarks/live_horovod.py needs. Horovod's timeline keeps a core of rank 0 busy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import live  # noqa: E402
from benchmarks.live_horovod import RATES, SCALES, WORKERS  # noqa: E402
from osfmodel import Cluster, load_cluster, load_workload  # noqa: E402
from osfmodel.cost.clusters import pricing_of  # noqa: E402
from osfmodel.cost.pricing import Pricing  # noqa: E402
from osfmodel.cost.shapes import FREE  # noqa: E402
from osfmodel.entities.effects import REPLAYED_ON_CPU  # noqa: E402
from osfmodel.entities.executors import HOROVOD  # noqa: E402
from osfmodel.entities.files import documents  # noqa: E402
from osfmodel.formats.horovod.iterations import timeline  # noqa: E402
from osfmodel.formats.source_text import Text  # noqa: E402
from osfmodel.targets.named_plans import make_plan  # noqa: E402
from tests.live.cluster import Hosts, emulated  # noqa: E402

GROUPS = Path(__file__).with_name("live_horovod_groups.json")
"""Groups that were formed, iteration by iteration, with the network that predictions are made from."""
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
    """Content of one timeline: bytes of each group of each whole iteration.

    ``formed``: [how many iterations in a row, bytes of their groups in order]
    """

    workload: str
    ranks: int
    pace: str
    scale: float
    threshold: str
    cycle: int
    formed: list[list[Any]]


def _bench(hosts: Hosts, cluster_file: Path, rate: str) -> None:
    network = f"{len(hosts.prefixes)} network namespaces on a bridge, egress shaped to {rate} by tc tbf"
    words = ["bench", "--executor", "horovod", "--max-size", "128MiB", "--repeat", "12"]
    live.osf(hosts, [*words, "--network", network, "-o", str(cluster_file)])


def measure(folder: Path) -> None:
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
    cluster_file = cluster_file_of(folder, ranks)
    if pace.rate in cluster_file.name and not cluster_file.exists():
        _bench(hosts, cluster_file, pace.rate)
    live.osf(hosts, words)
    paths = sorted(noted.iterdir(), key=lambda path: int(path.name.partition("-")[0]))
    return [
        Noted(workload, ranks, pace.words, scale, threshold, pace.cycle, formed(path))
        for threshold, path in zip(pace.thresholds, paths, strict=True)
    ]


def cluster_file_of(folder: Path, ranks: int) -> Path:
    """The path of the cluster file for so many ranks."""
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


def keep(folder: Path) -> None:
    """Put what was formed, and the clusters, beside this file."""
    rows = [row for path in sorted(folder.glob("groups-*.json")) for row in json.loads(path.read_text())]
    paths = [cluster_file_of(folder, ranks) for ranks in (2, WORKERS)]
    clusters = [documents.document_of(load_cluster(path)) for path in paths if path.exists()]
    GROUPS.write_text(_lines([*clusters, *rows]))


def kept() -> tuple[dict[int, Cluster], list[Noted]]:
    """The clusters by ranks, and what was formed."""
    rows = json.loads(GROUPS.read_text())
    clusters = [documents.decode_cluster(json.dumps(row).encode()) for row in rows if "kind" in row]
    noted = [Noted(**row) for row in rows if "kind" not in row]
    return {cluster.tables[0].workers: cluster for cluster in clusters}, noted


def expected(noted: Noted, clusters: Mapping[int, Cluster]) -> list[int]:
    """The bytes of the groups that are predicted, in order; prices do not matter where one cycle finds all."""
    workload = load_workload(noted.workload).scaled(noted.scale)
    pricing = Pricing.of(FREE, workers=noted.ranks)
    if noted.pace == PACES[1].words:
        pricing = pricing_of(clusters[noted.ranks], noted.ranks).under(HOROVOD.conditions | REPLAYED_ON_CPU)
    plan = make_plan(f"horovod:{noted.threshold},{noted.cycle}ms", workload, pricing)
    return [bucket.size for bucket in plan.buckets]


def show() -> str:
    """A line for each timeline: how many iterations are exactly as predicted, and how many groups there are."""
    clusters, rows = kept()
    found = ["| pace | workload | ranks | threshold | iterations | exact | groups that differ | predicted | measured |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for noted in rows:
        wanted = expected(noted, clusters)
        iterations = [groups for count, groups in noted.formed for _ in range(count)]
        exact = sum(groups == wanted for groups in iterations)
        strange = median(sum((Counter(groups) - Counter(wanted)).values()) for groups in iterations)
        counts = sorted(map(len, iterations))
        span = f"{counts[0]}" if counts[0] == counts[-1] else f"{median(counts):g} ({counts[0]} to {counts[-1]})"
        cells = (noted.pace, noted.workload, noted.ranks, noted.threshold, len(iterations), exact, f"{strange:g}",
                 len(wanted), span)  # fmt: skip
        found.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*found, "", *_verdicts(rows, clusters), _missing(rows)])


def _verdicts(rows: Sequence[Noted], clusters: Mapping[int, Cluster]) -> Iterator[str]:
    for pace in PACES:
        for thresholds, words in ((SMALL, "formed exactly as predicted"), (LARGE, "of as many groups, or one off")):
            chosen = [row for row in rows if row.pace == pace.words and row.threshold in thresholds]
            held = [_share(row, expected(row, clusters), thresholds is SMALL) for row in chosen]
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


def main() -> None:
    """Measure, or say what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--keep", action="store_true", help="keep what FOLDER holds, measure nothing")
    arguments = parser.parse_args()
    if arguments.folder is None:
        print(show())
    elif arguments.keep:
        keep(arguments.folder)
    else:
        measure(arguments.folder)


if __name__ == "__main__":
    main()
