"""Sparse communication: what sparse buckets send and compute, and when that is less than sending all.

Top-k sparsification sends of each tensor the ``entries`` of largest magnitude, each as a value and its place, and keeps
the rest for later. Ranks choose differently, so entries cannot be added up on the way: an all-gather brings every
rank's to every rank, which grows with their number, while what a ring sends does not (docs/reference/sparse.md; gTop-k:
Shi et al., ICDCS'19). In :class:`Exchange` are the times of the three ways from start-up and bandwidth alone, and the
density below which each beats the dense ring; :func:`break_even` finds that for the prices of a cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from osfmodel.checks import require_count
from osfmodel.cluster import Link
from osfmodel.effects import NO_EFFECTS, Effects
from osfmodel.plan import Block, Bucket, Plan, entries, require_density
from osfmodel.pricing import Pricing
from osfmodel.workload import Workload, element_bytes

INDEX_BYTES = 4
"""Of the place of an entry in its tensor."""
WIDE = 1 << 31
"""Elements from which on places take twice as many bytes."""
ALIGNMENT = 8
"""Bytes of which the message of each rank is a multiple."""


class Sparsity:
    """What sparse buckets of one workload send and compute on ``workers`` ranks with these effects."""

    def __init__(self, workload: Workload, effects: Effects = NO_EFFECTS, workers: int = 1) -> None:
        gradients = workload.gradients
        self.effects, self.workers = effects, workers
        self.widths = {
            name: element_bytes(dtype) for name, dtype in zip(gradients.names, gradients.dtypes, strict=True)
        }

    def sent_bytes(self, bucket: Bucket) -> int:
        """Of the message of one rank: the entries of each tensor, values and places."""
        sizes = [(block.bytes, self.widths[block.layer]) for block in bucket.blocks]
        wide = any(-(-size // element) >= WIDE for size, element in sizes)  # the places of all tensors are of one width
        parts = (part_bytes(size, bucket.density or 1, element, wide) for size, element in sizes)
        return -(-sum(parts) // ALIGNMENT) * ALIGNMENT

    def gathered_bytes(self, bucket: Bucket) -> int:
        """Of what a rank has when the messages of all have arrived, which is how all-gathers are priced."""
        return self.sent_bytes(bucket) * self.workers

    def select(self, block: Block, density: float) -> float:
        """Seconds of the compute stream to choose the entries of one tensor."""
        effects, sent = self.effects, part_bytes(block.bytes, density, self.widths[block.layer])
        return effects.select * block.bytes + effects.select_sent * sent + effects.select_time

    def spread(self, bucket: Bucket) -> float:
        """Seconds of the compute stream to make mean gradients of a bucket that has arrived."""
        effects = self.effects
        return (
            effects.spread * bucket.size
            + effects.spread_received * self.gathered_bytes(bucket)
            + effects.spread_time * len(bucket.blocks)
        )

    def work(self, bucket: Bucket, mirror: bool = False) -> float:
        """Seconds of the compute stream in all, before it is sent and after it has arrived; mirrors included if any."""
        density = bucket.density or 1
        chosen: float = sum(self.select(block, density) for block in bucket.blocks)
        return chosen + self.spread(bucket) + (self.effects.mirror * bucket.size if mirror else 0)


def part_bytes(size: int, density: float, element: int = 4, wide: bool = False) -> int:
    """Bytes that a rank sends of a tensor of ``size`` bytes: values, and places, ``wide`` ones beside a huge tensor."""
    elements = -(-size // element)
    return entries(elements, density) * (element + INDEX_BYTES * (1 + (wide or elements >= WIDE)))


@dataclass(frozen=True, slots=True)
class Exchange:
    """``workers`` ranks, each with its own ``link``: closed forms of what a gradient of m bytes takes between them.

    ``element``: bytes of an element of it. Adding up on the way is left out, as it is where ranks only gather.

    Where ``workers`` is no power of two the rounds are those of Bruck's all-gather and of a tree with gaps: log2 N,
    rounded up.
    """

    workers: int
    link: Link
    element: int = 4

    def __post_init__(self) -> None:
        require_count(self.workers, "the number of workers", least=2)
        require_count(self.element, "bytes of an element", least=1)

    @property
    def rounds(self) -> int:
        """log2 N, rounded up."""
        return (self.workers - 1).bit_length()

    @property
    def growth(self) -> float:
        """Bytes of an entry, place included, for each byte of an element: 2 for float32."""
        return 1 + INDEX_BYTES / self.element

    def dense(self, size: float) -> float:
        """A ring all-reduce: 2 (N - 1) steps, each with an N-th of the bytes."""
        return 2 * (self.workers - 1) * (self.link.latency + self.link.seconds_per_byte * size / self.workers)

    def gathered(self, size: float, density: float) -> float:
        """An all-gather of every rank's entries in rounds that double: all but its own reach each rank."""
        entries = self.growth * density * size
        return self.rounds * self.link.latency + (self.workers - 1) * entries * self.link.seconds_per_byte

    def tree(self, size: float, density: float) -> float:
        """gTop-k: in each round pairs of ranks merge theirs and keep as many; then the last are sent back down."""
        entries = self.growth * density * size
        return 2 * self.rounds * (self.link.latency + entries * self.link.seconds_per_byte)

    def gather_pays_below(self, size: float, effects: Effects = NO_EFFECTS) -> float:
        """The density at which :meth:`gathered` and its computation take as long as :meth:`dense`.

        0 where they take longer at any, 1 where they never do.
        """
        fixed = self.rounds * self.link.latency
        per_entry = (self.workers - 1) * self.link.seconds_per_byte + self.workers * effects.spread_received
        per_density = self.growth * size * (per_entry + effects.select_sent)
        return self._below(size, effects, fixed, per_density)

    def tree_pays_below(self, size: float, effects: Effects = NO_EFFECTS) -> float:
        """The same for :meth:`tree`, of which the entries of one rank arrive."""
        fixed = 2 * self.rounds * self.link.latency
        per_entry = 2 * self.rounds * self.link.seconds_per_byte + effects.spread_received
        per_density = self.growth * size * (per_entry + effects.select_sent)
        return self._below(size, effects, fixed, per_density)

    def _below(self, size: float, effects: Effects, fixed: float, per_density: float) -> float:
        computed = (effects.select + effects.spread) * size + effects.select_time + effects.spread_time
        left = self.dense(size) - fixed - computed
        if left <= 0:
            return 0
        return min(left / per_density, 1) if per_density else 1


def gathered_time(pricing: Pricing, size: int, density: float, element: int = 4) -> float:
    """Seconds of a tensor of ``size`` bytes sent sparsely at the prices of a cluster, its computation included."""
    require_density(density)
    return _time(pricing, size, entries(-(-size // element), density), element)


def break_even(pricing: Pricing, size: int, element: int = 4) -> float:
    """The greatest density at which a tensor of ``size`` bytes takes no longer sent sparsely than sent whole.

    At the prices of a cluster, its computation included; 0 where it always takes longer. Between two sizes at which a
    price was measured it is a line, so that each such stretch is searched by halving.
    """
    require_count(size, "bytes of a tensor", least=1)
    elements, dense = -(-size // element), pricing.cost()(size)
    each = (element + INDEX_BYTES) * pricing.workers
    knots = {
        min(max(knot // each + more, 1), elements) for knot in pricing.cost("all_gather").breakpoints for more in (0, 1)
    }
    marks = sorted({1, elements} | knots)
    for low, high in zip(reversed([0, *marks[:-1]]), reversed(marks), strict=True):
        if _time(pricing, size, high, element) <= dense:
            return _density(high, elements)
        if low and _time(pricing, size, low, element) <= dense:
            return _density(_last(pricing, size, element, dense, low, high), elements)
    return 0


def _density(count: int, elements: int) -> float:
    """The greatest at which no more entries are sent, also where rounding adds a little."""
    density = count / elements
    return density if entries(elements, density) <= count else math.nextafter(density, 0)


def _last(pricing: Pricing, size: int, element: int, dense: float, low: int, high: int) -> int:
    """The most entries that take no longer than ``dense``: ``low`` do not, ``high`` do."""
    while high - low > 1:
        middle = (low + high) // 2
        if _time(pricing, size, middle, element) <= dense:
            low = middle
        else:
            high = middle
    return low


def _time(pricing: Pricing, size: int, count: int, element: int) -> float:
    effects, received = pricing.effects, count * (element + INDEX_BYTES) * pricing.workers
    computed = (effects.select + effects.spread) * size + effects.select_time + effects.spread_time
    computed += effects.select_sent * received / pricing.workers + effects.spread_received * received
    sent: float = pricing.cost("all_gather")(received)
    return computed + sent


def sparsely(plan: Plan, density: float) -> Plan:
    """``plan`` with every bucket sparse."""
    require_density(density)
    return replace(plan, buckets=tuple(replace(bucket, density=density) for bucket in plan.buckets))


def falling_back(plan: Plan, workload: Workload, pricing: Pricing) -> Plan:
    """``plan`` with those buckets dense that take longer sparse, computation included, were they alone.

    Where each layer is a bucket, that is the dense fallback per layer.
    """
    sparsity, dense, gather = (
        Sparsity(workload, pricing.effects, pricing.workers),
        pricing.cost(),
        pricing.cost("all_gather"),
    )
    found = plan
    buckets = [
        replace(bucket, density=None)
        if bucket.density is not None
        and gather(sparsity.gathered_bytes(bucket)) + sparsity.work(bucket, plan.mirror) > dense(bucket.size)
        else bucket
        for bucket in plan.buckets
    ]
    if all(bucket.density is None for bucket in buckets):
        found = replace(plan, mirror=False)
    return replace(found, buckets=tuple(buckets))
