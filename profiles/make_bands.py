"""Make effects.json and bands.json, the usual effects and the error bands of predictions, from the ledger.

    python profiles/make_bands.py [OUTPUT_FOLDER]

Usual effects are medians over groups of sources (sources on the same machines), bands and doubts of gains quantiles in
which each group weighs the same; both are made once of all, and once without each group. docs/reference/bands.md
describes them. Sharded runs over gloo are those that benchmarks/live_sharded keeps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import live_sharded
import msgspec

from osfmodel.cost.clusters import load_cluster
from osfmodel.engine import predict_timeline
from osfmodel.engine.band_values import bands_document
from osfmodel.engine.bands import NODE, NODES, PART, SHARDED_NODES, JudgedRun, distances_of, kind_of, weighed
from osfmodel.entities.effects import CITED_SLOWDOWN, Effects
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.files.usual_effects import (
    EffectsFile,
    UsualValue,
    effects_for,
    gpu_generation,
)
from osfmodel.entities.measurement import OF_ONE_TURN, Measurement
from osfmodel.ledger import LEDGER
from osfmodel.ledger.as_used import Job, asked, judged_of
from osfmodel.ledger.sources import pytorch_ddp

OF_ONE_PLAN = ("method", "images_per_s", "bucket_cap_mb", "throughput_change_percent")
"""Conditions in which runs of several plans on one set-up differ, besides those of one turn."""
NEAR = 0.1
"""Difference of predicted times (a logarithm) up to which two plans are compared: what a recommendation hangs on."""
LITTLE = 0.3
"""Communication per computation up to which a run on one node shows how much slower its GPUs compute."""
PUBLISHED = (
    UsualValue(
        "compute_slowdown", CITED_SLOWDOWN, 0.0, 0.4, "arXiv 2507.03114: mean and largest over its models and GPUs"
    ),
    UsualValue(
        "compute_slowdown", 0.35, 0.3, 0.4, "pull request 179937 of PyTorch: matrix products beside NCCL", "hopper"
    ),
)
"""Values that are taken from publications."""


class Shown(NamedTuple):
    """A value that one source shows, for a generation of GPU or for any ("")."""

    source: str
    group: str
    generation: str
    value: float


class JudgedPair(NamedTuple):
    """Two plans that ran on the same set-up: how far their measured ratio lies outside of the predicted ones.

    predicted, measured: logarithms of the ratio of their times
    """

    source: str
    group: str
    kind: str
    predicted: float
    measured: float
    outside: float


def group_of(source: str) -> str:
    """Sources on the same machines."""
    return LEDGER[source].group or source


def jobs() -> Iterator[tuple[str, list[tuple[Measurement, Job]]]]:
    """Each source with its runs that a user could ask for."""
    for name, recipe in LEDGER.items():
        if recipe.jobs is not None:
            runs = load_measurements(name)
            asked_for = zip(runs, recipe.jobs(runs), strict=True)
            yield name, [(run, job) for run, job in asked_for if not isinstance(job, str)]


def tensor_times() -> Iterator[Shown]:
    """Seconds per tensor that DDP takes on one GPU, of each source that has runs with it and without."""
    for name, pairs in jobs():
        alone = [(run, job) for run, job in pairs if run.workers == 1]
        without = {run.workload: run.iteration_time for run, _ in alone if run.plan == "none"}
        found = [
            (run.iteration_time - without[run.workload]) / len(job.workload.gradients)
            for run, job in alone
            if run.plan == "ddp" and run.workload in without
        ]
        if found:
            yield Shown(name, group_of(name), generation(alone[0][1]), max(median(found), 0.0))


def hook_times() -> Iterator[Shown]:
    """Seconds per bucket that DDP takes on one GPU, of the source that has runs with few and with many buckets."""
    runs = load_measurements("pytorch-ddp")
    for name in dict.fromkeys(run.workload for run in runs):
        own = [run for run in runs if run.workload == name]
        found = pytorch_ddp.calibrated(own).effects.hook_time
        yield Shown("pytorch-ddp", group_of("pytorch-ddp"), "", found)


def generation(job: Job) -> str:
    """Generation of the GPU of a job."""
    return gpu_generation(job.workload, load_cluster(job.cluster)) or ""


def node_slowdowns(before: Sequence[UsualValue]) -> Iterator[Shown]:
    """Part by which GPUs of one node compute slower together, by source; ``before``: the values of other effects."""
    for name, pairs in jobs():
        found = []
        for run, job in pairs:
            if run.workers == 1 or job.workload.profiled_workers > 1:
                continue
            workload, plan, pricing = asked(job, run.workers, lambda _, cluster, job=job: effects_of(job, before))  # type: ignore[misc]
            if kind_of(plan, pricing) != NODE:
                continue
            timeline = predict_timeline(workload, plan, pricing)
            if timeline.communication_time <= LITTLE * workload.compute_time:
                found.append((run.iteration_time - timeline.iteration_time) / workload.compute_time)
        if found:
            yield Shown(name, group_of(name), "", max(median(found), 0.0))


def effects_of(job: Job, values: Sequence[UsualValue]) -> Effects:
    """The usual effects for a job."""
    return effects_for(generation(job), values)


def learned(effect: str, shown: Iterable[Shown], evidence: str) -> list[UsualValue]:
    """Medians over groups: for any GPU, of all and without each group, and for each generation that was seen."""
    rows = list(shown)
    found = [_median(effect, rows, evidence)]
    for group in dict.fromkeys(row.group for row in rows):
        kept = [row for row in rows if row.group != group] or [Shown("", "", "", 0.0)]
        found.append(_median(effect, kept, evidence, without=group))
    for kind in dict.fromkeys(row.generation for row in rows if row.generation):
        found += [_median(effect, [row for row in rows if row.generation == kind], evidence, kind)]
    return found


def _median(effect: str, rows: Sequence[Shown], evidence: str, generation: str = "", without: str = "") -> UsualValue:
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row.value)
    values = [row.value for row in rows]
    middle = median(median(own) for own in groups.values())
    sources = sorted({row.source for row in rows} - {""})
    return UsualValue(
        effect, _short(middle), _short(min(values)), _short(max(values)), evidence, generation, sources, without
    )


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def usual() -> list[UsualValue]:
    """All usual values."""
    tensors = learned("tensor_time", tensor_times(), "one GPU with and without DDP, by the number of tensors")
    hooks = learned("hook_time", hook_times(), "one GPU under DDP, with few buckets and with many")
    before = [*PUBLISHED, *tensors, *hooks]
    said = "GPUs of one node that send little, over one GPU alone"
    return [*before, *learned("node_slowdown", node_slowdowns(before), said)]


def judged(values: Sequence[UsualValue], without: str | None = None) -> Iterator[JudgedRun]:
    """Every run as used, with effects learned without its own group, or without another."""
    for name, recipe in LEDGER.items():
        if recipe.jobs is not None:
            runs = load_measurements(name)
            for _, one in judged_of(name, group_of(name), runs, recipe.jobs(runs), values, without):
                yield one
    for seed, cells in live_sharded.kept():
        for cell in cells:
            yield from live_sharded.judged(cell, seed)


def pairs(values: Sequence[UsualValue]) -> Iterator[JudgedPair]:
    """Every two plans of a source that ran on the same workload, cluster and workers, and were predicted to be near."""
    for name, recipe in LEDGER.items():
        if recipe.jobs is None:
            continue
        runs = load_measurements(name)
        cells: dict[Hashable, dict[str, list[JudgedRun]]] = {}
        for run, one in judged_of(name, group_of(name), runs, recipe.jobs(runs), values):
            same = tuple(pair for pair in run.conditions if pair[0] not in (*OF_ONE_TURN, *OF_ONE_PLAN))
            cells.setdefault((run.workload, run.cluster, run.workers, same), {}).setdefault(run.plan, []).append(one)
        for plans in cells.values():
            for mine, theirs in combinations(plans.values(), 2):
                if mine[0].kind == theirs[0].kind and abs(math.log(mine[0].predicted / theirs[0].predicted)) < NEAR:
                    yield JudgedPair(name, group_of(name), mine[0].kind, *ratios_of(mine, theirs))
    yield from live_pairs()


def live_pairs() -> Iterator[JudgedPair]:
    """Planned groups and one per block on each setting of the live draws of sharded steps."""
    for seed, cells in live_sharded.kept():
        for pair in live_sharded.pairs_of(cells):
            mine, theirs = (live_sharded.judged(cell, seed) for cell in pair)
            yield JudgedPair(mine[0].source, mine[0].group, mine[0].kind, *ratios_of(mine, theirs))


def ratios_of(mine: Sequence[JudgedRun], theirs: Sequence[JudgedRun]) -> tuple[float, float, float]:
    """Logarithms of the predicted and the measured ratio of two plans' times, and the distance of the second from the
    interval between their best and their worst doubts, 0 inside. Measured times are medians over repeats.
    """
    ratios = [math.log(getattr(mine[0], time) / getattr(theirs[0], time)) for time in ("predicted", "fast", "slow")]
    measured = math.log(median(run.measured for run in mine) / median(run.measured for run in theirs))
    return ratios[0], measured, max(min(ratios) - measured, measured - max(ratios), 0.0)


def gains(rows: Sequence[JudgedPair]) -> dict[str, float]:
    """Place -> the distance within which PART of the pairs of each group of sources lie: the largest over the groups.

    There are few groups, and whoever asks has a machine that is in none: a quantile over all held 77 % of one left out.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((place_of(row.kind), row.group), []).append(row.outside)
    found: dict[str, float] = {}
    for (place, _), own in groups.items():
        found[place] = max(found.get(place, 0.0), math.expm1(weighed(own, [1 / len(own)] * len(own), PART)))
    return found


def place_of(kind: str) -> str:
    """The kind of set-up by which errors of ratios are learned: FSDP on several nodes counts as several nodes."""
    return NODES if kind == SHARDED_NODES else kind


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    values = usual()
    rows = list(judged(values))
    distances = distances_of(rows)
    profiles.write_text(
        folder / "effects.json",
        documents.encode(msgspec.to_builtins(EffectsFile(documents.SCHEMA_VERSION, "effects", list(values)))),
    )
    profiles.write_text(folder / "bands.json", documents.encode(bands_document(distances, gains(list(pairs(values))))))


if __name__ == "__main__":
    main()
