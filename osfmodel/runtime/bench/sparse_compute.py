"""Measure the computation of sparse buckets: choosing entries of gradients, and making means of received entries.

All ranks at once, since in training they do; those of one host share its cores and its memory. Gradients are random
numbers, others on each rank, and so many that caches do not hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from osfmodel.entities.density import top_k
from osfmodel.runtime.bench.copies import apart
from osfmodel.runtime.executor.error_feedback import Mirror, Packing, Residual
from osfmodel.runtime.executor.separate import Groups
from osfmodel.runtime.job.collective_job import CollectiveJob

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
    chosen = _non_negative([(1.0, one.size, one.sent) for one in samples], [one.select for one in samples])
    spread = _non_negative([(1.0, one.size, one.received) for one in samples], [one.spread for one in samples])
    return dict(zip(NAMES, chosen + spread, strict=True))


def _non_negative(rows: list[tuple[float, ...]], times: list[float]) -> list[float]:
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
