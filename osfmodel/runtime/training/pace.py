"""How a replay's computation takes its time: asleep until a moment of a timetable, or as a kernel that spins."""

from __future__ import annotations

import time
from math import inf

SPIN = 50e-6
"""Seconds before a deadline at which sleeping turns into spinning: what Linux oversleeps by default (timer slack)."""
STALL = 200e-6
"""Seconds between a layer's turn and its update from which it waited for its gradient: hooks alone take less."""
CALIBRATION = 10**8
"""Clock cycles spun to find out how fast a GPU's clock goes."""


def wait_until(deadline: float) -> None:
    """Return at ``deadline`` on the monotonic clock (``time.perf_counter``), or at once where it has passed."""
    left = deadline - time.perf_counter()
    if left > SPIN:
        time.sleep(left - SPIN)
    while time.perf_counter() < deadline:
        pass


class SleepingPace:
    """Computation on a CPU: every wait ends where all computation so far should, counted from :meth:`start`.

    counts: whether what hooks do in backward is added
    """

    def __init__(self) -> None:
        self.deadline = self.turn = self.late = 0.0
        self.counts = False

    def start(self) -> None:
        """Begin to count at the present moment: an iteration begins, or its update does."""
        self.deadline, self.late = time.perf_counter(), 0.0

    def compute(self, seconds: float) -> None:
        """Stand in for so many seconds of computation."""
        self.deadline += seconds
        wait_until(self.deadline)
        self.late = time.perf_counter() - self.deadline

    def reach(self) -> None:
        """A layer's turn has come: from here it may wait for its gradient."""
        self.turn = time.perf_counter()

    def hooked(self) -> None:
        """The hooks of a parameter begin, this late."""
        self.late = max(time.perf_counter() - self.deadline, 0)

    def go_on(self) -> None:
        """The backward of a layer begins, in which nothing is waited for."""
        self.turn = inf
        if self.counts:
            self.deadline = max(self.deadline, time.perf_counter() - self.late)

    def arrive(self) -> None:
        """Its gradient is there: where it waited for that, what follows is counted from the present moment.

        Where hooks count, so does all that was done since they began.
        """
        now = time.perf_counter()
        if self.counts:
            self.deadline = max(self.deadline, now - self.late)
        elif now - self.turn > STALL:
            self.deadline = max(self.deadline, now)


class SpinningPace:
    """Computation on a GPU: a kernel that spins for so long on the current stream. The host does not wait."""

    counts = False

    def __init__(self) -> None:
        self.cycles_per_second = _gpu_clock()

    def start(self) -> None:
        """The stream itself keeps the order."""

    def compute(self, seconds: float) -> None:
        """Stand in for so many seconds of computation."""
        import torch

        cycles = round(seconds * self.cycles_per_second)
        if cycles:
            torch.cuda._sleep(cycles)

    def reach(self) -> None:
        """The stream itself waits."""

    def go_on(self) -> None:
        """The stream itself keeps the order."""

    def hooked(self) -> None:
        """The stream itself keeps the order."""

    def arrive(self) -> None:
        """The stream itself has waited."""


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
    """How computation is stood in for on ``device``."""
    return SleepingPace() if device == "cpu" else SpinningPace()
