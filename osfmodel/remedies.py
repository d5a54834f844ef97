"""What would help a traced job: each remedy priced by the model, or by the replay of the trace where that is its own.

The model predicts the step of the job as it is and with the remedy. Where it has the job faster than it was, the rest,
such as a straggler, is taken to stay; where it has it slower, both predictions are scaled to what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from osfmodel.cluster import AlphaBeta, Cluster, Table
from osfmodel.compression import compressed
from osfmodel.diagnosis import CAUSES, Explanation, Remedy
from osfmodel.engine import predict_timeline
from osfmodel.errors import DataError, OsfError
from osfmodel.network import Change, faster_network
from osfmodel.plan import Block, Plan
from osfmodel.pricing import pricing_of
from osfmodel.trace import Trace
from osfmodel.trace_nouns import plan_of, workload_of
from osfmodel.tune import tune
from osfmodel.what_if import accumulating
from osfmodel.workload import Workload

MODEL, REPLAY = "model", "replay"
OFF = 0.1
"""The model is said to be off where it differs from the step that was measured by a larger part."""
SMALL = 0.01
"""Part of the step below which a fault of the trace is not worth a remedy of its own."""
POWER_SGD_RANK = 4
ONE_SIZE = (
    "all-reduces are priced in proportion to their bytes, since all have one size: with --cluster start-ups count too"
)
Outcome = tuple[float, float]
"""Seconds of a step by the model, and samples in it as a multiple of now."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job that was traced, as the model has it.

    cluster: its network as the trace shows it; stated: as it is said to be, where that was given
    now:     what the model predicts for a step
    """

    workload: Workload
    cluster: Cluster
    plan: Plan
    workers: int
    now: float
    stated: Cluster | None = None

    def step(self, workload: Workload, cluster: Cluster, workers: int | None = None) -> float:
        """Seconds of a step of another workload, with the same layers in the same buckets."""
        pricing = pricing_of(cluster, workers or self.workers)
        return predict_timeline(workload, carried_over(self.plan, workload), pricing).iteration_time


def carried_over(plan: Plan, workload: Workload) -> Plan:
    """``plan`` for a workload whose gradients have other sizes: whole layers, in the same buckets."""
    sizes = {layer.name: layer.gradient_bytes for layer in workload.layers}
    buckets = tuple(
        replace(bucket, blocks=tuple(Block(block.layer, 0, sizes[block.layer]) for block in bucket.blocks))
        for bucket in plan.buckets
    )
    return replace(plan, workload=workload.name, buckets=buckets)


def remedies(
    trace: Trace, found: Explanation, cluster: Cluster | None = None, workload: Workload | None = None
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """What would help the job, the most samples per second first, and what there is to say of all of them.

    Workload, buckets and prices are those of the trace. A workload that is given takes its place; a cluster says what
    its network could do, and how prices depend on sizes and workers. Where a remedy cannot be priced, its note
    says why.
    """
    faults = tuple(_faults(found))
    if found.workers < 2:
        return _ranked(faults), ()
    try:
        job = job_of(trace, found, cluster, workload)
    except OsfError as error:
        return _ranked(faults), (f"remedies that change communication are not priced: {error}",)
    said = [] if cluster is not None or job.cluster.tables else [ONE_SIZE]
    if abs(job.now / found.step_time - 1) > OFF:
        said.append(
            f"the model has the step of this job at {job.now / found.step_time - 1:+.0%} of what was measured; of "
            "remedies by the model, take differences"
        )
    said += [
        f"remedies by the model leave {cause.stays} as they are"
        for name, cause in CAUSES.items()
        if cause.stays and found.part(name) >= SMALL
    ]
    return _ranked((*faults, *(_priced(found, job, *one) for one in _changes(job)))), tuple(said)


def job_of(trace: Trace, found: Explanation, cluster: Cluster | None = None, workload: Workload | None = None) -> Job:
    """The job as the model has it. Raises OsfError, saying why, where the trace does not hold what that takes."""
    subject = workload_of(trace) if workload is None else workload
    plan = replace(plan_of(trace, subject), channels=1)  # what the library runs at once is in the cluster's prices
    wires = wires_of(found, cluster)
    now = predict_timeline(subject, plan, pricing_of(wires, found.workers)).iteration_time
    return Job(subject, wires, plan, found.workers, now, cluster)


def wires_of(found: Explanation, cluster: Cluster | None = None) -> Cluster:
    """What all-reduces had the wires for, by bytes: one after the other, as the replay has them.

    Of ``cluster``, as much slower as those of the trace took longer in all than it prices them. Without one a table, in
    which none takes longer than a larger one, since it could be padded; with a single size a line through nothing.
    Raises DataError where no size is known.
    """
    times: dict[int, list[float]] = {}
    for row in found.buckets:
        if row.kind == "all_reduce" and row.bytes and row.wire > 0:
            times.setdefault(row.bytes, []).append(row.wire)
    if cluster is not None:
        return _as_seen(cluster, times, found.workers)
    if not times:
        raise DataError("the trace holds no all-reduce of a size that is known: give --cluster")
    points = sorted((size, median(seconds)) for size, seconds in times.items())
    if len(points) == 1:
        ((size, seconds),) = points
        return Cluster(found.name, "hockney", fits=(AlphaBeta(found.workers, 0.0, seconds / size),))
    least = list(accumulate((seconds for _, seconds in reversed(points)), min))[::-1]
    table = Table(found.workers, tuple(size for size, _ in points), tuple(least))
    return Cluster(found.name, "tabulated", tables=(table,))


def _as_seen(cluster: Cluster, times: Mapping[int, Sequence[float]], workers: int) -> Cluster:
    price = pricing_of(cluster, workers).cost()
    priced = sum(price(size) * len(seconds) for size, seconds in times.items())
    factor = sum(map(sum, times.values())) / priced if priced else 1.0
    return faster_network(cluster, Change(1 / factor), Change(factor))


def _faults(found: Explanation) -> Iterator[Remedy]:
    for name, cause in CAUSES.items():
        step = found.step_time - found.gains[name]
        if cause.remedy and found.part(name) >= SMALL and step > 0:
            yield Remedy(*cause.remedy, step, found.step_time / step, REPLAY)


def _changes(job: Job) -> Iterator[tuple[str, str, Callable[[], Outcome], str]]:
    """(name, what it is, what it gives, what that leaves out) of everything that the model prices."""
    workload, cluster, workers = job.workload, job.cluster, job.workers

    def tuned() -> Outcome:
        return tune(workload, cluster, workers).outcomes[0].tuned_time, 1.0

    def sent(how: str) -> Callable[[], Outcome]:
        return lambda: (job.step(compressed(workload, how), cluster), 1.0)

    def together(count: int) -> Callable[[], Outcome]:
        return lambda: (job.step(accumulating(workload, count), cluster), float(count))

    def network(factor: float) -> Callable[[], Outcome]:
        return lambda: (job.step(workload, faster_network(cluster, Change(factor))), 1.0)

    def among(count: int) -> Callable[[], Outcome]:
        return lambda: (job.step(workload, cluster, count), count / workers)

    yield "plan", "the best buckets for DDP (osf tune)", tuned, ""
    yield "half", "gradients sent as fp16 or bf16 (comm hook)", sent("fp16"), "casting is left out"
    rank = f"powersgd:{POWER_SGD_RANK}"
    note = "at its best: square gradients; its computation is left out"
    yield "powersgd", f"PowerSGD hook, rank {POWER_SGD_RANK}", sent(rank), note
    for count in (2, 4):
        yield f"accumulate-{count}", f"{count} micro-batches a step (no_sync)", together(count), "a larger global batch"
    for factor in (2, 10):
        yield f"network-{factor}", f"a network {factor} times as fast", network(factor), ""
    stated = job.stated
    if stated is not None:
        yield "stated-network", f"the network as {stated.name} has it", lambda: (job.step(workload, stated), 1.0), ""
    for count in dict.fromkeys((max(1, workers // 2), 1)):
        yield f"workers-{count}", f"{count} of {workers} workers", among(count), ""


def _priced(found: Explanation, job: Job, name: str, what: str, price: Callable[[], Outcome], note: str) -> Remedy:
    try:
        seconds, samples = price()
    except OsfError as error:
        return Remedy(name, what, None, None, MODEL, f"not priced: {error}")
    scale = min(1.0, found.step_time / job.now)
    step = found.step_time + scale * (seconds - job.now)
    return Remedy(name, what, step, samples * found.step_time / step, MODEL, note)


def _ranked(found: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """The most samples per second first; those without a price last."""
    return tuple(sorted(found, key=lambda one: -(one.throughput or 0.0)))
