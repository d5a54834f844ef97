"""Marks in time: CUDA events on a GPU, the monotonic clock on a CPU. Making one never waits for the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from osfmodel.entities.errors import UsageError


class Mark(NamedTuple):
    """A moment on the host's clock, in seconds, and the event that the device passes then, if it has its own time."""

    host: float
    event: Any = None


def clock_of(device: Any) -> Callable[[], Mark]:
    """A function that makes marks for work on ``device``. Raises UsageError for devices without a readable clock."""
    if device.type == "cpu":
        return lambda: Mark(time.perf_counter())
    if device.type != "cuda":
        raise UsageError(f"cannot profile on {device.type!r}: osfmodel reads the clocks of cpu and cuda")
    import torch

    def mark() -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return Mark(time.perf_counter(), event)

    return mark


def settle(device: Any) -> None:
    """Wait until every event has passed; nothing to do on a CPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def seconds(start: Mark, end: Mark) -> float:
    """Seconds between two marks, on the device's own clock if it has one; events must have passed."""
    if start.event is None or end.event is None:
        return end.host - start.host
    return float(start.event.elapsed_time(end.event)) / 1e3
