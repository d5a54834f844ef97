"""What sparse buckets keep of gradients, and how what they send lies in a message.

Of each tensor the entries of the largest magnitude are sent, each with its place; what is not sent is kept, so that it
is sent later (error feedback).
All that is sent of a bucket is one message of bytes: the values, in the type of the gradients, and the places, int32
unless a tensor has more elements than that counts; the wider of the two first, so that both are aligned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from osfmodel.plan import entries
from osfmodel.runtime.largest import largest

ALIGNMENT = 8
"""Bytes that the part of each rank is a multiple of, for the widest type in it."""


class Residual:
    """What of one gradient has not been sent, in memory of its own."""

    def __init__(self, parameter: Any, like: Any) -> None:
        import torch

        self.kept = torch.zeros_like(like, device=parameter.device)

    def add(self, gradient: Any, scale: float) -> None:
        """There is a gradient, of which ``scale`` is to be sent."""
        self.kept.add_(gradient, alpha=scale)

    def choose(self, count: int) -> tuple[Any, Any]:
        """The ``count`` entries of the largest magnitude, taken out, and their places in memory."""
        flat = flat_of(self.kept)
        places = largest(lambda part: flat[part].abs(), flat.numel(), count)
        values = flat[places]
        flat[places] = 0
        return values, places


def flat_of(tensor: Any) -> Any:
    """Its elements as they lie in memory, without gaps."""
    return tensor.as_strided((tensor.numel(),), (1,))


class Packing:
    """How the chosen entries of a bucket's tensors lie in the message of one rank.

    sizes:  elements of each tensor
    counts: entries that are sent of each
    bytes:  of the message of one rank
    """

    def __init__(self, sizes: Sequence[int], density: float, dtype: Any) -> None:
        import torch

        self.counts = [entries(size, density) for size in sizes]
        self._ends = list(accumulate(self.counts))
        types = [dtype, torch.int32 if max(sizes) < 1 << 31 else torch.int64]
        self._sections: dict[Any, tuple[int, int]] = {}
        place = 0
        for kind in sorted(types, key=lambda kind: -kind.itemsize):
            self._sections[kind] = place, place + self._ends[-1] * kind.itemsize
            place += self._ends[-1] * kind.itemsize
        self._types = types
        self.bytes = place + -place % ALIGNMENT

    def put(self, part: Any, number: int, values: Any, places: Any) -> None:
        """Write the entries of a tensor into the message of this rank."""
        for row, entry in zip(self._rows(part, number), (values, places), strict=True):
            row[0].copy_(entry)

    def mean(self, whole: Any, number: int, like: Any) -> Any:
        """The sum of a tensor's entries from the messages of all ranks, the lowest first, so that bits are the same."""
        import torch

        result = torch.zeros_like(like, device=whole.device)
        for values, places in zip(*self._rows(whole, number), strict=True):
            flat_of(result).index_add_(0, places, values)
        return result

    def faults(self, whole: Any) -> Iterator[tuple[int, int]]:
        """(rank, number of the tensor) wherever something was sent that is no finite number."""
        if bool(self._section(whole, self._types[0]).isfinite().all()):
            return
        for number in range(len(self.counts)):
            for rank, values in enumerate(self._rows(whole, number)[0]):
                if not bool(values.isfinite().all()):
                    yield rank, number

    def _rows(self, whole: Any, number: int) -> list[Any]:
        """Values and places of a tensor, a row for each rank."""
        first, last = self._ends[number] - self.counts[number], self._ends[number]
        return [self._section(whole, kind)[:, first:last] for kind in self._types]

    def _section(self, whole: Any, kind: Any) -> Any:
        """All values, or all places, a row for each rank."""
        first, last = self._sections[kind]
        return whole.view(-1, self.bytes)[:, first:last].view(kind)
