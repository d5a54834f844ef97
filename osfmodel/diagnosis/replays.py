"""The replays of a step from which what its causes cost is told: as it was, and with ever more of them taken away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from osfmodel.diagnosis.messages import used_map
from osfmodel.diagnosis.parts import input_waits
from osfmodel.diagnosis.replay import Scene, Seen, alone, flowing, median_place, messages, scene
from osfmodel.intervals import Interval, without
from osfmodel.trace.record import Key

StartupShare = Callable[[int], float]
"""What part of the time of a message of so many bytes is start-up, from 0 to 1.

A part and no time, since messages of one size differ: what one took longer than its like, behind a retransmission or a
busy host, is no sign of bytes.
"""


class Replays:
    """A step that ``ranks`` saw, to be replayed; times in seconds.

    ``usual`` is the rank whose own work is the median: what is asked of one rank is asked of it.
    """

    def __init__(self, ranks: Sequence[Seen], share: StartupShare) -> None:
        self.ranks = ranks
        self.usual = ranks[median_place([rank.own_work for rank in ranks])]
        self._share = share
        self._ddp = any(rank.step.ddp for rank in ranks)
        self._inputs = input_waits(self.usual.step)
        self._times = dict(messages(ranks))
        self._sizes = {one.key: one.collective.bytes or 0 for one in self.usual.sent}
        self._maps = {one.key for one in self.usual.sent if used_map(one.collective.kind, one.collective.dtype)}

    def as_traced(self) -> float:
        """With everything in it."""
        return scene(self.ranks, lambda step: ()).duration

    def with_input_there(self) -> float:
        """No rank waits for its data loader."""
        return scene(self.ranks, input_waits).duration

    def of_equal_ranks(self) -> float:
        """And every rank is as the usual one."""
        return alone(self.usual, self._times, self._inputs).duration

    def prompt(self) -> float:
        """And a collective starts as soon as its gradients are there and the wires are free."""
        return alone(self.usual, self._times, self._inputs).prompt().duration

    def in_ready_order(self) -> float:
        """And buckets are formed in the order in which gradients become ready, without a map of used parameters.

        Only DDP has that as a setting: where the trace shows none, nothing changes.
        """
        return self._ordered.timed(lambda key, seconds: 0.0 if key in self._maps else seconds).duration

    def without_startups(self) -> float:
        """And messages take the time of their bytes only."""
        return self._ordered.timed(self._of_bytes).duration

    def flowing(self) -> float:
        """And every gradient is sent by itself as soon as it is there."""
        times = {key: self._of_bytes(key, self._times[key]) for key in self._sizes}
        return flowing(self.usual, times, self._inputs).duration

    def without_messages(self) -> float:
        """And nothing is waited for: the usual rank's own work."""
        return self.usual.own_work

    def never_idle(self) -> float:
        """And the device is never idle for reasons that the trace does not show."""
        return self.usual.clock([*self._inputs, *_idle(self.usual)]).at(self.usual.step.end)

    @cached_property
    def _ordered(self) -> Scene:
        return alone(self.usual, self._times, self._inputs, ordered=self._ddp).prompt()

    def _of_bytes(self, key: Key, seconds: float) -> float:
        if key in self._maps:
            return 0.0
        size = self._sizes[key]  # without one nothing tells its start-up from its bytes
        return seconds * (1 - self._share(size)) if size else seconds


def _idle(rank: Seen) -> tuple[Interval, ...]:
    """When it did nothing, and nothing in the trace says why."""
    step = rank.step
    waited = [(wait.start, wait.end) for wait in rank.waits]
    return without([(step.start, step.end)], [*step.compute, *step.copies, *step.inputs, *waited])
