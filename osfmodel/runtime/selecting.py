"""What sparse buckets compute: entries chosen of each gradient before they are sent, means made of those that arrive.

All ranks at once, since in training they do; those of one host share its cores and its memory. Gradients are random
numbers, others on each rank, and so many that caches do not hold them.
"""

from __future__ import annotations

from typing import NamedTuple

from osfmodel.runtime.copies import slowest
from osfmodel.runtime.job import Job
from osfmodel.runtime.sparse import Packing, Residual

SIZES = (1 << 8, 1 << 15, 1 << 18, 1 << 20, 1 << 21)
"""Elements of a tensor."""
DENSITIES = (0.01, 0.1)
TOGETHER, MOST = 1 << 22, 32
"""Elements of all tensors of one size together, and how many of these there are at most."""

NAMES = ("select_time", "select", "select_sent", "spread_time", "spread", "spread_received")


class Sample(NamedTuple):
    """Seconds of one tensor of so many bytes, of which each rank sends ``sent`` and receives ``received``."""

    size: int
    sent: int
    received: int
    select: float
    spread: float


def selecting(job: Job) -> dict[str, float]:
    """The effects of sparse buckets, by name. Raises RuntimeError as torch does."""
    return fitted([_sample(job, elements, density) for elements in SIZES for density in DENSITIES])


def fitted(samples: list[Sample]) -> dict[str, float]:
    """Seconds per tensor, per byte of it, and per byte sent or received, whose relative errors are least squares."""
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


def _sample(job: Job, elements: int, density: float) -> Sample:
    """The median over rounds of the slowest rank."""
    import torch

    count = min(MOST, max(2, TOGETHER // elements))
    generator = torch.Generator(job.device).manual_seed(job.rank)
    tensors = [torch.randn(elements, device=job.device, generator=generator) for _ in range(count)]
    kept = [Residual(tensor, tensor) for tensor in tensors]
    packing = Packing([elements], density, torch.float32)
    parts = [torch.empty(packing.bytes, dtype=torch.uint8, device=job.device) for _ in tensors]

    def select() -> None:
        for tensor, residual, part in zip(tensors, kept, parts, strict=True):
            residual.add(tensor, 1 / job.workers)
            packing.put(part, 0, *residual.choose(packing.counts[0]))

    chosen = slowest(job, select) / count
    # What the ranks of the job would have sent is taken from as many tensors of this one.
    arrived = [torch.cat([parts[(first + rank) % count] for rank in range(job.workers)]) for first in range(count)]

    def spread() -> None:
        for whole, tensor in zip(arrived, tensors, strict=True):
            list(packing.faults(whole))
            packing.mean(whole, 0, tensor)

    size = elements * tensors[0].element_size()
    return Sample(size, packing.bytes, packing.bytes * job.workers, chosen, slowest(job, spread) / count)
