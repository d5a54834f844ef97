"""Errors of the NCCL model against measured collectives, machine by machine. Run it from anywhere:

    python benchmarks/nccl_model.py [--json]

A price is that of the words that describe the machine (``nccl:a100x8,200Gbps,ib``). Sizes are 64 KiB and more, the one
nearest to each power of two, so that tables with many sizes weigh like others. Errors are predicted / measured - 1.
Every figure of a machine has corrections, and bounds of uncertainty, learned on all *other* machines; tables of one
type of cloud machine are one machine. Tables that are not bundled are read from OSFMODEL_DATA where it is set.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

import osfmodel as osf
from osfmodel.cost import Sample, nccl
from osfmodel.cost import nccl_constants as known
from osfmodel.cost.model import Placement, layout_of
from osfmodel.cost.nccl_constants import CORRECTED, TUNER, Corrections
from osfmodel.cost.nccl_fit import LARGE, PARTS, part_of
from osfmodel.cost.nccl_lines import pieces
from osfmodel.diagnosis.doctor.curves import KNOWN_MACHINES
from osfmodel.entities.cluster import FABRICS, NETWORKS
from osfmodel.entities.files import profiles

KIB = 2**10
LEAST = 64 * KIB


class Measured(NamedTuple):
    """Times of one collective of one machine between so many workers: sizes in bytes, seconds."""

    machine: str
    words: str
    place: Placement
    sizes: tuple[int, ...]
    times: tuple[float, ...]
    collective: str = "all_reduce"

    @property
    def shape(self) -> osf.NcclShape:
        """The shape of the words, and of nothing measured."""
        return shape_of(self.words)

    @property
    def part(self) -> str:
        """The part of the model that prices it: NVLink or host inside a node, NICs or host between nodes."""
        return part_of(self.shape, self.place)


@cache
def shape_of(words: str) -> osf.NcclShape:
    found = osf.load_cluster(words).nccl
    assert found is not None
    return found


BUNDLED = {
    name: (known.machine, known.words.removeprefix("nccl:"))
    for name, known in KNOWN_MACHINES.items()
    if known.words.startswith("nccl:")
}
"""Bundled cluster -> machine, and the words of a person who knows its data sheet."""


class Source(NamedTuple):
    """A file of OSFMODEL_DATA: the machine, its words, rows to keep, columns; ``placed`` keeps one node alone."""

    path: str
    machine: str
    words: str
    keep: Mapping[str, str] = {}
    sizes: str = "bytes"
    times: tuple[str, ...] = ("time_us",)
    placed: bool = False


BOTH = ("time_us", "inplace_time_us")
H200, B200 = "network/README 8x H200 NVLink, nccl 2.27.7", "network/README AWS P6-B200 1 node 8x B200"
P6 = "network/README AWS P6-B200 4 nodes 32x B200 EFA v4 8x50GBps"
STAS, AZURE = "comm_tables/stas00/all_reduce_bench.csv", "comm_tables/azure/nd_allreduce_busbw.csv"
VTRAIN, VIDUR = "comm_tables/vtrain/nccl_lut_1node.csv", "comm_tables/vidur"
RACKS = "comm_tables/coreweave/gb200_h100_large.csv"
DERIVED = ("time_us_derived",)
SOURCES = (
    Source("comm_tables/aws-efa/p4d_2nodes_nccl2.8.csv", "AWS p4d", "a100x8,50Gbps,efa", times=BOTH),
    Source(AZURE, "Azure ND A100 v4", "a100x8", {"sku": "ND_A100_v4"}, "bytes_pow2", DERIVED),
    Source(AZURE, "Azure ND H100 v5", "h100x8", {"sku": "ND_H100_v5"}, "bytes_pow2", DERIVED),
    Source(STAS, "H200 node (PyTorch)", "h200x8", {"table": H200}, times=DERIVED),
    Source(STAS, "AWS p6-b200", "b200x8", {"table": B200}, times=DERIVED),
    Source(STAS, "AWS p6-b200", "b200x8,400Gbps,efa", {"table": P6}, times=DERIVED),
    Source(VTRAIN, "vTrain's A100 node", "a100x8", {"gpu": "a100"}, times=BOTH),
    Source(VTRAIN, "vTrain's V100 node", "v100x8", {"gpu": "v100"}, times=BOTH),
    Source(f"{VIDUR}/a100_dgx_all_reduce.csv", "Vidur's DGX A100", "a100x8", times=("time_us_median",), placed=True),
    Source(f"{VIDUR}/v100_all_reduce_old.csv", "Vidur's V100 (layout not stated)", "v100x8"),
    Source(RACKS, "CoreWeave GB200 racks", "gb200x72,400Gbps,ib", {"system": "GB200 NVL72 (racks)"}, times=BOTH),
)
MESH = {
    5: (90.87, 126.9, 219.3, 403.0, 759.1, 1493.1, 2948.9, 5855.8, 11645.0),
    7: (81.19, 109.1, 157.8, 271.0, 365.7, 703.9, 1360.3, 2670.7, 5342.8),
}
"""Microseconds of 1, 2, ... 256 MiB on 5 and 7 GPUs of vTrain's V100 node, the faster of out of place and in place
(VIA-Research/vTrain @ f8dda8473a48: trace/v100/AR_GPU5_1M_1024M_LUT and AR_GPU7_1M_1024M_LUT; MIT-style licence)."""
HALVES = "sharded/aiconfigurator/nccl_ag_rs_ar_1node.csv"
NANOTRON = "sharded/nanotron-ultrascale/comm_bandwidth_256MB.csv"


def folder() -> Path:
    return Path(os.environ.get("OSFMODEL_DATA", ""))


def rows(path: str) -> list[dict[str, str]]:
    """The rows of a file of OSFMODEL_DATA; none without it."""
    if not os.environ.get("OSFMODEL_DATA") or not (folder() / path).is_file():
        return []
    with (folder() / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_octave(table: Mapping[int, float]) -> dict[int, float]:
    """Of each octave from 64 KiB on, the size nearest to its power of two."""
    nearest: dict[int, int] = {}
    for size in sorted(table):
        octave = round(math.log2(size))
        if size >= LEAST and (octave not in nearest or abs(math.log2(size) - octave) < _off(nearest[octave], octave)):
            nearest[octave] = size
    return {size: table[size] for size in nearest.values()}


def _off(size: int, octave: int) -> float:
    return abs(math.log2(size) - octave)


@cache
def measured() -> tuple[Measured, ...]:
    """Every table of all-reduces, thinned to one size per octave."""
    found: dict[tuple[str, str, Placement, str], dict[int, float]] = {}
    present = profiles.names("cluster")
    for name, (machine, words) in BUNDLED.items():
        if name not in present:
            continue
        cluster, gpus = osf.load_cluster(name), osf.load_cluster(f"nccl:{words}").gpus_per_node
        for table in cluster.tables:
            if table.collective == "all_reduce":
                place = layout_of(table.workers, gpus)
                found[machine, words, place, name] = dict(zip(table.sizes, table.times, strict=True))
    for source in SOURCES:
        gpus = osf.load_cluster(f"nccl:{source.words}").gpus_per_node
        for row in rows(source.path):
            if source.keep.items() <= row.items() and row["n_gpus"]:
                workers = int(row["n_gpus"])
                if source.placed and int(row["gpus_per_node"]) != workers:
                    continue  # Vidur's network is not stated
                place = layout_of(workers, gpus)
                points = found.setdefault((source.machine, source.words, place, source.path), {})
                points[int(row[source.sizes])] = min(float(row[column]) for column in source.times) * 1e-6
    for workers, times in MESH.items():
        place = layout_of(workers, 8)
        table = {2 ** (20 + k): time * 1e-6 for k, time in enumerate(times)}
        found["vTrain's V100 node", "v100x8", place, "MESH"] = table
    return tuple(_measured(*key[:3], table) for key, table in found.items())


def _measured(
    machine: str, words: str, place: Placement, table: Mapping[int, float], collective: str = "all_reduce"
) -> Measured:
    thin = {size: time for size, time in by_octave(table).items() if time > 0}
    return Measured(machine, f"nccl:{words}", place, tuple(thin), tuple(thin.values()), collective)


@cache
def halves() -> tuple[Measured, ...]:
    """All-gathers, reduce-scatters and all-reduces side by side, inside one node; the newest NCCL of each system."""
    newest = {
        "a100_sxm": ("2.27.3", "a100x8"),
        "h100_sxm": ("2.29.2", "h100x8"),
        "b200_sxm": ("2.29.2", "b200x8"),
        "b300_sxm": ("2.29.2", "b300x8"),
        "gb200": ("2.29.2", "gb200x4"),
        "rtx_pro_6000_server": ("2.29.2", "rtx-pro-6000x8"),
    }
    machines = {words: machine for machine, words in BUNDLED.values()}
    found: dict[tuple[str, str, Placement, str], dict[int, float]] = {}
    for row in rows(HALVES):
        version, words = newest[row["system"]]
        if (row["version"], row["dtype"]) == (version, "half"):
            workers = int(row["n_gpus"])
            key = machines[words], words, Placement(workers, 1, workers, workers), row["op"]
            found.setdefault(key, {})[int(row["bytes_total"])] = float(row["time_us"]) * 1e-6
    return tuple(_measured(*key[:3], table, key[3]) for key, table in found.items())


def nanotron() -> Iterable[Measured]:
    """All three collectives of 256 MiB on 1 to 64 nodes of 8 H100; the network is not stated (EFA's 400G taken)."""
    names = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}
    for row in rows(NANOTRON):
        workers, size = int(row["gpus"]), int(row["bytes_total"])
        phases = 2 if row["op"] == "AllReduce" else 1
        time = phases * (workers - 1) / workers * size / (float(row["busbw_GBps_mean"]) * 1e9)
        place = layout_of(workers, 8)
        yield Measured("Nanotron's H100", "nccl:h100x8,400Gbps,efa", place, (size,), (time,), names[row["op"]])


@cache
def errors(table: Measured, corrections: Corrections) -> np.ndarray:
    """predicted / measured - 1 at every size."""
    latencies, slopes = pieces(nccl.ways(table.shape, table.place, table.collective, corrections))
    prices = (latencies[:, None] + slopes[:, None] * np.array(table.sizes, dtype=float)).min(0)
    return prices / np.array(table.times) - 1


@cache
def distance(table: Measured, corrections: Corrections) -> float:
    """The mean |log(predicted / measured)| over sizes."""
    return float(np.abs(np.log1p(errors(table, corrections))).mean())


GRIDS = {
    "pipeline": tuple(k / 50 for k in range(41)),
    "own": tuple(k / 20 for k in range(13)),
    "launch": tuple(1 + k / 10 for k in range(11)),
    "by_nic": tuple(k / 50 for k in range(76)),
    "by_host": tuple(k / 50 for k in range(76)),
}
"""Values that are tried for each correction."""


def loss(tables: Sequence[Measured], corrections: Corrections) -> float:
    """Mean over machines of the mean over their tables of the mean |log(predicted / measured)|."""
    by_machine: dict[str, list[float]] = {}
    for table in tables:
        told = corrections if table.place.nodes == 1 else corrections._replace(pipeline=0.0, own=0.0)  # unused there
        by_machine.setdefault(table.machine, []).append(distance(table, told))
    return fmean(map(fmean, by_machine.values()))


def learn(tables: Sequence[Measured]) -> Corrections:
    """The corrections of least loss, one after the other until none changes; first those inside nodes."""
    found = TUNER._replace(nvls_bytes=True)
    inside = [table for table in tables if table.part == "nvlink"]
    for names, chosen in (
        (("pipeline", "own", "launch"), inside),
        (("by_nic",), [table for table in tables if table.part == "by_nic"]),
        (("by_host",), [table for table in tables if table.part == "by_host"]),
    ):
        for _ in range(8 if chosen else 0):
            before = found
            for name in names:
                tries = [found._replace(**{name: value}) for value in GRIDS[name]]
                found = min(tries, key=lambda one: loss(chosen, one))
            if found == before or len(names) == 1:
                break
    return found


PACES = tuple(k * 1e-6 for k in range(61))
"""Seconds of a step that are tried for ``NetworkFabric.pace`` of EFA."""
EXPONENTS = tuple(k / 50 for k in range(51))
"""Exponents that are tried for ``NetworkFabric.whole_nodes`` of EFA and H100."""


@cache
def at_scale(table: Measured, pace: float, exponent: float) -> float:
    """The largest error, as a logarithm, on this table of EFA with such a pace and such a crowd."""
    fabric = known.BETWEEN_NODES["efa"]
    crowds = {**fabric.whole_nodes, "hopper": fabric.whole_nodes["hopper"]._replace(exponent=exponent)}
    with patch.dict(known.BETWEEN_NODES, {"efa": fabric._replace(pace={"": pace}, whole_nodes=crowds)}):
        return float(np.abs(np.log1p(errors.__wrapped__(table, CORRECTED))).max())


def learn_pace(tables: Sequence[Measured]) -> tuple[float, float]:
    """The pace, in microseconds, and the exponent with which collectives between nodes are least off at most."""
    between = [table for table in tables if table.place.nodes > 1]
    halves = [table for table in between if table.collective in nccl.HALVES]
    whole = [table for table in between if table.collective not in nccl.HALVES and table.place.nodes > 2]
    pace = min(PACES, key=lambda one: max(at_scale(table, one, 0.0) for table in halves))
    return 1e6 * pace, min(EXPONENTS, key=lambda one: max(at_scale(table, pace, one) for table in whole))


def paces() -> dict[str, dict[str, float]]:
    """Both as Nanotron's means teach them, and the extremes with one number of nodes left out."""
    tables = list(nanotron())
    counts = {table.place.nodes for table in tables if table.place.nodes > 2}
    if not counts:
        return {}
    everything = learn_pace(tables)
    others = [learn_pace([table for table in tables if table.place.nodes != nodes]) for nodes in counts]
    found = {}
    for place, name in enumerate(("pace, µs", "exponent")):
        each = [one[place] for one in others]
        found[name] = {"all": everything[place], "least": min(each), "most": max(each)}
    return found


class Judged(NamedTuple):
    """A table with the corrections learned without its machine, its errors, and the share of sizes in the bounds."""

    table: Measured
    corrections: Corrections
    errors: np.ndarray
    tuner: np.ndarray


@cache
def judged() -> tuple[Judged, ...]:
    """Every table under corrections from all other machines."""
    tables = measured()
    learned = {
        machine: learn([table for table in tables if table.machine != machine])
        for machine in dict.fromkeys(table.machine for table in tables)
    }
    return tuple(
        Judged(table, learned[table.machine], errors(table, learned[table.machine]), errors(table, TUNER))
        for table in tables
    )


def bound(rows: Sequence[Judged], least: int = LEAST) -> float:
    """The u with nine tenths of measured times between price / (1 + u) and price * (1 + u), machines weighing alike.

    Of messages of at least so many bytes.
    """
    by_machine: dict[str, list[np.ndarray]] = {}
    for row in rows:
        by_machine.setdefault(row.table.machine, []).append(np.abs(np.log1p(_from(row, least))))
    logs = [np.concatenate(parts) for parts in by_machine.values()]
    values = np.concatenate(logs)
    weights = np.concatenate([np.full(len(part), 1 / len(part) / len(logs)) for part in logs])
    order = np.argsort(values)
    reached = np.searchsorted(np.cumsum(weights[order]), COVERED)
    return float(np.expm1(values[order][min(reached, len(values) - 1)]))


def _from(row: Judged, least: int) -> np.ndarray:
    """The errors of messages of at least so many bytes."""
    return row.errors[np.array(row.table.sizes) >= least]


COVERED = 0.9


def _groups(rows: Sequence[Judged]) -> list[tuple[str, str]]:
    """(part, machine) of the rows, in the order of parts."""
    parts = list(PARTS)
    return sorted(
        dict.fromkeys((row.table.part, row.table.machine) for row in rows), key=lambda pair: parts.index(pair[0])
    )


def by_machine() -> list[dict[str, object]]:
    """A row for each machine and part: errors, and coverage of the bound that the others of the part give."""
    everything, found = judged(), []
    for part, machine in _groups(everything):
        rows = [row for row in everything if (row.table.part, row.table.machine) == (part, machine)]
        others = [row for row in everything if row.table.part == part and row.table.machine != machine]
        joined, width = np.concatenate([row.errors for row in rows]), bound(others)
        large, narrow = np.concatenate([_from(row, LARGE) for row in rows]), bound(others, LARGE)
        network = rows[0].table.shape.network
        found.append(
            {
                "part": part,
                "fabric": network if part.startswith("by_") else rows[0].table.shape.fabric,
                "machine": machine,
                "workers": [row.table.place.workers for row in rows],
                "n": len(joined),
                "tuner": median(row.tuner for row in rows),
                **summary(joined),
                "bound": width,
                "covered": float(np.mean(np.abs(np.log1p(joined)) <= np.log1p(width))),
                "bound_large": narrow,
                "covered_large": float(np.mean(np.abs(np.log1p(large)) <= np.log1p(narrow))),
            }
        )
    return found


def median(parts: Iterable[np.ndarray]) -> float:
    return float(np.median(np.abs(np.concatenate(list(parts)))))


def summary(found: np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(np.abs(found))),
        "worst": float(np.abs(found).max()),
        "bias": float(np.median(found)),
    }


def pooled(machines: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Medians over machines of their medians, and mean coverage: inside nodes, between them, by fabric, and of all."""
    groups = {
        "inside nodes": lambda row: not row["part"].startswith("by_"),
        "between nodes": lambda row: row["part"].startswith("by_"),
        **{f"fabric {name}": lambda row, name=name: row["fabric"] == name for name in (*FABRICS, *NETWORKS)},
        "all": lambda row: True,
    }
    found: list[dict[str, object]] = []
    for label, chosen in groups.items():
        rows = [row for row in machines if chosen(row)]
        if rows:
            medians = [row["median"] for row in rows]
            covered = {name: float(np.mean([row[name] for row in rows])) for name in ("covered", "covered_large")}  # type: ignore[misc]
            found.append({"of": label, "machines": len(rows), "median": float(np.median(medians)), **covered})
    return found


def bounds() -> dict[str, tuple[float, float]]:
    """The bounds by part that all machines give, of all sizes and of large ones; and of networks without a fabric."""
    everything = judged()
    groups = {
        part: [row for row in everything if row.table.part == part]
        for part in dict.fromkeys(row.table.part for row in everything)
    }
    unnamed = [row for row in everything if row.table.part.startswith("by_")]
    groups["not stated"] = [row._replace(errors=errors(_unnamed(row.table), row.corrections)) for row in unnamed]
    return {part: (bound(rows), bound(rows, LARGE)) for part, rows in groups.items()}


def _unnamed(table: Measured) -> Measured:
    """The table of a machine whose words leave the fabric between nodes out."""
    return table._replace(words=table.words.rpartition(",")[0])


def apart() -> list[dict[str, object]]:
    """All-gather, reduce-scatter and all-reduce inside a node, by machine, under corrections from all others."""
    learned = {row.table.machine: row.corrections for row in judged()}
    found = []
    for machine in dict.fromkeys(table.machine for table in halves()):
        for collective in ("all_gather", "reduce_scatter", "all_reduce"):
            tables = [one for one in halves() if (one.machine, one.collective) == (machine, collective)]
            joined = np.concatenate([errors(table, learned[machine]) for table in tables])
            found.append({"machine": machine, "collective": collective, "n": len(joined), **summary(joined)})
    return found


def sharp() -> list[dict[str, object]]:
    """An all-reduce of 512 MiB among all GPUs of a node, as a fraction of both halves: measured and predicted."""
    found = []
    for machine in dict.fromkeys(table.machine for table in halves()):
        rows = [table for table in halves() if table.machine == machine]
        rows = [table for table in rows if table.place.workers == max(one.place.workers for one in rows)]
        measured_times, predicted = {}, {}
        for row in rows:
            measured_times[row.collective] = row.times[-1]
            predicted[row.collective] = row.times[-1] * (1 + errors(row, CORRECTED)[-1])
        found.append({"machine": machine, "measured": _whole(measured_times), "predicted": _whole(predicted)})
    return found


def _whole(times: Mapping[str, float]) -> float:
    return times["all_reduce"] / (times["all_gather"] + times["reduce_scatter"])


def many_nodes() -> list[dict[str, object]]:
    """Nanotron's means of 256 MiB as shipped: EFA's pace and crowd were learned from these very means."""
    return [
        {
            "collective": table.collective,
            "nodes": table.place.nodes,
            "error": float(errors(table, CORRECTED)[0]),
        }
        for table in nanotron()
    ]


def two_roots() -> list[dict[str, object]]:
    """Medians of two-node tables if trees use the network once, or twice, whatever the generation."""
    found = []
    for row in judged():
        if row.table.place.nodes == 2:
            medians = [
                median([errors(row.table, row.corrections._replace(two_roots=generations))])
                for generations in ((), ("volta", "ampere", "hopper", "blackwell"))
            ]
            label = f"{row.table.machine}, {row.table.place.workers} GPUs"
            found.append({"machine": label, "once": medians[0], "twice": medians[1]})
    return found


def small() -> dict[str, float]:
    """The shipped model below what it was learned on: 1 to 32 KiB of bundled clusters."""
    parts = []
    for name, (machine, words) in BUNDLED.items():
        cluster, gpus = osf.load_cluster(name), osf.load_cluster(f"nccl:{words}").gpus_per_node
        for table in cluster.tables:
            points = {m: t for m, t in zip(table.sizes, table.times, strict=True) if 1024 <= m < LEAST}
            if points and table.collective == "all_reduce":
                place = layout_of(table.workers, gpus)
                one = Measured(machine, f"nccl:{words}", place, tuple(points), tuple(points.values()))
                parts.append(errors(one, CORRECTED))
    return summary(np.concatenate(parts))


def across_counts(tables: Sequence[Measured], models: Sequence[str], held: Sequence[int]) -> dict[str, float]:
    """Median error at the worker counts in ``held`` by models fitted on the samples of all smaller or other counts."""
    samples = [Sample(t.place.workers, *pair) for t in tables for pair in zip(t.sizes, t.times, strict=True)]
    kept, left = ([s for s in samples if (s.workers in held) == out] for out in (False, True))
    found = {}
    for model in models:
        fitted = osf.Cluster("fitted", model, gpus_per_node=8, **osf.COST_MODELS[model].fit(kept, 8).parameters)
        prices = {workers: osf.cost_of(fitted, workers) for workers in held}
        found[model] = median([np.array([prices[s.workers](s.size) / s.time - 1 for s in left])])
    return found


def fits() -> dict[str, dict[str, float]]:
    """Echo: 2 to 32 GPUs teach 64. vTrain: 2, 4 and 8 GPUs teach 3 and 6."""
    echo = [row for row in measured() if row.words == "nccl:a100x8,200Gbps,ib" and row.machine == "Azure ND A100 v4"]
    found = {"Echo, 64 GPUs from 2-32": across_counts(echo, ("nccl", "hierarchical"), (64,))}
    for gpu in ("A100", "V100"):
        rows = [row for row in measured() if row.machine == f"vTrain's {gpu} node"]
        if rows:
            found[f"vTrain {gpu}, 3 and 6 GPUs from 2, 4, 8"] = across_counts(rows, ("nccl", "ring"), (3, 6))
    return found


def report() -> dict[str, object]:
    machines = by_machine()
    shipped, others = learn(measured()), [row.corrections for row in judged()]
    return {
        "machines": machines,
        "pooled": pooled(machines),
        "bounds": bounds(),
        "learned": {
            name: {
                "all": getattr(shipped, name),
                "least": min(getattr(one, name) for one in others),
                "most": max(getattr(one, name) for one in others),
            }
            for name in GRIDS
        },
        "paces": paces(),
        "two_roots": two_roots(),
        "apart": apart(),
        "sharp": sharp(),
        "many_nodes": many_nodes(),
        "below_64_kib": small(),
        "fits": fits(),
    }


def show(found: Mapping[str, object]) -> Iterable[str]:
    """The report as Markdown tables, without the fits: docs/reference/fits.md has them over wider ranges."""
    yield "| part | fabric | machine | n | tuner | corrected | worst | bias | bound | covered |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in found["machines"]:  # type: ignore[attr-defined]
        figures = f"{row['tuner']:.0%} | {row['median']:.0%} | {row['worst']:.0%} | {row['bias']:+.0%}"
        named = f"{NAMES[row['part']]} | {row['fabric']} | {row['machine']}"
        yield f"| {named} | {row['n']} | {figures} | {row['bound']:.2f} | {row['covered']:.0%} |"
    yield ""
    yield "| of | machines | median of medians | covered | covered from 8 MiB |"
    yield "|---|---|---|---|---|"
    for row in found["pooled"]:  # type: ignore[attr-defined]
        covered = f"{row['covered']:.0%} | {row['covered_large']:.0%}"
        yield f"| {row['of']} | {row['machines']} | {row['median']:.1%} | {covered} |"
    yield ""
    yield "| correction | learned on all | with one machine left out |"
    yield "|---|---|---|"
    for name, row in found["learned"].items():  # type: ignore[attr-defined]
        yield f"| {name} | {row['all']:.2f} | {row['least']:.2f} to {row['most']:.2f} |"
    yield ""
    if found["paces"]:
        yield "| EFA between nodes | learned on 2 to 64 nodes of H100 | with one number of nodes left out |"
        yield "|---|---|---|"
        for name, row in found["paces"].items():  # type: ignore[attr-defined]
            yield f"| {name} | {row['all']:.3g} | {row['least']:.3g} to {row['most']:.3g} |"
        yield ""
    yield "| bound of | u | u from 8 MiB |"
    yield "|---|---|---|"
    for part, (whole, large) in found["bounds"].items():  # type: ignore[attr-defined]
        yield f"| {NAMES[part]} | {whole:.2f} | {large:.2f} |"
    yield ""
    yield "| two nodes, trees use the network | once | twice |"
    yield "|---|---|---|"
    for row in found["two_roots"]:  # type: ignore[attr-defined]
        yield f"| {row['machine']} | {row['once']:.0%} | {row['twice']:.0%} |"
    yield ""
    yield "| machine | collective | n | corrected | worst | bias |"
    yield "|---|---|---|---|---|---|"
    for row in found["apart"]:  # type: ignore[attr-defined]
        figures = f"{row['n']} | {row['median']:.0%} | {row['worst']:.0%} | {row['bias']:+.0%}"
        yield f"| {row['machine']} | {row['collective']} | {figures} |"
    yield ""
    yield "| all-reduce / (all-gather + reduce-scatter), 512 MiB | measured | predicted |"
    yield "|---|---|---|"
    for row in found["sharp"]:  # type: ignore[attr-defined]
        yield f"| {row['machine']} | {row['measured']:.2f} | {row['predicted']:.2f} |"
    yield ""
    yield "| 256 MiB on nodes of 8 H100, mean | all-reduce | all-gather | reduce-scatter |"
    yield "|---|---|---|---|"
    by_nodes: dict[int, dict[str, float]] = {}
    for row in found["many_nodes"]:  # type: ignore[attr-defined]
        by_nodes.setdefault(row["nodes"], {})[row["collective"]] = row["error"]
    for nodes, row in by_nodes.items():
        figures = " | ".join(f"{row[name]:+.0%}" for name in ("all_reduce", "all_gather", "reduce_scatter"))
        yield f"| {nodes} | {figures} |"
    yield ""
    below = found["below_64_kib"]
    yield "| below 64 KiB | median | worst | bias |"
    yield "|---|---|---|---|"
    yield f"| 1 to 32 KiB | {below['median']:.0%} | {below['worst']:.0%} | {below['bias']:+.0%} |"  # type: ignore[index]


NAMES = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "by_nic": "network by NIC",
    "by_host": "network by host",
    "not stated": "network, fabric not stated",
}
"""Parts as they are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    found = report()
    print(json.dumps(found, indent=1) if parser.parse_args().json else "\n".join(show(found)))


if __name__ == "__main__":
    main()
