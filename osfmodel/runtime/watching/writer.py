"""Windows of marked steps on their way: to times, to the other ranks, and to where they are written."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from osfmodel.runtime.watching.exchange import RankExchange
from osfmodel.runtime.watching.late import RankTimes, lateness
from osfmodel.runtime.watching.sinks import RecordSink
from osfmodel.runtime.watching.steps import MarkedStep, StepTimes

LAG = 8
"""Windows that other ranks may be behind before their times are given up."""
TICK = 0.02
"""Seconds between two looks for the times of other ranks, at the end."""
REMEMBERED = 10_000
"""Records that stay in memory."""


class PostedWindow(NamedTuple):
    """A window that waits for the times of the other ranks."""

    number: int
    times: list[StepTimes]


class RecordWriter:
    """Windows of steps go in, records come out, in the thread that trains: a thread of its own would make it wait.

    Nothing here waits. A window moves on when the next one comes, if the device has passed it and the other ranks have
    told theirs. ``notes`` are what went wrong.
    """

    def __init__(self, sinks: Sequence[RecordSink], exchange: RankExchange | None) -> None:
        self.sinks, self.exchange = list(sinks), exchange
        self.rank = 0 if exchange is None else exchange.rank
        self.reads = exchange is not None and (bool(sinks) or self.rank == 0)
        self.records: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.notes: deque[str] = deque()
        self.marked: deque[list[MarkedStep]] = deque()
        self.posted: deque[PostedWindow] = deque()
        self.count = 0

    def put(self, steps: list[MarkedStep]) -> None:
        """Take the steps of a window, and move on what can."""
        self.marked.append(steps)
        while self.marked and self.marked[0][-1].passed:
            self._post(self.marked.popleft())
        self._gather(LAG)

    def close(self, patience: float) -> None:
        """Write everything; wait for the device, and for other ranks no longer than ``patience`` seconds."""
        deadline = time.monotonic() + patience
        while self.marked:
            self._post(self.marked.popleft())
        while self.posted:
            self._gather(LAG if time.monotonic() < deadline else 0)
            if self.posted:
                time.sleep(TICK)
        for sink in self.sinks:
            self._do(sink, sink.close)

    def _post(self, steps: Sequence[MarkedStep]) -> None:
        window = PostedWindow(self.count, [step.times() for step in steps])
        self.count += 1
        if self.exchange is not None:
            mine = RankTimes([one.time for one in window.times], [one.exposed for one in window.times])
            try:
                self.exchange.post(window.number, mine)
            except RuntimeError as error:  # the store is gone with its process
                self._give_up(str(error).partition("\n")[0])
        self.posted.append(window)

    def _gather(self, lag: int) -> None:
        """Write the windows whose times all ranks have told; give up on the others if more than ``lag`` wait."""
        while self.posted:
            window = self.posted[0]
            ranks = None
            if self.exchange is not None and self.reads:
                ranks = self._told(self.exchange, window.number, len(self.posted) > lag)
                if ranks is None and self.exchange is not None:
                    return
            self._write(window.times if ranks is None else with_waits(window.times, ranks, self.rank))
            self.posted.popleft()

    def _told(self, exchange: RankExchange, window: int, last: bool) -> list[RankTimes] | None:
        try:
            ranks = exchange.gather(window)
            if ranks is None and last:
                self._give_up(f"{_ranks(exchange.missing(window))} sent no times")
        except RuntimeError as error:
            ranks = None
            self._give_up(str(error).partition("\n")[0])
        return ranks

    def _give_up(self, why: str) -> None:
        self.exchange = None
        self.notes.append(
            f"waiting and late_rank are no longer written: {why}: call osf.watch on every rank, with the same every="
        )

    def _write(self, times: Sequence[StepTimes]) -> None:
        records = [one.record for one in times]
        self.records.extend(records)
        for sink in tuple(self.sinks):
            self._do(sink, partial(sink.write, records))

    def _do(self, sink: RecordSink, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.sinks = [one for one in self.sinks if one is not sink]
            self.notes.append(f"nothing more is written to {type(sink).__name__}: {error}")


def _ranks(missing: Sequence[int]) -> str:
    return f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"


def with_waits(times: Sequence[StepTimes], ranks: Sequence[RankTimes], rank: int) -> list[StepTimes]:
    """The times of ``rank`` with its waits for the others, as far as all of them have the steps."""
    found = lateness(ranks)
    told = [
        one.with_waiting(late.waiting[rank], late.rank, late.late_by) for one, late in zip(times, found, strict=False)
    ]
    return [*told, *times[len(told) :]]
