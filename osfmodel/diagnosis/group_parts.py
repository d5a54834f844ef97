"""Collectives of a job by process group and kind: their time, their bandwidth, and the rank that comes late.

Prices are those of its process group on the cluster that a trace is compared with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from osfmodel.cost.pricing import BROADCAST, Pricing
from osfmodel.diagnosis.explanation import GroupParts, bus_factor
from osfmodel.diagnosis.scene import SeenStep
from osfmodel.diagnosis.waits import LocalClock, Sent
from osfmodel.entities.errors import CostError
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import common, without
from osfmodel.entities.trace import POINT_TO_POINT, Collective, Key, ProcessGroup, RankTrace, Step

PRICED_AS = {
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "all_to_all": "all_gather",
    "broadcast": BROADCAST,
}
"""Collectives with a price, and whose it is: an all-to-all moves as many bytes over each link as an all-gather."""


class ListedGroups:
    """The process groups that a rank's trace lists."""

    def __init__(self, rank: RankTrace, workers: int) -> None:
        self.workers = workers
        self.named = {group.name: group for group in rank.groups}
        self.whole = next((group for group in rank.groups if group.size == workers), None)

    def of(self, one: Collective) -> ProcessGroup:
        """The process group of a collective; the one of all ranks where the trace does not name it."""
        if one.group in self.named:
            return self.named[one.group]
        unnamed = not one.group and (one.workers or self.workers) == self.workers
        return (self.whole if unnamed else None) or ProcessGroup(one.group, size=one.workers)


class GroupPrices:
    """Seconds of collectives within process groups on the cluster to compare with."""

    def __init__(self, pricing: Pricing | None) -> None:
        self.pricing = pricing
        self._between: dict[tuple[int, int], Pricing | None] = {}

    def __call__(self, kind: str, size: int, group: ProcessGroup, workers: int) -> float | None:
        """Seconds of a collective into which each of ``workers`` puts ``size`` bytes; None if it has no price."""
        pricing = self._of(group, workers)
        if pricing is None or kind not in PRICED_AS:
            return None
        whole = size * workers if kind == "all_gather" else size
        return float(pricing.cost(PRICED_AS[kind])(whole)) or None

    def _of(self, group: ProcessGroup, workers: int) -> Pricing | None:
        if self.pricing is None or workers == self.pricing.workers:
            return self.pricing
        steps = {after - before for before, after in zip(group.ranks, group.ranks[1:], strict=False)}
        if len(steps) != 1:
            return None  # which ranks are in it is not known, or they are not evenly apart
        place = (workers, steps.pop())
        if place not in self._between:
            try:
                self._between[place] = self.pricing.between(*place)
            except CostError:
                self._between[place] = None
        return self._between[place]


PASSES = ("forward", "backward", "update", "computation")
"""Passes of a step in which the device computes; computation where the trace does not tell them apart."""
SHARE = 0.5
"""Fraction of the skew that one rank causes, from which on it is named as the late one."""
WORTH_NAMING = 0.01
"""Fraction of a step for which ranks wait in the collectives of a row, from which on a late one is named."""


class _GroupKey(NamedTuple):
    """Process groups that belong together: their description or name, and their ranks each."""

    label: str
    size: int | None


class _Sized(NamedTuple):
    """A collective of known size: bytes over each link, seconds of network time on each rank, and its price."""

    carried: float
    wires: list[float]
    price: float | None

    @property
    def wire(self) -> float:
        """Seconds of network time, the mean over the ranks."""
        return fmean(self.wires)


@dataclass(slots=True)
class _Sums:
    """Sums over the collectives of one kind in groups that belong together, of all their ranks and steps."""

    members: set[ProcessGroup] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    count: int = 0
    bytes: int | None = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    waiting_known: bool = True
    sized: dict[Key, _Sized] = field(default_factory=dict)


def group_parts(
    steps: Sequence[Sequence[SeenStep]], ranks: Sequence[RankTrace], workers: int, prices: GroupPrices
) -> tuple[GroupParts, ...]:
    """Every collective of every process group, summed by group and kind; means over steps and ranks.

    Groups of one description and size are one row, such as all of tensor parallelism. ``steps``: each as the ranks
    saw it; ``prices``: of the cluster to compare with.
    """
    found: dict[tuple[_GroupKey, str, bool | None], _Sums] = {}
    late: dict[Hashable, _Late] = defaultdict(_Late)
    listed = [ListedGroups(rank, workers) for rank in ranks]
    for seen in steps:
        names = {}
        for rank, groups, one in zip(ranks, listed, seen, strict=True):
            for sent, parts in _of_rank(one):
                group = groups.of(sent.collective)
                place = (_GroupKey(group.description or group.name, group.size), sent.collective.kind, _pass(sent))
                names[sent.key] = place
                _add(found.setdefault(place, _Sums()), rank.rank, group, sent, parts, prices)
        for key, starts in _starts(ranks, seen).items():
            late[names[key]].add(starts)
    time = plain_sum(one.step.time for seen in steps for one in seen) / (len(steps) * len(ranks))
    return tuple(_row(place, sums, late[place], len(steps), time) for place, sums in found.items())


def _pass(sent: Sent) -> bool | None:
    """Whether an all-gather of sharded parameters was issued in backward; None for other collectives."""
    one = sent.collective
    return one.shard.backward if one.shard is not None and one.kind == "all_gather" else None


def _of_rank(one: SeenStep) -> Iterable[tuple[Sent, Mapping[str, float]]]:
    """The collectives that a rank sent in a step, with their seconds by part, and by the pass that hid them."""
    own, passes = one.clock(()), _passes(one.step)
    for sent in one.sent:
        begin, end = sent.collective.moved_from, sent.collective.end
        hidden = min(end - begin, own.at(end) - own.at(begin))
        parts = {"transfer": end - begin, "hidden": hidden, "exposed": end - begin - hidden}
        yield sent, parts | {name: clock.at(end) - clock.at(begin) for name, clock in passes.items()}


def _passes(step: Step) -> dict[str, LocalClock]:
    """A clock for each pass, which goes while the device computes in it."""
    spans = {"forward": step.forward, "backward": step.backward, "update": step.update}
    if not any(spans.values()):
        spans = {"computation": (step.start, step.end)}
    whole = [(step.start, step.end)]
    return {
        name: LocalClock(step.start, without(whole, common(step.compute, [span])))
        for name, span in spans.items()
        if span is not None
    }


def _add(
    sums: _Sums, rank: int, group: ProcessGroup, sent: Sent, parts: Mapping[str, float], priced: GroupPrices
) -> None:
    one = sent.collective
    sums.members.add(group)
    sums.ranks.add(rank)
    sums.count += 1
    sums.bytes = None if sums.bytes is None or one.bytes is None else sums.bytes + one.bytes
    sums.waiting_known &= one.waiting is not None
    for name, seconds in (*parts.items(), ("waiting", one.waiting or 0.0)):
        sums.seconds[name] += seconds
    workers = one.workers or group.size
    if one.bytes and workers and sent.wire > 0:
        if sent.key not in sums.sized:
            price = priced(one.kind, one.bytes, group, workers)
            sums.sized[sent.key] = _Sized(one.bytes * bus_factor(one.kind, workers), [], price)
        sums.sized[sent.key].wires.append(sent.wire)


def _starts(ranks: Sequence[RankTrace], seen: Sequence[SeenStep]) -> dict[Key, dict[int, float]]:
    """When each rank started each collective that all of its ranks are known to have joined."""
    starts: dict[Key, dict[int, float]] = {}
    for rank, one in zip(ranks, seen, strict=True):
        for sent in one.sent:
            if sent.collective.arrival is not None and sent.collective.kind not in POINT_TO_POINT:
                starts.setdefault(sent.key, {})[rank.rank] = sent.collective.start
    return {key: of_ranks for key, of_ranks in starts.items() if len(of_ranks) > 1}


class _Late:
    """Seconds between the first and the last rank's start of collectives, by the rank that came last."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds: dict[int, float] = defaultdict(float)

    def add(self, starts: Mapping[int, float]) -> None:
        """Count a collective that the ranks started at these times."""
        last = max(starts, key=starts.__getitem__)
        self.count += 1
        self.seconds[last] += starts[last] - min(starts.values())

    @property
    def skew(self) -> float | None:
        """Mean seconds between the first and the last start; None if not known."""
        return plain_sum(self.seconds.values()) / self.count if self.count else None

    @property
    def rank(self) -> tuple[int | None, float]:
        """The rank that comes late, and its part of the skew; (None, 0) if no rank causes SHARE of it."""
        whole = plain_sum(self.seconds.values())
        if not whole:
            return None, 0.0
        rank, seconds = max(self.seconds.items(), key=lambda pair: pair[1])
        return (rank, seconds / whole) if seconds >= SHARE * whole else (None, 0.0)


def _row(place: tuple[_GroupKey, str, bool | None], sums: _Sums, late: _Late, steps: int, time: float) -> GroupParts:
    (label, size), kind, backward = place
    each = steps * len(sums.ranks)
    means = {name: seconds / each for name, seconds in sums.seconds.items()}
    hiding = {name: means.get(name, 0.0) for name in PASSES}
    most = max(hiding, key=hiding.__getitem__)
    sized = list(sums.sized.values())
    prices = [(one.carried, one.price) for one in sized if one.price is not None]
    waiting = means["waiting"] if sums.waiting_known else None
    rank, share = late.rank if waiting is not None and waiting >= WORTH_NAMING * time else (None, 0.0)
    members = next(iter(sums.members)).ranks if len(sums.members) == 1 else ()
    return GroupParts(
        label,
        len(sums.members),
        size,
        members,
        kind,
        backward,
        sums.count / each,
        None if sums.bytes is None else sums.bytes / each,
        waiting,
        means["transfer"],
        None if sums.bytes is None else _rate([(one.carried, one.wire) for one in sized]),
        max((one.carried / one.wire for one in sized), default=None),
        _rate(prices) if len(prices) == len(sized) else None,
        means["hidden"],
        most if hiding[most] > 0 else "",
        means["exposed"],
        late.skew,
        rank,
        share,
    )


def _rate(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Bytes per second of (bytes, seconds) in all; None without any."""
    seconds = plain_sum(seconds for _, seconds in pairs)
    return plain_sum(carried for carried, _ in pairs) / seconds if seconds else None
