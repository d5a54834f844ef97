"""Judge a source of measured runs: its data, the parameters that are fitted and on which runs, and its predictions.

A recipe is one function, ``judge(measurements) -> Verdict``. It may fit parameters on runs that it then
marks as ``fitted``; every other run it predicts from bundled profiles, the cost models and the engine, or lists as not
predicted with the reason. Errors are predicted / measured - 1.
Recipes that find the pace of computation themselves (``anchored``) take runs as their sources state them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.effects import REPLAYED_ON_CPU
from osfmodel.entities.errors import DataError
from osfmodel.entities.executors import executor_of
from osfmodel.entities.files.notation import read
from osfmodel.entities.filling import Closes, fill
from osfmodel.entities.measurement import OF_ONE_REPEAT, Measurement
from osfmodel.entities.plan import Plan, contiguous_plan
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import Jobs
from osfmodel.ledger.results import BUSY, TIME, UNSTEADY, Row, Verdict
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.targets.named_plans import make_plan


class Recipe(NamedTuple):
    """An entry of LEDGER.

    judge:     (measurements) -> Verdict
    tolerance: the largest median |error| of predicted rows that passes: the error reached, rounded up
    summary:   shown in docs/accuracy.md
    compares:  TIME or MEMORY
    jobs:      (measurements) -> each run as a user would ask for it; None for figures that are no times of steps
    group:     of sources on the same machines, which are left out together; "" for a group of its own
    """

    judge: Callable[[Sequence[Measurement]], Verdict]
    tolerance: float
    summary: str
    compares: str = TIME
    jobs: Jobs | None = None
    group: str = ""


def row_of(
    run: Measurement,
    workload: Workload,
    pricing: Pricing,
    plan: Plan,
    fitted: bool = False,
) -> Row:
    """The prediction of the engine for ``run``, beside the measurement."""
    timeline = predict_timeline(workload, plan, replace(pricing, workers=run.workers))
    return row_at(run, workload, timeline.iteration_time, fitted)


def row_at(run: Measurement, workload: Workload, predicted: float, fitted: bool = False) -> Row:
    """A prediction in seconds beside the measurement.

    Not steady if its ranks kept the cores busy. The forward of a replay does not count for that: it sleeps, and sends
    nothing.
    """
    replayed = dict(run.conditions).items() >= REPLAYED_ON_CPU.items()
    busy = run.saturated(workload.forward_time if replayed else 0)
    return Row(
        label=label_of(run),
        measured=run.iteration_time,
        predicted=predicted,
        fitted=fitted,
        is_time=True,
        steady=not busy,
        note=BUSY if busy else "",
    )


def stated_plan(conditions: Mapping[str, str], workload: Workload, pricing: Pricing) -> Plan | None:
    """The plan that a run's conditions state: the buckets that were sent, or a target's plan for the stated settings.

    None if they state none. Raises OsfError if they cannot be read, or do not fit the workload.
    """
    executor = executor_of(conditions)
    for target in CONFIG_TARGETS.values():
        from_conditions = target.convert.from_conditions if target.executor is executor else None
        knobs = from_conditions(conditions, workload) if from_conditions else None
        if knobs is not None:
            return target.convert.to_plan(knobs, workload, pricing)
    if "sent" in conditions:
        return read(conditions["sent"], workload)
    if executor.states_plan:
        raise DataError(f"a run of {workload.name!r} under the executor does not state its sent: what the plan was")
    return None


def not_predicted(run: Measurement, reason: str) -> Row:
    """A row for a run that cannot be predicted, with the reason."""
    return Row(label_of(run), run.iteration_time, None, note=reason)


def label_of(run: Measurement) -> str:
    """A run's name for people: workload, plan, workers and conditions."""
    conditions = [value for name, value in run.conditions if name in LABELLED]
    return " ".join([run.workload, run.plan, f"{run.workers}x", *conditions])


LABELLED = (
    "batch_size",
    "network",
    "precision",
    "placement",
    "setup",
    "bucket_cap_mb",
    "layout",
    "file",
    "system",
    "scale",
    "repeat",
    "option",
    "sequence",
    "micro_batches",
    "zero_group",
)
"""Conditions that are part of a label."""


def without_unsteady(measurements: Sequence[Measurement], rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of these runs; those of a cell whose repeats differ too much are marked as not counted.

    So are those of a cell of which any repeat kept the cores busy, whatever its error. A cell is a plan on one
    workload, cluster, worker count and set of options.
    """
    cells: dict[Hashable, list[float]] = {}
    for run in measurements:
        cells.setdefault(cell_of(run), []).append(run.iteration_time)
    unsteady = {cell for cell, times in cells.items() if max(times) / min(times) - 1 > UNSTEADY}
    notes = dict.fromkeys(unsteady, f"repeats differ by more than {UNSTEADY:.0%}: listed, not counted")
    notes |= {cell_of(run): BUSY for run, row in zip(measurements, rows, strict=True) if row.note == BUSY}
    return tuple(
        row
        if row.predicted is None or (note := notes.get(cell_of(run))) is None
        else row._replace(steady=False, note=note)
        for run, row in zip(measurements, rows, strict=True)
    )


def cell_of(run: Measurement) -> Hashable:
    """The properties that all repeats of a plan share, and no other run."""
    return run.workload, run.cluster, run.workers, run.plan, run.shared_conditions


def asked_of(run: Measurement) -> Hashable:
    """The properties that a prediction depends on, which repeats of a plan share."""
    own = tuple(pair for pair in run.conditions if pair[0] not in OF_ONE_REPEAT)
    return run.workload, run.cluster, run.workers, run.plan, own


def with_compute_time(workload: Workload, compute_time: float) -> Workload:
    """``workload`` with all times scaled so that a single GPU takes ``compute_time`` per iteration."""
    return workload.scaled(compute_time / workload.compute_time)


def from_input(workload: Workload, limits: Sequence[int]) -> Plan:
    """DDP's buckets up to PyTorch 1.5: closed at ``limits`` on a walk from the input, and sent in reverse.

    The small first limit thus makes the *last* message small. Newer versions rebuild the buckets in ready order after
    the first iteration (pull request 35137 of PyTorch, May 2020), which makes the first one small. One dtype.
    """
    count = len(workload.gradients)
    last = len(limits) - 1
    closes = Closes(lambda held, number: held >= limits[min(number, last)])
    filled = fill(reversed(range(count)), workload.gradients.sizes, closes)
    return contiguous_plan(workload, sorted({*(place for place, _ in filled if place is not None), count} - {0}))


class StatedRun(NamedTuple):
    """A run as its source states it.

    series: runs whose GPUs compute at one pace, whatever the micro-batch and their number
    order:  its place in the series: the first is fitted
    build:  seconds for 10^12 floating-point operations -> the computation of a micro-batch
    plan:   (workload, prices, micro-batches) -> the plan of a step
    micro_batches: of a step
    alike:  whether they are all alike, each beginning when the one before has ended
    """

    series: Hashable
    order: tuple[int, ...]
    build: Callable[[float], Workload]
    plan: Callable[[Workload, Pricing, int], Plan]
    micro_batches: int
    alike: bool


Settings = Callable[[Sequence[Measurement]], Sequence["StatedRun | str"]]
"""(runs) -> the setting of each, or the reason why it cannot be predicted."""


def fsdp(name: str) -> Callable[[Workload, Pricing, int], Plan]:
    """(workload, prices, micro-batches) -> the named plan, which gathers and reduces in each micro-batch."""

    def plan(workload: Workload, pricing: Pricing, micro_batches: int) -> Plan:
        made = make_plan(name, workload, pricing)
        assert made.sharding is not None
        return replace(made, sharding=replace(made.sharding, micro_batches=micro_batches))

    return plan
