"""Measure how much collectives slow computation: a fixed loop alone, and beside continuous all-reduces."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from osfmodel.runtime.job.collective_job import CollectiveJob

ROUNDS = 3
SECONDS = 0.5
"""Seconds of each half of a round, about."""
EDGE = 256
"""Rows of the matrices that a CPU multiplies: about a millisecond's work."""
GPU_EDGE = 4096
NAP = 1e-3


def describe(job: CollectiveJob, compute: str) -> str:
    """The computation, in words."""
    if compute == "sleep":
        return f"sleeps of {NAP * 1e3:g} ms"
    import torch

    edge = EDGE if job.device.type == "cpu" else GPU_EDGE
    return f"products of {edge} x {edge} matrices, {torch.get_num_threads()} CPU threads a rank"


def slowdown(job: CollectiveJob, compute: str, buffer: Any, alone: float, at_once: int) -> float:
    """Time per unit of work beside all-reduces over that alone, less 1; the median over rounds and ranks.

    ``alone``: seconds of one all-reduce of ``buffer``; ``at_once``: how many are kept in flight. All ranks run as many
    all-reduces, whatever their loops do. Raises RuntimeError as torch does.
    """
    unit = _unit(job, compute)
    count = max(2 * at_once, int(SECONDS / max(alone, 1e-6)))
    found = []
    for _ in range(ROUNDS):
        job.barrier()
        until = time.perf_counter() + SECONDS
        before = _per_unit(unit, partial(_before, until))
        job.barrier()
        found.append(_beside(job, unit, buffer, count, at_once) / before - 1)
    return float(median(value for values in job.gather(found) for value in values))


def _before(until: float) -> bool:
    return time.perf_counter() < until


def _beside(job: CollectiveJob, unit: Callable[[], None], buffer: Any, count: int, at_once: int) -> float:
    """Seconds per unit while ``count`` all-reduces run in another thread."""
    failed: list[BaseException] = []

    def collectives() -> None:
        try:
            _keep_going(job, buffer, count, at_once)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=collectives, daemon=True)
    thread.start()
    taken = _per_unit(unit, thread.is_alive)
    thread.join()
    if failed:
        raise failed[0]
    return taken


def _keep_going(job: CollectiveJob, buffer: Any, count: int, at_once: int) -> None:
    import torch
    import torch.distributed as dist

    cuda = job.device.type == "cuda"
    buffers = [buffer.clone() for _ in range(at_once)]
    running: deque[Any] = deque()
    with torch.cuda.stream(torch.cuda.Stream()) if cuda else contextlib.nullcontext():
        for number in range(count + at_once):
            if number >= at_once:
                running.popleft().wait()
                if cuda:
                    torch.cuda.current_stream().synchronize()
            if number < count:
                running.append(dist.all_reduce(buffers[number % at_once], async_op=True))


def _per_unit(unit: Callable[[], None], going: Callable[[], bool]) -> float:
    """Seconds per unit of work, repeated while ``going``, and done once at least."""
    begin, done = time.perf_counter(), 0
    while going() or not done:
        unit()
        done += 1
    return (time.perf_counter() - begin) / done


def _unit(job: CollectiveJob, compute: str) -> Callable[[], None]:
    if compute == "sleep":
        return lambda: time.sleep(NAP)
    import torch

    cuda = job.device.type == "cuda"
    edge = GPU_EDGE if cuda else EDGE
    left, right = (torch.ones(edge, edge, device=job.device) for _ in range(2))
    into = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=into)
        if cuda:
            torch.cuda.current_stream().synchronize()

    multiply()
    return multiply
