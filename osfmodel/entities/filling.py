"""Greedy filling: gradients in order into buckets, each of which closes by the rule of its framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from osfmodel.entities.workload import Gradients


class Closes(NamedTuple):
    """Rules that close a bucket; a rule that is None never closes one.

    full:  (held, number of buckets before) -> whether a bucket with ``held`` bytes closes
    over:  (held with the next gradient, bucket, its position) -> whether the bucket closes before that gradient
    start: (held) -> offset of the next gradient after ``held`` bytes; ``held`` itself if None
    """

    full: Callable[[int, int], bool] | None = None
    over: Callable[[int, list[int], int], bool] | None = None
    start: Callable[[int], int] | None = None


def fill(chain: Iterable[int], sizes: Sequence[int], closes: Closes) -> Iterator[tuple[int | None, list[int]]]:
    """The buckets of the positions in ``chain``, each with the position at which it closes; None for an open one."""
    full, over, start = closes
    bucket: list[int] = []
    held = number = 0
    for item in chain:
        held = (held if start is None else start(held)) + sizes[item]
        if over is not None and bucket and over(held, bucket, item):
            yield item, bucket
            bucket, held, number = [], sizes[item], number + 1
        bucket.append(item)
        if full is not None and full(held, number):
            yield item, bucket
            bucket, held, number = [], 0, number + 1
    if bucket:
        yield None, bucket


def fill_by_dtype(
    gradients: Gradients, sizes: Sequence[int], closes: Closes
) -> tuple[list[list[int]], list[list[int]]]:
    """The buckets of each dtype: those that close, in that order, and those left open, one per dtype.

    Open buckets are in the order in which their dtypes first appear.
    """
    filled = [found for chain in gradients.chains for found in fill(chain, sizes, closes)]
    closed = sorted((place, bucket) for place, bucket in filled if place is not None)
    return [bucket for _, bucket in closed], [bucket for place, bucket in filled if place is None]
