"""What would help a traced job: each remedy priced by the model, or by the replay of the trace where that is its own.

The model predicts the step of the job as it is and with the remedy. Where it has the job faster than it was, the rest,
such as a straggler, is taken to stay; where it has it slower, communication that is exposed is scaled to what was
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.faster_network import Change, faster_network
from osfmodel.cost.fitting import line_through
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import TableCost
from osfmodel.diagnosis import CAUSES, Explanation, Remedy
from osfmodel.engine import predict_timeline
from osfmodel.entities.batches import accumulating
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.compression import compressed
from osfmodel.entities.errors import OsfError
from osfmodel.entities.plan import Block, Plan
from osfmodel.entities.units import show_bytes, show_time
from osfmodel.entities.workload import Workload, element_bytes
from osfmodel.formats.traces import Trace, cluster_of, plan_of, workload_of
from osfmodel.formats.traces.network import wire_times_by_size
from osfmodel.formats.traces.usual import usual_step
from osfmodel.planning.tuning import tune

MODEL, REPLAY = "model", "replay"
OFF = 0.1
"""The model is said to be off where it differs from the step that was measured by a larger part."""
UNLIKE = 2.0
"""Times of messages that differ by more than this factor are not alike."""
SMALL = 0.01
"""Part of the step below which a fault of the trace is not worth a remedy of its own."""
POWER_SGD_RANK = 4
BEYOND = "priced beyond the largest message measured"
ONE_SIZE = (
    "all-reduces are priced in proportion to their bytes, since all have about one size: with --cluster start-ups "
    "count too"
)


@dataclass(frozen=True, slots=True)
class Modelled:
    """A step as the model has it: its seconds, and BEYOND where a message in it is larger than any that was priced.

    Smaller ones than were measured cost at most what the smallest did, which overstates no remedy.
    """

    seconds: float
    note: str = ""

    @classmethod
    def of(cls, seconds: float, plan: Plan, pricing: Pricing) -> Modelled:
        """Of the plan that is sent in it."""
        measured = pricing.cost().measured_range
        largest = max((bucket.size for bucket in plan.buckets), default=0)
        return cls(seconds, BEYOND if measured is not None and largest > measured[1] else "")


@dataclass(frozen=True, slots=True)
class TracedJob:
    """The job that was traced, as the model has it.

    cluster: its network as the trace shows it; stated: as it is said to be, where that was given
    now:     what the model predicts for a step
    micro_batches: of a step, as it is
    others:  seconds of a step that are exposed in collectives that are no all-reduces, which the model does not have
    ddp:     whether the trace shows DDP, so that a remedy can be a setting of it
    """

    workload: Workload
    cluster: Cluster
    plan: Plan
    workers: int
    now: float
    stated: Cluster | None = None
    micro_batches: int = 1
    others: float = 0.0
    ddp: bool = True

    def step(self, workload: Workload, cluster: Cluster, workers: int | None = None) -> Modelled:
        """A step of another workload, with the same layers in the same buckets."""
        pricing, plan = pricing_of(cluster, workers or self.workers), carried_over(self.plan, workload)
        return Modelled.of(predict_timeline(workload, plan, pricing).iteration_time, plan, pricing)


def carried_over(plan: Plan, workload: Workload) -> Plan:
    """``plan`` for a workload whose gradients have other sizes: whole layers, in the same buckets."""
    sizes = {layer.name: layer.gradient_bytes for layer in workload.layers}
    buckets = tuple(
        replace(bucket, blocks=tuple(Block(block.layer, 0, sizes[block.layer]) for block in bucket.blocks))
        for bucket in plan.buckets
    )
    return replace(plan, workload=workload.name, buckets=buckets)


@dataclass(frozen=True, slots=True)
class Measure:
    """A remedy that the model prices.

    what:    what it is, for this job
    price:   a step with it. Raises OsfError, saying why, where that cannot be priced
    note:    what that leaves out
    samples: those of a step of the job, as a multiple of now
    applies: whether the job may take it
    alone:   seconds that one worker alone computes with it, by the model
    network: whether other collectives than all-reduces take another time with it, so that the model has no price where
             they matter
    """

    what: Callable[[TracedJob], str]
    price: Callable[[TracedJob], Modelled]
    note: str = ""
    samples: Callable[[TracedJob], float] = lambda job: 1.0
    applies: Callable[[TracedJob], bool] = lambda job: True
    alone: Callable[[TracedJob], float] = lambda job: job.workload.compute_time
    network: bool = False


def _named(what: str) -> Callable[[TracedJob], str]:
    return lambda job: what


def _set(job: TracedJob, what: str, setting: str) -> str:
    """``what``, and for a job of DDP which setting of its that is."""
    return f"{what} ({setting})" if job.ddp else what


def _tuned(job: TracedJob) -> Modelled:
    found = tune(job.workload, job.cluster, job.workers)
    return Modelled.of(found.outcomes[0].tuned_time, found.plan, pricing_of(job.cluster, job.workers))


def _sent(how: str) -> Callable[[TracedJob], Modelled]:
    return lambda job: job.step(compressed(job.workload, how), job.cluster)


def _together(count: int) -> Callable[[TracedJob], Modelled]:
    return lambda job: job.step(accumulating(job.workload, count), job.cluster)


def _faster(factor: float) -> Callable[[TracedJob], Modelled]:
    return lambda job: job.step(job.workload, faster_network(job.cluster, Change(factor)))


def _wider_than_half(job: TracedJob) -> bool:
    """Whether gradients are sent in more than 16 bits."""
    return any(element_bytes(dtype) > 2 for dtype in job.workload.gradients.dtypes)


def _accumulated(count: int) -> Measure:
    return Measure(
        lambda job: _set(
            job, f"{_counted(count * job.micro_batches, job.micro_batches)} micro-batches a step", "no_sync"
        ),
        _together(count),
        "a larger global batch",
        samples=lambda job: float(count),
        alone=lambda job: accumulating(job.workload, count).compute_time,
    )


REMEDIES: Mapping[str, Measure] = MappingProxyType(
    {
        "plan": Measure(
            lambda job: f"{'the best buckets for DDP' if job.ddp else 'DDP with the best buckets'} (osf tune)", _tuned
        ),
        "half": Measure(
            lambda job: _set(job, "gradients sent as fp16 or bf16", "comm hook"),
            _sent("fp16"),
            "casting is left out",
            applies=_wider_than_half,
        ),
        "powersgd": Measure(
            lambda job: f"PowerSGD{' hook' if job.ddp else ''}, rank {POWER_SGD_RANK}",
            _sent(f"powersgd:{POWER_SGD_RANK}"),
            "at its best: square gradients; its computation is left out",
        ),
        "accumulate-2": _accumulated(2),
        "accumulate-4": _accumulated(4),
        "network-2": Measure(_named("a network 2 times as fast"), _faster(2), network=True),
        "network-10": Measure(_named("a network 10 times as fast"), _faster(10), network=True),
        "stated-network": Measure(
            lambda job: f"the network as {(job.stated or job.cluster).name} has it",
            lambda job: job.step(job.workload, job.stated or job.cluster),
            applies=lambda job: job.stated is not None,
            network=True,
        ),
        "workers-half": Measure(
            lambda job: f"{job.workers // 2} of {job.workers} workers",
            lambda job: job.step(job.workload, job.cluster, job.workers // 2),
            samples=lambda job: job.workers // 2 / job.workers,
            applies=lambda job: job.workers >= 4,  # of fewer, half are one
            network=True,
        ),
        "workers-1": Measure(
            lambda job: f"1 of {job.workers} workers",
            lambda job: job.step(job.workload, job.cluster, 1),
            samples=lambda job: 1 / job.workers,
            network=True,
        ),
    }
)
"""By name, what the model prices; what the replay prices stands with its cause."""


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
    slowness = 1.0 if cluster is None else _slowness(trace, found.workers, cluster)
    if not 1 / UNLIKE <= slowness <= UNLIKE:
        said.append(
            f"all-reduces took {slowness:.2g} times as long as the cluster says: its start-ups and its bytes are taken "
            "to cost that many times as much alike"
        )
    said += _large_start_ups(job)
    if abs(job.now / found.step_time - 1) > OFF:
        said.append(
            f"the model has the step of this job at {job.now / found.step_time - 1:+.0%} of what was measured; of "
            "remedies by the model, take differences"
        )
    if job.others >= SMALL * found.step_time:
        waits = show_time(job.others)
        said.append(f"remedies by the model leave collectives that are no all-reduces as they are ({waits} exposed)")
    said += [
        f"remedies by the model leave {cause.stays} as they are"
        for name, cause in CAUSES.items()
        if cause.stays and found.part(name) >= SMALL
    ]
    return _ranked((*faults, *_priced(found, job))), tuple(said)


def job_of(
    trace: Trace, found: Explanation, cluster: Cluster | None = None, workload: Workload | None = None
) -> TracedJob:
    """The job as the model has it. Raises OsfError, saying why, where the trace does not hold what that takes."""
    subject = workload_of(trace) if workload is None else workload
    plan = plan_of(trace, subject)
    wires = wires_of(trace, found.workers, cluster)
    now = predict_timeline(subject, plan, pricing_of(wires, found.workers)).iteration_time
    others = sum(row.exposed for row in found.buckets if row.kind != "all_reduce")
    usual = usual_step(trace)
    return TracedJob(subject, wires, plan, found.workers, now, cluster, usual.micro_batches, others, usual.ddp)


def wires_of(trace: Trace, workers: int, cluster: Cluster | None = None) -> Cluster:
    """What all-reduces had the wires for, as an import has it.

    Of ``cluster``, as much slower as those of the trace took longer in all than it prices them. Raises DataError where
    no size is known.
    """
    if cluster is None:
        return cluster_of(trace)
    factor = _slowness(trace, workers, cluster)
    return faster_network(cluster, Change(1 / factor), Change(factor))


def _slowness(trace: Trace, workers: int, cluster: Cluster) -> float:
    """How many times as long all-reduces of the trace took in all as ``cluster`` prices them."""
    times = wire_times_by_size(trace).get(("all_reduce", workers), {})
    price = pricing_of(cluster, workers).cost()
    priced = sum(price(size) * len(seconds) for size, seconds in times.items())
    return sum(map(sum, times.values())) / priced if priced else 1.0


def _large_start_ups(job: TracedJob) -> list[str]:
    """A sentence where the time of the smallest message of a table stands for a start-up that it is mostly not."""
    cost = pricing_of(job.cluster, job.workers).cost()
    if not isinstance(cost, TableCost):
        return []
    startup, _ = line_through(cost)
    if cost.times[0] <= UNLIKE * startup:
        return []
    return [
        f"a faster network is taken to leave what the smallest message takes ({show_bytes(cost.sizes[0])}, "
        f"{show_time(cost.times[0])}), most of which is its bytes: it brings more than is said"
    ]


def _faults(found: Explanation) -> Iterator[Remedy]:
    for name, cause in CAUSES.items():
        step = found.step_time - found.gains[name]
        if cause.remedy and found.part(name) >= SMALL and step > 0:
            yield Remedy(*cause.remedy, step, found.step_time / step, REPLAY, cause.caution)


def _priced(found: Explanation, job: TracedJob) -> Iterator[Remedy]:
    for name, measure in REMEDIES.items():
        if not measure.applies(job):
            continue
        what = measure.what(job)
        if measure.network and job.others >= SMALL * found.step_time:
            waits = f"{show_time(job.others)} are exposed in collectives that are no all-reduces"
            yield Remedy(name, what, None, None, MODEL, f"not priced: {waits}, which the model does not have")
            continue
        try:
            priced = measure.price(job)
        except OsfError as error:
            yield Remedy(name, what, None, None, MODEL, f"not priced: {error}")
            continue
        step = _measured(found.step_time, job, priced.seconds, measure.alone(job))
        note = "; ".join(filter(None, (measure.note, priced.note)))
        yield Remedy(name, what, step, measure.samples(job) * found.step_time / step, MODEL, note)


def _counted(count: int, now: int) -> str:
    """``2``, or ``6, not 3,`` where there are several now."""
    return str(count) if now == 1 else f"{count}, not {now},"


def _measured(measured: float, job: TracedJob, seconds: float, alone: float) -> float:
    """What the model has at ``seconds``, ``alone`` of one worker alone, in the terms of what was measured.

    Where the model has the step of the job itself faster, the rest stays as it was; where slower, communication that is
    exposed is taken to be as much less of it.
    """
    own = job.workload.compute_time
    if job.now <= measured:
        return measured + seconds - job.now
    exposed = max(0.0, measured - own) / (job.now - own) if job.now > own else 0.0
    computed = min(1.0, measured / own) * alone if own else alone
    return computed + exposed * (seconds - alone)


def _ranked(found: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """The most samples per second first; those without a price last."""
    return tuple(sorted(found, key=lambda one: -(one.throughput or 0.0)))
