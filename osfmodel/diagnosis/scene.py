"""A step to replay: what each rank does by itself, and the messages that all send, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.trace import Key


@dataclass(frozen=True, slots=True)
class RankLane:
    """One rank of a step. Times are seconds of its own work since its start, without waits for collectives.

    offset: its start, after that of the first rank
    work:   its own work in the whole step
    ready:  when each message is ready on it
    delays: how long each is then held back while the network is idle
    waits:  (when, message): a wait until that message has ended
    tails:  seconds by which messages end later here than on the first rank to end them, as parts of an all-to-all do
    """

    offset: float
    work: float
    ready: Mapping[Key, float]
    delays: Mapping[Key, float]
    waits: tuple[tuple[float, Key], ...]
    tails: Mapping[Key, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scene:
    """A step to replay: its lanes, and its messages in the order in which they are sent, each with its seconds.

    ``apart`` are messages on a second communicator: two messages in flight share the network evenly.
    """

    lanes: tuple[RankLane, ...]
    messages: tuple[tuple[Key, float], ...]
    apart: frozenset[Key] = frozenset()

    def timed(self, time: Callable[[Key, float], float]) -> Scene:
        """The scene with messages that take ``time(key, seconds now)``."""
        return replace(self, messages=tuple((key, time(key, now)) for key, now in self.messages))

    def with_tails(self, tails: Sequence[Mapping[Key, float]]) -> Scene:
        """The scene with these tails, by lane."""
        lanes = zip(self.lanes, tails, strict=True)
        return replace(self, lanes=tuple(replace(lane, tails=tail) for lane, tail in lanes))

    def prompt(self) -> Scene:
        """The scene with no message held back."""
        return replace(self, lanes=tuple(replace(lane, delays={}) for lane in self.lanes))

    def without(self, keys: Collection[Key]) -> Scene:
        """The scene with these messages taking no time."""
        return self.timed(lambda key, seconds: 0.0 if key in keys else seconds)

    def waiting(self, when: Callable[[float, Key], float | None]) -> Scene:
        """The scene with each wait at ``when(position, message)`` of own work, or not at all where that is None."""
        lanes = []
        for lane in self.lanes:
            moved = [(at, key) for position, key in lane.waits if (at := when(position, key)) is not None]
            lanes.append(replace(lane, waits=tuple(sorted(moved, key=itemgetter(0)))))
        return replace(self, lanes=tuple(lanes))

    @property
    def duration(self) -> float:
        """Seconds from the start of a rank to its end, the mean over the ranks."""
        shifts = [0.0] * len(self.lanes)
        times: dict[Key, float] = {}
        left = [list(lane.waits) for lane in self.lanes]
        network = _Wire(times)
        through = [0.0] * len(self.lanes)
        for key, seconds in self.messages:
            arrivals = []
            for number, lane in enumerate(self.lanes):
                if key in lane.ready:
                    shifts[number] = _waited(lane, left[number], lane.ready[key], shifts[number], times)
                    arrivals.append(lane.offset + lane.ready[key] + shifts[number] + lane.delays.get(key, 0.0))
                    if key in lane.tails:  # one after the other on each rank
                        arrivals.append(through[number])
            network.send(key, seconds, max([0.0, *arrivals]), key in self.apart)
            for number, lane in enumerate(self.lanes):
                if key in lane.tails:
                    through[number] = times[key] + lane.tails[key]
        for number, lane in enumerate(self.lanes):
            shifts[number] = _waited(lane, left[number], lane.work, shifts[number], times)
        return plain_sum(lane.work + shift for lane, shift in zip(self.lanes, shifts, strict=True)) / len(self.lanes)


class _Wire:
    """The network of a replay: messages of each communicator go one after the other; ``times``: when each has ended."""

    def __init__(self, times: dict[Key, float]) -> None:
        self.times = times
        self.last: dict[bool, tuple[Key, float]] = {}

    def send(self, key: Key, seconds: float, ready: float, apart: bool) -> None:
        """Send a message that is ready, behind the one before it; at half speed while one of the other is in flight."""
        before, other = self.last.get(apart), self.last.get(not apart)
        begin = ready if before is None else max(ready, self.times[before[0]])
        end = begin + seconds
        if other is not None:
            shared = max(0.0, min(end, self.times[other[0]]) - max(begin, other[1]))
            end += shared
            self.times[other[0]] += shared
        self.times[key], self.last[apart] = end, (key, begin)


def _waited(
    lane: RankLane, left: list[tuple[float, Key]], until: float, shift: float, times: Mapping[Key, float]
) -> float:
    """Seconds of waiting up to ``until`` of the rank's own work; removes those waits from ``left``."""
    while left and left[0][0] <= until and left[0][1] in times:
        position, key = left.pop(0)
        shift = max(shift, times[key] + lane.tails.get(key, 0.0) - lane.offset - position)
    return shift
