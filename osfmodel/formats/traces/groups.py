"""The groups of sharded parameters in a step: their parameters, types, and how they are gathered and reduced."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from osfmodel.entities.errors import DataError
from osfmodel.entities.trace import ROOTS, Collective, Step
from osfmodel.entities.units import element_bytes

SHAPES = "record with record_shapes=True"


@dataclass(frozen=True, slots=True)
class TracedGroup:
    """A group of sharded parameters in a step.

    parts:     (shape, elements) of each parameter, the shape () where only elements are known
    dtype:     in which gradients are reduced, and the parameters taken to be; ``gathered`` in which they are gathered
    ranks:     between which it is sharded; ``again``: between which backward gathers it, 0 if it does not
    last:      whether it is reduced when backward is over
    ahead, behind: groups gathered ahead in forward and in backward
    """

    module: str
    parts: tuple[tuple[tuple[int, ...], int], ...]
    dtype: str
    gathered: str
    ranks: int
    again: int
    last: bool
    ahead: int
    behind: int

    @property
    def names(self) -> list[str]:
        """Names of its parameters, as made up."""
        before = f"{self.module}." if self.module else ""
        return [f"{before}parameter{number}" for number in range(len(self.parts))]

    @property
    def sizes(self) -> list[int]:
        """Bytes of its parameters."""
        return [elements * element_bytes(self.dtype) for _, elements in self.parts]


def groups_of(step: Step) -> list[TracedGroup]:
    """The groups in the order in which forward enters them. Raises DataError if their sizes are not known."""
    entered = [use.module for use in step.uses if not use.backward]
    gathers = [one for one in step.sharded if one.kind == "all_gather"]
    order = list(dict.fromkeys([*entered, *(one.shard.module for one in gathers if one.shard)]))
    about = {module: [one for one in step.sharded if one.shard and one.shard.module == module] for module in order}
    order = [module for module in order if about[module]]
    return [_group(module, about[module], order, step) for module in order]


def _group(module: str, about: Sequence[Collective], order: Sequence[str], step: Step) -> TracedGroup:
    gathers = [one for one in about if one.kind == "all_gather"]
    first = next((one for one in gathers if one.shard and not one.shard.backward), None)
    again = next((one for one in gathers if one.shard and one.shard.backward), None)
    reduced = next((one for one in about if one.kind == "reduce_scatter"), None)
    gathered = first or again
    known = gathered if gathered is not None and gathered.dtype else reduced
    if known is None or not known.dtype or not known.workers or known.elements is None:
        raise DataError(f"the all-gathers of {module or 'the root'} have no sizes: {SHAPES}")
    return TracedGroup(
        module,
        tuple(_parts(gathered, reduced)),
        (reduced.dtype if reduced else None) or known.dtype,
        known.dtype,
        known.workers,
        (again.workers or 0) if again else 0,
        bool(reduced and reduced.shard and reduced.shard.last),
        _distance(step, module, order, backward=False),
        max(1, _distance(step, module, order, backward=True)),
    )


def _parts(gathered: Collective | None, reduced: Collective | None) -> Iterator[tuple[tuple[int, ...], int]]:
    """(shape, elements) of each parameter: as its gradient is copied, else as it is gathered, else of all in one."""
    shapes = reduced.shard.shapes if reduced and reduced.shard else ()
    padded = gathered.shard.padded if gathered and gathered.shard else ()
    ranks = next((one.workers for one in (gathered, reduced) if one and one.workers), 1)
    if shapes and len(shapes) >= len(padded):
        yield from ((shape, math.prod(shape)) for shape in shapes)
    elif padded:
        yield from (((), part * ranks) for part in padded)
    elif gathered and gathered.elements is not None:
        yield (), gathered.elements * ranks
    elif reduced and reduced.elements is not None:
        yield (), reduced.elements


def _distance(step: Step, module: str, order: Sequence[str], backward: bool) -> int:
    """Groups from this one to the farthest that its hooks gather, in the order of forward; 0 if they gather none."""
    place = order.index(module)
    found = [
        abs(order.index(one.shard.module) - place)
        for one in step.sharded
        if one.kind == "all_gather" and one.shard and one.shard.backward == backward and one.shard.by == module
        if one.shard.module in order and not one.shard.flat and module not in ROOTS
    ]
    return max(found, default=0)
