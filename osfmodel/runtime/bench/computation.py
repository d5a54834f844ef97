"""Measure what communication costs in computation: DDP's copies, what collectives slow, and sparse buckets.

All ranks at once, since in training they do; those of one host share its cores and its memory.

DDP's own copies are of gradients into buckets before they are sent, and out of them after. As the reducer does it: into
the bucket by a product with 1 / ranks, which is written there, out of it by a copy (reducer.cpp). How much collectives
slow computation is the time of a fixed loop alone, and beside continuous all-reduces. Sparse buckets choose entries of
gradients and make means of received entries: gradients are random numbers, others on each rank, and so many that caches
do not hold them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from osfmodel.entities.compression import top_k
from osfmodel.runtime.executor.error_feedback import Mirror, Packing, Residual
from osfmodel.runtime.executor.separate import Groups
from osfmodel.runtime.job.measuring import CollectiveJob

TENSOR, TENSORS = 1 << 18, 64
"""Elements of each tensor (1 MiB), and number of tensors: together more than caches hold."""
ROUNDS = 7


class Copies(NamedTuple):
    """Seconds per byte into buckets, and out of them."""

    into: float
    out: float


def copying(job: CollectiveJob) -> Copies:
    """Measure both copies: the median over rounds of the slowest rank. Raises RuntimeError as torch does."""
    import torch

    gradients, views = ([torch.zeros(TENSOR, device=job.device) for _ in range(TENSORS)] for _ in range(2))
    part = 1 / job.workers

    def into() -> None:
        for gradient, view in zip(gradients, views, strict=True):
            torch.mul(gradient, part, out=view)

    def out() -> None:
        for gradient, view in zip(gradients, views, strict=True):
            gradient.copy_(view)

    size = TENSORS * TENSOR * gradients[0].element_size()
    return Copies(*(slowest(job, call) / size for call in (into, out)))


def slowest(job: CollectiveJob, call: Callable[[], Any]) -> float:
    """Seconds of ``call`` on the slowest rank, started together; the first round does not count."""
    own = [_once(job, call) for _ in range(ROUNDS + 1)][1:]
    return float(median(map(max, zip(*job.gather(own), strict=True))))


def apart(job: CollectiveJob, between: Callable[[], Any], call: Callable[[int], Any], count: int) -> float:
    """Seconds of one of ``call(0)`` to ``call(count - 1)`` on the slowest rank, with ``between`` before each.

    All start together; the median over rounds of which the first is not counted.
    """
    rounds: list[float] = []
    for _ in range(ROUNDS + 1):
        total = 0.0
        for number in range(count):
            between()
            total += _once(job, partial(call, number))
        rounds.append(total / count)
    return float(median(map(max, zip(*job.gather(rounds[1:]), strict=True))))


def _once(job: CollectiveJob, call: Callable[[], Any]) -> float:
    _finish(job)
    job.barrier()
    begin = time.perf_counter()
    call()
    _finish(job)
    return time.perf_counter() - begin


def _finish(job: CollectiveJob) -> None:
    """Wait for the device to finish, so that earlier work is not counted with the next call."""
    if job.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


TURNS = 3
SECONDS = 0.5
"""Seconds of each half of a round, about."""
EDGE = 256
"""Rows of the matrices that a CPU multiplies: about a millisecond's work."""
GPU_EDGE = 4096
NAP = 1e-3


def describe(job: CollectiveJob, compute: str) -> str:
    """The computation, in words."""
    if compute == "sleep":
        return f"sleeps of {NAP * 1e3:g} ms"
    import torch

    edge = EDGE if job.device.type == "cpu" else GPU_EDGE
    return f"products of {edge} x {edge} matrices, {torch.get_num_threads()} CPU threads a rank"


def slowdown(job: CollectiveJob, compute: str, buffer: Any, alone: float, at_once: int) -> float:
    """Time per unit of work beside all-reduces over that alone, less 1; the median over rounds and ranks.

    ``alone``: seconds of one all-reduce of ``buffer``; ``at_once``: how many are kept in flight. All ranks run as many
    all-reduces, whatever their loops do. Raises RuntimeError as torch does.
    """
    unit = _unit(job, compute)
    count = max(2 * at_once, int(SECONDS / max(alone, 1e-6)))
    found = []
    for _ in range(TURNS):
        job.barrier()
        until = time.perf_counter() + SECONDS
        before = _per_unit(unit, partial(lambda until: time.perf_counter() < until, until))
        job.barrier()
        found.append(_beside(job, unit, buffer, count, at_once) / before - 1)
    return float(median(value for values in job.gather(found) for value in values))


def _beside(job: CollectiveJob, unit: Callable[[], None], buffer: Any, count: int, at_once: int) -> float:
    """Seconds per unit while ``count`` all-reduces run in another thread."""
    failed: list[BaseException] = []

    def collectives() -> None:
        try:
            _keep_going(job, buffer, count, at_once)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=collectives, daemon=True)
    thread.start()
    taken = _per_unit(unit, thread.is_alive)
    thread.join()
    if failed:
        raise failed[0]
    return taken


def _keep_going(job: CollectiveJob, buffer: Any, count: int, at_once: int) -> None:
    import torch
    import torch.distributed as dist

    cuda = job.device.type == "cuda"
    buffers = [buffer.clone() for _ in range(at_once)]
    running: deque[Any] = deque()
    with torch.cuda.stream(torch.cuda.Stream()) if cuda else contextlib.nullcontext():
        for number in range(count + at_once):
            if number >= at_once:
                running.popleft().wait()
                if cuda:
                    torch.cuda.current_stream().synchronize()
            if number < count:
                running.append(dist.all_reduce(buffers[number % at_once], async_op=True))


def _per_unit(unit: Callable[[], None], going: Callable[[], bool]) -> float:
    """Seconds per unit of work, repeated while ``going``, and done once at least."""
    begin, done = time.perf_counter(), 0
    while going() or not done:
        unit()
        done += 1
    return (time.perf_counter() - begin) / done


def _unit(job: CollectiveJob, compute: str) -> Callable[[], None]:
    if compute == "sleep":
        return lambda: time.sleep(NAP)
    import torch

    cuda = job.device.type == "cuda"
    edge = GPU_EDGE if cuda else EDGE
    left, right = (torch.ones(edge, edge, device=job.device) for _ in range(2))
    into = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=into)
        if cuda:
            torch.cuda.current_stream().synchronize()

    multiply()
    return multiply


SIZES = (1 << 8, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21)
"""Elements of a tensor, at each size measured."""
MIRRORED = 1 << 20
DENSITIES = (0.01, 0.1)
TOGETHER, MOST = 1 << 22, 8
"""Elements of all tensors of one size together, and most tensors of one size."""
OTHER = 1 << 23
"""Elements of a computation in between, so that caches hold nothing of a tensor when its turn comes."""

FLOAT = 4
"""Bytes of an element."""
NAMES = ("select_time", "select", "select_sent", "spread_time", "spread", "spread_received")


class SparseTiming(NamedTuple):
    """Seconds for one tensor of so many bytes, of which each rank sends ``sent`` and receives ``received``."""

    size: int
    sent: int
    received: int
    select: float
    spread: float


def selecting(job: CollectiveJob) -> dict[str, float]:
    """Measure the effects of sparse buckets, by name. Raises RuntimeError as torch does."""
    return {
        **fitted([_sample(job, elements, density) for elements in SIZES for density in DENSITIES]),
        "mirror": _mirroring(job),
    }


def fitted(samples: list[SparseTiming]) -> dict[str, float]:
    """Seconds per tensor, per byte of it, and per byte sent or received, by least squares of relative errors."""
    chosen = non_negative([(1.0, one.size, one.sent) for one in samples], [one.select for one in samples])
    spread = non_negative([(1.0, one.size, one.received) for one in samples], [one.spread for one in samples])
    return dict(zip(NAMES, chosen + spread, strict=True))


def non_negative(rows: list[tuple[float, ...]], times: list[float]) -> list[float]:
    """Seconds of one of each column, none below 0, by least squares of relative errors of ``times``."""
    import numpy as np
    from scipy.optimize import nnls

    scaled = np.array(rows) / np.array(times)[:, None]
    units = scaled.max(axis=0)  # bytes are many and seconds few
    found, _ = nnls(scaled / units, np.ones(len(times)))
    return [float(value) for value in found / units]


def _mirroring(job: CollectiveJob) -> float:
    """Seconds per byte by which a mirror takes longer than a residual, with its work around an update."""
    import torch

    tensors = [torch.zeros(MIRRORED, device=job.device, requires_grad=True) for _ in range(TOGETHER // MIRRORED)]
    gradients = [torch.randn(MIRRORED, device=job.device) for _ in tensors]
    groups = Groups(torch.optim.SGD(tensors, lr=1.0))
    groups.look()
    mirrors = [Mirror(str(number), tensor, tensor.detach(), groups) for number, tensor in enumerate(tensors)]
    residuals = [Residual(tensor, tensor.detach()) for tensor in tensors]
    other = torch.zeros(OTHER, device=job.device)

    def extra(kept: Sequence[Residual | Mirror]) -> float:
        def choose(number: int) -> None:
            kept[number].add(gradients[number], 1 / job.workers)
            kept[number].choose(top_k(MIRRORED, DENSITIES[0]))

        def follow(number: int) -> None:
            kept[number].part()
            kept[number].join()

        return sum(apart(job, partial(other.add_, 1), call, len(kept)) for call in (choose, follow))

    return max(extra(mirrors) - extra(residuals), 0.0) / (MIRRORED * FLOAT)


def _sample(job: CollectiveJob, elements: int, density: float) -> SparseTiming:
    """The median over rounds of the slowest rank, each tensor by itself: in training other work lies in between."""
    import torch

    count = min(MOST, max(2, TOGETHER // elements))
    generator = torch.Generator(job.device).manual_seed(job.rank)
    gradients = [torch.randn(elements, device=job.device, generator=generator) for _ in range(count)]
    kept = [Residual(gradient, gradient) for gradient in gradients]
    packing = Packing([elements], density, torch.float32)
    parts = [torch.empty(packing.bytes, dtype=torch.uint8, device=job.device) for _ in gradients]
    other = torch.zeros(OTHER, device=job.device)

    def work() -> None:
        other.add_(1)

    def select(number: int) -> None:
        kept[number].add(gradients[number], 1 / job.workers)
        packing.put(parts[number], 0, *kept[number].choose(packing.counts[0]))

    chosen = apart(job, work, select, count)
    # What the ranks of the job would have sent is taken from as many tensors of this one.
    arrived = [torch.cat([parts[(first + rank) % count] for rank in range(job.workers)]) for first in range(count)]
    means: list[Any] = [None] * count

    def spread(number: int) -> None:
        list(packing.faults(arrived[number]))
        means[number] = packing.mean(arrived[number], 0, gradients[number])

    def forget() -> None:
        means[:] = [None] * count  # after the update memory is given back, and taken again
        work()

    size = elements * FLOAT
    return SparseTiming(size, packing.bytes, packing.bytes * job.workers, chosen, apart(job, forget, spread, count))
