"""Conditions of a measurement: its sizes and trains, and for the cluster file ranks, backend, versions, network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from osfmodel.entities.errors import UsageError
from osfmodel.entities.workload import Workload
from osfmodel.runtime.bench.measured_cluster import Surroundings
from osfmodel.runtime.job.measuring import CollectiveJob
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
