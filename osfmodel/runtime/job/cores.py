"""Processor time of the ranks, as a share of the cores of the machine on which they run."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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
