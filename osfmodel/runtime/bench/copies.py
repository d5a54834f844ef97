"""Measure DDP's own copies: of gradients into buckets before they are sent, and out of them after.

All ranks copy at once, since in training they do; those of one host share its memory. As the reducer does it: into the
bucket by a product with 1 / ranks, which is written there, out of it by a copy (reducer.cpp).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from osfmodel.runtime.job.collective_job import CollectiveJob

TENSOR, TENSORS = 1 << 18, 64
"""Elements of each tensor (1 MiB), and number of tensors: together more than caches hold."""
ROUNDS = 7


class Copies(NamedTuple):
    """Seconds per byte into buckets, and out of them."""

    into: float
    out: float


def copying(job: CollectiveJob) -> Copies:
    """Measure both copies: the median over rounds of the slowest rank. Raises RuntimeError as torch does."""
    import torch

    gradients, views = ([torch.zeros(TENSOR, device=job.device) for _ in range(TENSORS)] for _ in range(2))
    part = 1 / job.workers

    def into() -> None:
        for gradient, view in zip(gradients, views, strict=True):
            torch.mul(gradient, part, out=view)

    def out() -> None:
        for gradient, view in zip(gradients, views, strict=True):
            gradient.copy_(view)

    size = TENSORS * TENSOR * gradients[0].element_size()
    return Copies(*(slowest(job, call) / size for call in (into, out)))


def slowest(job: CollectiveJob, call: Callable[[], Any]) -> float:
    """Seconds of ``call`` on the slowest rank, started together; the first round does not count."""
    own = [_once(job, call) for _ in range(ROUNDS + 1)][1:]
    return float(median(map(max, zip(*job.gather(own), strict=True))))


def apart(job: CollectiveJob, between: Callable[[], Any], call: Callable[[int], Any], count: int) -> float:
    """Seconds of one of ``call(0)`` to ``call(count - 1)`` on the slowest rank, with ``between`` before each.

    All start together; the median over rounds of which the first is not counted.
    """
    rounds: list[float] = []
    for _ in range(ROUNDS + 1):
        total = 0.0
        for number in range(count):
            between()
            total += _once(job, partial(call, number))
        rounds.append(total / count)
    return float(median(map(max, zip(*job.gather(rounds[1:]), strict=True))))


def _once(job: CollectiveJob, call: Callable[[], Any]) -> float:
    _finish(job)
    job.barrier()
    begin = time.perf_counter()
    call()
    _finish(job)
    return time.perf_counter() - begin


def _finish(job: CollectiveJob) -> None:
    """Wait for the device to finish, so that earlier work is not counted with the next call."""
    if job.device.type == "cuda":
        import torch

        torch.cuda.synchronize()
