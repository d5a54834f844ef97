"""How far the NCCL model is from measured all-reduces, by device. Run it from anywhere:

    python benchmarks/nccl_model.py [--json]

Errors are predicted / measured - 1 of 1 to 512 MiB. ``tuner`` uses NCCL's constants as they are, ``NVLS`` counts the
bytes through each link for NVLink SHARP, ``corrected`` has the pipeline term too, learned on the tables of all *other*
devices. The tables are those of the bundled clusters (newest NCCL of each device), each weighing the same. ``further``
tables took no part in learning or in choosing the form; vTrain's are read from OSFMODEL_DATA where it is set.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

import osfmodel as osf
from osfmodel.cost import AffineCost, Sample, nccl
from osfmodel.cost.nccl import TUNER, Corrections
from osfmodel.cost.placement import Placement, layout_of

MIB = 2**20
KAPPAS = tuple(k / 100 for k in range(101))
"""Every pipeline factor that is tried."""
NVLS_ONLY = Corrections(0.0, True)


class Measured(NamedTuple):
    """All-reduces of one device and worker count, and what is known of the machines without measuring."""

    device: str
    generation: str
    shape: osf.NcclShape
    place: Placement
    sizes: tuple[int, ...]
    times: tuple[float, ...]


MACHINES = {
    "a100-node": ("A100 SXM", "a100", None),
    "h100-node": ("H100 SXM", "h100", None),
    "b200-node": ("B200 SXM", "b200", None),
    "b300-node": ("B300 SXM", "b300", None),
    "gb200-node": ("GB200", "gb200", None),
    "rtx-pro-6000-node": ("RTX PRO 6000 PCIe", "rtx-pro-6000", None),
    "dgx1-v100-roce": ("2 DGX-1 V100, 2x100G a node", "v100", 25),
    "dgx-a100-hdr-2nodes": ("2 DGX A100, 8x200G a node", "a100", 200),
    "dgx-a100-4nodes": ("4 DGX A100, NICs not stated (200G taken)", "a100", 200),
}
"""Bundled cluster -> device, key of DEVICES, Gbit/s of network per GPU. What corrections are learned and judged on."""
FURTHER = {
    "azure-a100-hdr": ("Echo: Azure A100, 200G a GPU", "a100", 200),
    "oci-a100-rdma": ("OCI: 2 nodes of A100, 200G a GPU", "a100", 200),
    "aws-p4d-efa": ("AWS: 2 nodes of A100, 4x100G EFA a node", "a100", 50),
    "h200-node": ("Azure: H200 node", "h200", None),
}


def shape_of(device: str, gigabits: float | None) -> osf.NcclShape:
    """The shape that a person would write down: ``nccl:DEVICExN,BANDWIDTH``."""
    words = f"nccl:{device}x1" + ("" if gigabits is None else f",{gigabits}Gbps")
    found = osf.load_cluster(words).nccl
    assert found is not None
    return found


def tables(
    machines: Mapping[str, tuple[str, str, float | None]], least: int = MIB, most: int = 512 * MIB
) -> Iterable[Measured]:
    """The measured all-reduces of bundled clusters within a range of bytes."""
    for name, (label, device, gigabits) in machines.items():
        cluster = osf.load_cluster(name)
        shape = shape_of(device, gigabits)
        for table in cluster.tables:
            rows = [(m, t) for m, t in zip(table.sizes, table.times, strict=True) if least <= m <= most]
            if not rows:
                continue
            place = layout_of(table.workers, cluster.gpus_per_node)
            sizes, times = zip(*rows, strict=True)
            yield Measured(label, _kind(shape), shape, place, sizes, times)


def _kind(shape: osf.NcclShape) -> str:
    return shape.generation if shape.fabric != "pcie" else "pcie"


def vtrain() -> Iterable[Measured]:
    """vTrain's single nodes of A100 and of V100 (DGX-1 mesh), every MiB, in and out of place."""
    for gpu in ("a100", "v100"):
        yield from _from_file("vtrain/nccl_lut_1node.csv", {"gpu": gpu}, f"vTrain: {gpu.upper()} node", gpu)


def rack() -> Iterable[Measured]:
    """CoreWeave's rack of GB200, 512 MiB and more."""
    rows = {"system": "GB200 NVL72 (racks)", "n_racks": "1"}
    yield from _from_file("coreweave/gb200_h100_large.csv", rows, "CoreWeave: GB200 NVL72, to 8 GiB", "gb200", 2**33)


def _from_file(
    path: str, keep: Mapping[str, str], label: str, device: str, most: int = 512 * MIB
) -> Iterable[Measured]:
    """Tables of one node, by worker count, from a file that no bundled cluster has."""
    folder = Path(os.environ.get("OSFMODEL_DATA", "")) / "comm_tables"
    if not (folder / path).is_file():
        return
    found: dict[int, dict[int, float]] = {}
    with (folder / path).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if MIB <= int(row["bytes"]) <= most and keep.items() <= row.items():
                time = min(float(row["time_us"]), float(row["inplace_time_us"])) * 1e-6
                found.setdefault(int(row["n_gpus"]), {})[int(row["bytes"])] = time
    shape = shape_of(device, None)
    for workers, table in found.items():
        place = Placement(workers, 1, workers, workers)
        yield Measured(label, _kind(shape), shape, place, tuple(table), tuple(table.values()))


@cache
def errors(table: Measured, corrections: Corrections, bandwidth: float = 1.0, latency: float = 1.0) -> np.ndarray:
    """predicted / measured - 1 at every size."""
    shape = replace(table.shape, gpu_bandwidth=table.shape.gpu_bandwidth * bandwidth, latency_scale=latency)
    found = nccl.ways(shape, table.place, "all_reduce", corrections)
    cost = AffineCost(nccl.lines(found, corrections))
    return cost(np.array(table.sizes, dtype=float)) / np.array(table.times) - 1


def loss(chosen: Sequence[Measured], corrections: Corrections, bandwidth: float = 1.0, latency: float = 1.0) -> float:
    """Mean over the tables of the mean |log(predicted / measured)|."""
    parts = [np.abs(np.log1p(errors(table, corrections, bandwidth, latency))).mean() for table in chosen]
    return float(np.mean(parts))


def learn(chosen: Sequence[Measured]) -> float:
    """The pipeline factor with the least loss on these tables."""
    return min(KAPPAS, key=lambda kappa: loss(chosen, Corrections(kappa, True)))


def held_out(measured: Sequence[Measured], by: str) -> list[tuple[Measured, float, np.ndarray]]:
    """(table, factor, errors) of every table, with the factor learned where ``by`` (a field) differs."""
    rows = []
    factors: dict[str, float] = {}
    for table in measured:
        group = getattr(table, by)
        if group not in factors:
            factors[group] = learn([other for other in measured if getattr(other, by) != group])
        rows.append((table, factors[group], errors(table, Corrections(factors[group], True))))
    return rows


def median(parts: Iterable[np.ndarray]) -> float:
    return float(np.median(np.abs(np.concatenate(list(parts)))))


def summary(found: np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(np.abs(found))),
        "worst": float(np.abs(found).max()),
        "bias": float(np.median(found)),
    }


def per_device(measured: Sequence[Measured]) -> list[dict[str, object]]:
    """A row per device and one over all: errors before and after, every corrected figure on tables not learned from."""
    rows: list[dict[str, object]] = []
    everything = held_out(measured, "device")
    labels = list(dict.fromkeys(table.device for table in measured))
    for label in [*labels, "pooled"]:
        chosen = [row for row in everything if label in (row[0].device, "pooled")]
        corrected = np.concatenate([row[2] for row in chosen])
        rows.append(
            {
                "device": label,
                "n": len(corrected),
                "tuner": median(errors(table, TUNER) for table, _, _ in chosen),
                "nvls": median(errors(table, NVLS_ONLY) for table, _, _ in chosen),
                "kappa": chosen[0][1] if label != "pooled" else learn(measured),
                **summary(corrected),
            }
        )
    return rows


def alternatives(measured: Sequence[Measured]) -> dict[str, float]:
    """Pooled held-out medians of other forms of correction, learned in the same way on the same grid."""
    forms = {
        "bandwidth efficiency alone": [(0.0, b / 20, 1.0) for b in range(8, 25)],
        "latency scale alone": [(0.0, 1.0, s / 4) for s in range(1, 33)],
        "bandwidth efficiency and latency scale": [(0.0, b / 20, s / 4) for b in range(8, 25, 2) for s in range(1, 17)],
        "pipeline and bandwidth efficiency": [(k / 20, b / 20, 1.0) for k in range(16) for b in range(14, 25)],
        "pipeline and latency scale": [(k / 20, 1.0, s / 4) for k in range(16) for s in range(1, 9)],
    }
    return {name: _alternative(measured, grid) for name, grid in forms.items()}


def _alternative(measured: Sequence[Measured], grid: Sequence[tuple[float, float, float]]) -> float:
    every = [[errors(table, Corrections(k, True), b, s) for table in measured] for k, b, s in grid]
    losses = np.array([[np.abs(np.log1p(part)).mean() for part in parts] for parts in every])
    kept = []
    for device in dict.fromkeys(table.device for table in measured):
        others = [i for i, table in enumerate(measured) if table.device != device]
        best = int(losses[:, others].mean(axis=1).argmin())
        kept += [every[best][i] for i, table in enumerate(measured) if table.device == device]
    return median(kept)


def further() -> list[dict[str, object]]:
    """The shipped model on tables that nothing was learned from."""
    return [
        {
            "device": f"{table.device}, {table.place.workers} GPUs",
            "n": len(table.sizes),
            "tuner": median([errors(table, TUNER)]),
            **summary(errors(table, nccl.CORRECTED)),
        }
        for table in [*tables(FURTHER), *vtrain(), *rack()]
    ]


def across_counts(measured: Sequence[Measured], models: Sequence[str], held: Sequence[int]) -> dict[str, float]:
    """Median error at the worker counts in ``held`` by models fitted on the samples of all smaller or other counts."""
    samples = [Sample(t.place.workers, *pair) for t in measured for pair in zip(t.sizes, t.times, strict=True)]
    kept, left = ([s for s in samples if (s.workers in held) == out] for out in (False, True))
    found = {}
    for model in models:
        fitted = osf.Cluster("fitted", model, gpus_per_node=8, **osf.COST_MODELS[model].fit(kept, 8).parameters)
        prices = {workers: osf.cost_of(fitted, workers) for workers in held}
        found[model] = median([np.array([prices[s.workers](s.size) / s.time - 1 for s in left])])
    return found


def fits() -> dict[str, dict[str, float]]:
    """Echo: 2 to 32 GPUs teach 64, over 64 KiB to 1 GiB. vTrain: 2, 4 and 8 GPUs teach 3 and 6, over 1 to 512 MiB."""
    echo = list(tables({"azure-a100-hdr": FURTHER["azure-a100-hdr"]}, 2**16, 2**30))
    found = {"Echo, 64 GPUs from 2-32, 64 KiB-1 GiB": across_counts(echo, ("nccl", "hierarchical"), (64,))}
    for gpu in ("A100", "V100"):
        rows = [table for table in vtrain() if gpu in table.device]
        if rows:
            found[f"vTrain {gpu}, 3 and 6 GPUs from 2, 4, 8, 1-512 MiB"] = across_counts(rows, ("nccl", "ring"), (3, 6))
    return found


def small() -> dict[str, float]:
    """The shipped model below what it was learned on: 1 to 512 KiB of the same devices."""
    return summary(np.concatenate([errors(table, nccl.CORRECTED) for table in tables(MACHINES, 2**10, 2**19)]))


def report() -> dict[str, object]:
    measured = list(tables(MACHINES))
    return {
        "devices": per_device(measured),
        "leave_one_generation_out": median(row[2] for row in held_out(measured, "generation")),
        "alternatives": alternatives(measured),
        "further": further(),
        "below_1_mib": small(),
        "fits": fits(),
    }


def show(found: dict[str, object]) -> Iterable[str]:
    """The report as Markdown tables, without the fits: docs/reference/fits.md has them over wider ranges."""
    yield "| device | n | tuner | NVLS | kappa of the others | corrected | worst | bias |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in found["devices"]:  # type: ignore[attr-defined]
        figures = f"{row['tuner']:.1%} | {row['nvls']:.1%} | {row['kappa']:.2f} | {row['median']:.1%}"
        yield f"| {row['device']} | {row['n']} | {figures} | {row['worst']:.0%} | {row['bias']:+.1%} |"
    yield ""
    yield "| pooled, held out | median |"
    yield "|---|---|"
    yield f"| whole generations left out | {found['leave_one_generation_out']:.1%} |"
    for name, figure in found["alternatives"].items():  # type: ignore[attr-defined]
        yield f"| other form: {name} | {figure:.1%} |"
    yield ""
    yield "| further table | n | tuner | shipped | worst | bias |"
    yield "|---|---|---|---|---|---|"
    for row in found["further"]:  # type: ignore[attr-defined]
        figures = f"{row['tuner']:.1%} | {row['median']:.1%} | {row['worst']:.0%} | {row['bias']:+.1%}"
        yield f"| {row['device']} | {row['n']} | {figures} |"
    yield ""
    below = found["below_1_mib"]
    yield "| below 1 MiB | median | worst | bias |"
    yield "|---|---|---|---|"
    yield f"| 1 to 512 KiB | {below['median']:.1%} | {below['worst']:.0%} | {below['bias']:+.1%} |"  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    found = report()
    print(json.dumps(found, indent=1) if parser.parse_args().json else "\n".join(show(found)))


if __name__ == "__main__":
    main()
