"""Forward whose all-gathers are issued one ahead: that of a bucket as forward waits for the one before it.

Buckets are gathered in the order in which forward needs them, the first layer of each. In front of that layer compute
waits for the all-gather of the bucket; as it gets there, the all-gather of the next bucket is issued, which goes after
all that compute has been given so far.
"""

from __future__ import annotations

from itertools import pairwise

from osfmodel.engine.strategies.lowering import Lowering
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Plan


class GatheringStep(Lowering):
    """A program under construction, with one all-gather for each bucket."""

    def padded_bytes(self, number: int, kind: str) -> int:
        """Bytes of the collective ``kind`` of a bucket; those of its gradients, unless they are padded."""
        return self.plan.buckets[number].size

    def arrived(self, number: int, gathered: int) -> tuple[int, ...]:
        """Add the computations that follow the all-gather ``gathered`` of a bucket: their numbers; none here."""
        return ()

    def gathering_forward(self, computed: tuple[int, ...]) -> None:
        """Add all-gathers and forward behind ``computed``, the last computation; none at the start of a program."""
        order, needed = self._needed()
        following = dict(pairwise(order))
        last = self._gather(order[0], computed) if order else -1
        for place, layer in enumerate(self.workload.layers):
            waits: tuple[int, ...] = ()
            for number in needed.get(place, ()):
                gathered = last
                waits = (*waits, gathered)
                if number in following:
                    last = self._gather(following[number], (gathered, *computed))
                computed = self.arrived(number, gathered) or computed
            computed = (self.add(self._forward([layer], waits)),)

    def scatter(self, number: int) -> int:
        """Add the reduce-scatter of a bucket, and return its number."""
        return self.send(number, "reduce_scatter", size=self.padded_bytes(number, "reduce_scatter"))

    def _gather(self, number: int, waits: tuple[int, ...]) -> int:
        return self.send(number, "all_gather", waits, self.padded_bytes(number, "all_gather"))

    def _needed(self) -> tuple[list[int], dict[int, list[int]]]:
        """Buckets in the order in which forward needs them, and those that it needs at each place."""
        places = {layer.name: place for place, layer in enumerate(self.workload.layers)}
        first = [min(places[block.layer] for block in bucket.blocks) for bucket in self.plan.buckets]
        order = sorted(range(len(first)), key=first.__getitem__)
        needed: dict[int, list[int]] = {}
        for number in order:
            needed.setdefault(first[number], []).append(number)
        return order, needed


def require_only(plan: Plan, *names: str) -> None:
    """Raise PlanError if the plan wants what its strategy does not do; ``names`` are fields of a plan that it does."""
    others = [words for name, words in plan.wants.items() if name not in ("strategy", "channels", "recompute", *names)]
    if others:
        raise PlanError(f"the strategy {plan.strategy} does not go with {', '.join(others)}")
