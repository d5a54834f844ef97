"""Find the indices of the entries of largest magnitude, in pieces that caches hold.

A sample says below which threshold most of a large tensor lies. The rest is gathered piece by piece and
searched alone, so that the time is in proportion to the elements, several times as short as a search of all, and no
memory is needed for as many numbers again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

PIECE = 1 << 17
"""Elements in one piece."""
SAMPLE, LEAST_STEP = 1 << 11, 8
"""Elements of a sample, and least ratio of all elements to these for taking a sample."""
MARGIN = 4
"""Standard deviations by which the threshold is set lower than the sample suggests."""
Magnitudes: TypeAlias = Callable[[slice], Any]
"""A function that returns the magnitudes of some of the elements."""


def largest(magnitudes: Magnitudes, elements: int, count: int) -> Any:
    """Indices of the ``count`` largest of ``elements`` elements.

    NaN counts as infinite, so that it does not stay hidden.
    """
    import torch

    places, found = _candidates(magnitudes, elements, count)
    if places is None:
        return found.topk(count, sorted=False).indices
    least = found.topk(count, sorted=False).values.min()
    above = found > least
    sure = places[above]
    return torch.cat([sure, places[found == least][: count - sure.numel()]])


def _candidates(magnitudes: Magnitudes, elements: int, count: int) -> tuple[Any, Any]:
    """Indices and magnitudes of at least ``count`` elements, including the largest; indices None if all come."""
    step = (elements // SAMPLE) | 1  # odd, so that a sample meets all positions of small kernels
    if step >= LEAST_STEP:
        sample = _numbers(magnitudes(slice(None, None, step)))
        rank = rank_of(count * sample.numel() / elements)
        if rank < sample.numel() // 2:
            threshold = sample.topk(rank, sorted=False).values.min()
            places, found = _gathered(magnitudes, elements, threshold)
            if count <= found.numel() <= elements // 2:
                return places, found
            if found.numel() < count and not threshold.any():
                return _filled(places, found, count)
            del places, found  # before as much again is needed
    return None, _numbers(magnitudes(slice(None)))


def _filled(places: Any, found: Any, count: int) -> tuple[Any, Any]:
    """All elements that are not 0, and zeros up to ``count``; the first elements hold enough of them."""
    import torch

    zero = torch.ones(count, dtype=torch.bool, device=places.device)
    zero[places[places < count]] = False
    others = zero.nonzero().view(-1)[: count - found.numel()]
    return torch.cat([places, others]), torch.cat([found, found.new_zeros(len(others))])


def _gathered(magnitudes: Magnitudes, elements: int, threshold: Any) -> tuple[Any, Any]:
    """Indices and magnitudes of all that reach the threshold, or of more than half of all if most do.

    With a threshold of 0, of all above it, since a sparse gradient (an embedding's) is 0 nearly everywhere.
    """
    import torch

    parts: list[tuple[Any, Any]] = []
    number = 0
    for first in range(0, elements, PIECE):
        parts.append(_beyond(magnitudes, first, threshold))
        number += parts[-1][0].numel()
        if number > elements // 2:
            break
    places, found = (torch.cat(rows) for rows in zip(*parts, strict=True))
    return places, found


def rank_of(expected: float) -> int:
    """Entries to take from a sample, if ``expected`` are among the largest, so that hardly ever too few are found."""
    return int(expected + MARGIN * (expected**0.5 + 1))


def _beyond(magnitudes: Magnitudes, first: int, threshold: Any) -> tuple[Any, Any]:
    """Indices and magnitudes of the elements of one piece that reach the threshold."""
    part = _numbers(magnitudes(slice(first, first + PIECE)))
    places = ((part >= threshold) & (part > 0)).nonzero().view(-1)
    return places + first, part[places]


def _numbers(magnitudes: Any) -> Any:
    """Magnitudes with infinity instead of NaN."""
    return magnitudes.nan_to_num_(nan=float("inf"), posinf=float("inf"))
