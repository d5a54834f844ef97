"""Replay a traced step with some of its parts left out, to see how long it would have taken.

Each rank does its own work in the order of the trace and waits for collectives where it waited then. A collective
starts when all ranks have reached it and those before it in its process group have ended, and takes as long as it had
the network in the trace; groups whose collectives are in flight at once share the network. Parts can be left out of
each rank's own work (its data loader, its idleness), of messages (their start-ups, their bytes), or of the delays
before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from statistics import median_low

from osfmodel.diagnosis.message_times import all_reduce_bytes, even_times, message_of, messages, tails_of
from osfmodel.diagnosis.scene import Scene
from osfmodel.diagnosis.seen_step import SeenStep
from osfmodel.diagnosis.sharding import Roles
from osfmodel.diagnosis.waits import input_waits, of_early_micro_batches, used_map
from osfmodel.entities.intervals import Interval
from osfmodel.entities.trace import Key


def scene(ranks: Sequence[SeenStep], left_out: Callable[[SeenStep], Sequence[Interval]]) -> Scene:
    """The scene of all ranks, each without the intervals that ``left_out`` gives."""
    begin = min(rank.step.start for rank in ranks)
    lanes = tuple(rank.lane(left_out(rank), begin, ordered=False) for rank in ranks)
    return Scene(lanes, messages(ranks))


def median_place(works: Sequence[float]) -> int:
    """Index of the rank with the median own work, the lower one of two in the middle."""
    return works.index(median_low(works))


def alone(rank: SeenStep, times: Mapping[Key, float], left_out: Sequence[Interval], ordered: bool = False) -> Scene:
    """The scene if every rank were like this one."""
    lane = rank.lane(left_out, rank.step.start, ordered)
    return Scene((lane,), tuple(message_of(one, times[one.key]) for one in rank.sent))


def flowing(rank: SeenStep, times: Mapping[Key, float], left_out: Sequence[Interval]) -> Scene:
    """The scene of :func:`alone`, with each gradient sent by itself once it is ready, at the same time per byte.

    Each process group has a network of its own.
    """
    (lane,) = alone(rank, times, left_out, ordered=True).lanes
    clock = rank.clock(left_out)
    pieces = [
        (clock.at(time), one, (*one.key, place), times[one.key] * part)
        for one in rank.sent
        for place, (time, part) in enumerate(one.pieces)
    ]
    pieces.sort(key=itemgetter(0))
    ready = {piece: time for time, _, piece, _ in pieces}
    stands_for = {one.key: piece for _, one, piece, _ in pieces}  # the last of them
    sends = [message_of(one, seconds)._replace(key=piece) for _, one, piece, seconds in pieces]
    waiting = tuple((position, stands_for[key]) for position, key in lane.waits)
    return Scene((replace(lane, ready=ready, delays={}, waits=waiting),), tuple(sends), shared=False)


def _inputs(rank: SeenStep) -> tuple[Interval, ...]:
    return input_waits(rank.step)


StartupShare = Callable[[int], float]
"""Fraction of a message's time that is start-up, from 0 to 1, by its :func:`all_reduce_bytes`.

It is a part and not a time, since messages of one size differ: extra time of one of them, after a retransmission
or on a busy host, does not depend on bytes.
"""


class Replays:
    """Replays of a step of ``ranks``; each method removes one more cause than the one above it. Times in seconds.

    ``usual`` is the rank with the median own work: replays of a single rank are of this one.
    """

    def __init__(self, ranks: Sequence[SeenStep], share: StartupShare) -> None:
        self.ranks = ranks
        self.usual = ranks[median_place([rank.own_work for rank in ranks])]
        self._share = share
        self.ddp = any(rank.step.ddp for rank in ranks)
        self._inputs = input_waits(self.usual.step)
        self._tails = tails_of(ranks)
        self._times = even_times(ranks)
        self._sizes = {one.key: all_reduce_bytes(one.collective) for one in self.usual.sent}
        self._maps = {one.key for one in self.usual.sent if used_map(one.collective.kind, one.collective.dtype)}

    def as_traced(self) -> float:
        """Seconds with all causes."""
        return self.traced.duration

    @cached_property
    def traced(self) -> Scene:
        """The scene with all causes."""
        return self.traced_without(lambda rank: ())

    @cached_property
    def gradients(self) -> frozenset[Key]:
        """Messages that reduce gradients, in any micro-batch."""
        reduced = {id(one) for one in self.usual.step.reductions}
        return self.early | {one.key for one in self.usual.sent if id(one.collective) in reduced}

    def on_faster_network(self, factor: float) -> float:
        """Seconds with all causes, if only the bytes of messages took ``factor`` times less time."""

        def faster(key: Key, seconds: float) -> float:
            of_bytes = self.of_bytes(key, seconds)
            return seconds - of_bytes + of_bytes / factor

        shorter = [{key: seconds / factor for key, seconds in tails.items()} for tails in self._tails]
        return self.traced.timed(faster).with_tails(shorter).duration

    def with_input_there(self) -> float:
        """Seconds if no rank waited for its data loader."""
        return self.traced_without(_inputs).duration

    def of_even_exchanges(self) -> float:
        """Seconds if, in addition, every rank got as many bytes in an all-to-all as in the mean of the ranks."""
        return scene(self.ranks, _inputs).timed(lambda key, _: self._times[key]).duration

    def of_equal_ranks(self) -> float:
        """Seconds if, in addition, every rank were like the usual one."""
        return alone(self.usual, self._times, self._inputs).duration

    def prompt(self) -> float:
        """Seconds if, in addition, a collective started as soon as its gradients are ready and the network is free."""
        return self._prompt.duration

    def reduced_once(self) -> float:
        """Seconds if, in addition, gradients were reduced in the last micro-batch only."""
        return self._once.duration

    def not_blocked(self) -> float:
        """Seconds if, in addition, collectives of sharded parameters went in the background.

        A group that was gathered ahead is waited for as it is needed, and a reduce-scatter before the next one.
        """
        return self._background.duration

    def of_two_communicators(self) -> float:
        """Seconds if, in addition, all-gathers did not wait for reduce-scatters; both share the network."""
        return self._two_communicators.duration

    def with_more_inputs(self) -> float:
        """Seconds if, in addition, backward waited for no reduce-scatter."""
        return self._unhindered.duration

    def gathered_once(self) -> float:
        """Seconds if, in addition, backward gathered no parameters."""
        return self._gathered_once.duration

    def gathered_before(self) -> float:
        """Seconds if, in addition, the first parameters were there when the step begins."""
        return self._gathered_before.duration

    def reduced_before(self) -> float:
        """Seconds if, in addition, the gradients that come last were reduced in no time."""
        return self._shards.duration

    def of_own_networks(self) -> float:
        """Seconds if, in addition, each process group had a network of its own."""
        return replace(self._shards, shared=False).duration

    @property
    def alone(self) -> Mapping[str, float]:
        """Seconds that removing one of these causes saves if the others stay."""
        scene, roles = self._prompt, self._roles
        awaited = roles.awaited - roles.needed.keys()  # a library that blocks waits whatever FSDP's limit is
        changed = {
            "one-communicator": self._apart(scene),
            "reduce-scatter-input": scene.waiting(lambda at, key: None if key in awaited else at),
            "gathered-twice": scene.without(roles.again),
            "shared-network": replace(scene, shared=False),
        }
        return {name: scene.duration - other.duration for name, other in changed.items()}

    def in_ready_order(self) -> float:
        """Seconds if, in addition, buckets were in ready order, without maps of used parameters.

        Only DDP has a setting for that: for traces without DDP nothing changes.
        """
        return self._ordered.timed(lambda key, seconds: 0.0 if key in self._maps else seconds).duration

    def without_startups(self) -> float:
        """Seconds if, in addition, messages had no start-up."""
        return self._ordered.timed(self.of_bytes).duration

    def flowing(self) -> float:
        """Seconds if, in addition, every gradient were sent by itself as soon as it is ready."""
        if self._roles.any:  # whose messages are groups of modules, not of gradients
            return self.without_startups()
        times = {key: 0.0 if key in self.early else self.of_bytes(key, self._times[key]) for key in self._sizes}
        return flowing(self.usual, times, self._inputs).duration

    def without_messages(self) -> float:
        """Seconds if, in addition, messages took no time: the usual rank's own work."""
        return self.usual.own_work

    def never_idle(self) -> float:
        """Seconds if, in addition, the device were never idle for reasons that the trace does not show."""
        return self.usual.clock([*self._inputs, *self.usual.idle]).at(self.usual.step.end)

    def traced_without(self, left_out: Callable[[SeenStep], Sequence[Interval]]) -> Scene:
        """The scene with all causes, without these intervals of each rank's own work."""
        return scene(self.ranks, left_out).with_tails(self._tails)

    @cached_property
    def _ordered(self) -> Scene:
        found = self._shards
        if not self._roles.any:
            found = alone(self.usual, self._times, self._inputs, ordered=self.ddp).prompt().without(self.early)
        return replace(found, shared=False)

    @cached_property
    def _prompt(self) -> Scene:
        return alone(self.usual, self._times, self._inputs).prompt()

    @cached_property
    def _once(self) -> Scene:
        return self._prompt.without(self.early)

    @cached_property
    def early(self) -> frozenset[Key]:
        """Messages that reduce gradients before the last micro-batch."""
        return of_early_micro_batches(self.usual.step, self.usual.sent)

    @cached_property
    def _roles(self) -> Roles:
        return Roles(self.usual.step, self.usual.sent, self.usual.waits, self.usual.host_computes)

    @cached_property
    def _background(self) -> Scene:
        clock, roles = self.usual.clock(self._inputs), self._roles

        def when(position: float, key: Key) -> float:
            return max(position, clock.at(roles.needed[key])) if key in roles.needed else position

        return self._once.waiting(when)

    @cached_property
    def _two_communicators(self) -> Scene:
        """The faster one of two scenes: reduce-scatters that all-gathers overtake may keep backward waiting instead."""
        return min((self._background, self._apart(self._background)), key=lambda scene: scene.duration)

    def _apart(self, scene: Scene) -> Scene:
        return replace(scene, apart=self._roles.reduced if self._roles.one_communicator else frozenset())

    @cached_property
    def _unhindered(self) -> Scene:
        awaited = self._roles.awaited
        return self._two_communicators.waiting(lambda position, key: None if key in awaited else position)

    @cached_property
    def _gathered_once(self) -> Scene:
        return self._unhindered.without(self._roles.again)

    @cached_property
    def _gathered_before(self) -> Scene:
        return self._gathered_once.without(self._roles.first)

    @cached_property
    def _shards(self) -> Scene:
        return self._gathered_before.without(self._roles.final)

    def of_bytes(self, key: Key, seconds: float) -> float:
        """Seconds of a message without its start-up."""
        if key in self._maps:
            return 0.0
        size = self._sizes.get(key)  # without one nothing tells its start-up from its bytes
        return seconds * (1 - self._share(size)) if size else seconds
