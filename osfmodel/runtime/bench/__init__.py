"""Measure collectives between the ranks of a job: one size after the other, alone, several at once, and in trains.

Every sample begins with a barrier on a group of its own over CPU, and is what the slowest rank took. All decisions (how
many repeats) rest on gathered times, so all ranks take the same. First are the sizes, the trains, and what the cluster
file says of the conditions: ranks, backend, versions, network.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from osfmodel.entities.cluster import COLLECTIVES
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.errors import UsageError
from osfmodel.entities.workload import Workload
from osfmodel.runtime.bench.computation import copying, selecting
from osfmodel.runtime.bench.hosting import hosting
from osfmodel.runtime.bench.measured_cluster import Findings, Surroundings, TimedSize, train_time
from osfmodel.runtime.executor.channels import Channels
from osfmodel.runtime.job.measuring import CollectiveJob, Meter, share, threads_of
from osfmodel.solve.caps import DDP_LIMITS, bucket_layout

SPACING = 1.25
"""Minimum ratio between sizes that are both measured: between closer ones a line is as good."""
CAPS = tuple(1 << power for power in range(20, 28))
"""Limits on buckets, 1 to 128 MiB, whose bucket sizes are measured for a workload, besides DDP's default."""

TRAIN_BYTES = 16 << 20
"""Bytes of a train: many times what sockets, NICs and traffic shapers buffer."""
SHORTEST, LONGEST = 8, 32
"""Messages of a train, a multiple of the former, so that each half holds whole groups of 2 or 4 in flight."""


def train_length(size: int) -> int:
    """Messages of ``size`` bytes back to back; 0 for larger ones, of which one is as long as a train."""
    return min(TRAIN_BYTES // size, LONGEST) // SHORTEST * SHORTEST


def powers(smallest: int, largest: int) -> tuple[int, ...]:
    """The powers of two between two sizes, and both ends."""
    inside = [1 << power for power in range(63) if smallest < 1 << power < largest]
    return (smallest, *inside, largest)


def sizes_for(workload: Workload) -> tuple[int, ...]:
    """Sizes of tensors, of buckets by DDP's default and single caps, and of all. Raises UsageError without any."""
    gradients = workload.gradients
    if not len(gradients):
        raise UsageError(f"{workload.name!r} has no gradients: there is nothing to measure for it")
    layouts = [bucket_layout(gradients, limits) for limits in (DDP_LIMITS, *([cap] for cap in CAPS))]
    buckets = {sum(gradients.sizes[i] for i in bucket) for layout in layouts for bucket in layout}
    return spread_out([*gradients.sizes, *buckets, workload.gradient_bytes])


def spread_out(sizes: Sequence[int]) -> tuple[int, ...]:
    """The ``sizes`` at least ``SPACING`` apart, with both ends, and powers of two in gaps.

    A single size is joined by its half, since a table needs two.
    """
    *smaller, last = sorted(set(sizes))
    kept: list[int] = []
    for size in smaller:
        if (not kept or size >= SPACING * kept[-1]) and (not kept or size * SPACING <= last):
            kept.append(size)
    kept = [*(kept or [max(last // 2, 1)]), last]
    between = [1 << power for power in range(63)]
    filled = {size for low, high in pairwise(kept) for size in between if low * SPACING < size < high / SPACING}
    return tuple(sorted({*kept, *filled}))


def unmet(network: str | None) -> Surroundings:
    """Conditions known before the ranks have met; ``network`` None: the interface that the library is told to use."""
    return Surroundings(2, 1, "", network or _interface(), "")


def _interface() -> str:
    names = [os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    chosen = next((name for name in names if name), None)
    return "interface as the library chose" if chosen is None else f"interface {chosen}"


def surroundings_of(job: CollectiveJob, surroundings: Surroundings) -> Surroundings:
    """``surroundings`` with the properties of the ranks that met."""
    import torch

    versions, gpu = f"torch {torch.__version__}", surroundings.gpu
    if job.backend == "nccl":
        gpu = torch.cuda.get_device_name()
        versions += f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {gpu}"
    found = replace(surroundings, workers=job.workers, per_host=job.per_host, backend=job.backend)
    return replace(found, versions=versions, gpu=gpu)


FLOAT = 4
"""Bytes of the elements that are sent, float32."""
WARM_UPS = 2
LEAST = 5
"""Minimum number of repeats at each size, however long they take."""
POINT_SECONDS = 4.0
"""Seconds of further repeats at each size; a slow network gets fewer repeats."""
SEVERAL_SECONDS = 2.0
LEAST_SEVERAL = 3
"""Minimum number of repeats of several at once, which take longer."""
TRAIN_SECONDS = 0.5
"""Seconds of further repeats of a train; its messages are an average already."""
FLIGHT_EVERY = 4
"""Step through the sizes for more than two collectives at once on as many channels: every fourth is measured."""


@dataclass(frozen=True, slots=True)
class MeasurementRequest:
    """The measurements to make: sizes in bytes, numbers at once (1 included), repeats, and computation beside.

    ``compute``: ``busy`` (a loop of matrix products), ``sleep`` (a loop of short sleeps), or ``none``.
    ``quick``: only each collective alone, without messages back to back, copies, sparse computation and hosts.
    """

    sizes: tuple[int, ...]
    flights: tuple[int, ...] = (1, 2, 4)
    repeat: int = 20
    compute: str = "busy"
    collectives: tuple[str, ...] = COLLECTIVES
    quick: bool = False


class BenchRequest(NamedTuple):
    """A rank's own request; the one of rank 0 counts.

    network: the network in words; None for the interface of the library
    label:   the name of the cluster
    target:  the file to write, if any
    """

    request: MeasurementRequest
    network: str | None
    label: str
    target: str | None


def measure(job: CollectiveJob, request: MeasurementRequest, findings: Findings, tell: Callable[[str], None]) -> None:
    """Measure, and fill ``findings``; ``tell`` receives the progress. Raises RuntimeError as torch does."""
    findings.threads = threads_of(job.backend)
    offered = []
    for collective in request.collectives:
        if _offered(job, LAUNCHERS[collective]):
            offered.append(collective)
        else:
            findings.left_out.append(f"no {collective}: {job.backend} of this torch has none")
    several = max(request.flights) > 1
    trained = [size for size in request.sizes if train_length(size) and not request.quick]
    told = _numbered(tell, len(request.sizes) * (len(offered) + several) + len(trained) * len(offered))
    for collective in offered:
        for size in request.sizes:
            launch, sent = _alone(job, LAUNCHERS[collective], size)
            meter = Meter()
            sample = TimedSize.of([ends[-1] for ends in _sample(job, launch, request.repeat)])
            findings.tables.setdefault(collective, {})[sent] = sample
            findings.busy[collective] = round(share(job.gather(meter.use())), 3)
            told(f"{collective} {show_bytes(sent)}: {show_time(sample.time)} +- {sample.spread / 2:.0%}")
    if several:
        _several(job, request, findings, told)
    for collective in offered:
        for size in trained:
            _train(job, request, collective, size, findings, told)
    if request.quick:
        return
    findings.copies = copying(job)
    tell(f"copies into buckets {findings.copies.into * 1e12:.0f} ps/B, out of them {findings.copies.out * 1e12:.0f}")
    findings.sparse = selecting(job)
    tell(f"choosing the entries of sparse buckets {findings.sparse['select'] * 1e12:.0f} ps/B, and their other work")
    if job.device.type == "cpu" and {"all_gather", "reduce_scatter"} <= {*offered}:
        findings.hosted = hosting(job)
        each = findings.hosted["group_time"] + findings.hosted["member_time"]
        tell(f"the host's work for each collective of a small group of FSDP2 {show_time(each)}")
    if request.compute != "none":
        _slowing(job, request, findings)
        tell(f"computation beside all-reduces: {findings.slowdown or 0:+.1%}")


def _several(job: CollectiveJob, request: MeasurementRequest, findings: Findings, tell: Callable[[str], None]) -> None:
    """Measure several collectives at once, in one queue and on channels of their own, at all sizes or at some.

    The queue is the process group that frameworks use; the channels are those of the executor.
    """
    counts = sorted({2, *request.flights} - {1})
    channels = {count: Channels(count, job.device, job.limit) for count in counts}
    for number, size in enumerate(findings.tables["all_reduce"]):
        thorough = number % FLIGHT_EVERY == 0
        pairs = (2,) if findings.threads in (None, 1) else ()
        for count in counts if thorough else pairs:
            _together(job, request, size, count, channels[count], findings)
        if thorough or findings.threads != 1:
            _in_one_queue(job, request, size, counts[-1], findings)
        told = [f"{count} in {show_time(time)}" for count, time in findings.together.get(size, {}).items()]
        told += [
            f"{len(queue)} in one group in {show_time(queue[-1])}" for queue in [findings.queues.get(size)] if queue
        ]
        tell(f"concurrent {show_bytes(size)}: {', '.join(told)}")
    for used in channels.values():
        used.close()


def _train(
    job: CollectiveJob,
    request: MeasurementRequest,
    collective: str,
    size: int,
    findings: Findings,
    tell: Callable[[str], None],
) -> None:
    """Measure messages back to back in the default process group."""
    count, launcher = train_length(size), LAUNCHERS[collective]
    tensors = [_tensors(job, launcher, size) for _ in range(count)]
    sent = tensors[0][0].numel() * FLOAT
    ends = _sample(job, lambda: [launcher(*pair) for pair in tensors], request.repeat, TRAIN_SECONDS, LEAST_SEVERAL)
    time = findings.trains.setdefault(collective, {})[sent] = train_time(ends)
    tell(f"{collective} {show_bytes(sent)}, {count} back to back: {show_time(time)} each")


def _numbered(tell: Callable[[str], None], of: int) -> Callable[[str], None]:
    """``tell`` with a counter before each message: ``3 of 7``."""
    number = itertools.count(1)
    return lambda text: tell(f"{next(number)} of {of}: {text}")


Launch = Callable[[], list[Any]]


def repeats(seconds: float, most: int, enough: float = POINT_SECONDS, least: int = LEAST) -> int:
    """Number of repeats of a measurement of ``seconds``: for ``enough`` seconds, ``least`` to ``most`` times."""
    return max(min(most, int(enough / max(seconds, 1e-9))), min(least, most))


def _sample(
    job: CollectiveJob, launch: Launch, repeat: int, seconds: float = POINT_SECONDS, least: int = LEAST
) -> list[tuple[float, ...]]:
    """Ends of the collectives that ``launch`` starts, on the slowest rank, for each repeat."""
    first = _slowest(job, [_once(job, launch) for _ in range(WARM_UPS)])
    count = repeats(first[-1][-1], repeat, seconds, least)
    return _slowest(job, [_once(job, launch) for _ in range(count)])


def _slowest(job: CollectiveJob, own: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return [tuple(map(max, zip(*row, strict=True))) for row in zip(*job.gather(own), strict=True)]


def _once(job: CollectiveJob, launch: Launch) -> tuple[float, ...]:
    job.barrier()
    begin = time.perf_counter()
    works = launch()
    ends = []
    for work in works:
        work.wait()
        if job.device.type == "cuda":
            import torch

            torch.cuda.current_stream().synchronize()  # there wait() holds up the stream only
        ends.append(time.perf_counter() - begin)
    return tuple(ends)


def _alone(job: CollectiveJob, launcher: Callable[..., Any], size: int) -> tuple[Launch, int]:
    """A launch of one collective of ``size`` bytes, and the bytes that it really sends: a whole number per rank."""
    whole, part = _tensors(job, launcher, size)
    return lambda: [launcher(whole, part)], whole.numel() * FLOAT


def _tensors(job: CollectiveJob, launcher: Callable[..., Any], size: int) -> tuple[Any, Any]:
    """The whole vector of about ``size`` bytes, and this rank's part of it; None for an all-reduce."""
    part = None if launcher is _all_reduce else _buffer(job, -(-size // job.workers))
    return _buffer(job, size if part is None else part.numel() * FLOAT * job.workers), part


def _buffer(job: CollectiveJob, size: int) -> Any:
    import torch

    return torch.zeros(max(1, -(-size // FLOAT)), dtype=torch.float32, device=job.device)


def _all_reduce(whole: Any, part: Any = None) -> Any:
    import torch.distributed as dist

    return dist.all_reduce(whole, async_op=True)


def _reduce_scatter(whole: Any, part: Any) -> Any:
    import torch.distributed as dist

    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(part, whole, async_op=True)


def _all_gather(whole: Any, part: Any) -> Any:
    import torch.distributed as dist

    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(whole, part, async_op=True)


LAUNCHERS = {"all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter, "all_gather": _all_gather}


def _offered(job: CollectiveJob, launcher: Callable[..., Any]) -> bool:
    """Whether this backend has that collective, found by trying: torch raises if it has not."""
    try:
        launcher(_buffer(job, FLOAT * job.workers), _buffer(job, FLOAT)).wait()
    except (RuntimeError, NotImplementedError) as error:
        if "support" in str(error).lower() or "implement" in str(error).lower():
            return False
        raise
    return True


def _together(
    job: CollectiveJob, request: MeasurementRequest, size: int, count: int, channels: Channels, findings: Findings
) -> None:
    """Measure ``count`` all-reduces at once, one on each of as many channels; one alone is known already."""
    ends = _sample(job, _launch(job, size, count, channels.all_reduce), request.repeat, SEVERAL_SECONDS, LEAST_SEVERAL)
    times = findings.together.setdefault(size, {1: findings.tables["all_reduce"][size].time})
    times[count] = TimedSize.of([row[-1] for row in ends]).time


def _in_one_queue(job: CollectiveJob, request: MeasurementRequest, size: int, count: int, findings: Findings) -> None:
    """Measure the end of each of ``count`` all-reduces at once in the default process group."""
    ends = _sample(job, _launch(job, size, count, _all_reduce), request.repeat, SEVERAL_SECONDS, LEAST_SEVERAL)
    findings.queues[size] = tuple(TimedSize.of(column).time for column in zip(*ends, strict=True))


def _launch(job: CollectiveJob, size: int, count: int, start: Callable[[Any], Any]) -> Launch:
    buffers = [_buffer(job, size) for _ in range(count)]
    return lambda: [start(buffer) for buffer in buffers]


def _slowing(job: CollectiveJob, request: MeasurementRequest, findings: Findings) -> None:
    from osfmodel.runtime.bench.computation import describe, slowdown

    size = max((size for size in findings.tables["all_reduce"] if size <= 4 << 20), default=request.sizes[0])
    alone = findings.tables["all_reduce"][size].time
    findings.slowdown = slowdown(job, request.compute, _buffer(job, size), alone, findings.in_flight)
    findings.slowed = f"{describe(job, request.compute)} with {show_bytes(size)}"
