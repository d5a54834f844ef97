"""Predictions of bundled workloads on bundled clusters, kept to show that a refactoring changed none.

    python -m tests.golden.predictions            compare all of them (some minutes on two cores)
    python -m tests.golden.predictions --write    write them anew: only where predictions were meant to change

A row is named workload|cluster|workers|plan|rules|effects. Times are compared to 1e-12 of their size; the plan's
buckets, and the bytes of each owner at each level of memory, exactly.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import islice, product
from pathlib import Path
from typing import Any

import osfmodel as osf
from tests.conftest import ROOT

FILE = Path(__file__).resolve().with_suffix(".json.gz")
TOLERANCE = 1e-12
RULES: dict[str, dict[str, Any]] = {
    "": {},
    "channels": {"channels": 2},
    "overlap": {"forward_overlap": True},
    "split": {"strategy": "split"},
    "overlap+split": {"forward_overlap": True, "strategy": "split"},
    "all": {"channels": 3, "forward_overlap": True, "strategy": "split"},
}
EFFECTS: dict[str, osf.Effects | None] = {
    "": None,
    "on": osf.Effects(
        launch_latency=2e-5, hook_time=3e-5, copy_in=2e-12, copy_out=3e-12, select=4e-11, select_sent=3e-10,
        select_time=1e-5, spread=2e-11, spread_received=2e-10, spread_time=1e-5, mirror=1e-11, fusion_copy=5e-12,
        negotiation=2e-4, negotiation_miss=1e-4, compute_slowdown=0.189, straggler_deviation=0.02,
    ),
}  # fmt: skip
FORMED = (
    "wfbp", "single", "ddp", "horovod", "deepspeed", "megatron", "byteps", "fsdp2",
    "mg-wfbp", "optimal", "cap:25MiB", "horovod:64MiB,5ms,streams=2", "osf:adaptive",
    "sparse:1%,cap:25MiB", "sparse:1%,cap:4MiB,release,mirror", "sparse:10%,ddp,fallback",
)  # fmt: skip
"""Plans that take milliseconds."""
SEARCHED = ("asc-wfbp", "byte-scheduler", "us-byte", "planned", "blocks")
KEEPERS = ("local", "ddp", "ddp-view", "runtime")
EVERY, EVERY_SEARCHED = 8, 3
"""The pairs of a workload and a cluster that are predicted, and the clusters on which plans are searched: one of so
many."""
SEARCHABLE = 70
"""Tensors up to which plans are searched on every cluster."""


@cache
def folder(name: str) -> tuple[str, ...]:
    """The names of the bundled files of a kind."""
    return tuple(sorted(path.stem for path in (ROOT / "profiles" / name).glob("*.json")))


@cache
def workload(name: str) -> osf.Workload:
    return osf.load_workload(name)


@cache
def cluster(name: str, effects: str) -> osf.Cluster:
    loaded = osf.load_cluster(name)
    chosen = EFFECTS[effects]
    return loaded if chosen is None else replace(loaded, effects=chosen)


@cache
def counts(name: str) -> tuple[int, ...]:
    """Worker counts that a cluster prices: the smallest and the largest of some."""
    found = []
    for workers in (2, 3, 4, 5, 8, 16, 32, 64):
        try:
            osf.cost_of(osf.load_cluster(name), workers)
        except osf.OsfError:
            continue
        found.append(workers)
    return tuple(dict.fromkeys((found[0], found[-1]))) if found else ()


def questions() -> Iterator[tuple[str, str, int, str, str, str]]:
    """(workload, cluster, workers, plan, rules, effects) of all rows."""
    workloads, clusters = folder("workloads"), folder("clusters")
    for number, (model, network) in islice(enumerate(product(workloads, clusters)), None, None, EVERY):
        for workers in counts(network)[-1:]:
            for plan in FORMED:
                yield model, network, workers, plan, "", ""
            for rules in [rules for rules in RULES if rules]:
                yield model, network, workers, "ddp", rules, "on" if number // EVERY % 2 else ""
            for plan in ("wfbp", "ddp", "horovod", "optimal", "sparse:1%,cap:4MiB,release,mirror"):
                if number // EVERY % 4 == 0:
                    yield model, network, workers, plan, "", "on"
        for workers in counts(network)[:1]:
            for plan in ("wfbp", "ddp", "optimal"):
                yield model, network, workers, plan, "", ""
    small = [name for name in workloads if len(workload(name).gradients) <= SEARCHABLE]
    for number, network in islice(enumerate(clusters), None, None, EVERY_SEARCHED):
        for workers in counts(network)[-1:]:
            for plan in SEARCHED:
                yield small[number % len(small)], network, workers, plan, "", ""
            for rules in [rules for rules in RULES if rules]:
                for plan in ("us-byte", "planned"):
                    yield (
                        small[number % len(small)],
                        network,
                        workers,
                        plan,
                        rules,
                        "on" if number // EVERY_SEARCHED % 3 == 0 else "",
                    )


def key(question: Sequence[Any]) -> str:
    return "|".join(map(str, question))


def digest(plan: osf.Plan) -> str:
    """A digest of a plan, with release times to ten digits."""
    buckets = [
        ([(block.layer, block.offset, block.bytes) for block in bucket.blocks], f"{bucket.release_time:.10g}",
         bucket.density)
        for bucket in plan.buckets
    ]  # fmt: skip
    said = (plan.channels, plan.forward_overlap, plan.split, plan.credit, plan.recompute, plan.release, plan.mirror)
    return sha256(repr((buckets, said)).encode()).hexdigest()[:10]


def levels(model: osf.Workload, prediction: osf.Prediction, workers: int) -> dict[str, str]:
    """{keeper: the bytes of the peak, and a digest of all levels that take time, in no order}."""
    found = {}
    for keeper in KEEPERS:
        try:
            memory = osf.memory_of(model, prediction.plan, prediction.timeline, workers, keeper)
        except osf.OsfError:
            continue
        lasting = [
            level for level in memory.levels
            if level.end > level.start or level.during == "update" or level.during.startswith("means")
        ]  # fmt: skip
        held = sorted((level.during, sorted(row for row in level.held.items() if row[1])) for level in lasting)
        found[keeper] = f"{memory.peak.bytes} {sha256(repr(held).encode()).hexdigest()[:10]}"
    return found


def answer(question: tuple[str, str, int, str, str, str]) -> list[Any]:
    """[seconds, seconds of communication, buckets, digest of the plan, levels of memory], or [the error's class]."""
    name, network, workers, plan, rules, effects = question
    model = workload(name)
    try:
        compared = osf.compare(model, cluster(network, effects), workers, [plan], RULES[rules])
    except (osf.OsfError, ValueError) as error:
        return [type(error).__name__]
    prediction = compared.predictions[0]
    timeline = prediction.timeline
    row: list[Any] = [
        timeline.iteration_time, timeline.communication_time, len(prediction.plan.buckets), digest(prediction.plan)
    ]  # fmt: skip
    known = any(layer.peak_bytes is not None for layer in model.layers)
    return [*row, levels(model, prediction, workers)] if known else row


def differs(was: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether two rows say different things: times by more than the tolerance, all else at all."""
    if len(was) != len(now) or was[2:] != now[2:]:
        return True
    if len(was) == 1:
        return list(was) != list(now)
    return any(abs(a - b) > TOLERANCE * max(abs(a), abs(b)) for a, b in zip(was[:2], now[:2], strict=True))


def tied(name: str, was: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether a search has found another plan of the same time, of which there may be many under effects."""
    searched = name.split("|")[3] in ("optimal", *SEARCHED)
    return searched and min(len(was), len(now)) > 1 and abs(was[0] - now[0]) <= TOLERANCE * max(was[0], now[0])


def kept() -> dict[str, list[Any]]:
    """The rows as they were written."""
    with gzip.open(FILE, "rt", encoding="utf-8") as stream:
        return {name: list(row) for name, row in json.load(stream).items()}


def computed(asked: Sequence[tuple[str, str, int, str, str, str]]) -> dict[str, list[Any]]:
    """All rows, on all cores."""
    with ProcessPoolExecutor() as pool:
        return dict(zip(map(key, asked), pool.map(answer, asked, chunksize=200), strict=True))


def main() -> int:
    found = json.loads(json.dumps(computed(list(questions()))))
    if "--write" in sys.argv:
        found = {name: row for name, row in found.items() if row != ["ValueError"]}  # a crash is nothing to keep
        with gzip.GzipFile(FILE, "wb", mtime=0) as stream:
            stream.write(json.dumps(found).encode())
        print(f"{len(found)} rows written")
        return 0
    was = kept()
    other = sorted(name for name, row in was.items() if differs(row, found.get(name, [])))
    different = [name for name in other if not tied(name, was[name], found.get(name, []))]
    for name in different[:20]:
        print(name, was.get(name), found.get(name))
    ties = len(other) - len(different)
    print(f"{len(was)} rows compared, {len(different)} differ, {ties} have another plan of the same time")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
