"""The messages of a step: the network time of each, from what all ranks saw, and the part that sharded ones play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from statistics import fmean

from osfmodel.diagnosis.explanation import bus_factor
from osfmodel.diagnosis.scene import SceneMessage, SeenStep
from osfmodel.diagnosis.waits import GRAIN, Sent, Wait
from osfmodel.entities.trace import ROOTS, Collective, Key, Sharded, Step

UNEVEN = "all_to_all"
"""The kind of collectives in which ranks may send and get different numbers of bytes."""


def messages(ranks: Sequence[SeenStep]) -> tuple[SceneMessage, ...]:
    """The messages in the order of their last starts; network time is the mean over the ranks once all have joined.

    Where it is not known when they had, the least on any rank, since others may still have been waiting; so of
    all-to-alls, which end rank by rank.
    """
    times: dict[Key, list[float]] = {}
    order: dict[Key, float] = {}
    least: set[Key] = set()
    groups: dict[Key, str] = {}
    for one in (one for rank in ranks for one in rank.sent):
        groups[one.key] = one.collective.group
        times.setdefault(one.key, []).append(one.wire)
        order[one.key] = max(one.collective.start, order.get(one.key, 0.0))
        if one.collective.arrival is None or one.collective.kind == UNEVEN:
            least.add(one.key)
    found = {key: min(of_ranks) if key in least else fmean(of_ranks) for key, of_ranks in times.items()}
    return tuple(SceneMessage(key, found[key], groups[key]) for key in sorted(order, key=order.__getitem__))


def message_of(one: Sent, seconds: float) -> SceneMessage:
    """A collective of one rank as a message of ``seconds``."""
    return SceneMessage(one.key, seconds, one.collective.group)


def tails_of(ranks: Sequence[SeenStep]) -> list[dict[Key, float]]:
    """For each rank, seconds by which its all-to-alls end later than on the first rank that ends them.

    A rank is through once it has what others send to it, which may be more than others get.
    """
    found = [
        {
            one.key: one.collective.end
            for one in rank.sent
            if one.collective.kind == UNEVEN and one.collective.arrival is not None
        }
        for rank in ranks
    ]
    first: dict[Key, float] = {}
    for ends in found:
        for key, end in ends.items():
            first[key] = min(end, first.get(key, end))
    return [{key: end - first[key] for key, end in ends.items()} for ends in found]


def even_times(ranks: Sequence[SeenStep]) -> dict[Key, float]:
    """Network time of each message; of an all-to-all, if every rank sent and got as many bytes as in the mean.

    Where the trace says how much each rank gets, that is in proportion to the most that any sends or gets; else it is
    the mean over the ranks, each of which ends when it has what others send to it.
    """
    tails: dict[Key, list[float]] = {}
    loads: dict[Key, list[tuple[int, int] | None]] = {}
    for rank, of_rank in zip(ranks, tails_of(ranks), strict=True):
        for key, seconds in of_rank.items():
            tails.setdefault(key, []).append(seconds)
        for one in rank.sent:
            if one.key in of_rank:
                loads.setdefault(one.key, []).append(_load(one.collective))
    times = {one.key: one.seconds for one in messages(ranks)}
    for key, later in tails.items():
        known = [load for load in loads[key] if load is not None]
        most = max((max(load) for load in known), default=0)
        if len(known) == len(ranks) and most:
            times[key] = (times[key] + max(later)) * fmean(sent for sent, _ in known) / most
        else:
            times[key] += fmean(later)
    return times


def _load(one: Collective) -> tuple[int, int] | None:
    """Elements that a rank sends and gets in an all-to-all; None if the trace does not say."""
    return None if one.elements is None or one.received is None else (one.elements, one.received)


def all_reduce_bytes(one: Collective) -> int:
    """Bytes of an all-reduce between the same ranks that carries as much over each link; 0 if the size is not known.

    So that start-ups of kinds are compared: an all-gather carries half as much as an all-reduce of the whole vector.
    """
    ranks = one.workers or 2
    return round((one.bytes or 0) * bus_factor(one.kind, ranks) / bus_factor("all_reduce", ranks)) if ranks > 1 else 0


class Roles:
    """The sharded collectives of a step, by key: which gather again, come first or last, or are waited for.

    ``on_host``: whether the thread that computes also launches them, and so may wait for each at once.
    """

    def __init__(self, step: Step, sent: Sequence[Sent], waits: Sequence[Wait], on_host: bool) -> None:
        self.step, self.waits, self.on_host = step, waits, on_host
        self.shards: list[tuple[Sent, Sharded]] = [(one, one.collective.shard) for one in sent if one.collective.shard]
        self.keys = {id(one.collective): one.key for one in sent}

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.shards)

    @cached_property
    def again(self) -> frozenset[Key]:
        """All-gathers of backward."""
        return frozenset(
            one.key for one, shard in self.shards if one.collective.kind == "all_gather" and shard.backward
        )

    @cached_property
    def reduced(self) -> frozenset[Key]:
        """Reduce-scatters, and all-reduces of shards."""
        return frozenset(one.key for one, _ in self.shards if one.collective.kind != "all_gather")

    @cached_property
    def first(self) -> frozenset[Key]:
        """All-gathers of forward up to that of the first block."""
        found = []
        for one, shard in self.shards:
            if shard.backward or one.collective.kind != "all_gather":
                break
            found.append(one.key)
            if shard.module not in ROOTS:
                break
        return frozenset(found[:2])

    @cached_property
    def final(self) -> frozenset[Key]:
        """Reduce-scatters and all-reduces of the last block of backward, and of what comes when backward is over."""
        reduced = [(one, shard) for one, shard in self.shards if one.key in self.reduced]
        if not reduced:
            return frozenset()
        blocks = [shard.module for _, shard in reduced if not shard.last]
        last_block = blocks[-1] if blocks else reduced[-1][1].module
        found = {one.key for one, shard in reduced if shard.last}
        for kind in ("reduce_scatter", "all_reduce"):
            mine = [one.key for one, shard in reduced if (shard.module, one.collective.kind) == (last_block, kind)]
            found.update(mine[-1:])  # of its last micro-batch
        return frozenset(found)

    @cached_property
    def awaited(self) -> frozenset[Key]:
        """Reduce-scatters that backward waits for before it goes on. FSDP1 has no limit, and waits for none."""
        end = max((use.start for use in self.step.uses if use.backward), default=self.step.start)
        held = [
            wait.collective
            for wait in self.waits
            if wait.collective.shard
            and not wait.collective.shard.flat
            and wait.collective.kind == "reduce_scatter"
            and wait.start < end
        ]
        return frozenset(self.keys[id(one)] for one in held)

    @cached_property
    def one_communicator(self) -> bool:
        """Whether all-gathers and reduce-scatters go through one process group."""
        groups = [
            {one.collective.group for one, _ in self.shards if one.collective.kind == kind}
            for kind in ("all_gather", "reduce_scatter")
        ]
        return bool(groups[0] & groups[1])

    @cached_property
    def needed(self) -> Mapping[Key, float]:
        """Time at which each collective that the host waited for at once is needed, if it went in the background."""
        found = {}
        scatters = [one for one, _ in self.shards if one.collective.kind == "reduce_scatter"]
        following = {one.key: later.collective.start for one, later in pairwise(scatters)}
        for one, shard in self.shards:
            if not self._blocks(one):
                continue
            if one.collective.kind == "all_gather" and shard.by != shard.module:
                uses = [
                    use.start for use in self.step.uses if (use.module, use.backward) == (shard.module, shard.backward)
                ]
                found[one.key] = min(
                    (time for time in uses if time >= one.collective.start), default=one.collective.start
                )
            elif one.collective.kind == "reduce_scatter":
                found[one.key] = following.get(one.key, one.collective.end)
            elif one.collective.kind == "all_reduce":
                found[one.key] = self.step.backward[1] if self.step.backward else one.collective.end
        return found

    def _blocks(self, one: Sent) -> bool:
        """Whether the step waited for a collective from the moment in which it was issued."""
        if not self.on_host:
            return False
        issued = one.collective.start if one.collective.issued is None else one.collective.issued
        return any(wait.collective is one.collective and wait.start <= issued + GRAIN for wait in self.waits)
