"""The process group of a collective, and its price there on the cluster that a trace is compared with."""

from __future__ import annotations

from osfmodel.cost.pricing import BROADCAST, Pricing
from osfmodel.entities.errors import CostError
from osfmodel.entities.trace import Collective, ProcessGroup, RankTrace

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
