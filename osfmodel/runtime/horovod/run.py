"""``osf run --executor horovod``: train for real under one setting of Horovod after the other, and measure it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.counting import load_workload
from osfmodel.engine.horovod_loop import DEFAULT_THRESHOLD, Loop
from osfmodel.engine.horovod_settings import PREFIX, name_of
from osfmodel.entities.batches import Variation
from osfmodel.entities.cluster import Cluster, Table
from osfmodel.entities.compression import FP16, NONE, compressed
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.effects import REPLAYED_ON_CPU, Effects
from osfmodel.entities.errors import DataError
from osfmodel.entities.executors import HOROVOD
from osfmodel.entities.files.notation import written
from osfmodel.entities.measurement import CPU_SHARE, NO_GPU, Measurement, Source
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Workload
from osfmodel.formats.horovod.iterations import timeline
from osfmodel.formats.source_text import Text
from osfmodel.runtime.bench import BenchRequest, unmet
from osfmodel.runtime.horovod import HorovodTurns, require_horovod
from osfmodel.runtime.horovod.process import beside
from osfmodel.runtime.job import Place, Voice, Watchdog, require_agreement
from osfmodel.runtime.job.measuring import Use, share
from osfmodel.runtime.training import LEAST_WARM_UPS, TrainingSettings, apart, furthest
from osfmodel.runtime.training.run import RunRequest, keep_turns, plan_called
from osfmodel.targets import CONFIG_TARGETS, horovod

NOTED = 10
"""Iterations of a turn whose timeline is kept."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series of turns.

    subject:  the model for a turn: its name, scale, profile and device, and its compression of gradients
    workload: its profile
    names:    of workload and cluster, as the file of measurements says them
    loops:    the settings, by label
    verify:   whether losses are compared
    timeline: a folder for Horovod's own timeline of each, from a turn of its own that does not count; or None
    """

    subject: Mapping[str, Any]
    workload: Workload
    names: tuple[str, str]
    loops: Mapping[str, Loop]
    iterations: int
    repeats: int
    warm_ups: int = LEAST_WARM_UPS
    verify: bool = False
    timeline: str | None = None


def require_installed(command: str) -> None:
    """Raise UsageError if Horovod with PyTorch is not installed."""
    require_horovod(command)


def run(
    asked: RunRequest, settings: TrainingSettings, place: Place, voice: Voice, watch: Watchdog
) -> list[Measurement]:
    """Run all turns under Horovod; rank 0 keeps a file of finished ones. Raises as :func:`run_all`."""
    require_agreement(repr((asked, settings)))
    workload = asked.variation.of(load_workload(asked.workload or asked.subject))
    workload = compressed(workload, asked.compression or NONE)
    watch.patience += 2 * workload.compute_time
    pricing = asked.pricing(place.world).under(HOROVOD.conditions | ({} if asked.real else REPLAYED_ON_CPU))
    loops = {
        asked.relative(name): loop_of(name, lambda name: plan_called(name, workload, pricing), workload, pricing)
        for name in asked.plans
    }
    series = _series(asked, settings, workload, loops)
    return run_all(series, HorovodTurns(place, settings.limit, watch), asked.output, voice.progress)


def _series(asked: RunRequest, settings: TrainingSettings, workload: Workload, loops: Mapping[str, Loop]) -> Series:
    subject = {
        "name": asked.subject,
        "variation": None if asked.real else tuple(asked.variation),
        "workload": asked.workload,
        "device": "cpu",
        "compression": asked.compression,
    }
    return Series(
        subject,
        workload,
        (asked.relative(asked.workload or asked.subject), asked.relative(asked.cluster or "unmeasured")),
        loops,
        settings.iterations,
        settings.repeats,
        settings.warm_ups,
        asked.verify,
        asked.timeline,
    )


def loop_of(name: str, make: Callable[[str], Plan], workload: Workload, pricing: Pricing) -> Loop:
    """The settings for a plan's name: its own (``horovod:64MiB,5ms``), or those of a plan's groups.

    Raises PlanError for a plan that Horovod cannot run.
    """
    if CONFIG_TARGETS.get(name) is horovod.TARGET:
        return Loop()
    if name.startswith(PREFIX):
        return horovod.settings_of(name)[0](workload, pricing)
    return horovod.from_plan(make(name), workload, pricing)


def run_all(series: Series, turns: HorovodTurns, output: str, tell: Callable[[str], None]) -> list[Measurement]:
    """Run every setting in every repeat; rank 0 keeps a file of finished ones. Raises JobError as ``HorovodTurns.run``.

    With ``verify`` each run says how far its losses are from the default's, over all iterations and ranks.
    """
    runs: list[Measurement] = []
    reference: list[float] = []
    if series.verify:
        turns.watch.beat("taking the losses of the default")
        reference = turns.run(Loop(), _task(series, Loop(), series.iterations))["losses"]
    for repeat in range(1, series.repeats + 1):
        for label, loop in series.loops.items():
            turns.watch.beat(f"running repeat {repeat} of plan {label!r}")
            found = turns.run(loop, _task(series, loop, series.iterations))
            run = _measurement(series, turns, label, (repeat, tuple(found["samples"])))
            used = share([Use(*use) for use in turns.each(found["use"])])
            run = replace(run, conditions=(*run.conditions, (CPU_SHARE, f"{used:.2f}")))
            if series.verify:
                difference = furthest(turns.each(apart(found["losses"], reference)))
                run = replace(run, conditions=(*run.conditions, ("loss_difference", f"{difference:.3g}")))
            runs.append(run)
            if turns.place.rank == 0:
                keep_turns(runs, series.repeats * len(series.loops), output, turns.watch, tell)
    if series.timeline is not None:
        _note(series, turns, Path(series.timeline), tell)
    return runs


def _task(series: Series, loop: Loop, iterations: int) -> dict[str, Any]:
    return {
        "task": "train",
        "subject": dict(series.subject),
        "groups": [list(group) for group in loop.groups] if loop.use_groups else [],
        "warm_ups": series.warm_ups,
        "iterations": iterations,
    }


def _note(series: Series, turns: HorovodTurns, folder: Path, tell: Callable[[str], None]) -> None:
    """Run one more turn of each with Horovod's timeline, which takes a core of rank 0 for itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (label, loop) in enumerate(series.loops.items()):
        turns.watch.beat(f"writing the timeline of plan {label!r}")
        path = folder / f"{number}-{name_of(loop).replace(',', '-')}.json"
        noted = {"HOROVOD_TIMELINE": str(path.resolve()), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
        turns.run(loop, _task(series, loop, NOTED), noted)
        tell(f"timeline of {label}: {path}")


def _measurement(series: Series, turns: HorovodTurns, label: str, turn: tuple[int, tuple[float, ...]]) -> Measurement:
    repeat, samples = turn
    return Measurement(
        *series.names,
        plan=label,
        workers=turns.place.world,
        samples=samples,
        warm_ups=series.warm_ups,
        conditions=tuple({**conditions(series, turns, series.loops[label]), "repeat": str(repeat)}.items()),
        source=Source("measured with osf run", f"{turns.place.world} workers, Horovod over gloo; {series.iterations} "
                      f"iterations after {series.warm_ups} of warm-up, on rank 0, settings taking turns"),
    )  # fmt: skip


def conditions(series: Series, turns: HorovodTurns, loop: Loop) -> dict[str, str]:
    """Conditions of a turn, in words; ``settings`` and ``sent`` are its plan."""
    from importlib.metadata import version

    import torch

    stated = {
        **HOROVOD.conditions,
        "library": turns.place.backend,
        "horovod": version("horovod"),
        "torch": str(torch.__version__),
        "device": "CPU",
        "what": REPLAYED_ON_CPU["what"] if series.subject["workload"] is None else "a model",
        "repeats": str(series.repeats),
        "settings": name_of(loop),
    }
    if series.subject["variation"] is not None:
        stated |= Variation(*series.subject["variation"]).conditions
    if series.subject.get("compression") == FP16:
        stated["compression"] = FP16
    if loop.use_groups:
        stated["sent"] = written(horovod.grouped_plan_of(loop, series.workload), series.workload)
    return stated


COPIED = (4 << 20, 16 << 20, 64 << 20)
"""Bytes at which copies into and out of the fusion buffer are measured, as far as these sizes are asked for."""
COPY_REPEATS = 10


def measure_cluster(
    asked: BenchRequest, limit: float, place: Place, tell: Callable[[str], None], watch: Watchdog
) -> Cluster:
    """Measure Horovod's own collectives between the ranks of a job, for the file that predictions of its runs need.

    The time of a message is the delay that it causes to others submitted with it, so it does not include the wait for
    a cycle and the negotiation; those are measured by themselves, from the loop's own marks of
    cycles that find nothing.

    The cluster as Horovod's collectives see it, on every rank. Raises as :func:`measure`.
    """
    watch.beat("measuring Horovod's cluster")
    turns = HorovodTurns(place, limit, watch)
    found = measure(turns, asked.request.sizes, asked.request.repeat, tell)
    return cluster_of(found, turns, asked.label, unmet(asked.network).network)


def measure(turns: HorovodTurns, sizes: Sequence[int], repeat: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Seconds by size, and the effects of the loop, on every rank. Raises JobError as ``HorovodTurns.run``."""
    fast = Loop(threshold=0, cycle=0)
    rows = _slowest(turns, fast, {"task": "exchange", "sizes": list(sizes), "repeat": repeat}, ("alone", "queued"))
    table = {row["bytes"]: max((row["queued"] - row["alone"]) / beside(row["bytes"]), 0.0) for row in rows}
    for size, time in table.items():
        tell(f"all_reduce {show_bytes(size)}: {show_time(time)}")
    copied = [size for size in COPIED if size <= max(sizes)] or [max(sizes)]
    rows = _slowest(turns, Loop(DEFAULT_THRESHOLD, 0), {"task": "copies", "sizes": copied, "repeat": COPY_REPEATS},
                    ("alone", "fused"))  # fmt: skip
    extra = plain_sum(row["fused"] - row["alone"] for row in rows)
    copy = max(extra / sum(copied), 0.0)
    tell(f"copies into and out of the fusion buffer {copy * 1e12:.0f} ps/B")
    remembered, missed = (_idle(turns, capacity) for capacity in (Loop().cache_capacity, 0))
    tell(f"negotiation {show_time(remembered)}, without the response cache {show_time(missed)}")
    effects = {"fusion_copy": copy, "negotiation": remembered, "negotiation_miss": missed}
    return {"table": table, "effects": effects, "repeat": repeat}


def _slowest(turns: HorovodTurns, loop: Loop, task: Mapping[str, Any], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """For each size, the medians over repeats of the slowest rank's times."""
    found = []
    for rows in zip(*turns.each(turns.run(loop, task)), strict=True):
        medians = {kind: median(map(max, zip(*(row[kind] for row in rows), strict=True))) for kind in kinds}
        found.append({"bytes": rows[0]["bytes"], **medians})
    return found


def _idle(turns: HorovodTurns, capacity: int) -> float:
    """Median seconds between cycles that find nothing, with cycle time 0, as rank 0 notes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        noted = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
        turns.run(Loop(0, 0, cache_capacity=capacity), {"task": "idle"}, noted)
        first = turns.place.rank == 0
        told = turns.each(timeline(Text(path.name, path.read_text())).cycle_gap if first else None)[0]
    if told is None:
        raise DataError("Horovod's timeline marks no cycles: let nothing override HOROVOD_TIMELINE in the job")
    return float(told)


def cluster_of(found: Mapping[str, Any], turns: HorovodTurns, name: str, network: str) -> Cluster:
    """The cluster of these measurements."""
    from importlib.metadata import version

    place, table = turns.place, found["table"]
    said = (
        f"{place.world} ranks, {place.per_host} on each host; Horovod {version('horovod')} over gloo, "
        f"network {network}; medians of up to {found['repeat']} repeats of the slowest rank: the delay by a train "
        "of messages of a size; negotiation from the median idle cycle"
    )
    return Cluster(
        name,
        "tabulated",
        gpus_per_node=place.per_host,
        nodes=-(-place.world // place.per_host),
        tables=(Table(place.world, tuple(table), tuple(table.values())),),
        effects=Effects(**found["effects"]),
        library="gloo",
        source=Source("measured by osf bench --executor horovod", said, gpu=NO_GPU),
    )
