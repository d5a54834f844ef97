"""Plans of whole tensors in ready order, given by the end of each bucket: their price, and whether they are allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from osfmodel.recursion import communication_finish
from osfmodel.solve.solution import Limits
from osfmodel.workload import Gradients


def finish(ends: Sequence[int], gradients: Gradients, cost: Callable[[int], float]) -> float:
    """When the communication of that plan ends, seconds after the start of the iteration."""
    sizes = gradients.sizes
    runs = list(pairwise([0, *ends]))
    return communication_finish(
        [gradients.ready_times[end - 1] for _, end in runs], [cost(sum(sizes[start:end])) for start, end in runs]
    )


def allowed(ends: Sequence[int], gradients: Gradients, limits: Limits) -> bool:
    """Whether the buckets keep dtypes apart and respect the limits."""
    if limits.max_buckets is not None and len(ends) > limits.max_buckets:
        return False
    runs = list(pairwise([0, *ends]))
    if any(len(set(gradients.dtypes[start:end])) > 1 for start, end in runs):
        return False
    most = limits.max_bucket_bytes
    return most is None or all(sum(gradients.sizes[start:end]) <= most for start, end in runs)
