"""When sparse beats dense, by the closed forms of ``osfmodel.engine.sparse``: the table of docs/reference/sparse.md.

python benchmarks/sparse_cost.py [--size 25MiB] [--startup 50us] [--density 1%]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from osfmodel import Effects, Link, Pricing  # noqa: E402
from osfmodel.engine.sparse import INDEX_BYTES  # noqa: E402
from osfmodel.entities.compression import require_density, top_k  # noqa: E402
from osfmodel.entities.display import show_time  # noqa: E402
from osfmodel.entities.effects import NO_EFFECTS  # noqa: E402
from osfmodel.entities.errors import require_count  # noqa: E402
from osfmodel.entities.units import parse_bytes, parse_time  # noqa: E402

WORKERS, RATES = (8, 64), (1, 10, 100)
"""Ranks, and Gbit/s of the link of each."""


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
    return _time(pricing, size, top_k(-(-size // element), density), element)


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
    return density if top_k(elements, density) <= count else math.nextafter(density, 0)


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


def table(size: int, startup: float, density: float) -> Iterator[str]:
    """One row for each number of ranks and rate.

    The last column is how long choosing entries and making means may take, per byte of the tensor, for the gather to
    take no longer than the ring.
    """
    yield "| Gbit/s | ranks | dense ring | gather | tree | gather pays below | tree pays below | time to choose, ns/B |"
    yield "|---|---|---|---|---|---|---|---|"
    for rate in RATES:
        for workers in WORKERS:
            exchange = Exchange(workers, Link(startup, 8 / (rate * 1e9)))
            dense, gathered = exchange.dense(size), exchange.gathered(size, density)
            row = (
                str(rate),
                str(workers),
                show_time(dense),
                show_time(gathered),
                show_time(exchange.tree(size, density)),
                f"{exchange.gather_pays_below(size):.2%}",
                f"{exchange.tree_pays_below(size):.2%}",
                f"{max(dense - gathered, 0) / size * 1e9:.3g}",
            )
            yield f"| {' | '.join(row)} |"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="25MiB", help="of the gradient")
    parser.add_argument("--startup", default="50us", help="of a message between two ranks")
    parser.add_argument("--density", default="1%", help="of the sparse ones")
    arguments = parser.parse_args(words)
    density = float(arguments.density.removesuffix("%")) / (100 if arguments.density.endswith("%") else 1)
    print("\n".join(table(parse_bytes(arguments.size), parse_time(arguments.startup), density)))


if __name__ == "__main__":
    main()
