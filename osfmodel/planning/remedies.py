"""Remedies for a traced job: all are priced by the replay of the trace that causes are taken from.

Some need what the trace does not have: the price of a collective of other workers, or the best buckets, which a model
gives. Where the replay is shorter than the step, the difference is taken to stay; where it is longer, what a remedy
saves is scaled down like the causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.faster_network import Change, faster_network
from osfmodel.cost.fitting import line_through
from osfmodel.cost.shapes import TableCost
from osfmodel.diagnosis import CAUSES, Explanation, Remedy
from osfmodel.diagnosis.changed_steps import (
    on_one_worker,
    with_buckets,
    with_gradients_of,
    with_micro_batches,
    with_prices,
)
from osfmodel.diagnosis.group_parts import GroupPrices
from osfmodel.diagnosis.replay import Replays
from osfmodel.diagnosis.waits import Sent
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.compression import compressed
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import OsfError
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.trace import ProcessGroup, Trace
from osfmodel.entities.workload import Workload
from osfmodel.formats.traces import cluster_of, plan_of, workload_of
from osfmodel.formats.traces.network import SEVERAL_SIZES, wire_times_by_size
from osfmodel.formats.traces.usual import usual_step
from osfmodel.planning.tuning import tune

MODEL, REPLAY = "model", "replay"
UNLIKE = 2.0
"""Largest factor by which times of messages may differ and still count as alike."""
SMALL = 0.01
"""Fraction of the step below which a cause gets no remedy of its own."""
POWER_SGD_RANK = 4
BEYOND = "priced beyond the largest message measured"
ONE_SIZE = (
    "all-reduces are priced in proportion to their bytes, since all have about one size: with --cluster start-ups "
    "count too"
)


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A traced job: replays of its usual steps, and what the model knows of it.

    measured: seconds of a usual step; replayed: of its replays
    cluster: its network as the trace shows it; stated: as the user gave it, if at all
    micro_batches: per step, as it is
    others:  exposed seconds per step of collectives other than all-reduces, which the model does not have
    ddp:     whether the trace shows DDP, so that a remedy can be a setting of it
    sharded: whether it shards its parameters
    """

    replays: Sequence[Replays]
    measured: float
    replayed: float
    workload: Workload
    cluster: Cluster
    workers: int
    stated: Cluster | None = None
    micro_batches: int = 1
    others: float = 0.0
    ddp: bool = True
    sharded: bool = False

    def step(self, change: Callable[[Replays], float]) -> float:
        """Seconds of a usual step with a ``change`` of its replays."""
        scale = min(1.0, self.measured / self.replayed) if self.replayed else 1.0
        return self.measured + scale * (fmean(map(change, self.replays)) - self.replayed)


@dataclass(frozen=True, slots=True)
class Measure:
    """A remedy that is priced for a job.

    what:    its description for this job
    price:   seconds of a step with it, and a note or "". Raises OsfError with the reason if it cannot be priced
    note:    what the price leaves out
    by:      REPLAY if the trace itself has all that the price needs, MODEL if it needs a cluster's prices
    samples: samples per step, as a multiple of the present number
    applies: whether the job can use it; it is not listed for others
    network: whether it changes the time of collectives other than all-reduces as well, so that it has no price for
             jobs in which these are exposed
    """

    what: Callable[[TracedJob], str]
    price: Callable[[TracedJob], tuple[float, str]]
    note: str = ""
    by: str = REPLAY
    samples: Callable[[TracedJob], float] = lambda job: 1.0
    applies: Callable[[TracedJob], bool] = lambda job: True
    network: bool = False


def _set(job: TracedJob, what: str, setting: str) -> str:
    """``what``; for a job of DDP, with the setting that does it."""
    return f"{what} ({setting})" if job.ddp else what


def _tuned(job: TracedJob) -> tuple[float, str]:
    plan = tune(job.workload, job.cluster, job.workers).plan
    cost = pricing_of(job.cluster, job.workers, job.workload).cost()
    sizes = [bucket.size for bucket in plan.buckets]
    step = job.step(lambda replays: with_buckets(replays, sizes, cost))
    return step, BEYOND if cost.measured_range is not None and max(sizes) > cost.measured_range[1] else ""


def _sent(how: str) -> Callable[[TracedJob], tuple[float, str]]:
    def price(job: TracedJob) -> tuple[float, str]:
        part = compressed(job.workload, how).gradient_bytes / job.workload.gradient_bytes
        return job.step(lambda replays: with_gradients_of(replays, part)), ""

    return price


def _stated(job: TracedJob) -> tuple[float, str]:
    prices = GroupPrices(pricing_of(job.stated or job.cluster, job.workers))

    def price(one: Sent, now: float) -> float | None:
        sent, workers = one.collective, one.collective.workers or job.workers
        group = ProcessGroup(sent.group, size=workers)
        return prices(sent.kind, sent.bytes, group, workers) if sent.bytes else None

    return job.step(lambda replays: with_prices(replays, price)), ""


def _of_half(job: TracedJob) -> tuple[float, str]:
    all_of_them, half = (pricing_of(job.cluster, count).cost() for count in (job.workers, job.workers // 2))

    def price(one: Sent, now: float) -> float | None:
        size = one.collective.bytes
        return now * half(size) / all_of_them(size) if size and all_of_them(size) else None

    return job.step(lambda replays: with_prices(replays, price)), ""


def _whole(job: TracedJob) -> bool:
    """Whether every worker has all parameters, and all-reduces their gradients."""
    return not job.sharded


def _wider_than_half(job: TracedJob) -> bool:
    """Whether whole gradients are sent in more than 16 bits."""
    return _whole(job) and any(element_bytes(dtype) > 2 for dtype in job.workload.gradients.dtypes)


def _accumulated(count: int) -> Measure:
    return Measure(
        lambda job: _set(
            job, f"{_counted(count * job.micro_batches, job.micro_batches)} micro-batches a step", "no_sync"
        ),
        lambda job: (job.step(lambda replays: with_micro_batches(replays, count)), ""),
        "a larger global batch",
        samples=lambda job: float(count),
        applies=_whole,
    )


REMEDIES: Mapping[str, Measure] = MappingProxyType(
    {
        "plan": Measure(
            lambda job: f"{'the best buckets for DDP' if job.ddp else 'DDP with the best buckets'} (osf tune)",
            _tuned,
            applies=_whole,
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
            applies=_whole,
        ),
        "accumulate-2": _accumulated(2),
        "accumulate-4": _accumulated(4),
        "stated-network": Measure(
            lambda job: f"the network of --cluster ({(job.stated or job.cluster).name})",
            _stated,
            by=MODEL,
            applies=lambda job: job.stated is not None,
            network=True,
        ),
        "workers-half": Measure(
            lambda job: f"training on {job.workers // 2} of the {job.workers} workers",
            _of_half,
            by=MODEL,
            samples=lambda job: job.workers // 2 / job.workers,
            applies=lambda job: _whole(job) and job.workers >= 4,  # of fewer, half are one
            network=True,
        ),
        "workers-1": Measure(
            lambda job: f"training on 1 of the {job.workers} workers",
            lambda job: (job.step(on_one_worker), ""),
            samples=lambda job: 1 / job.workers,
            applies=_whole,
            network=True,
        ),
    }
)
"""Remedies by name, other than those of causes and faster networks."""


def remedies(
    trace: Trace,
    found: Explanation,
    replays: Sequence[Replays],
    cluster: Cluster | None = None,
    workload: Workload | None = None,
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """Remedies for the job, the most samples per second first, and remarks on all of them.

    Workload, buckets and prices are the trace's own. ``workload`` replaces the trace's; ``cluster`` gives the
    possible speed of its network, and how prices depend on sizes and workers. If a remedy cannot be priced, its note
    gives the reason.
    """
    of_causes = tuple(_of_causes(found))
    if found.workers < 2:
        return _ranked(of_causes), ()
    try:
        job = job_of(trace, found, replays, cluster, workload)
    except OsfError as error:
        return _ranked(of_causes), (f"remedies that change communication are not priced: {error}",)
    said = [] if cluster is not None or job.cluster.tables else [ONE_SIZE]
    slowness = 1.0 if cluster is None else _slowness(trace, found.workers, cluster)
    if not 1 / UNLIKE <= slowness <= UNLIKE:
        changed = f"slowed down {slowness:.2g} times" if slowness > 1 else f"made {1 / slowness:.3g} times as fast"
        said.append(
            f"all-reduces took {slowness:.2g} times as long as the cluster says: predictions use the cluster {changed}"
        )
    said += _large_start_ups(job)
    if job.others >= SMALL * found.step_time:
        waits = show_time(job.others)
        said.append(f"remedies by the model do not change collectives other than all-reduces ({waits} exposed)")
    said += [
        f"the gains of other buckets and hooks assume that {cause.stays}"
        for name, cause in CAUSES.items()
        if cause.stays and found.part(name) >= SMALL
    ]
    return _ranked((*of_causes, *_priced(found, job))), tuple(said)


def job_of(
    trace: Trace,
    found: Explanation,
    replays: Sequence[Replays],
    cluster: Cluster | None = None,
    workload: Workload | None = None,
) -> TracedJob:
    """The job to price remedies for. Raises OsfError with the reason if the trace does not hold enough for that."""
    subject = workload_of(trace) if workload is None else workload
    plan_of(trace, subject)
    network = network_of(trace, found.workers, cluster)
    others = plain_sum(row.exposed for row in found.buckets if row.kind != "all_reduce" and row.module is None)
    usual = usual_step(trace)
    return TracedJob(
        replays, found.step_time, found.replayed, subject, network, found.workers, cluster, usual.micro_batches, others,
        usual.ddp, found.sharded,
    )  # fmt: skip


def network_of(trace: Trace, workers: int, cluster: Cluster | None = None) -> Cluster:
    """The network as the job's all-reduces saw it.

    With ``cluster``: that one, slowed down by the factor by which the trace's all-reduces took longer than priced.
    Raises DataError if no size is known.
    """
    if cluster is None:
        return cluster_of(trace)
    factor = _slowness(trace, workers, cluster)
    return faster_network(cluster, Change(1 / factor), Change(factor))


def _slowness(trace: Trace, workers: int, cluster: Cluster) -> float:
    """Time of all all-reduces of the trace over the time for which ``cluster`` prices them."""
    times = wire_times_by_size(trace).get(("all_reduce", workers), {})
    price = pricing_of(cluster, workers).cost()
    priced = plain_sum(price(size) * len(seconds) for size, seconds in times.items())
    return plain_sum(map(plain_sum, times.values())) / priced if priced else 1.0


def _large_start_ups(job: TracedJob) -> list[str]:
    """A remark if the table's smallest message, whose time is taken as start-up, is mostly transfer."""
    cost = pricing_of(job.cluster, job.workers).cost()
    if not isinstance(cost, TableCost) or cost.times[0] <= UNLIKE * line_through(cost)[0]:
        return []
    return [
        f"the smallest message's time ({show_bytes(cost.sizes[0])}, {show_time(cost.times[0])}) counts as start-up, "
        "though most of it is transfer: a faster network gains more than shown"
    ]


def _of_causes(found: Explanation) -> Iterator[Remedy]:
    for name, cause in CAUSES.items():
        step = found.step_time - found.saved(name)
        if cause.remedy and found.saved(name) >= SMALL * found.step_time and step > 0:
            yield Remedy(*cause.remedy, step, found.step_time / step, REPLAY, cause.caution)
    for factor, saved in found.networks.items() if found.workers > 1 and found.buckets else ():
        step = found.step_time - saved
        if step > 0:
            what = f"a network {factor} times as fast"
            yield Remedy(f"network-{factor}", what, step, found.step_time / step, REPLAY, _untold(found))


def _untold(found: Explanation) -> str:
    """A note if the trace does not tell start-ups, which a faster network leaves, from bytes; else ""."""
    sizes = [row.bytes or 0 for row in found.buckets]
    told = found.cluster is not None or max(sizes) >= SEVERAL_SIZES * min(sizes)
    return "" if told and min(sizes) else "upper limit: start-ups are counted as bytes"


def _priced(found: Explanation, job: TracedJob) -> Iterator[Remedy]:
    for name, measure in REMEDIES.items():
        if not measure.applies(job):
            continue
        what = measure.what(job)
        if measure.network and job.others >= SMALL * found.step_time:
            waits = f"{show_time(job.others)} are exposed in collectives other than all-reduces"
            yield Remedy(name, what, None, None, measure.by, f"not priced: {waits}, which this estimate does not cover")
            continue
        try:
            step, said = measure.price(job)
        except OsfError as error:
            yield Remedy(name, what, None, None, measure.by, f"not priced: {error}")
            continue
        note = "; ".join(filter(None, (measure.note, said)))
        yield Remedy(name, what, step, measure.samples(job) * found.step_time / step, measure.by, note)


def _counted(count: int, now: int) -> str:
    """``2``, or ``6, not 3,`` if there are several micro-batches now."""
    return str(count) if now == 1 else f"{count}, not {now},"


def _ranked(found: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """Remedies by samples per second, the most first; those without a price last."""
    return tuple(sorted(found, key=lambda one: -(one.throughput or 0.0)))
