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

from osfmodel.diagnosis.message_times import Roles, all_reduce_bytes, even_times, message_of, messages, tails_of
from osfmodel.diagnosis.scene import RankLane, Scene, SeenStep
from osfmodel.diagnosis.waits import input_waits, of_early_micro_batches, used_map
from osfmodel.entities.timeline import Interval
from osfmodel.entities.trace import Key


def _scene_of_all(ranks: Sequence[SeenStep], left_out: Callable[[SeenStep], Sequence[Interval]]) -> Scene:
    """The scene of all ranks, each without the intervals that ``left_out`` gives."""
    begin = min(rank.step.start for rank in ranks)
    lanes = tuple(rank.lane(left_out(rank), begin, ordered=False) for rank in ranks)
    return Scene(lanes, messages(ranks))


def median_place(works: Sequence[float]) -> int:
    """Index of the rank with the median own work, the lower one of two in the middle."""
    return works.index(median_low(works))


def _scene_of_one(
    rank: SeenStep, times: Mapping[Key, float], left_out: Sequence[Interval], ordered: bool = False
) -> Scene:
    """The scene if every rank were like this one."""
    lane = rank.lane(left_out, rank.step.start, ordered)
    return Scene((lane,), tuple(message_of(one, times[one.key]) for one in rank.sent))


def _piece_by_piece(rank: SeenStep, times: Mapping[Key, float], left_out: Sequence[Interval]) -> Scene:
    """The scene of :func:`_scene_of_one`, with each gradient sent as soon as it is ready, at the same bandwidth.

    Each process group has a network of its own.
    """
    (lane,) = _scene_of_one(rank, times, left_out, ordered=True).lanes
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


def _only_work(seconds: float) -> Scene:
    """The scene of a rank that works for so many seconds and waits for nothing."""
    return Scene((RankLane(0.0, seconds, {}, {}, ()),), ())


def _inputs(rank: SeenStep) -> tuple[Interval, ...]:
    return input_waits(rank.step)


StartupShare = Callable[[int], float]
"""Fraction of a message's time that is start-up, from 0 to 1, by its :func:`all_reduce_bytes`.

It is a part and not a time, since messages of one size differ: extra time of one of them, after a retransmission
or on a busy host, does not depend on bytes.
"""


class Replays:
    """Scenes of a step of ``ranks``, to replay: each from :attr:`traced` on lacks one more cause than the one above it.

    ``usual`` is the rank with the median own work: scenes of a single rank are of this one. Those named ``only_...``
    are :attr:`prompt` without one cause, while the causes that may hide it stay.
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

    @cached_property
    def traced(self) -> Scene:
        """All causes are there."""
        return self.traced_without(lambda rank: ())

    @cached_property
    def input_there(self) -> Scene:
        """No rank waits for its data loader."""
        return self.traced_without(_inputs)

    @cached_property
    def even_exchanges(self) -> Scene:
        """All-to-alls are balanced over the ranks."""
        return _scene_of_all(self.ranks, _inputs).timed(lambda key, _: self._times[key])

    @cached_property
    def equal_ranks(self) -> Scene:
        """Every rank is like the usual one."""
        return _scene_of_one(self.usual, self._times, self._inputs)

    @cached_property
    def prompt(self) -> Scene:
        """A collective starts as soon as its gradients are ready and the network is free."""
        return self.equal_ranks.without_delays()

    @cached_property
    def reduced_once(self) -> Scene:
        """Gradients are reduced in the last micro-batch only."""
        return self.prompt.without(self.early)

    @cached_property
    def not_blocked(self) -> Scene:
        """Collectives of sharded parameters go in the background.

        A group that was gathered ahead is waited for as it is needed, and a reduce-scatter before the next one.
        """
        clock, roles = self.usual.clock(self._inputs), self._roles

        def when(position: float, key: Key) -> float:
            return max(position, clock.at(roles.needed[key])) if key in roles.needed else position

        return self.reduced_once.waiting(when)

    @cached_property
    def two_communicators(self) -> Scene:
        """All-gathers do not wait for reduce-scatters; both share the network.

        The faster one of two scenes: reduce-scatters that all-gathers overtake may keep backward waiting instead.
        """
        return min((self.not_blocked, self._apart(self.not_blocked)), key=lambda scene: scene.duration)

    @cached_property
    def more_inputs(self) -> Scene:
        """Backward waits for no reduce-scatter."""
        return self.two_communicators.not_waiting(self._roles.awaited)

    @cached_property
    def gathered_once(self) -> Scene:
        """Backward gathers no parameters."""
        return self.more_inputs.without(self._roles.again)

    @cached_property
    def gathered_before(self) -> Scene:
        """The first parameters are there when the step begins."""
        return self.gathered_once.without(self._roles.first)

    @cached_property
    def reduced_before(self) -> Scene:
        """The gradients that come last are reduced in no time."""
        return self.gathered_before.without(self._roles.final)

    @cached_property
    def own_networks(self) -> Scene:
        """Each process group has a network of its own."""
        return replace(self.reduced_before, shared=False)

    @cached_property
    def ready_order(self) -> Scene:
        """Buckets are in ready order, without maps of used parameters.

        Only DDP has a setting for that: for traces without DDP nothing changes.
        """
        return self._ordered.without(self._maps)

    @cached_property
    def no_startups(self) -> Scene:
        """Messages have no start-up."""
        return self._ordered.timed(self.of_bytes)

    @cached_property
    def each_gradient(self) -> Scene:
        """Each gradient is sent as soon as it is ready, at the same bandwidth."""
        if self._roles.any:  # whose messages are groups of modules, not of gradients
            return self.no_startups
        times = {key: 0.0 if key in self.early else self.of_bytes(key, self._times[key]) for key in self._sizes}
        return _piece_by_piece(self.usual, times, self._inputs)

    @cached_property
    def no_messages(self) -> Scene:
        """Messages take no time: the usual rank does its own work."""
        return _only_work(self.usual.own_work)

    @cached_property
    def never_idle(self) -> Scene:
        """The device is never idle for reasons that the trace does not show."""
        return _only_work(self.usual.clock([*self._inputs, *self.usual.idle]).at(self.usual.step.end))

    def only_two_communicators(self) -> Scene:
        """All-gathers do not wait for reduce-scatters."""
        return self._apart(self.prompt)

    def only_more_inputs(self) -> Scene:
        """Backward waits for no reduce-scatter, except in a library that blocks: it waits whatever FSDP's limit is."""
        return self.prompt.not_waiting(self._roles.awaited - self._roles.needed.keys())

    def only_gathered_once(self) -> Scene:
        """Backward gathers no parameters."""
        return self.prompt.without(self._roles.again)

    def only_own_networks(self) -> Scene:
        """Each process group has a network of its own."""
        return replace(self.prompt, shared=False)

    def faster_network(self, factor: float) -> Scene:
        """All causes are there, and only the bytes of messages take ``factor`` times less time."""

        def faster(key: Key, seconds: float) -> float:
            of_bytes = self.of_bytes(key, seconds)
            return seconds - of_bytes + of_bytes / factor

        shorter = [{key: seconds / factor for key, seconds in tails.items()} for tails in self._tails]
        return self.traced.timed(faster).with_tails(shorter)

    def traced_without(self, left_out: Callable[[SeenStep], Sequence[Interval]]) -> Scene:
        """All causes are there, but not these intervals of each rank's own work."""
        return _scene_of_all(self.ranks, left_out).with_tails(self._tails)

    @cached_property
    def early(self) -> frozenset[Key]:
        """Messages that reduce gradients before the last micro-batch."""
        return of_early_micro_batches(self.usual.step, self.usual.sent)

    @cached_property
    def gradients(self) -> frozenset[Key]:
        """Messages that reduce gradients, in any micro-batch."""
        reduced = {id(one) for one in self.usual.step.reductions}
        return self.early | {one.key for one in self.usual.sent if id(one.collective) in reduced}

    def of_bytes(self, key: Key, seconds: float) -> float:
        """Seconds of a message without its start-up."""
        if key in self._maps:
            return 0.0
        size = self._sizes.get(key)  # without one nothing tells its start-up from its bytes
        return seconds * (1 - self._share(size)) if size else seconds

    @cached_property
    def _ordered(self) -> Scene:
        found = self.reduced_before
        if not self._roles.any:
            ready = _scene_of_one(self.usual, self._times, self._inputs, ordered=self.ddp)
            found = ready.without_delays().without(self.early)
        return replace(found, shared=False)

    @cached_property
    def _roles(self) -> Roles:
        return Roles(self.usual.step, self.usual.sent, self.usual.waits, self.usual.host_computes)

    def _apart(self, scene: Scene) -> Scene:
        return replace(scene, apart=self._roles.reduced if self._roles.one_communicator else frozenset())
