"""The network time of each message of a step, from what all ranks saw of it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from osfmodel.diagnosis.explanation import bus_factor
from osfmodel.diagnosis.scene import SceneMessage, SeenStep
from osfmodel.diagnosis.waits import Sent
from osfmodel.entities.trace import Collective, Key

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
