"""The batch size, and what to keep, compute again, release and send sparsely, that train fastest within a limit.

For each batch size tried, a mixed-integer programme chooses (``solve.retention``), the dynamic programme makes the
schedule for that choice, and the engine and the memory model judge both; where the schedule needs more than was set
aside for its buckets, the programme is asked again with so much less. Reconstructed after LaySA (IEEE Access'21), of
which only the abstract is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from osfmodel.batches import at_batch
from osfmodel.cluster import Cluster
from osfmodel.effects import EXECUTED
from osfmodel.engine import predict_timeline
from osfmodel.errors import PlanError, UsageError
from osfmodel.memory import CAVEAT, DDP, RUNTIME, Memory, memory_of, require_known, state_bytes
from osfmodel.objective import PLAIN
from osfmodel.plan import Plan, one_by_one, require_density
from osfmodel.predict import count_warnings, plan_extrapolation, require_nouns
from osfmodel.pricing import Pricing, pricing_of
from osfmodel.solve import Limits, Status
from osfmodel.solve.bounds import objective_bound
from osfmodel.solve.chosen import merged
from osfmodel.solve.retention import Choice, Room, choose
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.timeline import Timeline
from osfmodel.units import show_bytes
from osfmodel.workload import Workload

GROWTH = 1.25
"""From one batch size that is tried to the next."""
FINE = 0.01
"""As close, as a part, the search comes to the batch size from which on something more has to be recomputed."""
LARGEST_BATCH = 1 << 20
"""Where the search for the largest batch ends: memory that does not grow with the batch is no limit."""
ROUNDS = 6
"""Of asking the programme again with less room."""
WORTHWHILE = 0.005
"""Gains below half a percent are within what repeated runs differ by."""
ALIKE = 0.002
"""Throughputs closer than this, as a part, count as the same: then what changes less is preferred."""
LIMIT_HALVINGS = 6
"""How often the largest bucket is halved where buckets that are released need too much at once."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a plan is to keep within, and what it may do.

    limit:      bytes that a step may keep
    optimizer:  a key of ``memory.OPTIMIZERS``, in place of the one that was profiled
    density:    the least part of a layer's elements that may be sent; None to send all, so that training computes what
                it always did
    batch_size: None for the one that trains fastest
    release:    whether layers may be updated as soon as their gradients have arrived: clipping and whatever else looks
                at all gradients before the update has to do without
    mirror:     whether sparse buckets keep what was not sent in a mirror of the weights, instead of a residual
    """

    limit: int
    optimizer: str | None = None
    density: float | None = None
    batch_size: int | None = None
    release: bool = True
    mirror: bool = False

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"a memory limit of {self.limit} bytes: give 1 or more, such as 16GiB")
        if self.density is not None:
            require_density(self.density)


@dataclass(frozen=True, slots=True)
class Fit:
    """A plan for one batch size, what it takes, and what it keeps.

    bound: seconds that no schedule on one channel with a barrier beats at this batch size within the limit, whatever it
           recomputes, releases and, where permitted, sends sparsely
    """

    workload: Workload = field(repr=False)
    plan: Plan = field(repr=False)
    timeline: Timeline = field(repr=False)
    memory: Memory = field(repr=False)
    workers: int
    bound: float

    @property
    def batch_size(self) -> int:
        """Samples per worker."""
        return self.workload.batch_size or 0

    @property
    def iteration_time(self) -> float:
        """Seconds."""
        return self.timeline.iteration_time

    @property
    def throughput(self) -> float:
        """Samples per second of all workers together."""
        return self.workers * self.batch_size / self.iteration_time

    @property
    def gap(self) -> float:
        """iteration_time / bound - 1."""
        return max(0.0, self.iteration_time / self.bound - 1)

    @property
    def sparse(self) -> tuple[str, ...]:
        """The layers that are sent sparsely, in the order of the buckets."""
        return tuple(b.layer for bucket in self.plan.buckets if bucket.density is not None for b in bucket.blocks)


@dataclass(frozen=True, slots=True)
class MemoryTuning:
    """before: DDP with its defaults, its largest batch that fits, None where none does; after: the best that was found
    largest: the largest batch that fits with everything that saves memory; tried: every batch size's best"""

    workload: Workload = field(repr=False)
    cluster: Cluster = field(repr=False)
    workers: int
    demand: Demand
    before: Fit | None
    after: Fit
    largest: int
    tried: tuple[Fit, ...] = field(repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a prediction takes for granted."""
        notes = [CAVEAT]
        if self.after.plan.release:
            notes.append("released gradients cannot be clipped; --no-release keeps them")
        if self.after.plan.sparse:
            notes.append("sparse sending changes what training computes: watch the loss")
        return tuple(notes)

    @property
    def improvement(self) -> bool:
        """Whether it brings so much more throughput that it is worth having."""
        return self.gain is None or self.gain >= WORTHWHILE

    @property
    def gain(self) -> float | None:
        """By which part throughput grows over what is there before; None where nothing fitted."""
        return None if self.before is None else self.after.throughput / self.before.throughput - 1


def tune_memory(
    workload: Workload, cluster: Cluster, workers: int, demand: Demand, other: Workload | None = None
) -> MemoryTuning:
    """What trains fastest, in samples per second, on ``workers`` workers within ``demand``.

    ``other``: a profile of the same model at another batch size; without, times and activations grow in proportion to
    the batch. Of several that are all but as fast, the one that changes less is taken.

    Raises DataError for workloads that do not say what they keep, UsageError for what cannot be asked, CostError where
    the cluster cannot price it, PlanError where nothing fits.
    """
    require_nouns(workload, cluster)
    require_known(workload)
    state_bytes(workload, demand.optimizer)
    search = _Search(workload, pricing_of(cluster, workers), demand, other)
    largest = search.largest(search.least)
    if not largest:
        least = search.least(1)
        raise PlanError(
            f"{workload.name!r} does not fit {show_bytes(demand.limit)} with a single sample: even with all recomputed "
            f"and released a step keeps {show_bytes(least.memory.peak.bytes)} ({least.memory.peak.during}); give more "
            "memory, or an optimizer with less state"
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
    after = min((fit for fit in fits if fit.throughput >= fastest * (1 - ALIKE)), key=_changes)
    warnings = (*count_warnings(cluster, workers), *plan_extrapolation(after.workload, after.plan, search.pricing))
    return MemoryTuning(workload, cluster, workers, demand, before, after, largest, tuple(fits), warnings)


def _changes(fit: Fit) -> tuple[bool, bool, int, float]:
    """How much a plan changes: the less, the better among those that are all but as fast."""
    return fit.plan.sparse, fit.plan.release, len(fit.plan.recompute), -fit.throughput


class _Search:
    """The questions that a search over batch sizes asks."""

    def __init__(self, workload: Workload, pricing: Pricing, demand: Demand, other: Workload | None) -> None:
        self.workload, self.demand, self.other = workload, demand, other
        self.stock, self.pricing = pricing, pricing.under(EXECUTED)
        self.fixed = workload.gradient_bytes + state_bytes(workload, demand.optimizer) + (workload.fixed_bytes or 0)

    def at(self, batch_size: int) -> Workload:
        """The workload at another batch size."""
        return at_batch(self.workload, batch_size, self.other)

    def largest(self, fit_of: Callable[[int], Fit]) -> int:
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
        """Batch sizes to try: down from the largest by GROWTH, that of the profile, and the largest of DDP."""
        if self.demand.batch_size is not None:
            return [largest]
        found, size = {largest, min(largest, self.workload.batch_size or largest), common} - {0}, float(largest)
        while size > 1:
            size /= GROWTH
            found.add(max(1, round(size)))
        return sorted(found)

    def tried(self, sizes: Sequence[int]) -> list[Fit]:
        """The best of each of these batch sizes, and of some between the best of them and the next that was tried.

        Throughput grows with the batch until something has to be recomputed for the next sample, and falls there.
        """
        fits: dict[int, Fit] = {}
        for size in sorted(sizes, reverse=True):
            if all(fit.throughput < self.ceiling(size) for fit in fits.values()):
                fit = self.best(size)
                if fit is not None:
                    fits[size] = fit
        if not fits:
            return []
        low = max(fits, key=lambda size: fits[size].throughput)
        high = min((size for size in sizes if size > low), default=low)
        while high - low > max(1, low * FINE):
            middle = (low + high) // 2
            fit = self.best(middle)
            if fit is not None:
                fits[middle] = fit
            low, high = (middle, high) if fit is not None and fit.throughput > fits[low].throughput else (low, middle)
        return [fits[size] for size in sorted(fits)]

    def ceiling(self, batch_size: int) -> float:
        """Samples per second that no plan has at this batch size, however much memory there is."""
        seen = self.at(batch_size)
        early = replace(seen, update_time=0) if self.demand.release else seen
        bound = 0.0 if self.demand.density else objective_bound(early, self.pricing, PLAIN)
        return self.pricing.workers * batch_size / max(bound, seen.compute_time)

    def default(self, batch_size: int) -> Fit:
        """DDP as it comes."""
        seen, target = self.at(batch_size), CONFIG_TARGETS["ddp"]
        plan = target.realise(target.default_knobs(), seen, self.stock)
        timeline = predict_timeline(seen, plan, self.stock)
        memory = memory_of(seen, plan, timeline, self.stock.workers, DDP, self.demand.optimizer)
        return Fit(seen, plan, timeline, memory, self.stock.workers, timeline.compute_time)

    def least(self, batch_size: int) -> Fit:
        """All that saves memory: everything recomputed, every gradient released by itself."""
        seen = self.at(batch_size)
        again = tuple(segment.name for segment in seen.segments)
        return self._judged(seen, replace(one_by_one(seen), recompute=again, release=self.demand.release), 0.0)

    def best(self, batch_size: int) -> Fit | None:
        """The fastest that fits; of those all but as fast, the one that changes less."""
        seen = self.at(batch_size)
        found: list[Fit] = []
        for density in dict.fromkeys((None, self.demand.density)):
            for release in (False, True) if self.demand.release else (False,):
                room = Room(self.demand.limit, self.fixed, release, density)
                found += self._within(seen, room)
        if not found:
            return None
        fastest = min(fit.iteration_time for fit in found)
        chosen = next(fit for fit in found if fit.iteration_time <= fastest * (1 + ALIKE))
        return replace(chosen, bound=min(fit.bound for fit in found))

    def _within(self, seen: Workload, room: Room) -> Iterator[Fit]:
        """The plan of the programme's choice, asked again with less room until it keeps the limit."""
        bound, spare = None, 0
        for _ in range(ROUNDS):
            choice = choose(seen, self.pricing, replace(room, limit=self.demand.limit - spare))
            if choice.status is not Status.OPTIMAL:
                return
            bound = choice.bound if bound is None else bound
            fits = [self._judged(seen, plan, bound) for plan in self._plans(seen, room, choice)]
            kept = [fit for fit in fits if fit.memory.peak.bytes <= self.demand.limit]
            if kept:
                yield min(kept, key=lambda fit: fit.iteration_time)
                return
            spare += min(fit.memory.peak.bytes for fit in fits) - self.demand.limit
            if spare >= self.demand.limit:
                return

    def _plans(self, seen: Workload, room: Room, choice: Choice) -> Iterator[Plan]:
        """Schedules for what was chosen: the best one, and where buckets are released, with smaller buckets."""
        for halvings in range(LIMIT_HALVINGS if room.release else 1):
            cap = None if not halvings else max(1, seen.gradient_bytes >> halvings)
            try:
                plan = merged(seen, self.pricing, choice, room.density, Limits(cap))
            except PlanError:  # a tensor is larger than this bucket
                return
            mirror = self.demand.mirror and plan.sparse
            yield replace(plan, recompute=choice.recompute, release=room.release, mirror=mirror)

    def _judged(self, seen: Workload, plan: Plan, bound: float) -> Fit:
        timeline = predict_timeline(seen, plan, self.pricing)
        memory = memory_of(seen, plan, timeline, self.pricing.workers, RUNTIME, self.demand.optimizer)
        return Fit(seen, plan, timeline, memory, self.pricing.workers, bound)
