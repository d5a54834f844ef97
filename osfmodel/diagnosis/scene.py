"""A step to replay: what each rank does by itself, and the messages that ranks send to one another.

It is made of the step as each rank saw it: its messages, its waits, and its own work. Messages in flight that share the
network on a rank each get a part of its bandwidth.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import itemgetter
from typing import NamedTuple

from osfmodel.diagnosis.waits import LocalClock, Sent, Wait, input_waits, sent, waits
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import Interval, without
from osfmodel.entities.trace import Key, Step


class SceneMessage(NamedTuple):
    """A message to send, its seconds if it has the network to itself, and its process group."""

    key: Key
    seconds: float
    group: str = ""


class _Flight:
    """A message in flight: the seconds that are left of it, and its speed, 1 with the network to itself."""

    __slots__ = ("left", "message", "places", "speed")

    def __init__(self, message: SceneMessage, places: Sequence[Hashable]) -> None:
        self.message, self.places = message, places
        self.left, self.speed = message.seconds, 1.0


class SharedNetwork:
    """A network; ``now`` is the time up to which messages have moved.

    ``places`` of a message are those at which it shares bandwidth evenly, such as the links of its ranks; the slowest
    counts.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._flying: list[_Flight] = []

    @property
    def next_end(self) -> float:
        """When the next message ends if no other starts; infinite if none is in flight."""
        return min((self.now + one.left / one.speed for one in self._flying), default=inf)

    def start(self, message: SceneMessage, time: float, places: Sequence[Hashable]) -> None:
        """Start a message at ``time``, at or before :attr:`next_end`."""
        self._move(time)
        self._flying.append(_Flight(message, places))
        self._share()

    def end(self) -> SceneMessage:
        """Move up to :attr:`next_end`, and take away the message that ends then."""
        first = min(self._flying, key=lambda one: one.left / one.speed)
        time = self.next_end
        self._flying.remove(first)
        self._move(time)
        self._share()
        return first.message

    def _move(self, time: float) -> None:
        if time > self.now:
            for one in self._flying:
                one.left = max(0.0, one.left - (time - self.now) * one.speed)
            self.now = time

    def _share(self) -> None:
        together = Counter(place for one in self._flying for place in one.places)
        for one in self._flying:
            one.speed = 1 / max(together[place] for place in one.places)


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
    """A step to replay: its lanes, and its messages in the order in which they are sent.

    Messages of one process group go one after the other between the same ranks. Those of other groups that are in
    flight at the same time on a rank share its network, if ``shared``; else each group has a network of its own.
    ``apart`` are messages that have left their group for a second communicator on the same network.
    """

    lanes: tuple[RankLane, ...]
    messages: tuple[SceneMessage, ...]
    apart: frozenset[Key] = frozenset()
    shared: bool = True

    def timed(self, time: Callable[[Key, float], float]) -> Scene:
        """The scene with messages that take ``time(key, seconds now)``."""
        return replace(self, messages=tuple(one._replace(seconds=time(one.key, one.seconds)) for one in self.messages))

    def with_tails(self, tails: Sequence[Mapping[Key, float]]) -> Scene:
        """The scene with these tails, by lane."""
        lanes = zip(self.lanes, tails, strict=True)
        return replace(self, lanes=tuple(replace(lane, tails=tail) for lane, tail in lanes))

    def without_delays(self) -> Scene:
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

    def not_waiting(self, keys: Collection[Key]) -> Scene:
        """The scene without waits for these messages."""
        return self.waiting(lambda position, key: None if key in keys else position)

    @property
    def duration(self) -> float:
        """Seconds from the start of a rank to its end, the mean over the ranks."""
        return _SceneRun(self).duration()


class _SceneRun:
    """A replay of a scene. ``times``: when each message has ended."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.times: dict[Key, float] = {}
        self.places = {one.key: place for place, one in enumerate(scene.messages)}
        self.progress = [_Progress(lane, self.times, self.places) for lane in scene.lanes]
        self.network = SharedNetwork()
        self.ranks: dict[Key, list[int]] = {one.key: [] for one in scene.messages}
        for number, lane in enumerate(scene.lanes):
            for key in lane.ready:
                self.ranks.get(key, []).append(number)
        self.queues: dict[Hashable, deque[SceneMessage]] = {}
        for one in scene.messages:
            stream = (one.group, one.key in scene.apart, *self.ranks[one.key])
            self.queues.setdefault(stream, deque()).append(one)
        self.busy: dict[Key, Hashable] = {}

    def duration(self) -> float:
        """Seconds of a step, the mean over the ranks."""
        while self.queues:
            streams = set(self.busy.values())
            heads = [(queue[0], stream) for stream, queue in self.queues.items() if stream not in streams]
            times = [(self._arrival(one), self.places[one.key], stream) for one, stream in heads]
            time, _, stream = min(times, default=(inf, 0, ()), key=itemgetter(0, 1))
            if time <= self.network.next_end:
                self._start(stream, time)
            else:
                self._end()
        ends = [one.end() for one in self.progress]
        return plain_sum(ends) / len(ends)

    def _arrival(self, one: SceneMessage) -> float:
        """When all ranks have come to it; infinite if one waits for another before that."""
        return max([0.0, *(self.progress[number].arrival(one.key) for number in self.ranks[one.key])])

    def _start(self, stream: Hashable, time: float) -> None:
        one = self.queues[stream][0]
        network = "" if self.scene.shared else one.group
        places = [(network, number) for number in self.ranks[one.key]] or [(network, -1)]
        self.network.start(one, max(time, self.network.now), places)
        self.busy[one.key] = stream

    def _end(self) -> None:
        one = self.network.end()
        stream = self.busy.pop(one.key)
        self.times[one.key] = self.network.now
        self.queues[stream].popleft()
        if not self.queues[stream]:
            del self.queues[stream]
        for number in self.ranks[one.key]:
            self.progress[number].ended(one.key)


class _Progress:
    """How far a rank has come: the waits that are over, and the seconds by which it is later after each of them.

    A message does not wait for those that are sent after it, whatever the clocks say. Messages with tails go one after
    the other.
    """

    def __init__(self, lane: RankLane, times: Mapping[Key, float], places: Mapping[Key, int]) -> None:
        self.lane, self.times, self.places = lane, times, places
        self.over: list[float] = []
        self.shifts = [0.0]
        self.through = 0.0

    def arrival(self, key: Key) -> float:
        """When it comes to a message; infinite if it waits for another before that."""
        lane, position = self.lane, self.lane.ready[key]
        awaited = self._go_on(position)
        if awaited is not None and self.places[awaited] < self.places[key]:
            return inf
        shift = self.shifts[bisect_right(self.over, position)]
        time = lane.offset + position + shift + lane.delays.get(key, 0.0)
        return max(time, self.through) if key in lane.tails else time

    def ended(self, key: Key) -> None:
        """Take note that a message of the rank has ended."""
        if key in self.lane.tails:
            self.through = self.times[key] + self.lane.tails[key]

    def end(self) -> float:
        """Seconds from its start to its end, when all messages have ended."""
        self._go_on(self.lane.work)
        return self.lane.work + self.shifts[-1]

    def _go_on(self, until: float) -> Key | None:
        """Take waits up to ``until`` that are over; the message of the first that is not, or None."""
        lane = self.lane
        for position, key in lane.waits[len(self.over) :]:
            if position > until:
                return None
            if key not in self.times:
                return key
            late = self.times[key] + lane.tails.get(key, 0.0) - lane.offset - position
            self.over.append(position)
            self.shifts.append(max(self.shifts[-1], late))
        return None


@dataclass(frozen=True, slots=True)
class SeenStep:
    """A step of one rank with its messages and waits, computed once."""

    step: Step
    sent: tuple[Sent, ...]
    waits: tuple[Wait, ...]
    host_computes: bool = False

    @staticmethod
    def of(step: Step, host_computes: bool) -> SeenStep:
        """The step; ``host_computes`` as for :func:`osfmodel.diagnosis.waits.sent`.

        A host that computes waits for DDP's gradients only after backward, whatever pauses come before.
        """
        found = sent(step, host_computes)
        late = {id(one.collective) for one in found if one.gradient} if host_computes and step.ddp else ()
        return SeenStep(step, found, waits(step, late), host_computes)

    @property
    def own_work(self) -> float:
        """Seconds of the step without waits for collectives or the data loader."""
        return self.clock(input_waits(self.step)).at(self.step.end)

    @property
    def idle(self) -> tuple[Interval, ...]:
        """Intervals in which it was idle for no reason that the trace shows."""
        step, waited = self.step, [(wait.start, wait.end) for wait in self.waits]
        return without([(step.start, step.end)], [*step.compute, *step.copies, *step.inputs, *waited])

    def clock(self, left_out: Sequence[Interval]) -> LocalClock:
        """A clock of the rank's own work, without ``left_out``."""
        return LocalClock(self.step.start, [*((wait.start, wait.end) for wait in self.waits), *left_out])

    def lane(self, left_out: Sequence[Interval], begin: float, ordered: bool) -> RankLane:
        """The rank's lane without ``left_out``; ``ordered``: with buckets in the order in which gradients are ready."""
        clock = self.clock(left_out)
        keys = {id(one.collective): one.key for one in self.sent}
        return RankLane(
            self.step.start - begin,
            clock.at(self.step.end),
            {one.key: clock.at(one.ready if ordered else one.formed) for one in self.sent},
            {one.key: one.delay for one in self.sent},
            tuple((clock.at(wait.start), keys[id(wait.collective)]) for wait in self.waits),
        )
