"""Horovod's background loop as a policy: which gradients form a batch, and when it is launched.

One thread of each rank wakes every cycle, a cycle time after it last began or at once if that is past. It takes what
was submitted by then, agrees with the other ranks on what all of them have (negotiation), packs that greedily into
batches of one dtype up to the fusion threshold, and launches one after the other. Over gloo and MPI the thread itself
runs the collective, once all of the batch is computed, so that what is submitted meanwhile waits for the next
cycle. Over NCCL it goes on at once: the stream waits until the batch is computed (where the host runs ahead of the
device), and the loop does only while a timeline is written.

The loop knows nothing of iterations: its clock goes on through them. :func:`carry_out` follows it until iterations
repeat, or for a while, and gives the plan of the iteration in the middle; the engine prices that as any other plan.

Source: Horovod 0.28.1, horovod/common: operations.cc (RunLoopOnce), controller.cc (ComputeResponseList,
FuseResponses, TensorFusionThresholdBytes), response_cache.cc, ops/gloo_operations.cc, ops/nccl_operations.cc
(WaitForData).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import simulate
from osfmodel.engine.recursion import Compute
from osfmodel.entities.errors import PlanError, require_count, require_time
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.rounding import ranked
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Gradients, Workload


def fuse(
    found: Sequence[int],
    gradients: Gradients,
    threshold: int,
    padding: int = 1,
    refused: Callable[[int], None] = lambda needed: None,
) -> Iterator[list[int]]:
    """Horovod's FuseResponses over the tensors that one cycle found, in order.

    A tensor of the batch's dtype that does not fit ends the batch (no hole is filled behind it); one of another dtype
    is passed over as long as the batch and all that was passed over stay within the threshold. ``refused`` is
    called with each threshold at which more would have been fused or passed over.
    """
    rest = list(found)
    while rest:
        batch, passed = [rest[0]], []
        held, skipped = padded(gradients.sizes[rest[0]], padding), 0
        kind, place = gradients.dtypes[rest[0]], 1
        while place < len(rest):
            size = padded(gradients.sizes[rest[place]], padding)
            alike = gradients.dtypes[rest[place]] == kind
            needed = held + size if alike else held + skipped + size
            if needed > threshold:
                refused(needed)
                break
            if alike:
                held += size
                batch.append(rest[place])
            else:
                skipped += size
                passed.append(rest[place])
            place += 1
        yield batch
        rest = passed + rest[place:]


def padded(size: int, padding: int) -> int:
    """``size`` rounded up to a multiple of ``padding``."""
    return -(-size // padding) * padding


DEFAULT_THRESHOLD = 128 * MIB
DEFAULT_CYCLE = 0.001
DEFAULT_CACHE = 1024
ATOMIC_UNIT = 64 * 8
"""Bytes, per rank of a host, to a multiple of which the threshold is rounded up (64 elements of float64)."""
PADDING = 16
"""Bytes to a multiple of which each tensor in a batch is padded on a GPU (BATCHED_D2D_PADDING)."""
SIMULATED = 24
"""Maximum number of iterations to simulate; if none repeats, the first third is ignored."""
SAME = 1e-9
"""Relative difference of clocks below which two iterations are the same."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Horovod's settings.

    threshold:      maximum bytes of a batch (a larger tensor goes alone); 0 fuses nothing
    cycle:          seconds from the start of one cycle to that of the next
    groups:         names of tensors that are submitted together, and never with others; all tensors, or none
    use_groups:     whether the groups are in force, or only on offer
    streams:        collectives in flight at once over NCCL (HOROVOD_NUM_NCCL_STREAMS)
    cache_capacity: tensors whose negotiation is remembered; one more evicts the least recently used
    waits:          whether over NCCL, too, the loop waits until a batch is computed before it launches it, as it does
                    while a timeline is written, and did in older versions
    hierarchical:   whether all-reduces go over nodes by themselves, run in the loop
    """

    threshold: int = DEFAULT_THRESHOLD
    cycle: float = DEFAULT_CYCLE
    groups: tuple[tuple[str, ...], ...] = ()
    use_groups: bool = False
    streams: int = 1
    cache_capacity: int = DEFAULT_CACHE
    waits: bool = False
    hierarchical: bool = False

    def __post_init__(self) -> None:
        require_count(self.threshold, "the fusion threshold")
        require_time(self.cycle, "the cycle time")
        require_count(self.streams, "the streams", least=1)
        require_count(self.cache_capacity, "the capacity of the response cache")


def blocking(loop: Loop, pricing: Pricing) -> bool:
    """Whether the loop thread itself runs the collectives, and so waits for each.

    On a single host hierarchical all-reduces are ordinary ones.
    """
    return pricing.blocking or (loop.hierarchical and pricing.workers > pricing.per_host)


def channels(loop: Loop, pricing: Pricing) -> int:
    """Collectives that the loop keeps in flight."""
    return 1 if blocking(loop, pricing) else loop.streams


class LoopIteration(NamedTuple):
    """One iteration: the batches as positions in ready order, the launch of each, and the end.

    ``next_threshold``: the next larger threshold that would change what the loop does; None if none would.
    """

    batches: Sequence[Sequence[int]]
    releases: Sequence[float]
    iteration_time: float
    next_threshold: int | None


def carry_out(loop: Loop, workload: Workload, pricing: Pricing) -> Plan:
    """The plan that the loop makes of ``workload``, with each batch's launch as its release time.

    Raises PlanError for groups that are not the workload's tensors.
    """
    found = steady_iteration(loop, workload, pricing)
    return _plan(loop, workload, pricing, found.batches, found.releases)


def steady_iteration(loop: Loop, workload: Workload, pricing: Pricing, iterations: int = SIMULATED) -> LoopIteration:
    """The iteration that repeats or, if none does, the one of median time among ``iterations`` of them.

    Effects that belong to DDP (hooks, copies into buckets) do not move a submission. Raises as :func:`carry_out`.
    """
    run = _Run(loop, workload, pricing)
    found = [run.iteration()]
    while len(found) < iterations and workload.gradients:
        before, crowd = run.clocks, run.crowd
        found.append(run.iteration())
        if crowd == run.crowd and all(abs(mine - theirs) <= SAME * found[-1].iteration_time for mine, theirs in
               zip(run.clocks, before, strict=True)):  # fmt: skip
            return run.told(found[-1])
    settled = ranked(found[len(found) // 3 :], lambda one: one.iteration_time)
    return run.told(settled[len(settled) // 2])


class _Cache:
    """The response cache: each gradient's slot ("bit") by its position, the least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.places: dict[int, int] = {}

    def use(self, gradients: Iterable[int]) -> None:
        """Mark gradients as agreed on, one after the other; a new one takes the next slot, or the oldest one's."""
        for i in gradients if self.capacity else ():
            oldest = next(iter(self.places), i) if len(self.places) == self.capacity else i
            place = self.places.pop(i if i in self.places else oldest, len(self.places))
            self.places[i] = place


class _Run:
    """The loop through consecutive iterations; clocks are relative to the start of the next one."""

    def __init__(self, loop: Loop, workload: Workload, pricing: Pricing) -> None:
        workload, pricing = pricing.loaded(workload)
        self.loop, self.workload, self.pricing = loop, workload, pricing
        gradients, effects = workload.gradients, pricing.effects
        self.cost = pricing.cost()
        self.blocking = blocking(loop, pricing)
        unit = ATOMIC_UNIT * pricing.per_host
        self.unit, self.threshold = unit, padded(loop.threshold, unit)
        self.padding = 1 if pricing.blocking else PADDING
        units = _units(loop, workload)
        stretch = effects.stretch(pricing.workers)
        hooks = [max((gradients.enqueue_times[i], i) for i in members) for members in units]
        order = sorted(range(len(units)), key=hooks.__getitem__)
        self.units = [units[i] for i in order]
        self.submitted = [hooks[i][0] * stretch for i in order]
        self.in_step = gradients.enqueue_times == gradients.ready_times
        self.cache = _Cache(loop.cache_capacity)
        miss, known = effects.negotiation_miss, effects.negotiation if loop.cache_capacity else 0
        self.negotiation = (known + miss, known if loop.cache_capacity else miss)  # not remembered, and remembered
        self.period = max(loop.cycle, self.negotiation[1])
        self.iterations = 0
        crowded = 0 < loop.cache_capacity < len(gradients)
        alike = len(set(gradients.dtypes)) < 2 and not loop.use_groups
        # Then slots of the cache are in the order of submission, so that a cycle finds gradients that lie in a row.
        self.in_row = alike and not crowded and order == list(range(len(units)))
        self.sums = list(accumulate([padded(size, self.padding) for size in gradients.sizes], initial=0))
        self.prices: dict[tuple[int, ...], float] = {}
        self.last: float = 0
        self.free: float = 0
        self.needed: int | None = None

    @property
    def clocks(self) -> tuple[float, float]:
        """Start and end of the last cycle, from the start of the next iteration."""
        return self.last, self.free

    @property
    def crowd(self) -> list[tuple[int, int]]:
        """Entries of the response cache if it is too small for all gradients and so keeps changing; else empty."""
        crowded = len(self.workload.gradients) > self.loop.cache_capacity
        return list(self.cache.places.items()) if crowded else []

    def told(self, found: LoopIteration) -> LoopIteration:
        """``found`` with the next threshold that would change what the loop does."""
        # The least that is rounded up to what is needed, or more.
        following = None if self.needed is None else (self.needed - 1) // self.unit * self.unit + 1
        return LoopIteration(tuple(map(tuple, found.batches)), tuple(found.releases), found.iteration_time, following)

    def _refused(self, needed: int) -> None:
        if self.needed is None or needed < self.needed:
            self.needed = needed

    def iteration(self) -> LoopIteration:
        """Simulate one iteration; clocks then count from its end."""
        compute = Compute(self.workload, None, self.pricing.effects, self.pricing.workers)
        ready = compute.ready
        batches: list[Sequence[int]] = []
        releases: list[float] = []
        end: float = 0
        first, count, submitted = 0, len(self.units), self.submitted
        waits = self.blocking or self.loop.waits
        while first < count:
            # A host ahead of the device does not notice what slows that.
            began = self._next_cycle(compute.clock(submitted[first]) if self.in_step else submitted[first])
            seen = max(compute.progress(began), submitted[first]) if self.in_step else began
            after = bisect_right(submitted, seen, first + 1)
            formed, remembered = self._in_row(first, after) if self.in_row else self._agreed(range(first, after))
            now = began + self.negotiation[remembered]
            for batch in formed:
                computed = compute.clock(ready[batch[-1]] if self.in_row else max([ready[i] for i in batch]))
                now = max(now, computed) if waits else now
                batches.append(batch)
                releases.append(now)
                end = max(end, now, computed)
                begin, end = end, end + self._price(batch)
                compute.add_collective(begin, end)
                now = end if self.blocking else now
            self.last, self.free = began, now
            first = after
        spent = self._spent(batches, releases, max(end, compute.clock(compute.end)))
        self.last, self.free = self.last - spent, self.free - spent
        self.iterations += 1
        return LoopIteration(batches, releases, spent, None)

    def _spent(self, batches: Sequence[Sequence[int]], releases: Sequence[float], finish: float) -> float:
        if channels(self.loop, self.pricing) > 1:
            plan = _plan(self.loop, self.workload, self.pricing, batches, releases)
            return simulate(self.workload, plan, self.pricing).iteration_time
        return finish + self.workload.update_time

    def _next_cycle(self, submitted: float) -> float:
        """The start of the first cycle after a tensor is submitted; earlier cycles are empty."""
        first = max(self.free, self.last + self.loop.cycle)
        if submitted <= first:
            return first
        if not self.period:
            return submitted
        return max(first + math.ceil((submitted - first) / self.period) * self.period, submitted)

    def _in_row(self, first: int, after: int) -> tuple[list[range], bool]:
        """The batches of a cycle that finds the gradients from ``first`` to ``after``, as :func:`fuse` packs them."""
        formed = []
        while first < after:
            most = self.sums[first] + self.threshold
            end = max(first + 1, bisect_right(self.sums, most, first, after + 1) - 1)
            if end < after:
                self._refused(self.sums[end + 1] - self.sums[first])
            formed.append(range(first, end))
            first = end
        return formed, self.iterations > 0 and self.loop.cache_capacity > 0

    def _agreed(self, units: Iterable[int]) -> tuple[list[list[int]], bool]:
        """The batches of a cycle that finds these units, and whether the cache had all of them; it is then used."""
        found, remembered = self._looked_up(units)
        formed = list(self._batches(found))
        agreed = (self.units[unit] for unit in found) if remembered else formed
        self.cache.use(i for members in agreed for i in members)
        return formed, remembered

    def _looked_up(self, units: Iterable[int]) -> tuple[list[int], bool]:
        """The units of a cycle in the order in which ranks handle them, and whether the cache had all of them."""
        places = self.cache.places
        hit: list[int] = []
        missed: list[int] = []
        for unit in units:
            (hit if all(i in places for i in self.units[unit]) else missed).append(unit)
        hit.sort(key=lambda unit: min([places[i] for i in self.units[unit]]))
        return missed + hit if self.loop.use_groups else hit + missed, not missed

    def _batches(self, found: Sequence[int]) -> Iterator[list[int]]:
        """The batches that a cycle launches, as positions of gradients."""
        together = [self.units[unit] for unit in found]
        if not self.loop.use_groups:
            together = [tuple(i for members in together for i in members)]
        for members in together:
            yield from fuse(members, self.workload.gradients, self.threshold, self.padding, self._refused)

    def _price(self, batch: Sequence[int]) -> float:
        row = (batch[0], len(batch)) if self.in_row else tuple(batch)
        if row not in self.prices:
            size = sum([self.workload.gradients.sizes[i] for i in batch])
            time = self.cost(size)
            self.prices[row] = time + self.pricing.effects.fusion_copy * size if len(batch) > 1 else time
        return self.prices[row]


def _units(loop: Loop, workload: Workload) -> list[tuple[int, ...]]:
    """Groups of gradients that are submitted together. Raises PlanError if they are not the workload's tensors."""
    names = workload.gradients.names
    if not loop.use_groups:
        return [(i,) for i in range(len(names))]
    position = {name: i for i, name in enumerate(names)}
    told = [name for group in loop.groups for name in group]
    if sorted(told) != sorted(names) or not all(loop.groups):
        strange = next((name for name in told if name not in position), None)
        what = f"{strange!r} is not one of its tensors" if strange else "each tensor must be in exactly one group"
        raise PlanError(f"the groups do not fit the workload {workload.name!r}: {what}")
    return [tuple(position[name] for name in group) for group in loop.groups]


def _plan(
    loop: Loop, workload: Workload, pricing: Pricing, batches: Sequence[Sequence[int]], releases: Sequence[float]
) -> Plan:
    return replace(grouped_plan(workload, batches, releases), channels=channels(loop, pricing))
