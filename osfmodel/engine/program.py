"""A program: the operations of one step, whatever the framework and the strategy.

Operations are in the order in which they are issued, each on a stream. A stream works first in, first out; it has as
many operations in flight as it is wide. An operation begins when it is its turn and all that it waits for has ended. It
first takes its start-up, in which no link is used (for a computation, all of it), then its transfer, in which it shares
its link with the other transfers there.

The memory of a step belongs to the program too: :class:`Hold` says from when to when bytes are there. Holds are
added by ``osfmodel.engine.strategies.holdings``, as they depend on who runs the plan.

A step goes from forward to update. If the next forward overlaps communication, it goes from the start of one
backward to the start of the next, and times count from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from osfmodel.entities.workload import Workload

COMPUTE = "compute"
"""The stream of computations."""
CHANNEL = "channel"
"""The stream of collectives, if there is one communicator."""
RELEASE = "release"
"""The stream of updates between the computations of backward, each once its bucket has arrived."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Rules by which the operations of a stream share it.

    width:   operations in flight at once
    credit:  None: first in, first out. Else the ready operation that is earliest in the program goes next, while fewer
             than this many bytes are outstanding
    between: whether it uses the compute device, in gaps after operations that yield and after the last one
    link:    what its transfers share with those of all streams of that link
    """

    width: int = 1
    credit: int | None = None
    between: bool = False
    link: str = "network"


PLAIN = Stream()
"""One operation at a time, first in, first out."""


class Operation(NamedTuple):
    """One operation of a step.

    kind:       ``forward``, ``backward``, ``hook``, ``copy``, ``spread``, ``update``, or a collective
    stream:     COMPUTE, RELEASE, or a communicator's
    layers:     the layers concerned; empty for all
    startup:    seconds in which no link is used
    transfer:   seconds on its link, were it alone
    waits:      numbers of the operations that must have ended; those before it on its stream need not be among them
    not_before: seconds after the start of the step, before which it does not begin (a framework's own clock)
    size:       bytes that it carries
    bucket:     number of the bucket of the plan that it carries or deals with; -1 for none
    yields:     whether operations of a stream ``between`` computations may go before what follows
    slowed:     whether it takes longer beside collectives; not where its time was measured beside them
    quiet:      whether it is left out of the timeline where it takes no time
    """

    kind: str
    stream: str
    layers: tuple[str, ...]
    startup: float
    transfer: float = 0
    waits: tuple[int, ...] = ()
    not_before: float = 0
    size: int = 0
    bucket: int = -1
    yields: bool = False
    slowed: bool = True
    quiet: bool = False


class Instant(NamedTuple):
    """The start or the end of an operation."""

    operation: int
    ended: bool


class Hold(NamedTuple):
    """Bytes of an owner in memory, from the last of ``since`` (none: the start of the step) ``until`` an instant.

    until:  None for the end of the step
    latest: the instant from which they are there in any case
    """

    owner: str
    bytes: int
    since: tuple[Instant, ...] = ()
    until: Instant | None = None
    latest: Instant | None = None

    @property
    def passing(self) -> bool:
        """Whether it lasts no longer than one operation."""
        return self.until is not None and any(one.operation == self.until.operation for one in self.since)


class Wiring(NamedTuple):
    """The dependencies of a program, by number of the operation.

    waits:     how many operations, or a clock, each waits for
    followers: operations that wait for one
    own:       collectives, by stream
    computed:  computations in order
    between:   operations in gaps between these
    """

    waits: list[int]
    followers: dict[int, list[int]]
    own: dict[str, list[int]]
    computed: list[int]
    between: list[int]


Turn: TypeAlias = tuple[int, int, float, tuple[int, ...], bool, bool]
"""Number of an operation, that of its stream (0: COMPUTE), when it may begin, for what it waits, whether it is slowed
beside collectives, and whether it computes several layers."""


class Turns(NamedTuple):
    """An order in which a program can be followed where every stream works in order.

    issued:   all operations in the order of issue
    order:    the same, each collective behind the last computation on which it depends, and no later; made once it is
              needed, which is where collectives slow computation down
    computed: computations in order
    own:      collectives, by stream
    shared:   the collectives of each stream of a link, for each link of several
    """

    issued: list[Turn]
    order: list[Turn]
    computed: list[int]
    own: dict[str, list[int]]
    shared: list[list[list[int]]]


@dataclass(slots=True)
class Taken:
    """Bytes of an owner from one place in the order of issue to another; None while that is not known.

    size: bytes or, where the number of ranks counts, a method of the step that knows them, and its arguments
    """

    owner: str
    size: int | tuple[Any, ...]
    since: int
    until: int | None = None


class Layered(NamedTuple):
    """The layers of a program, of which one forward or backward may compute several, one after the other.

    stretch: factor on their times
    added:   () -> seconds by layer that its backward takes in addition, for copies and hooks
    hooks:   number of hooks of each layer, where ``added`` depends on them
    since:   number of the first operation in which backward takes what is ``added``
    share:   seconds per byte of a layer's update, where several of the next forward follow theirs in one operation
    """

    workload: Workload
    stretch: float
    added: Callable[[], Mapping[str, float]] = dict
    hooks: Mapping[str, int] | None = None
    since: int = 0
    share: float = 0

    def parts(self, operation: Operation) -> list[tuple[str, str]]:
        """Kind and layer of what an operation computes, one after the other."""
        if operation.kind != "forward" or not self.share or len(operation.layers) == 1:
            return [(operation.kind, name) for name in operation.layers]
        sized = {layer.name for layer in self.workload.layers if layer.gradient_bytes}
        return [(kind, name) for name in operation.layers for kind in ("update", "forward")[name not in sized :]]

    def seconds(self, packed: bool) -> dict[tuple[str, str], float]:
        """Seconds of each layer by itself, by kind and name; ``packed``: with what is ``added``."""
        found = {("forward", one.name): one.forward_time * self.stretch for one in self.workload.layers}
        found |= {("update", one.name): one.gradient_bytes * self.share for one in self.workload.layers}
        added = self.added() if packed else {}
        return found | {
            ("backward", one.name): one.backward_time * self.stretch + added.get(one.name, 0)
            for one in self.workload.layers
        }


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in the order of issue, the streams that are not plain (width 1, in order), and holds of memory.

    operations: by number
    streams:    by name; one that is not named here is a plain Stream
    moments:    numbers of the operations whose memory is of interest, and what each is called
    holds:      all that is in memory
    works:      of the operations, for ``engine.works``; empty where a program has to be lowered again for other prices
    seconds:    (start-up, transfer) of the operations, where they are not those of the operations themselves
    taken:      memory that is taken and given back in the order of issue
    layers:     the layers of which one operation may compute several; None where each computes one
    """

    operations: tuple[Operation, ...]
    streams: Mapping[str, Stream] = field(default_factory=dict)
    moments: Mapping[int, str] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()
    works: tuple[tuple[Any, ...], ...] = ()
    seconds: tuple[tuple[float, float], ...] = ()
    taken: tuple[Taken, ...] = ()
    layers: Layered | None = None
    _wiring: Wiring | None = field(init=False, default=None, compare=False, repr=False)
    _turns: list[Turns | None] = field(init=False, default_factory=list, compare=False, repr=False)
    _distinct: list[tuple[list[Any], list[int]]] = field(init=False, default_factory=list, compare=False, repr=False)

    @property
    def durations(self) -> Sequence[tuple[float, float]]:
        """(start-up, transfer) of each operation, in seconds."""
        return self.seconds or [(one.startup, one.transfer) for one in self.operations]

    def stream(self, operation: Operation) -> Stream:
        """The stream of ``operation``."""
        return self.streams.get(operation.stream, PLAIN)

    def computes(self, operation: Operation) -> bool:
        """Whether ``operation`` is a computation, not a collective."""
        return operation.stream == COMPUTE or self.stream(operation).between

    def wired(self) -> Wiring:
        """The dependencies, which all timings of a program share."""
        if self._wiring is not None:
            return self._wiring
        found = Wiring([], {}, {}, [], [])
        for number, operation in enumerate(self.operations):
            found.waits.append(len(operation.waits) + (operation.not_before > 0))
            for before in operation.waits:
                found.followers.setdefault(before, []).append(number)
            if operation.stream == COMPUTE:
                found.computed.append(number)
            elif self.stream(operation).between:
                found.between.append(number)
            else:
                found.own.setdefault(operation.stream, []).append(number)
        object.__setattr__(self, "_wiring", found)
        return found

    def turns(self) -> Turns | None:
        """How it can be followed in order; None where an operation may overtake another."""
        if not self._turns:
            self._turns.append(self._in_turn())
        return self._turns[0]

    def _in_turn(self) -> Turns | None:
        if any(one.width > 1 or one.credit is not None or one.between for one in self.streams.values()):
            return None
        own: dict[str, list[int]] = {COMPUTE: []}
        for number, one in enumerate(self.operations):
            if one.waits and max(one.waits) >= number:
                return None
            own.setdefault(one.stream, []).append(number)
        computed = own.pop(COMPUTE)
        links: dict[str, list[list[int]]] = {}
        for stream, numbers in own.items():
            links.setdefault(self.streams.get(stream, PLAIN).link, []).append(numbers)
        lanes = {COMPUTE: 0, **{stream: lane for lane, stream in enumerate(own, 1)}}
        issued = [
            (number, lanes[one.stream], one.not_before, one.waits, one.slowed, len(one.layers) > 1)
            for number, one in enumerate(self.operations)
        ]
        return Turns(issued, [], computed, own, [streams for streams in links.values() if len(streams) > 1])

    def in_time(self, turns: Turns) -> list[Turn]:
        """The operations in the order of ``turns``."""
        if not turns.order:
            levels: list[int] = []  # computations on which an operation depends, itself included
            reached = dict.fromkeys(turns.own, 0)
            behind: list[list[int]] = [[]]  # operations by that
            for number, one in enumerate(self.operations):
                if one.stream == COMPUTE:
                    levels.append(len(behind))
                    behind.append([number])
                    continue
                level = reached[one.stream]
                for before in one.waits:
                    level = max(level, levels[before])
                reached[one.stream] = level
                levels.append(level)
                behind[level].append(number)
            turns.order.extend(turns.issued[number] for numbers in behind for number in numbers)
        return turns.order

    def distinct(self) -> tuple[list[tuple[Any, ...]], list[int]]:
        """The works without repeats, and for each operation the place of its work among them."""
        if not self._distinct:
            places = {work: place for place, work in enumerate(dict.fromkeys(self.works))}
            self._distinct.append((list(places), [places[work] for work in self.works]))
        return self._distinct[0]

    def timed(self, seconds: Sequence[tuple[float, float]], layers: Layered | None) -> Program:
        """The program at other ``durations``; the dependencies, once counted, stay."""
        found = replace(self, seconds=tuple(seconds), layers=layers)
        object.__setattr__(found, "_wiring", self._wiring)
        object.__setattr__(found, "_turns", self._turns)
        object.__setattr__(found, "_distinct", self._distinct)
        return found
