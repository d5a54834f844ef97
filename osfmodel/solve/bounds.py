"""Lower bounds on the iteration time of any schedule.

Gradients i, i+1, ... L in ready order hold S_i bytes and none of them is ready before r_i, so whatever the order, the
grouping or the cutting, S_i bytes cross the one channel after r_i. A message that carries m of them takes at least
floor(m), the cheapest message of m bytes or more, hence at least min_{m <= S_i} floor(m)/m seconds per byte:

    t_comm >= max_i [ r_i + S_i * min_{0 < m <= S_i} floor(m) / m ]

For an affine or any concave cost the minimum is at m = S_i and the bound is max_i r_i + T(S_i), planning.md's
LB. For a table with jumps it uses the best bandwidth that was measured at or below S_i.

Other rules (:func:`objective_bound`): k channels hold each message for its price at least, so they take a k-th of that
sum at least; and all transfers together go at most X(k) times as fast as one, after a first start-up. If the next
forward may overlap, gradient i and those nearer the input still have forward work behind them when the last of them
arrives: at least q_i, that of the layers from i's towards the output (planning.md's LB_q). On one channel
:func:`windows_bound` goes further: for a price on one line it is the exact optimum over all schedules. Computation
that is slowed beside collectives has a bound of its own (:func:`_slowed`); effects other than those and the launch
latency only lengthen an iteration further. Proofs: docs/reference/schedules.md, planning.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost, Cost, serial, transfer
from osfmodel.engine.optimizers import shard_update_time
from osfmodel.entities.batches import accumulating
from osfmodel.entities.errors import UsageError
from osfmodel.entities.modules import (
    DISTRIBUTED_OPTIMIZER,
    FLAT_SHARDED,
    FULLY_SHARDED,
    HYBRID_SHARDED,
    SHARDED,
    SHARDING,
    ZERO,
    ZERO_3,
)
from osfmodel.entities.plan import PLAIN, REPLICATED, SPLIT, Objective, Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.sharding import EACH, Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.scheduling import Jobs, tails_of
from osfmodel.solve.windows import CostLine, below, minorants, optimum

COLLECTIVES = {REPLICATED: ("all_reduce",), SPLIT: ("reduce_scatter", "all_gather")}
"""Collectives of each strategy that is searched, each carrying all gradients between backward and next forward."""


def objective_bound(workload: Workload, pricing: Pricing, objective: Objective) -> float:
    """Seconds that no schedule under these rules can beat, whatever it fuses, cuts or reorders.

    Rules are permissions: if a split is allowed, the bound holds for schedules that split all and for those that
    split nothing. For a strategy that is not in COLLECTIVES only the computation counts.

    Fully sharded parameters, gathered and reduced in their own type, have the bound of schedules that split and overlap
    the next forward: each gradient is reduced after its backward, and its parameter gathered before its forward, on one
    communicator. Gathering once more in backward, padding, copies, and an update between both only take longer. ZeRO-3
    does the same. ZeRO-1 and ZeRO-2 gather all parameters after the update, beside nothing else; owners' broadcasts are
    not counted. A distributed optimizer has the bound of fully sharded parameters where its types are known, else that
    of its computation. So does a workload in mixed precision, which is not sent in the type of its parameters.
    """
    workload, pricing = pricing.loaded(workload)
    if objective.strategy in SHARDING:
        fetched = objective.strategy in (*SHARDED, FLAT_SHARDED)
        shards = replace(workload, update_time=shard_update_time(workload, pricing.workers, 1, True, fetched))
        if workload.computed_in:
            return shards.compute_time
        if objective.strategy in (FULLY_SHARDED, FLAT_SHARDED, ZERO_3):
            return bound_under(shards, pricing, Objective(forward_overlap=True, strategy=SPLIT))
        gathered = workload.gradient_bytes if objective.strategy in ZERO else 0
        return shards.compute_time + (serial(pricing.cost("all_gather"))(gathered) if gathered else 0)
    if objective.strategy not in COLLECTIVES:
        return workload.compute_time
    if objective.split:
        whole = objective_bound(workload, pricing, replace(objective, strategy=REPLICATED))
        return min(whole, bound_under(workload, pricing, objective))
    return bound_under(workload, pricing, objective)


def plan_bound(workload: Workload, plan: Plan, pricing: Pricing) -> float:
    """Seconds that no schedule with the rules, recomputation, release and densities of ``plan`` can beat.

    If gradients are released, the update overlaps with communication. If tensors are sent
    sparsely the bound is that of their bytes, in messages of whatever number and order: those of whole tensors by
    all-reduces, the entries by all-gathers, each at the best price at or below their sum, and all on the channels.
    """
    workload, pricing = pricing.loaded(workload)
    workload, plan = plan.computed(workload)
    if plan.sharding is not None or plan.strategy in SHARDING:
        rules = plan.sharding or Sharding(())
        strategy = _bounded(plan.strategy, rules)
        several = accumulating(workload, rules.micro_batches)
        bound = objective_bound(several, pricing, replace(PLAIN, strategy=strategy))
        if plan.strategy not in SHARDED:
            return bound
        from osfmodel.solve.sharded_bounds import grouped_bound  # not loaded for other strategies

        return max(bound, grouped_bound(workload, plan, pricing))
    early = replace(workload, update_time=0) if plan.release and workload.gradients.names else workload
    if not plan.sparse:
        return max(workload.compute_time, objective_bound(early, pricing, plan.objective))
    from osfmodel.engine.sparse import Sparsity, part_bytes  # not loaded for other plans

    sparsity = Sparsity(workload, pricing.effects, pricing.workers)
    gathers = {
        block.layer: part_bytes(block.bytes, bucket.density, sparsity.widths[block.layer]) * pricing.workers
        for bucket in plan.buckets if bucket.density is not None for block in bucket.blocks
    }  # fmt: skip
    channels = pricing.rules(plan.objective).channels
    reduce, gather = serial(pricing.cost()), serial(pricing.cost("all_gather"))
    bound, whole, gathered = workload.compute_time, 0, 0
    gradients = workload.gradients
    for name, size, ready in zip(
        *map(reversed, (gradients.names, gradients.sizes, gradients.ready_times)), strict=True
    ):
        whole, gathered = whole + (0 if name in gathers else size), gathered + gathers.get(name, 0)
        sent = (reduce(whole) if whole else 0) + (gather(gathered) if gathered else 0)
        bound = max(bound, ready + sent / channels + early.update_time)
    return bound


def _bounded(strategy: str, rules: Sharding) -> str:
    """The strategy whose bound holds: that of computation for types, two communicators, others.

    Of several micro-batches the first gathers and the last reduces at least, as accumulated ones would.
    """
    plain = Sharding(()) == replace(
        rules.accumulating(1, EACH),
        groups=(),
        reduce_inputs=1,
        asynchronous=False,
        late_prefetch=False,
        unlimited=False,
        aligned=False,
        buffer=0,
        fetching=None,
        part_time=0.0,
    )
    known = FULLY_SHARDED if strategy in (DISTRIBUTED_OPTIMIZER, ZERO_3) else strategy
    return known if plain and strategy in SHARDING else HYBRID_SHARDED


def bound_under(workload: Workload, pricing: Pricing, objective: Objective) -> float:
    """A lower bound in seconds; if ``objective`` splits, for schedules that split every all-reduce.

    Each channel has the collectives in flight that ``pricing`` gives it.
    """
    objective = pricing.rules(objective)
    gradients = workload.gradients
    start = workload.forward_time if objective.forward_overlap else 0
    after = tails_of(workload) if objective.forward_overlap else [workload.update_time] * len(gradients)
    shortest = _shortest(pricing, objective)
    one_channel = objective.channels == 1
    bound: float = windows_bound(workload, pricing, objective) if one_channel else workload.compute_time
    suffix = 0
    for size, ready, tail in zip(
        reversed(gradients.sizes), reversed(gradients.ready_times), reversed(after), strict=True
    ):
        suffix += size
        bound = max(bound, ready - start + shortest(suffix) + tail)
    return max(bound, _slowed(workload, pricing, objective, shortest(suffix) if suffix else 0))


def messages_bound(
    workload: Workload, pricing: Pricing, objective: Objective, sizes: Sequence[int], cut: bool = False
) -> float:
    """Seconds that no schedule under exactly these rules can beat whose messages have these ``sizes`` in bytes.

    They take the sum of their prices on the channels, from when a gradient is ready, and the least tail follows.
    ``cut``: the sizes are those of tensors, of which no two share a message; each may be cut.
    """
    workload, pricing = pricing.loaded(workload)
    objective, gradients = pricing.rules(objective), workload.gradients
    if not gradients:
        return workload.compute_time
    start = workload.forward_time if objective.forward_overlap else 0
    after = tails_of(workload)[0] if objective.forward_overlap else workload.update_time
    costs = [pricing.cost(kind) for kind in COLLECTIVES[objective.strategy]]
    busy = plain_sum(price(size) for price in (map(serial, costs) if cut else costs) for size in sizes)
    return gradients.ready_times[0] - start + busy / objective.channels + after


def _slowed(workload: Workload, pricing: Pricing, objective: Objective, busy: float) -> float:
    """A lower bound where computation takes 1 + s times as long while a collective runs, for ``busy`` seconds in all.

    During o seconds of both, o / (1 + s) of computation is done, so that all takes computation + busy - o / (1 + s),
    and o is ``busy`` at most: computation + busy s / (1 + s). An update that may run beside collectives is not slowed.
    """
    slowdown = pricing.effects.compute_slowdown
    beside = min(workload.update_time, busy) if objective.forward_overlap else 0
    return workload.compute_time + (busy - beside) * slowdown / (1 + slowdown)


def windows_bound(workload: Workload, pricing: Pricing, objective: Objective) -> float:
    """Seconds that no schedule on one channel can beat, even if start-ups of several messages matter (windows.py).

    The theorem there is for prices on a line; here it is used with lines that lie nowhere above the price. Raises
    UsageError for several channels.
    """
    if pricing.rules(objective).channels > 1:
        raise UsageError("windows bound schedules of one channel: several can be faster; ask objective_bound")
    jobs = Jobs.of(workload, objective)
    largest = workload.gradient_bytes
    bound: float = workload.compute_time
    lines = [minorants(pricing.cost(kind), largest) for kind in COLLECTIVES[objective.strategy]] if largest else []
    for number in range(max(map(len, lines), default=0)):
        chosen = [some[min(number, len(some) - 1)] for some in lines]
        startups, slopes = zip(*chosen, strict=True)
        line = CostLine(min(startups), plain_sum(slopes), plain_sum(startups))
        if below(jobs, line, bound) is None:
            bound = max(bound, optimum(jobs, line).time)
    return bound


def _shortest(pricing: Pricing, objective: Objective) -> Callable[[int], float]:
    """A function from bytes to the least time to send them under these rules."""
    costs = [pricing.cost(kind) for kind in COLLECTIVES[objective.strategy]]
    channels, together = objective.channels, pricing.together(objective.channels)
    serials, transfers = [serial(cost) for cost in costs], [transfer(cost) for cost in costs]
    startup = _startup(costs[0])  # what is sent first is of the first kind

    def shortest(size: int) -> float:
        alone: float = plain_sum(send(size) for send in serials)
        if channels == 1:
            return alone
        return max(alone / channels, startup + plain_sum(send(size) for send in transfers) / together)

    return shortest


def _startup(cost: Cost) -> float:
    """Minimum start-up of any message."""
    return min(piece[0] for piece in cost.pieces) if isinstance(cost, AffineCost) else min(cost.times)
