"""Horovod's packing of the tensors that a cycle found into batches.

Source: Horovod 0.28.1, horovod/common/controller.cc (FuseResponses).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from osfmodel.entities.workload import Gradients


def fuse(
    found: Sequence[int],
    gradients: Gradients,
    threshold: int,
    padding: int = 1,
    refused: Callable[[int], None] = lambda needed: None,
) -> Iterator[list[int]]:
    """Horovod's FuseResponses over the tensors that one cycle found, in order.

    A tensor of the batch's dtype that does not fit ends the batch (no hole is filled behind it); one of another dtype
    is passed over as long as the batch and all that was passed over stay within the threshold. ``refused`` is
    called with each threshold at which more would have been fused or passed over.
    """
    rest = list(found)
    while rest:
        batch, passed = [rest[0]], []
        held, skipped = padded(gradients.sizes[rest[0]], padding), 0
        kind, place = gradients.dtypes[rest[0]], 1
        while place < len(rest):
            size = padded(gradients.sizes[rest[place]], padding)
            alike = gradients.dtypes[rest[place]] == kind
            needed = held + size if alike else held + skipped + size
            if needed > threshold:
                refused(needed)
                break
            if alike:
                held += size
                batch.append(rest[place])
            else:
                skipped += size
                passed.append(rest[place])
            place += 1
        yield batch
        rest = passed + rest[place:]


def padded(size: int, padding: int) -> int:
    """``size`` rounded up to a multiple of ``padding``."""
    return -(-size // padding) * padding
