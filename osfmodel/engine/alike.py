"""Facts that steps share which differ only in batch size, prices and times: their programs, and most of their memory.

Where memory changes with computations alone, which go in the order of issue, the bytes at each of them are the same
whatever times they take. All but those of activations are also the same for all batch sizes. Sweeps and curves ask for
many such steps one after the other: the last MOST of each kind are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.levels import Footprint
from osfmodel.engine.program import COMPUTE, PLAIN, Hold, Instant, Program
from osfmodel.engine.run import issued_run
from osfmodel.engine.strategies import strategy_of
from osfmodel.engine.strategies.holdings import ACTIVATIONS, Array, Holdings, place_of
from osfmodel.entities.executors import Storage
from osfmodel.entities.modules import SHARDING
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

MOST = 256
"""Number of timed programs, of outlines and of activations that are kept."""
LONG = 64
"""Number of programs with each layer apart that are kept."""
FEW = 16
"""Number of workloads, and of plans, whose keys are kept."""
T = TypeVar("T")


class Hashed:
    """A key that is looked up again and again, such as a long tuple: its hash is computed once."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Hashed) and self.value == other.value)


def kept(known: dict[Any, T], key: Hashable, make: Callable[[], T], most: int = MOST) -> T:
    """The value known under a key, made if there is none; of more than ``most`` the oldest is forgotten."""
    if key not in known:
        made = make()
        while len(known) >= most:
            known.pop(next(iter(known)), None)
        known[key] = made
    return known[key]


def form_of(workload: Workload) -> Hashed:
    """All of a workload on which its programs, and their memory but for activations, depend."""
    return kept(_forms, id(workload), lambda: (workload, _form(workload)), FEW)[1]


def _form(workload: Workload) -> Hashed:
    tensors = [
        (one.name, one.gradient_bytes, one.dtype, one.held_bytes, one.frozen_bytes, one.shape)
        for one in workload.layers
    ]
    segments = [(one.name, one.first, one.last) for one in workload.segments]
    known = (workload.state_bytes, workload.weight_bytes, workload.update_bytes, workload.fixed_bytes)
    sizes = (*known, workload.expert_share, workload.expert_parallel, workload.fullest)
    host = workload.offload and workload.offload.kinds
    return Hashed((tuple(tensors), tuple(segments), sizes, host, workload.sent_as, workload.computed_in))


def rules_of(plan: Plan) -> Hashed:
    """All of a plan on which its programs depend: the name of its workload is not."""
    return kept(_rules, id(plan), lambda: (plan, Hashed(tuple([getattr(plan, name) for name in _RULES]))), FEW)[1]


_RULES = [one.name for one in fields(Plan) if one.compare and one.name != "workload"]
_forms: dict[int, tuple[Workload, Hashed]] = {}
_rules: dict[int, tuple[Plan, Hashed]] = {}
_steps: dict[Any, Timeline] = {}


def timeline_alike(workload: Workload, plan: Plan, pricing: Pricing) -> Timeline:
    """The timeline of :func:`~osfmodel.engine.predict_timeline`; a plan that shards is lowered once for many prices."""
    if plan.sharding is None and plan.strategy not in SHARDING:
        return predict_timeline(workload, plan, pricing)
    key = (form_of(workload), rules_of(plan), pricing.workers, pricing.per_host, pricing.blocking)
    found = predict_timeline(workload, plan, pricing, _steps.get(key))
    if issued_run(found, short=True):
        kept(_steps, key, lambda: found)
    return found


def computed_alike(workload: Workload, plan: Plan, make: Callable[[], Program]) -> Program:
    """The program that ``make`` returns, or one that was made for another number of workers.

    What is computed, in which order, and between which computations memory is taken, is the same for all numbers; where
    each layer is apart in any program, bytes are in it as well.
    """
    if strategy_of(plan).apart is None:
        return make()
    rules = plan.sharding
    if rules is not None and rules.replicas > 1:
        plan = replace(plan, sharding=replace(rules, replicas=2))
    return kept(_programs, (form_of(workload), rules_of(plan)), make, LONG)


_programs: dict[Any, Program] = {}


def _turns(program: Program) -> dict[int, int]:
    """Place of each computation among them, by its number: their order of issue, in which they are done."""
    computed = (number for number, one in enumerate(program.operations) if one.stream == COMPUTE)
    return {number: turn for turn, number in enumerate(computed)}


def _awaited(program: Program) -> dict[int, int]:
    """The next computation of each collective that begins and ends between two of them: its turn, by number."""
    found: dict[int, int] = {}
    under_way: list[int] = []
    last, turn, operations = -1, 0, program.operations
    for number, one in enumerate(operations):
        if one.stream == COMPUTE:
            over = {operations[sent].stream: sent for sent in under_way if sent in one.waits}
            found |= {sent: turn for sent in under_way if sent <= over.get(operations[sent].stream, -1)}
            last, turn, under_way = number, turn + 1, []
        elif last in one.waits and program.stream(one) == PLAIN:
            under_way.append(number)
    return found


@dataclass(frozen=True, slots=True)
class Order:
    """The computations of a program, which are done in their order of issue.

    alike:   the first program with the same computations in the same order
    turns:   the place of each computation among them, by its number
    awaited: the turn of the next computation, of collectives that begin and end between two of them
    moments: turns of computations of interest, in order, and what they are called
    """

    alike: Program
    turns: Mapping[int, int]
    awaited: Mapping[int, int]
    moments: Mapping[int, str]

    def spans(self, holds: Iterable[Hold], workers: int) -> Array:
        """(first computation, the one after the last, bytes) of each hold.

        Raises KeyError where one is bounded by collectives that go on beside computations, or take no time.
        """
        turns, awaited = self.turns, self.awaited if workers > 1 else {}

        def bound(one: Instant) -> int:
            turn = turns.get(one.operation)
            return awaited[one.operation] if turn is None else turn + one.ended

        found = []
        for hold in holds:
            since = max(map(bound, hold.since), default=0)
            since = since if hold.latest is None else min(since, bound(hold.latest))
            found.append((since, len(turns) if hold.until is None else bound(hold.until), hold.bytes))
        return np.array(found, dtype=np.int64).reshape(-1, 3)


def _order_of(holdings: Holdings) -> Order | None:
    """The order of a step; None where collectives, or updates between computations, are of interest."""
    program = holdings.bare
    turns, moments = _turns(program), dict(holdings.moments())
    if not turns.keys() >= moments.keys():
        return None
    computed = tuple([one[:3] for one in program.operations if one.stream == COMPUTE])
    alike = kept(_programs, computed, lambda: program, LONG)
    return Order(alike, turns, _awaited(program), {turns[number]: moments[number] for number in sorted(moments)})


def _active_spans(holdings: Holdings) -> Array:
    """The same as :meth:`Order.spans` of activations, which computations alone bound."""
    since, ended, until, sizes = holdings.active().T
    turns = _turns(holdings.bare)
    places = np.full(len(holdings.bare.operations) + 1, -1)
    places[list(turns)] = range(len(turns))
    first = np.where(since < 0, 0, places[since] + ended)
    return np.stack([first, np.where(until < 0, len(turns), places[until] + 1), sizes], axis=1)


def _levels(count: int, spans: Array) -> Array:
    """Bytes of these spans at each of ``count`` computations."""
    changes = np.zeros(count + 1, dtype=np.int64)
    np.add.at(changes, spans[:, 0], spans[:, 2])
    np.subtract.at(changes, spans[:, 1], spans[:, 2])
    return changes.cumsum()[:-1]


@dataclass(frozen=True, slots=True)
class Outline:
    """The memory of a step but for activations.

    order:   of computations, which many outlines share
    make, workers, storage: of the holdings
    owners:  of all memory, in the order in which they are shown; ``lasting``: those that are shown when empty
    spans:   (first computation, the one after the last, bytes) of each hold; ``whose``: the place of its owner
    rest:    bytes of them all at each computation
    """

    order: Order
    make: type[Holdings]
    workers: int
    storage: Storage
    owners: tuple[str, ...]
    lasting: frozenset[str]
    spans: Array
    whose: Array
    rest: Array

    def peak(self, workload: Workload, plan: Plan) -> Footprint:
        """The first of the highest moments, with the activations of a workload of this form."""
        sizes = tuple([(one.activation_bytes, one.peak_bytes) for one in workload.layers])
        program, moments = self.order.alike, list(self.order.moments)
        key = (id(program), self.make, plan.recompute, plan.forward_overlap, sizes, workload.segments)
        _, active = kept(_activations, key, lambda: (program, self._active(workload, plan)))
        turn = moments[int(np.argmax((self.rest + active)[moments]))]
        there = (self.spans[:, 0] <= turn) & (turn < self.spans[:, 1])
        found = np.zeros(len(self.owners), dtype=np.int64)
        np.add.at(found, self.whose[there], self.spans[there, 2])
        held = dict(zip(self.owners, found.tolist(), strict=True))
        held[ACTIVATIONS] += int(active[turn])
        during = self.order.moments[turn]
        return Footprint(during, {owner: size for owner, size in held.items() if size or owner in self.lasting})

    def _active(self, workload: Workload, plan: Plan) -> Array:
        """Bytes of activations at each computation."""
        holdings = self.make(self.order.alike, workload, plan, self.workers, self.storage)
        return _levels(len(self.rest), _active_spans(holdings))


_orders: dict[Any, tuple[Program, Order | None]] = {}
_activations: dict[Any, tuple[Program, Array]] = {}


def outline_of(holdings: Holdings) -> Outline | None:
    """The outline of a step; None where collectives change memory, or updates go between computations."""
    _, order = kept(_orders, (id(holdings.bare), type(holdings)), lambda: (holdings.bare, _order_of(holdings)), LONG)
    others = list(holdings.others())
    if order is None or any(hold.owner == ACTIVATIONS for hold in others):
        return None
    try:
        spans = order.spans(others, holdings.workers)
    except KeyError:
        return None
    holds = sorted([Hold(ACTIVATIONS, 0), *others], key=place_of)
    owners = tuple(dict.fromkeys([hold.owner for hold in holds]))
    places = {owner: place for place, owner in enumerate(owners)}
    return Outline(
        order,
        type(holdings),
        holdings.workers,
        holdings.storage,
        owners,
        frozenset(hold.owner for hold in holds if not hold.passing),
        spans,
        np.array([places[hold.owner] for hold in others]),
        _levels(len(order.turns), spans),
    )
