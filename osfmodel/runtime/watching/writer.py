"""Windows of marked steps on their way: to times, to the other ranks, and to where they are written.

Times of all ranks are exchanged through the job's key-value store: no collective, no process group of our own. They
tell the rank that others wait for.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from osfmodel.runtime.watching.sinks import RecordSink
from osfmodel.runtime.watching.steps import MarkedStep, StepTimes

WORTH = 0.05
"""Fraction of a step by which a rank must be late to be named, as for the causes of ``osf explain``."""


class RankTimes(NamedTuple):
    """Consecutive steps of one rank: seconds of each, and those of its exposed communication (None: not known)."""

    times: list[float]
    exposed: list[float | None]


class Lateness(NamedTuple):
    """Seconds of one step that each rank waited for others, the late rank, and by how much its own work was longer."""

    waiting: tuple[float, ...]
    rank: int | None = None
    late_by: float | None = None


def lateness(ranks: Sequence[RankTimes]) -> list[Lateness]:
    """Waits for other ranks in each step that all ``ranks`` have; empty if a rank does not know its own.

    Ranks that communicate take equally long for a step. All of it but the exposed communication is a rank's own work,
    so the others wait for the rank with the most, by the difference, or as long as they wait at all if that is less.
    Clocks need not agree. A rank is late if its own work takes longer than the median of the others, in the median
    step by 5 % of the step or more.
    """
    steps = min(len(rank.times) for rank in ranks)
    if any(wait is None for rank in ranks for wait in rank.exposed[:steps]):
        return []
    own = [[time - (wait or 0.0) for time, wait in zip(*rank, strict=True)] for rank in ranks]
    behind = [[_behind(own, place, step) for step in range(steps)] for place in range(len(ranks))]
    usual = [median(seconds) if steps else 0.0 for seconds in behind]
    late = max(range(len(ranks)), key=usual.__getitem__)
    named = steps > 0 and usual[late] >= WORTH * median(time for rank in ranks for time in rank.times[:steps])
    found = []
    for step in range(steps):
        most = max(work[step] for work in own)
        waiting = tuple(
            min(most - work[step], rank.exposed[step] or 0.0) for work, rank in zip(own, ranks, strict=True)
        )
        found.append(Lateness(waiting, late, behind[late][step]) if named else Lateness(waiting))
    return found


def _behind(own: Sequence[Sequence[float]], place: int, step: int) -> float:
    """Seconds by which a rank's own work takes longer than the median of the others."""
    others = [work[step] for other, work in enumerate(own) if other != place]
    return own[place][step] - median(others) if others else 0.0


KEPT = 64
"""Windows that stay in the store, for ranks that read late."""


class RankExchange:
    """Times of this rank for the others, and theirs: a key of the store for each rank and window of steps.

    A rank that posts nothing keeps no other from training. ``number`` tells the watches of a process apart.
    """

    def __init__(self, store: Any, rank: int, world: int, number: int) -> None:
        self.home = store  # the store of rank 0 serves the others as long as somebody holds it
        self.store = store.clone() if hasattr(store, "clone") else store  # its own connection
        self.rank, self.world, self.number = rank, world, number

    def post(self, window: int, mine: RankTimes) -> None:
        """Store the times of this rank, and delete its old ones. Raises RuntimeError if the store is gone."""
        self.store.set(self._key(window, self.rank), json.dumps(mine))
        if window >= KEPT:
            self.store.delete_key(self._key(window - KEPT, self.rank))

    def gather(self, window: int) -> list[RankTimes] | None:
        """The times of all ranks, in order; None if some are not there yet. Raises RuntimeError as :meth:`post`."""
        keys = [self._key(window, rank) for rank in range(self.world)]
        if not self.store.check(keys):
            return None
        found = self.store.multi_get(keys) if self.store.has_extended_api() else map(self.store.get, keys)
        return [RankTimes(*json.loads(text)) for text in found]

    def missing(self, window: int) -> list[int]:
        """Ranks whose times are not in the store."""
        return [rank for rank in range(self.world) if not self.store.check([self._key(window, rank)])]

    def _key(self, window: int, rank: int) -> str:
        return f"osfmodel.watch/{self.number}/{window}/{rank}"


def exchange_of(number: int) -> RankExchange | None:
    """The exchange of this process with the others of its job; None if it trains alone."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    store = dist.distributed_c10d._get_default_store()
    return RankExchange(store, dist.get_rank(), dist.get_world_size(), number)


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
                missing = exchange.missing(window)
                named = ", ".join(map(str, missing))
                self._give_up(f"rank{'s' * (len(missing) > 1)} {named} sent no times")
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


def with_waits(times: Sequence[StepTimes], ranks: Sequence[RankTimes], rank: int) -> list[StepTimes]:
    """The times of ``rank`` with its waits for the others, as far as all of them have the steps."""
    found = lateness(ranks)
    told = [
        one.with_waiting(late.waiting[rank], late.rank, late.late_by) for one, late in zip(times, found, strict=False)
    ]
    return [*told, *times[len(told) :]]
