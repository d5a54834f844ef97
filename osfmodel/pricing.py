"""What communication costs a given number of workers: the cost of each collective, and what several in flight get.

Two parts of one collective (:func:`split`): a start-up, in which nothing is sent, and a transfer. Start-ups of several
collectives run side by side; their transfers share the wires. One flow alone may not fill these: n flows together go

    X(n) = g (1 - (1 - 1/g)^n)

times as fast as one, X(1) = 1, towards g for many: each new flow takes what the others leave, and g, the *gain* of
simultaneity, is measured. With g = 1 one flow fills the wires, and several only hide start-ups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from osfmodel.cluster import Cluster
from osfmodel.cost import COST_MODELS, AffineCost, Cost, cost_of
from osfmodel.effects import NO_EFFECTS, Effects
from osfmodel.errors import CostError


@dataclass(frozen=True, slots=True)
class Pricing:
    """costs:   collective -> seconds of a message, for the ``workers`` at hand
    gain:    X(n) for many flows, 1 or more
    effects: of a real run, apart from what is in the costs
    uncertainty: relative error that prices of this model had on tables held out; 0 where they are measured or stated
    """

    costs: Mapping[str, Cost]
    workers: int = 1
    gain: float = 1
    effects: Effects = field(default=NO_EFFECTS)
    uncertainty: float = 0

    def __post_init__(self) -> None:
        if not self.gain >= 1:
            raise CostError(f"the gain of simultaneous collectives is {self.gain!r}: it must be 1 or more")

    @staticmethod
    def of(cost: Cost, effects: Effects = NO_EFFECTS, workers: int = 1) -> Pricing:
        """An all-reduce of that cost, of which reduce-scatter and all-gather are half each."""
        half = cost.slower(0.5)
        return Pricing({"all_reduce": cost, "reduce_scatter": half, "all_gather": half}, workers, effects=effects)

    def slower(self, factor: float) -> Pricing:
        """The same on a network that takes ``factor`` times as long."""
        return replace(self, costs={kind: cost.slower(factor) for kind, cost in self.costs.items()})

    def cost(self, collective: str = "all_reduce") -> Cost:
        """Seconds of a message. Raises CostError where that collective has no price here."""
        if collective not in self.costs:
            raise CostError(f"no price for {collective}: known are {', '.join(self.costs)}")
        return self.costs[collective]

    def split(self, collective: str, size: int) -> tuple[float, float]:
        """(start-up, transfer) of a message: what a vanishing message on the same line costs, and the rest.

        Of a minimum of lines, the line that is cheapest at ``size``; of a table, the least time at or below it.
        """
        cost = self.cost(collective)
        whole: float = cost(size)
        if isinstance(cost, AffineCost):
            startup, _ = min(cost.pieces, key=lambda piece: piece[0] + piece[1] * size)
        else:
            startup = min(
                whole, *[time for knot, time in zip(cost.sizes, cost.times, strict=True) if knot <= size], cost.times[0]
            )
        return startup, whole - startup

    def share(self, flows: int) -> float:
        """The speed of each of ``flows`` transfers, as a part of that of one alone: X(n) / n."""
        if flows < 2:
            return 1
        return self.together(flows) / flows

    def together(self, flows: int) -> float:
        """X(n): how many times as fast as one alone ``flows`` transfers go together."""
        return self.gain * (1 - (1 - 1 / self.gain) ** flows) if flows > 1 else 1


def pricing_of(cluster: Cluster, workers: int) -> Pricing:
    """Everything that ``workers`` workers of ``cluster`` pay.

    The launch latency becomes part of every cost, so that solvers and bounds see it; one worker alone does not pay it.

    Where reduce-scatter or all-gather has no price of its own it is half of an all-reduce. The gain of several in
    flight is that of the nearest worker count for which one was measured, 1 where none was. Raises as ``cost_of``.
    """
    whole = cost_of(cluster, workers)
    costs = {"all_reduce": whole}
    for half in ("reduce_scatter", "all_gather"):
        try:
            costs[half] = cost_of(cluster, workers, half)
        except CostError:
            costs[half] = whole.slower(0.5)
    stated = cluster.effects
    if stated.launch_latency and workers > 1:
        costs = {kind: cost.plus(stated.launch_latency) for kind, cost in costs.items()}
    measured = sorted(cluster.contention, key=lambda row: (abs(row.workers - workers), row.workers))
    gain = measured[0].gain if measured else 1
    return Pricing(costs, workers, gain, stated.apart_from_cost, COST_MODELS[cluster.cost_model].uncertainty)
