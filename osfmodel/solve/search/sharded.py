"""The best known grouping of blocks for sharded parameters: runs of whole blocks, in forward order, by local search.

Each run of blocks is one group, which is gathered again in backward, as FSDP2 does by default; what is in no block
stays in the root group. No group has more than GROWTH times the bytes of the largest block, so that gathered parameters
take at most about so many times the memory of one group per block. Groupings are timed by the engine, on a workload in
which consecutive layers of a block are one: the order of its operations and their times are the same. Few blocks are
grouped in every possible way; else search begins with even groupings, and changes one end at a time while that helps.
Then modules are gathered further ahead, where that is faster by more than NEGLIGIBLE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, combinations, groupby, pairwise, product
from operator import attrgetter

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.strategies.padding import padded_elements
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import FSDP
from osfmodel.entities.modules import FULLY_SHARDED, HYBRID_SHARDED, SHARDED, blocks, inside, wrapped
from osfmodel.entities.plan import PLAIN, Objective
from osfmodel.entities.rounding import least, plain_sum
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.workload import Layer, Workload
from osfmodel.solve.solution import PlanRule, Question, Solution, answer

GROWTH = 2
"""Largest number of bytes of a group, as a multiple of those of the largest block."""
NEGLIGIBLE = 1e-3
"""Relative gain below which groups are not worth changing, and modules not worth gathering further ahead."""
FEW = 9
"""Number of blocks up to which every grouping is timed."""
MOST_TIMED = 600
"""Groupings after which the search ends."""
AHEAD = ((0, 1), (0, 2), (2, 1), (2, 2))
"""Groups gathered ahead in forward and in backward; the first is FSDP2's default."""


def groups_for(names: Sequence[Sequence[str]], ahead: tuple[int, int] = AHEAD[0]) -> list[ParameterGroup]:
    """The rules of groups of modules that are gathered again in backward."""
    forward, backward = ahead
    return [ParameterGroup(tuple(group), forward_prefetch=forward, backward_prefetch=backward) for group in names]


def replicas_in(pricing: Pricing) -> int:
    """Replicas if each has the ranks of one host; 1 where that is one rank, or hosts do not divide the workers."""
    per_host = pricing.per_host
    return pricing.workers // per_host if per_host > 1 and pricing.workers % per_host == 0 else 1


def solve(question: Question) -> Solution:
    """The best grouping that was found. Raises UsageError for rules that do not shard."""
    strategy = question.objective.strategy
    if strategy not in SHARDED:
        raise UsageError(
            "sharded groups modules for fully-sharded and hybrid-sharded plans: ask planned for other rules"
        )
    workload, pricing = question.workload, question.pricing
    replicas = replicas_in(pricing) if strategy == HYBRID_SHARDED else 1
    search = GroupSearch(workload, pricing, replicas)
    return answer(question, wrapped(workload, groups_for(*search.best()), Sharding((), replicas)))


class GroupSearch:
    """Times of groupings by the places at which groups end, for each of AHEAD.

    names: the blocks, in forward order
    """

    def __init__(self, workload: Workload, pricing: Pricing, replicas: int) -> None:
        self.names, self.rules = blocks(workload), Sharding((), replicas)
        self.pricing = replace(pricing, parts=pricing.parts and cache(pricing.parts))
        self.workload = condensed(workload, self.names, self.rules.ranks(pricing.workers))
        sizes = [0] * len(self.names)
        for layer in self.workload.layers:
            place = _place(layer.name, self.names)
            if place is not None:
                sizes[place] += layer.gradient_bytes
        self.before = [0, *accumulate(sizes)]
        self.most = GROWTH * max(sizes, default=0)
        self.timed: dict[tuple[frozenset[int], tuple[int, int]], float] = {}

    def best(self) -> tuple[list[tuple[str, ...]], tuple[int, int]]:
        """The blocks of each group, and the groups gathered ahead. Groups per block unless others are faster."""
        count = len(self.names)
        if count < 2:
            return self._groups(frozenset()), AHEAD[0]
        each = frozenset(range(1, count))
        every = list(self._every()) if count <= FEW else []
        chosen, ahead = each, AHEAD[0]
        for those in AHEAD:
            found = self._fastest(every, those) if every else self._improved(chosen, those)
            if self.time(found, those) < self.time(chosen, ahead) * (1 - NEGLIGIBLE):
                chosen, ahead = found, those
        return self._groups(chosen), ahead

    def time(self, ends: frozenset[int], ahead: tuple[int, int]) -> float:
        """Seconds of a step with groups that end behind so many blocks each."""
        key = ends, ahead
        if key not in self.timed:
            plan = wrapped(self.workload, groups_for(self._groups(ends), ahead), self.rules)
            self.timed[key] = predict_timeline(self.workload, plan, self.pricing).iteration_time
        return self.timed[key]

    def _groups(self, ends: frozenset[int]) -> list[tuple[str, ...]]:
        places = [0, *sorted(ends), len(self.names)]
        return [self.names[start:end] for start, end in pairwise(places) if end > start]

    def _every(self) -> Iterator[frozenset[int]]:
        """Every grouping whose groups are small enough."""
        inner = range(1, len(self.names))
        found = (frozenset(ends) for size in range(len(self.names)) for ends in combinations(inner, size))
        return (ends for ends in found if self._allowed(ends))

    def _allowed(self, ends: frozenset[int]) -> bool:
        places = [0, *sorted(ends), len(self.names)]
        return all(self.before[end] - self.before[start] <= self.most for start, end in pairwise(places))

    def _improved(self, start: frozenset[int], ahead: tuple[int, int]) -> frozenset[int]:
        """The fastest of ``start`` and of even groupings, changed end by end while that helps."""
        best = self._fastest([start, *filter(self._allowed, self._even())], ahead)
        while len(self.timed) < MOST_TIMED:
            changed = self._fastest([best, *filter(self._allowed, self._changed(best))], ahead)
            if self.time(changed, ahead) >= self.time(best, ahead) * (1 - NEGLIGIBLE / 10):
                break
            best = changed
        return best

    def _fastest(self, options: Sequence[frozenset[int]], ahead: tuple[int, int]) -> frozenset[int]:
        """The fastest; of those as fast, the one with the smallest groups."""
        return least(options, lambda ends: self.time(ends, ahead), lambda ends: -len(ends))

    def _even(self) -> Iterator[frozenset[int]]:
        """Groups of as many blocks each, counted from the first block or from the last."""
        count = len(self.names)
        for size, first in product(range(1, count + 1), (False, True)):
            yield frozenset(range(size, count, size) if first else range(count - size, 0, -size))

    def _changed(self, ends: frozenset[int]) -> Iterator[frozenset[int]]:
        count = len(self.names)
        yield from (ends ^ {place} for place in range(1, count))
        yield from (ends - {end} | {end + step} for end in ends for step in (-1, 1) if 0 < end + step < count)


def condensed(workload: Workload, names: Sequence[str], ranks: int) -> Workload:
    """The workload with consecutive layers of one block, or of none, as one layer, of their bytes as padded.

    Types stay apart, as they do in groups.
    """
    runs = groupby(workload.layers, lambda layer: (_place(layer.name, names), layer.dtype))
    return replace(workload, layers=tuple(_one(list(layers), ranks) for _, layers in runs), segments=())


def _one(layers: Sequence[Layer], ranks: int) -> Layer:
    """One layer that computes and sends what these do."""
    trained = [layer for layer in layers if layer.gradient_bytes]
    size = sum(padded_elements(layer, ranks) * element_bytes(layer.dtype) for layer in trained)
    forward, backward = (plain_sum(map(attrgetter(kind), layers)) for kind in ("forward_time", "backward_time"))
    return Layer((trained or layers)[0].name, forward, backward, size, layers[0].dtype)


def _place(name: str, modules: Sequence[str]) -> int | None:
    return next((place for place, module in enumerate(modules) if inside(name, module)), None)


RULE = PlanRule(
    solve,
    "the best groups of blocks for FSDP2, each at most twice the largest block",
    objective=Objective(strategy=FULLY_SHARDED),
    executor=FSDP,
    serves=lambda objective: objective in [replace(PLAIN, strategy=one) for one in SHARDED],
)
