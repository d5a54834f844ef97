"""Search for the batch size and plan (recompute, release, send sparsely) that train fastest within a memory limit.

For each batch size tried, a mixed-integer programme chooses (``solve.retention``), the dynamic programme makes the
schedule for that choice, and the engine and the memory model judge both; if the schedule needs more than was set
aside for its buckets, the programme is solved again with that much less room. Reconstructed after LaySA (IEEE
Access'21), of which only the abstract is public.

Dense and sparse tensors are merged separately. In the dynamic programme a sparse tensor has the bytes of an all-reduce
that takes as long as the all-gather of its entries, and is ready once its entries are selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from osfmodel.cost.clusters import pricing_of, require_nouns
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of, require_known
from osfmodel.engine.optimizers import state_bytes
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.batches import FIXED_SHARE, at_batch
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.executors import DDP, RUNTIME
from osfmodel.entities.plan import PLAIN, Block, Bucket, Plan, one_by_one
from osfmodel.entities.rounding import just_below, least, within
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import Finished
from osfmodel.planning.memory import Candidate, MemoryBudget, MemoryTuning
from osfmodel.solve import SOLVERS
from osfmodel.solve.bounds import objective_bound
from osfmodel.solve.retention import Retention, Room, choose
from osfmodel.solve.solution import Limits, Question
from osfmodel.solve.under_effects import plan_under_effects
from osfmodel.targets import CONFIG_TARGETS

GROWTH = 1.25
"""Ratio between one batch size to try and the next."""
FINE = 0.01
"""Relative precision of the search for the batch size beyond which more has to be recomputed."""
LARGEST_BATCH = 1 << 20
"""Largest batch size tried; memory that does not grow with the batch sets no other limit."""
ROUNDS = 6
"""Maximum number of rounds of solving the programme again with less room."""
ALIKE = 0.002
"""Relative difference of throughput below which the plan that changes less is preferred."""
LIMIT_HALVINGS = 6
"""Maximum number of halvings of the largest bucket if released buckets need too much memory at once."""


def tune_memory(
    workload: Workload, cluster: Cluster, workers: int, demand: MemoryBudget, other: Workload | None = None
) -> MemoryTuning:
    """Find the plan that trains most samples per second on ``workers`` workers within ``demand``.

    ``other``: a profile of the same model at another batch size; without it, times and activations grow in proportion
    to the batch. Among plans that are almost as fast as the fastest, the one that changes least is taken.

    Raises DataError for workloads without memory sizes, UsageError for impossible requests, CostError if the
    cluster cannot price it, PlanError if nothing fits.
    """
    require_nouns(workload, cluster)
    require_known(workload)
    state_bytes(workload, demand.optimizer)
    search = _Search(workload, pricing_of(cluster, workers, workload), demand, other)
    largest = search.largest(search.least)
    if not largest:
        size, peak = demand.batch_size or 1, search.least(demand.batch_size or 1).memory.peak
        saving = "recomputed and released" if demand.release else "recomputed"
        remedy = "an optimizer with less state" if demand.batch_size is None else "a smaller batch"
        raise PlanError(
            f"{workload.name!r} does not fit {show_bytes(demand.limit)} with {size} sample{'s' if size > 1 else ''}: "
            f"even with all {saving} a step keeps {show_bytes(peak.bytes)} ({peak.during}); give "
            f"--memory {-(-peak.bytes >> 20)}MiB or more, or {remedy}"
        )
    common = search.largest(search.default)
    before = search.default(common) if common else None
    fits = search.tried(search.sizes(largest, common))
    if not fits:
        raise PlanError(
            f"no plan for {workload.name!r} was found within {show_bytes(demand.limit)}: give more memory, or drop "
            "--sparse if the search took long"
        )
    fastest = max(fit.throughput for fit in fits)
    fast = [fit for fit in fits if fit.throughput >= fastest * (1 - ALIKE)]
    fewest = min(map(_changes, fast))
    after = least([fit for fit in fast if _changes(fit) == fewest], lambda fit: 1 / fit.throughput)
    step, alone = after.iteration_time, after.workload.compute_time
    paid = (search.pricing,)
    warnings = Finished(after.workload, cluster, after.plan, paid, paid, after.plan.strategy, step, alone).warnings()
    if other is None and after.batch_size != workload.batch_size:
        fixed = f"{FIXED_SHARE:.0%} of the time of the smaller batch taken as fixed"
        scaled = f"activations are scaled in proportion from batch {workload.batch_size}, times with {fixed}"
        warnings += (f"no profile at batch {after.batch_size}: {scaled} (give --also FILE for a second profile)",)
    return MemoryTuning(workload, cluster, workers, demand, before, after, largest, tuple(fits), warnings)


def _changes(fit: Candidate) -> tuple[bool, bool, int]:
    """Sort key of how much a plan changes: the least is preferred among plans that are almost as fast."""
    return fit.plan.sparse, fit.plan.release, len(fit.plan.recompute)


class _Search:
    """The steps of a search over batch sizes."""

    def __init__(self, workload: Workload, pricing: Pricing, demand: MemoryBudget, other: Workload | None) -> None:
        self.workload, self.demand, self.other = workload, demand, other
        self.stock, self.pricing = pricing, pricing.under(RUNTIME.conditions)
        self.fixed = (
            (workload.weight_bytes or workload.gradient_bytes)
            + state_bytes(workload, demand.optimizer)
            + (workload.fixed_bytes or 0)
        )
        self.fixed += demand.communicator if pricing.workers > 1 else 0

    def at(self, batch_size: int) -> Workload:
        """The workload at another batch size."""
        return at_batch(self.workload, batch_size, self.other, FIXED_SHARE)

    def largest(self, fit_of: Callable[[int], Candidate]) -> int:
        """The largest batch size for which ``fit_of`` keeps the limit; 0 for none."""

        def fits(size: int) -> bool:
            return fit_of(size).memory.peak.bytes <= self.demand.limit

        if self.demand.batch_size is not None:
            return self.demand.batch_size if fits(self.demand.batch_size) else 0
        if not fits(1):
            return 0
        low, high = 1, 2
        while high < LARGEST_BATCH and fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def sizes(self, largest: int, common: int) -> list[int]:
        """Batch sizes to try: the largest and smaller ones by GROWTH, the profile's, and DDP's largest."""
        if self.demand.batch_size is not None:
            return [largest]
        found, size = {largest, min(largest, self.workload.batch_size or largest), common} - {0}, float(largest)
        while size > 1:
            size /= GROWTH
            found.add(max(1, round(size)))
        return sorted(found)

    def tried(self, sizes: Sequence[int]) -> list[Candidate]:
        """The best plan for each batch size, and for some between the best of them and its neighbours.

        Throughput grows with the batch until something has to be recomputed for the next sample, and falls there.
        """
        fits: dict[int, Candidate] = {}
        for size in sorted(sizes, reverse=True):
            if all(fit.throughput < just_below(self.ceiling(size)) for fit in fits.values()):
                fit = self.best(size)
                if fit is not None:
                    fits[size] = fit
        if not fits:
            return []
        chosen = least(fits, lambda size: 1 / fits[size].throughput)
        smaller, larger = [size for size in sizes if size < chosen], [size for size in sizes if size > chosen]
        ends = [max(smaller, default=chosen), min(larger, default=chosen)]
        while max(abs(end - chosen) for end in ends) > max(1, chosen * FINE):
            side = max((0, 1), key=lambda side: abs(ends[side] - chosen))
            middle = (ends[side] + chosen) // 2
            fit = self.best(middle) if self.ceiling(middle) > within(fits[chosen].throughput) else None
            if fit is not None:
                fits[middle] = fit
            if fit is not None and fit.throughput > within(fits[chosen].throughput):
                ends[1 - side], chosen = chosen, middle
            else:
                ends[side] = middle
        return [fits[size] for size in sorted(fits)]

    def ceiling(self, batch_size: int) -> float:
        """Samples per second that no plan exceeds at this batch size, however much memory there is."""
        seen = self.at(batch_size)
        early = replace(seen, update_time=0) if self.demand.release else seen
        bound = 0.0 if self.demand.density else objective_bound(early, self.pricing, PLAIN)
        return self.pricing.workers * batch_size / max(bound, seen.compute_time)

    def default(self, batch_size: int) -> Candidate:
        """DDP with its default settings."""
        seen = self.at(batch_size)
        plan = CONFIG_TARGETS["ddp"].convert.default(seen, self.stock)
        timeline = predict_timeline(seen, plan, self.stock)
        memory = memory_of(
            seen, plan, timeline, self.stock.workers, DDP.name, self.demand.optimizer, self.demand.communicator
        )
        return Candidate(seen, plan, timeline, memory, self.stock.workers)

    def least(self, batch_size: int) -> Candidate:
        """The plan with least memory: everything recomputed, every gradient released by itself."""
        seen = self.at(batch_size)
        again = tuple(segment.name for segment in seen.segments)
        return self._judged(seen, replace(one_by_one(seen), recompute=again, release=self.demand.release))

    def best(self, batch_size: int) -> Candidate | None:
        """The fastest plan that fits; of those almost as fast, the one that changes least."""
        seen = self.at(batch_size)
        found: list[Candidate] = []
        bounds: list[float] = []
        for density in dict.fromkeys((None, self.demand.density)):
            for release in (False, True) if self.demand.release else (False,):
                room = Room(self.demand.limit, self.fixed, release, density)
                found += self._within(seen, room, bounds)
        if not found:  # the programme sets aside more for buckets than one by one they need
            least = self.least(batch_size)
            found = [least] if least.memory.peak.bytes <= self.demand.limit else []
        if not found:
            return None
        fastest = min(fit.iteration_time for fit in found)
        chosen = next(fit for fit in found if fit.iteration_time <= fastest * (1 + ALIKE))
        return replace(chosen, bound=min(bounds))

    def _within(self, seen: Workload, room: Room, bounds: list[float]) -> Iterator[Candidate]:
        """The plan for the programme's choice; solved again with less room until it keeps the limit.

        Its bound is added to ``bounds`` even if no plan is found that keeps the limit, since one might exist.
        """
        spare = 0
        for _ in range(ROUNDS):
            choice = choose(seen, self.pricing, replace(room, limit=self.demand.limit - spare))
            if not spare:
                bounds.append(choice.bound)
            if choice.recompute is None:
                return
            fits = [self._judged(seen, plan) for plan in self._plans(seen, room, choice)]
            kept = [fit for fit in fits if fit.memory.peak.bytes <= self.demand.limit]
            if kept:
                yield least(kept, lambda fit: fit.iteration_time, lambda fit: fit.plan.rank)
                return
            spare += min(fit.memory.peak.bytes for fit in fits) - self.demand.limit
            if spare >= self.demand.limit:
                return

    def _plans(self, seen: Workload, room: Room, choice: Retention) -> Iterator[Plan]:
        """Schedules for the choice: the best one and, if buckets are released, some with smaller buckets."""
        for halvings in range(LIMIT_HALVINGS if room.release else 1):
            cap = None if not halvings else max(1, seen.gradient_bytes >> halvings)
            try:
                plan = plan_chosen(seen, self.pricing, choice, room.density, Limits(cap))
            except PlanError:  # a tensor is larger than this bucket
                return
            mirror = self.demand.mirror and plan.sparse
            yield replace(plan, recompute=choice.recompute or (), release=room.release, mirror=mirror)

    def _judged(self, seen: Workload, plan: Plan) -> Candidate:
        plan = replace(plan, executor=RUNTIME.name)
        timeline = predict_timeline(seen, plan, self.pricing)
        demand, workers = self.demand, self.pricing.workers
        memory = memory_of(seen, plan, timeline, workers, RUNTIME.name, demand.optimizer, demand.communicator)
        return Candidate(seen, plan, timeline, memory, self.pricing.workers)


SPARSE = "_sparse"
"""Suffix of a sparse tensor's dtype during merging, so that it is not merged with dense tensors."""


def plan_chosen(workload: Workload, pricing: Pricing, choice: Retention, density: float | None, limits: Limits) -> Plan:
    """The plan for a choice of what to recompute and send sparsely. Raises PlanError if the limits allow none."""
    seen = _as_merged(workload.recomputing(choice.recompute or ()), pricing, choice.sparse, density)
    question = Question(seen, pricing, limits=limits)
    plan = plan_under_effects(question, SOLVERS["optimal"].solve, limited=bool(choice.sparse)).require_plan()
    sizes = dict(zip(workload.gradients.names, workload.gradients.sizes, strict=True))

    def real(bucket: Bucket) -> Bucket:
        sparse = bucket.blocks[0].layer in choice.sparse
        blocks = tuple(Block(block.layer, 0, sizes[block.layer]) for block in bucket.blocks)
        return Bucket(blocks, bucket.release_time, density if sparse else None)

    return replace(plan, buckets=tuple(map(real, plan.buckets)))


def _as_merged(workload: Workload, pricing: Pricing, sparse: frozenset[str], density: float | None) -> Workload:
    """``workload`` with the layers of ``sparse`` in the size and with the times that the merging uses."""
    if not sparse or density is None:
        return workload
    sparsity = Sparsity(workload, pricing.effects, pricing.workers)
    alone = {
        layer.name: Bucket((Block(layer.name, 0, layer.gradient_bytes),), density=density)
        for layer in workload.layers
        if layer.name in sparse
    }
    gathered = {name: sparsity.gathered_bytes(bucket) for name, bucket in alone.items()}
    total = sum(gathered.values())
    dense, gather = pricing.cost(), pricing.cost("all_gather")
    rate = (gather(total) / total) / (dense(workload.gradient_bytes) / workload.gradient_bytes or 1.0)
    layers = tuple(
        replace(
            layer,
            gradient_bytes=max(1, round(gathered[layer.name] * rate)),
            dtype=layer.dtype + SPARSE,
            backward_time=layer.backward_time + sparsity.sparsify(alone[layer.name].blocks[0], density),
        )
        if layer.name in sparse
        else layer
        for layer in workload.layers
    )
    return replace(workload, layers=layers)
