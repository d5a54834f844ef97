"""Prices of communication between a number of workers: the cost of each collective, alone and with others in flight.

Two parts of one collective (:meth:`Pricing.split`): a start-up, in which nothing is sent, and a transfer. Start-ups of
several collectives run side by side; their transfers share the network as follows.

One flow alone may not fill the network: n flows together go

    X(n) = g (1 - (1 - 1/g)^n)

times as fast as one, X(1) = 1, towards g for many: each new flow takes the same part, 1/g, of what the others leave. g,
the *gain* of simultaneity, is measured. With g = 1 one flow fills the network, and several only hide start-ups. X
rises, and X(n)/n falls with n.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from operator import methodcaller
from typing import TypeAlias

import numpy as np

from osfmodel.cost.shapes import FREE, AffineCost, Cost, TableCost
from osfmodel.entities.batches import lengthened
from osfmodel.entities.display import brief, how_many, show_time
from osfmodel.entities.effects import NO_EFFECTS, REPLAYED_ON_CPU, Effects
from osfmodel.entities.errors import CostError, require_count
from osfmodel.entities.executors import DEEPSPEED, EXECUTORS, FSDP, MEGATRON, RUNTIME, ExecutorRow, executor_of
from osfmodel.entities.lookup import require
from osfmodel.entities.modules import DISTRIBUTED_OPTIMIZER, FLAT_SHARDED, OWNERS, SHARDED, ZERO, ZERO_3
from osfmodel.entities.plan import Objective, Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload

STRATEGY_EXECUTORS: Mapping[str, ExecutorRow] = {
    **dict.fromkeys((*SHARDED, FLAT_SHARDED), FSDP),
    **dict.fromkeys((*ZERO, OWNERS, ZERO_3), DEEPSPEED),
    DISTRIBUTED_OPTIMIZER: MEGATRON,
}
"""Executors of the strategies that a framework has; plans of others are osf.execute's."""
BROADCAST = "broadcast"
"""A collective that only some strategies use: one rank sends its bytes to all."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices of collectives; launch latency in ``effects`` is added to every cost and start-up, also for solvers.

    costs:   collective -> seconds of a message, for the ``workers`` at hand
    gain:    X(n) for many flows, 1 or more
    effects: of a real run, without those that are in the costs
    uncertainty: u: nine tenths of measured times lie between price / (1 + u) and price * (1 + u), by the cost model
    in_flight: collectives that the library runs at once for each channel of a plan
    blocking: whether the thread that launches a collective runs it, as over gloo and MPI
    replayed: whether computation is a timetable, beside which the host goes on, as in a replay on a CPU
    per_host: ranks on a host
    startups: collective -> seconds of start-up of a message, if measured
    assumed: collectives without prices of their own, taken to be half an all-reduce
    uncertainty_large: the u of messages of 8 MiB and more
    usual: whether the effects are the usual ones on such GPUs, not measured there
    alone: collective -> seconds of a message on an idle network, if measured; for executors that send one at a time
           where the library runs several
    slowest: collective -> seconds of a message on the slowest machines of this kind, where these differ by more
    parts: (ranks, apart) -> prices between that many of the workers, neighbours ``apart`` ranks from each other
    """

    costs: Mapping[str, Cost]
    workers: int = 1
    gain: float = 1
    effects: Effects = field(default=NO_EFFECTS)
    uncertainty: float = 0
    in_flight: int = 1
    blocking: bool = False
    replayed: bool = False
    per_host: int = 1
    startups: Mapping[str, Cost] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    uncertainty_large: float = 0
    usual: bool = False
    alone: Mapping[str, Cost] = field(default_factory=dict)
    slowest: Mapping[str, Cost] = field(default_factory=dict)
    parts: Callable[[int, int], Pricing] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        require_count(self.in_flight, "collectives in flight", least=1)
        if not self.gain >= 1:
            raise CostError(f"the gain of simultaneous collectives is {self.gain!r}: it must be 1 or more")
        launch = self.effects.launch_latency
        if launch:
            for name in ("costs", "startups", "alone"):
                prices: Mapping[str, Cost] = getattr(self, name)
                object.__setattr__(self, name, {kind: cost.plus(launch) for kind, cost in prices.items()})
            object.__setattr__(self, "effects", self.effects.apart_from_cost)

    @property
    def hosts(self) -> bool:
        """Whether the host's work for collectives of groups takes time: known where the host blocks to communicate."""
        effects = self.effects
        return self.blocking and bool(effects.group_time or effects.member_time or effects.group_copy)

    def __repr__(self) -> str:
        prices = ", ".join(
            f"{kind} {show_time(float(cost(MIB)))}" for kind, cost in self.costs.items() if kind != BROADCAST
        )
        return brief(self, f"{how_many(self.workers, 'worker')}, 1 MiB: {prices}")

    @staticmethod
    def of(cost: Cost, effects: Effects = NO_EFFECTS, workers: int = 1) -> Pricing:
        """Prices from the cost of an all-reduce, of which reduce-scatter and all-gather cost half each."""
        half = cost.slower(0.5)
        return Pricing({"all_reduce": cost, "reduce_scatter": half, "all_gather": half}, workers, effects=effects)

    @staticmethod
    def free(workers: int) -> Pricing:
        """Prices of 0, also between some of the workers, for calls that only need a program's form."""
        return replace(Pricing.of(FREE, workers=workers), parts=_free)

    def rules(self, objective: Objective) -> Objective:
        """The objective with its channels multiplied by the collectives that the library keeps in flight."""
        return objective if self.in_flight == 1 else replace(objective, channels=objective.channels * self.in_flight)

    def for_rules(self, objective: Objective, executor: ExecutorRow | None = None) -> Pricing:
        """Prices for plans under these rules; without an executor, osf.execute's for rules beyond the plain ones."""
        if executor is not None:
            return self.under(executor.conditions)
        return self if objective.plain else self.under(RUNTIME.conditions)

    def for_plan(self, plan: Plan) -> Pricing:
        """Prices for a plan: its executor's or, if it states none, a framework's; osf.execute's if none can run it.

        Raises UsageError for an unknown executor.
        """
        if plan.executor:
            return self.under(require(plan.executor, EXECUTORS, "executor").conditions)
        executor = STRATEGY_EXECUTORS.get(plan.strategy, RUNTIME)
        return self if plan.plain else self.under(executor.conditions)

    def under(self, conditions: Mapping[str, str]) -> Pricing:
        """Prices for a run of ``osf run`` with these conditions: its executor's effects and collectives in flight."""
        executor = executor_of(conditions)
        in_flight = self.in_flight if executor.in_flight is None else executor.in_flight
        priced = self.one_by_one() if executor.one_by_one else self
        effects, replayed = executor.effects(self.effects, conditions), conditions.items() >= REPLAYED_ON_CPU.items()
        return replace(priced, effects=effects, in_flight=in_flight, replayed=replayed)

    def one_by_one(self) -> Pricing:
        """Prices for messages that go one at a time, also where the library runs several at once."""
        if not self.alone:
            return self
        return replace(self, costs={**self.costs, **self.alone}, alone={}, parts=self._parts("one_by_one"))

    def loaded(self, workload: Workload) -> tuple[Workload, Pricing]:
        """``workload`` as it computes among other workers, and these prices without the effects that are now in it.

        Those lengthen computation whatever the plan, so that they need no place in solvers and engines: ``tensor_time``
        before each gradient and, if there are several ranks on a host, ``node_slowdown`` of everything. Usual effects
        make the workload doubtful by EFFECTS_DOUBT of what they add.
        """
        effects = self.effects
        if not (effects.tensor_time or effects.node_slowdown):
            return workload, self
        stretch = 1 + effects.node_slowdown if self.per_host > 1 else 1
        doubt = EFFECTS_DOUBT if self.usual else 0.0
        seen = lengthened(workload, stretch, effects.tensor_time, doubt)
        return seen, replace(self, effects=effects.apart_from_compute)

    def uncertainty_of(self, plan: Plan) -> float:
        """The relative error of the prices of a plan's messages, by the size in which most of its bytes travel."""
        sizes = [bucket.size for bucket in plan.buckets]
        usual = sum(size * size for size in sizes) / (sum(sizes) or 1)
        return self.uncertainty_large if usual >= LARGE else self.uncertainty

    def slower(self, factor: float) -> Pricing:
        """The prices on a network that takes ``factor`` times as long."""
        costs, startups, alone = (
            {kind: cost.slower(factor) for kind, cost in prices.items()}
            for prices in (self.costs, self.startups, self.alone)
        )
        return replace(self, costs=costs, startups=startups, alone=alone, parts=self._parts("slower", factor))

    def on_slowest(self) -> Pricing:
        """The prices on the slowest machines of this kind."""
        return replace(self, costs={**self.costs, **self.slowest}, slowest={}, parts=self._parts("on_slowest"))

    def _parts(self, method: str, *values: float) -> Callable[[int, int], Pricing] | None:
        """The prices between some of the workers, each changed by a method of theirs."""
        return None if self.parts is None else partial(_changed, self.parts, methodcaller(method, *values))

    def between(self, ranks: int, apart: int = 1) -> Pricing:
        """The prices between ``ranks`` of the workers, neighbours ``apart`` ranks from each other.

        Raises CostError where only prices between all workers are known.
        """
        if ranks == self.workers:
            return self
        if self.parts is None:
            raise CostError(f"prices are known between {self.workers} workers, and not between {ranks} of them")
        return self.parts(ranks, apart)

    def cost(self, collective: str = "all_reduce") -> Cost:
        """Seconds of a message, by its bytes. Raises CostError if that collective has no price here.

        A broadcast without a price of its own takes as long as an all-gather of as many bytes: along a ring, both pass
        over each link but one.
        """
        if collective == BROADCAST and collective not in self.costs:
            collective = "all_gather"
        if collective not in self.costs:
            raise CostError(f"no price for {collective}: known are {', '.join(self.costs)}")
        return self.costs[collective]

    def split(self, collective: str, size: int, flows: int = 1) -> tuple[float, float]:
        """(start-up, transfer) of a message: the cost of a vanishing message on the same line, and the rest.

        It is the measured start-up if there is one; else that of the line that is cheapest at ``size`` or, for a
        table, the least time at or below it. With ``flows`` of a table in flight the start-up is so short that equal
        messages, so many at once, send no more bytes per second than large ones (``TableCost.sustained``).
        """
        return self.splitter(collective, flows)(size)

    def splitter(self, collective: str, flows: int = 1) -> Callable[[int], tuple[float, float]]:
        """A function size -> :meth:`split` for this collective and ``flows``; faster for many sizes."""
        cost = self.cost(collective)
        if isinstance(cost, AffineCost):
            return _measured(cost, self.startups[collective]) if collective in self.startups else _lines(cost)
        limit = _limit(cost, flows, self.together(flows))
        if collective in self.startups:
            return _measured(cost, self.startups[collective], limit)
        return _table(cost, limit)

    def share(self, flows: int) -> float:
        """Speed of each of ``flows`` transfers, as a fraction of that of one alone: X(n) / n."""
        return self.together(flows) / flows if flows > 1 else 1

    def together(self, flows: int) -> float:
        """X(n): speed of ``flows`` transfers together, as a multiple of one alone."""
        return together(self.gain, flows)


def _free(ranks: int, apart: int) -> Pricing:
    return Pricing.free(ranks)


def _changed(
    parts: Callable[[int, int], Pricing], change: Callable[[Pricing], Pricing], ranks: int, apart: int
) -> Pricing:
    return change(parts(ranks, apart))


EFFECTS_DOUBT = 0.5
"""Part of what usual effects add by which they may be off: values of sources differ by a factor of two and more."""
LARGE = 8 * MIB
"""Bytes from which on bandwidth decides the time of a message."""


def _lines(cost: AffineCost) -> Callable[[int], tuple[float, float]]:
    def split(size: int) -> tuple[float, float]:
        startup, per_byte = min(cost.pieces, key=lambda piece: piece[0] + piece[1] * size)
        return startup, per_byte * size

    return split


Limit: TypeAlias = Callable[[float, int], float]
"""(seconds of a message, its bytes) -> the most of them that may be start-up."""


def _whole(whole: float, size: int) -> float:
    return whole


def _limit(cost: TableCost, flows: int, together: float) -> Limit:
    """The limit on start-ups with ``flows`` equal messages at once, which go ``together`` times as fast as one.

    With start-up a and transfer b they take a + b flows / together: at least flows sustained size / together, and a + b
    is given.
    """
    if not cost.sustained or together >= flows:
        return _whole
    stretch = flows / together

    def most(whole: float, size: int) -> float:
        return min(max(stretch * (whole - cost.sustained * size) / (stretch - 1), 0), whole)

    return most


def _measured(cost: Cost, startups: Cost, limit: Limit = _whole) -> Callable[[int], tuple[float, float]]:
    def split(size: int) -> tuple[float, float]:
        whole: float = cost(size)
        startup: float = min(limit(whole, size), startups(size))
        return startup, whole - startup

    return split


def _table(cost: TableCost, limit: Limit) -> Callable[[int], tuple[float, float]]:
    least = list(accumulate(cost.times, min))

    def split(size: int) -> tuple[float, float]:
        whole: float = cost(size)
        startup = min(limit(whole, size), least[max(bisect_right(cost.sizes, size) - 1, 0)])
        return startup, whole - startup

    return split


COARSE = 1000
"""Steps in 1/g of the search that brackets the best gain g, and the largest gain tried."""


UNBOUNDED = 0.99 * COARSE


def together(gain: float, flows: int) -> float:
    """X(n): speed of ``flows`` transfers together, as a multiple of one alone."""
    return gain * (1 - (1 - 1 / gain) ** flows) if flows > 1 else 1


def time_together(alone: float, startup: float, gain: float, flows: int) -> float:
    """Seconds of each of ``flows`` equal collectives that start at once; one alone takes ``alone`` seconds."""
    return startup + (alone - startup) * flows / together(gain, flows)


def fit_gain(times: Mapping[int, float], startup: float = 0.0) -> float:
    """The gain with the least squared relative error for ``times``: flows at once -> seconds of each.

    ``UNBOUNDED`` or more if several take no longer than one, so that any large gain fits as well.
    The time of one flow is taken as it was measured, ``startup`` seconds of it as start-up. Raises CostError if one
    flow, or several, were not measured, or if one takes no longer than its start-up.
    """
    from scipy.optimize import minimize_scalar

    if times.get(1, 0) <= startup or max(times) < 2:
        raise CostError("a gain needs the time of one flow, above its start-up, and that of two or more at once")
    several = {flows: time for flows, time in times.items() if flows > 1}

    def loss(part: float) -> float:
        found = [time_together(times[1], startup, 1 / part, flows) / time - 1 for flows, time in several.items()]
        return plain_sum(error**2 for error in found)

    parts = np.linspace(1 / COARSE, 1, COARSE)
    best = int(np.argmin([loss(part) for part in parts]))
    low, high = parts[max(best - 1, 0)], parts[min(best + 1, COARSE - 1)]
    polished = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    return float(1 / min((polished.x, parts[best]), key=loss))
