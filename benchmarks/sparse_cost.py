"""When sparse beats dense, by the closed forms of ``osfmodel.sparse``: the table of docs/reference/sparse.md.

python benchmarks/sparse_cost.py [--size 25MiB] [--startup 50us] [--density 1%]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from osfmodel import Link  # noqa: E402
from osfmodel.sparse import Exchange  # noqa: E402
from osfmodel.units import parse_bytes, parse_time, show_time  # noqa: E402

WORKERS, RATES = (8, 16, 32, 64), (1, 10, 100)
"""Ranks, and Gbit/s of the link of each."""


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
