"""Sparse communication: the bytes and the computation of sparse buckets, and when they are less than sending all.

Top-k sparsification sends of each tensor the ``top_k`` entries of largest magnitude, each as a value and its place, and
keeps the rest for later. Ranks choose differently, so entries cannot be added up on the way: an all-gather brings every
rank's to every rank, which grows with their number, while what a ring sends does not (docs/reference/sparse.md; gTop-k:
Shi et al., ICDCS'19).
benchmarks/sparse_cost.py has the times of the three ways, and the density below which each beats the dense ring.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.entities.compression import require_density, top_k
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Workload

INDEX_BYTES = 4
"""Bytes of the index of an entry in its tensor."""
WIDE = 1 << 31
"""Elements of a tensor from which indices take twice as many bytes."""
ALIGNMENT = 8
"""Bytes to a multiple of which each rank's message is padded."""


class Sparsity:
    """Bytes and computation of one workload's sparse buckets on ``workers`` ranks with these effects."""

    def __init__(self, workload: Workload, effects: Effects = NO_EFFECTS, workers: int = 1) -> None:
        gradients = workload.gradients
        self.effects, self.workers = effects, workers
        self.widths = {
            name: element_bytes(dtype) for name, dtype in zip(gradients.names, gradients.dtypes, strict=True)
        }

    def sent_bytes(self, bucket: Bucket) -> int:
        """Bytes of one rank's message: values and indices of the entries of each tensor."""
        sizes = [(block.bytes, self.widths[block.layer]) for block in bucket.blocks]
        wide = any(-(-size // element) >= WIDE for size, element in sizes)  # the places of all tensors are of one width
        parts = (part_bytes(size, bucket.density or 1, element, wide) for size, element in sizes)
        return -(-sum(parts) // ALIGNMENT) * ALIGNMENT

    def gathered_bytes(self, bucket: Bucket) -> int:
        """Bytes on a rank once the messages of all have arrived, by which all-gathers are priced."""
        return self.sent_bytes(bucket) * self.workers

    def sparsify(self, block: Block, density: float) -> float:
        """Seconds of computation to choose the entries of one tensor."""
        effects, sent = self.effects, part_bytes(block.bytes, density, self.widths[block.layer])
        return effects.select * block.bytes + effects.select_sent * sent + effects.select_time

    def densify(self, bucket: Bucket) -> float:
        """Seconds of computation to turn the received entries of a bucket into mean gradients."""
        effects = self.effects
        return (
            effects.spread * bucket.size
            + effects.spread_received * self.gathered_bytes(bucket)
            + effects.spread_time * len(bucket.blocks)
        )

    def work(self, bucket: Bucket, mirror: bool = False) -> float:
        """Seconds of the compute stream for a bucket, before sending and after arrival, with mirrors if any."""
        density = bucket.density or 1
        chosen: float = plain_sum(self.sparsify(block, density) for block in bucket.blocks)
        return chosen + self.densify(bucket) + (self.effects.mirror * bucket.size if mirror else 0)


def part_bytes(size: int, density: float, element: int = 4, wide: bool = False) -> int:
    """Bytes sent for a tensor of ``size`` bytes: values and indices; ``wide``: with indices of twice the size."""
    elements = -(-size // element)
    return top_k(elements, density) * (element + INDEX_BYTES * (1 + (wide or elements >= WIDE)))


def sparsely(plan: Plan, density: float) -> Plan:
    """``plan`` with every bucket sparse."""
    require_density(density)
    return replace(plan, buckets=tuple(replace(bucket, density=density) for bucket in plan.buckets))
