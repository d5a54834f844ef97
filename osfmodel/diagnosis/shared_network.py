"""Messages in flight on a network: those that share it on a rank each get a part of its bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import inf
from typing import NamedTuple

from osfmodel.entities.trace import Key


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
