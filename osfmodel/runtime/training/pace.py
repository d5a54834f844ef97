"""Stand-ins for a replay's computation: sleep until a moment of a timetable, or spin in a kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

SPIN = 50e-6
"""Seconds before a deadline at which sleeping becomes spinning: what Linux oversleeps by default (timer slack)."""
STALL = 200e-6
"""Seconds between a layer's turn and its update that mean waiting for the gradient: hooks alone take less."""
CALIBRATION = 10**8
"""Clock cycles to spin for measuring a GPU's clock rate."""


def wait_until(deadline: float) -> None:
    """Return at ``deadline`` on the monotonic clock (``time.perf_counter``), or at once if it has passed."""
    left = deadline - time.perf_counter()
    if left > SPIN:
        time.sleep(left - SPIN)
    while time.perf_counter() < deadline:
        pass


class SleepingPace:
    """Computation on a CPU: every wait ends when all computation so far should, counted from :meth:`start`.

    counts: whether computation of hooks in backward is added
    """

    def __init__(self) -> None:
        self.deadline = self.turn = self.late = 0.0
        self.counts = False

    def start(self) -> None:
        """Count from now on: an iteration begins, or its update does."""
        self.deadline, self.late = time.perf_counter(), 0.0

    def compute(self, seconds: float) -> None:
        """Stand in for ``seconds`` of computation."""
        self.deadline += seconds
        wait_until(self.deadline)
        self.late = time.perf_counter() - self.deadline

    def reach(self) -> None:
        """Begin a layer's turn: from here it may wait for its gradient."""
        self.turn = time.perf_counter()

    def hooked(self) -> None:
        """Note that the hooks of a parameter begin."""
        self.late = max(time.perf_counter() - self.deadline, 0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context of waiting for others: later times count from its end, less by how late it began."""
        late = max(time.perf_counter() - self.deadline, 0)
        yield
        self.deadline = max(self.deadline, time.perf_counter() - late)

    def go_on(self) -> None:
        """Begin the backward of a layer, in which nothing is awaited."""
        self.turn = inf
        if self.counts:
            self.deadline = max(self.deadline, time.perf_counter() - self.late)

    def arrive(self) -> None:
        """Note that a gradient arrived: if the layer waited for it, later times count from now.

        If hooks count, so does everything that was done since they began.
        """
        now = time.perf_counter()
        if self.counts:
            self.deadline = max(self.deadline, now - self.late)
        elif now - self.turn > STALL:
            self.deadline = max(self.deadline, now)


class SpinningPace:
    """Computation on a GPU: a kernel that spins so long on the current stream. The host does not wait."""

    counts = False

    def __init__(self) -> None:
        self.cycles_per_second = _gpu_clock()

    def start(self) -> None:
        """No-op: the stream itself keeps the order."""

    def compute(self, seconds: float) -> None:
        """Stand in for ``seconds`` of computation."""
        import torch

        cycles = round(seconds * self.cycles_per_second)
        if cycles:
            torch.cuda._sleep(cycles)

    def reach(self) -> None:
        """No-op: the stream itself waits."""

    def go_on(self) -> None:
        """No-op: the stream itself keeps the order."""

    def hooked(self) -> None:
        """No-op: the stream itself keeps the order."""

    def arrive(self) -> None:
        """No-op: the stream itself has waited."""


def _gpu_clock() -> float:
    """Cycles per second of the spinning kernel, the fastest of three tries."""
    import torch

    found: list[float] = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.cuda._sleep(CALIBRATION)
        end.record()
        torch.cuda.synchronize()
        found.append(CALIBRATION / (float(begin.elapsed_time(end)) / 1e3))
    return max(found)


def pace_of(device: str) -> SleepingPace | SpinningPace:
    """The replacement of computation on ``device``."""
    return SleepingPace() if device == "cpu" else SpinningPace()
