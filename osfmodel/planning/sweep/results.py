"""The result of a sweep: its records, and the best of them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from osfmodel.entities.display import VIEWED, brief, how_many
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import require
from osfmodel.planning.sweep.columns import GOALS, Record
from osfmodel.planning.sweep.conditions import condition
from osfmodel.planning.sweep.stores import open_store
from osfmodel.solve.verdicts import NO

COST, COST_OF, FITS = "cost", "cost_of", "fits"
"""Columns of a cost, of the amount that it is for, and of whether the memory of a GPU is enough."""


@dataclass(frozen=True)
class Sweep:
    """Records of a grid: in the table at ``path``, or ``held`` in memory; ``remarks``: on the grid."""

    name: str
    path: str | None
    held: Sequence[Record] = ()
    remarks: tuple[str, ...] = ()
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __repr__(self) -> str:
        there = f"in {self.path}" if self.path else how_many(len(self.held), "point")
        return brief(self, f"{self.name}: {there}")

    def __iter__(self) -> Iterator[Record]:
        """The records, in the order of the grid; read from the table as they are asked for."""
        if self.path is None:
            yield from self.held
            return
        store = open_store(self.path, writes=False)
        try:
            yield from store.records()
        finally:
            store.close()

    def best(self, goals: Sequence[str], where: str = "") -> list[Record]:
        """The records that no other one beats in all of ``goals`` (the Pareto frontier), of those with ``where``.

        A record without a value for a goal is left out. Raises UsageError for an unknown goal or condition.
        """
        return frontier(self, goals, condition(where))


def load_sweep(path: str | os.PathLike[str]) -> Sweep:
    """The sweep in a table. Raises UsageError and DataError as :func:`~.stores.open_store`."""
    open_store(path, writes=False).close()
    return Sweep(str(path), str(path))


def frontier(
    records: Iterable[Record], goals: Sequence[str], holds: Callable[[Record], bool] = lambda record: True
) -> list[Record]:
    """The records that no other beats: none is better in one of ``goals`` and as good in all. The first of equals.

    One that does not fit into memory is beaten by any that does.
    Raises UsageError for an unknown goal, and for costs in different units, of tokens and of samples.
    """
    signs = [1.0 if require(goal, GOALS, "goal") else -1.0 for goal in goals]
    if not goals:
        raise UsageError("a frontier needs a goal, such as step_time_s, or tokens_per_s and cost")
    kept: list[tuple[tuple[float, ...], Record]] = []
    room = False
    for record in comparable(filter(holds, records), goals):
        if record.get(FITS) != NO and not room:
            kept, room = [], True
        elif record.get(FITS) == NO and room:
            continue
        values = [record[goal] for goal in goals]
        score = tuple(sign * value for sign, value in zip(signs, values, strict=True))
        if any(all(map(operator.ge, other, score)) for other, _ in kept):
            continue
        kept = [(other, one) for other, one in kept if not all(map(operator.ge, score, other))]
        kept.append((score, record))
    return [record for _, record in sorted(kept, key=lambda pair: pair[0], reverse=True)]


def comparable(records: Iterable[Record], goals: Sequence[str]) -> Iterator[Record]:
    """The records that have all of ``goals``. Raises UsageError for costs in different units."""
    costs: set[str] = set()
    for record in records:
        if any(record[goal] is None for goal in goals):
            continue
        costs.add(str(record.get(COST_OF)))
        if COST in goals and len(costs) > 1:
            units = " and ".join(sorted(costs))
            raise UsageError(f"{COST} has different units ({units}): add --where '{COST_OF} == \"{max(costs)}\"'")
        yield record
