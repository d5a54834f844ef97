"""Two all-reduces at once: the smallest model that reproduces their measured slow-down. ASC-WFBP's grouping rule.

To be replaced by the simulator of several channels once there is one; nothing outside the recipe ``papers`` uses it.

S. Shi, X. Chu, B. Li, "Exploiting simultaneous communications to accelerate data parallel distributed deep learning",
INFOCOM 2021: start-ups of all-reduces on different channels pass at the same time, and two equal all-reduces of s bytes
that run together take a + 1.5 b s each, where one alone takes a + b s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHANNELS = 2
CONTENTION = 1.5
"""How many times as long bytes take while another all-reduce sends too (the authors' plot script, INFOCOM 2021)."""


@dataclass(slots=True)
class _Transfer:
    """begins: when its start-up is over; work: seconds that its remaining bytes take alone."""

    begins: float
    work: float


def merge_queued(ready: Sequence[float], sizes: Sequence[int], startup: float, per_byte: float) -> tuple[int, ...]:
    """ASC-WFBP's rule: a gradient joins the next one iff the next is ready while it still waits for the channel.

    As released, the waiting is that of one channel, and merging then delays nothing. The ends of the merged runs.
    """
    ends = []
    start, pending = ready[0], sizes[0]
    for i in range(1, len(sizes)):
        if start > ready[i]:
            pending += sizes[i]
        else:
            ends.append(i)
            start, pending = max(start + startup + per_byte * pending, ready[i]), sizes[i]
    return (*ends, len(sizes))


def finish(ready: Sequence[float], sizes: Sequence[int], startup: float, per_byte: float) -> float:
    """When the last bucket has arrived: buckets take the channels in turn, and each channel sends one after another.

    A bucket's start-up begins when it is ready and its channel free, and moves nothing; its bytes then go at 1 / b,
    or at 1 / 1.5 of that while both channels send.
    """
    queues = [list(zip(ready, sizes, strict=True))[channel::CHANNELS] for channel in range(CHANNELS)]
    active: list[_Transfer | None] = [None] * CHANNELS
    now = 0.0
    while True:
        for channel, queue in enumerate(queues):
            if active[channel] is None and queue:
                released, size = queue.pop(0)
                active[channel] = _Transfer(max(now, released) + startup, per_byte * size)
        if not any(active):
            return now
        now = _advance(active, now)


def _advance(active: list[_Transfer | None], now: float) -> float:
    """On to the next end of a start-up or of a transfer; what has ended leaves its channel."""
    sending = [transfer for transfer in active if transfer and transfer.begins <= now]
    slower = CONTENTION if len(sending) == CHANNELS else 1.0
    waiting = [transfer.begins for transfer in active if transfer and transfer.begins > now]
    shortest = min((transfer.work for transfer in sending), default=0.0)
    upcoming = min([*waiting, *([now + shortest * slower] if sending else [])])
    for channel, transfer in enumerate(active):
        if transfer in sending and transfer is not None:
            ended = now + transfer.work * slower <= upcoming
            active[channel] = None if ended else _Transfer(now, transfer.work - (upcoming - now) / slower)
    return upcoming
