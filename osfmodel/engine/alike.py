"""Facts that steps share which differ only in batch size, prices and times: their programs, and most of their memory.

Where memory changes with computations alone, which go in the order of issue, the bytes at each of them are the same
whatever times they take. All but those of activations are also the same for all batch sizes. Sweeps and curves ask for
many such steps one after the other: the last MOST of each kind are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.levels import Footprint
from osfmodel.engine.program import COMPUTE, Hold, Instant, Program
from osfmodel.engine.run import issued_run
from osfmodel.engine.strategies.holdings import ACTIVATIONS, Holdings
from osfmodel.entities.executors import Storage
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

MOST = 256
"""Number of programs, of outlines and of activations that are kept."""
T = TypeVar("T")


def form_of(workload: Workload) -> Hashable:
    """All of a workload on which its programs, and their memory but for activations, depend."""
    tensors = [(one.name, one.gradient_bytes, one.dtype, one.held_bytes, one.shape) for one in workload.layers]
    segments = [(one.name, one.first, one.last) for one in workload.segments]
    sizes = (workload.state_bytes, workload.update_bytes, workload.fixed_bytes)
    return tuple(tensors), tuple(segments), sizes, workload.sent_as, workload.computed_in


def rules_of(plan: Plan) -> Hashable:
    """All of a plan on which its programs depend: the name of its workload is not."""
    return tuple([getattr(plan, name) for name in _RULES])


_RULES = [one.name for one in fields(Plan) if one.compare and one.name != "workload"]


def kept(known: dict[Any, T], key: Hashable, make: Callable[[], T]) -> T:
    """The value known under a key, made if there is none; of more than MOST the oldest is forgotten."""
    if key not in known:
        made = make()
        while len(known) >= MOST:
            known.pop(next(iter(known)), None)
        known[key] = made
    return known[key]


_steps: dict[Any, Timeline] = {}


def timeline_alike(workload: Workload, plan: Plan, pricing: Pricing) -> Timeline:
    """The timeline of :func:`~osfmodel.engine.predict_timeline`; a plan that shards is lowered once for many prices."""
    if plan.sharding is None:
        return predict_timeline(workload, plan, pricing)
    key = (form_of(workload), rules_of(plan), pricing.workers, pricing.per_host, pricing.blocking)
    found = predict_timeline(workload, plan, pricing, _steps.get(key))
    if issued_run(found):
        kept(_steps, key, lambda: found)
    return found


Turns: TypeAlias = Mapping[int, int]
"""Place of each computation of a program among them, by its number: their order of issue, in which they are done."""
Array: TypeAlias = NDArray[np.int64]


def _turns(program: Program) -> dict[int, int]:
    computed = (number for number, one in enumerate(program.operations) if one.stream == COMPUTE)
    return {number: turn for turn, number in enumerate(computed)}


def _spans(turns: Turns, holds: Iterable[Hold]) -> Array:
    """(first computation, the one after the last, bytes) of each hold. Raises KeyError where collectives bound one."""

    def place(one: Instant) -> int:
        return 2 * turns[one.operation] + one.ended

    found = []
    for hold in holds:
        since = max(map(place, hold.since), default=-1)
        since = since if hold.latest is None else min(since, place(hold.latest))
        until = 2 * len(turns) - 1 if hold.until is None else place(hold.until)
        found.append(((since + 1) // 2, (until + 1) // 2, hold.bytes))
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def _levels(count: int, spans: Array) -> Array:
    """Bytes of these spans at each of ``count`` computations."""
    changes = np.zeros(count + 1, dtype=np.int64)
    np.add.at(changes, spans[:, 0], spans[:, 2])
    np.subtract.at(changes, spans[:, 1], spans[:, 2])
    return changes.cumsum()[:-1]


@dataclass(frozen=True, slots=True)
class Outline:
    """The memory of a step but for activations.

    program: one with the same computations in the same order, which many outlines share
    make, workers, storage: of the holdings
    moments: computations of interest, and their ``names``
    owners:  of all memory, in the order in which they are shown; ``lasting``: those that are shown when empty
    spans:   (first computation, the one after the last, bytes) of each hold; ``whose``: the place of its owner
    rest:    bytes of them all at each computation
    """

    program: Program
    make: type[Holdings]
    workers: int
    storage: Storage
    moments: Array
    names: tuple[str, ...]
    owners: tuple[str, ...]
    lasting: frozenset[str]
    spans: Array
    whose: Array
    rest: Array

    def peak(self, workload: Workload, plan: Plan) -> Footprint:
        """The first of the highest moments, with the activations of a workload of this form."""
        sizes = tuple([(one.activation_bytes, one.peak_bytes) for one in workload.layers])
        key = (id(self.program), self.make, plan.recompute, plan.forward_overlap, sizes, workload.segments)
        _, active = kept(_activations, key, lambda: (self.program, self._active(workload, plan)))
        turn = int(self.moments[np.argmax((self.rest + active)[self.moments])])
        there = (self.spans[:, 0] <= turn) & (turn < self.spans[:, 1])
        found = np.zeros(len(self.owners), dtype=np.int64)
        np.add.at(found, self.whose[there], self.spans[there, 2])
        held = dict(zip(self.owners, found.tolist(), strict=True))
        held[ACTIVATIONS] += int(active[turn])
        name = self.names[self.moments.tolist().index(turn)]
        return Footprint(name, {owner: size for owner, size in held.items() if size or owner in self.lasting})

    def _active(self, workload: Workload, plan: Plan) -> Array:
        """Bytes of activations at each computation."""
        holdings = self.make(self.program, workload, plan, self.workers, self.storage)
        return _levels(len(self.rest), _spans(_turns(self.program), holdings.activations()))


_orders: dict[Any, Program] = {}
_activations: dict[Any, tuple[Program, Array]] = {}


def outline_of(holdings: Holdings) -> Outline | None:
    """The outline of a step; None where collectives change memory, or updates go between computations."""
    program = holdings.program()
    turns, operations = _turns(program), program.operations
    others = [hold for hold in program.holds if hold.owner != ACTIVATIONS]
    active = list(holdings.activations())
    if len(others) + len(active) != len(program.holds):
        return None
    try:
        spans, _ = _spans(turns, others), _spans(turns, active)
        moments = sorted((turns[number], name) for number, name in program.moments.items())
    except KeyError:
        return None
    owners = tuple(dict.fromkeys([hold.owner for hold in program.holds]))
    places = {owner: place for place, owner in enumerate(owners)}
    return Outline(
        kept(_orders, tuple([operations[number][:3] for number in turns]), lambda: holdings.bare),
        type(holdings),
        holdings.workers,
        holdings.storage,
        np.array([turn for turn, _ in moments]),
        tuple(name for _, name in moments),
        owners,
        frozenset(hold.owner for hold in program.holds if not hold.passing),
        spans,
        np.array([places[hold.owner] for hold in others]),
        _levels(len(turns), spans),
    )
