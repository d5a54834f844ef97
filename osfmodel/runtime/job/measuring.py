"""The process group of a benchmark (this rank, the others, ways to wait for them), and the processor time of ranks.

Processor time is told as a share of the cores of the machine on which they run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.runtime.job import Place


@dataclass(frozen=True, slots=True)
class CollectiveJob:
    """This rank among the others.

    per_host: ranks on each host
    backend:  ``gloo`` or ``nccl``
    device:   where tensors live
    limit:    seconds that a collective may take
    control:  a process group over CPU, beside the one that is measured, for barriers and results
    beat:     is called at every barrier and gathering, as a sign of progress
    """

    rank: int
    workers: int
    per_host: int
    backend: str
    device: Any
    limit: float
    control: Any
    beat: Callable[[], None] = lambda: None

    def barrier(self) -> None:
        """Wait for all ranks."""
        import torch.distributed as dist

        self.beat()
        dist.barrier(group=self.control)

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""
        import torch.distributed as dist

        self.beat()
        found = [None] * self.workers
        dist.all_gather_object(found, value, group=self.control)
        return found


def job_of(place: Place, limit: float, control: Any, beat: Callable[[], None]) -> CollectiveJob:
    """The job of a rank that has met the others; ``limit``, ``control`` and ``beat`` as in CollectiveJob."""
    import torch

    device = torch.device(place.device)
    return CollectiveJob(place.rank, place.world, place.per_host, place.backend, device, limit, control, beat)


def threads_of(backend: str) -> int | None:
    """Collectives of the process group that run at once: gloo's worker threads, if this torch says; NCCL has one
    stream per communicator."""
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        return 1
    try:
        return int(dist.group.WORLD._get_backend(torch.device("cpu")).options._threads)
    except (AttributeError, RuntimeError):
        return None


BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A name of the machine that namespaces and containers on it share."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of processor time in each period, and the period, of a container (cgroup v2)."""


class Use(NamedTuple):
    """Processor time of a rank: its machine, the cores that it may use there, and seconds of processor and clock."""

    machine: str
    cores: float
    processor: float
    clock: float


class Meter:
    """Measures a rank's use of the processor, all its threads included, from now on."""

    def __init__(self) -> None:
        self.processor, self.clock = time.process_time(), time.perf_counter()

    def use(self) -> Use:
        """The use since the start."""
        processor, clock = time.process_time() - self.processor, time.perf_counter() - self.clock
        return Use(machine(), cores(), processor, clock)


def share(ranks: Sequence[Use]) -> float:
    """Processor time of all ranks of a machine over that of its cores, of the machine that is busiest."""
    machines: dict[str, list[Use]] = {}
    for use in ranks:
        machines.setdefault(use.machine, []).append(use)
    return max(
        sum(use.processor for use in those) / max(use.cores * use.clock for use in those) for those in machines.values()
    )


def machine() -> str:
    """A name of this machine, the same for all ranks on it."""
    with suppress(OSError):
        return BOOT.read_text().strip()
    return os.uname().nodename


def cores() -> float:
    """Cores that this process may use: those of its affinity or, if less, of its container's quota."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text().split()
        return min(known, int(quota) / int(period))
    return known
