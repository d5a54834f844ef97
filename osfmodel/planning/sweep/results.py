"""The result of a sweep: its records, conditions on them such as ``fits and workers <= 256``, and the best of them."""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from osfmodel.entities.display import VIEWED, brief, how_many
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import require
from osfmodel.planning.sweep import FIELDS, GOALS, Record, comparable
from osfmodel.planning.sweep.stores import open_store
from osfmodel.solve.verdicts import NO

Read: TypeAlias = Callable[[Record], Any]
COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda value, others: value in others,
    ast.NotIn: lambda value, others: value not in others,
}
COMPUTED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
CONSTANTS: Mapping[type, None] = dict.fromkeys((int, float, str, bool))
"""Types of constants that are allowed."""
LONGEST = 1000
"""Largest number of characters of a condition."""


def condition(text: str) -> Callable[[Record], bool]:
    """A condition on a record's columns, as Python writes it; an empty one always holds.

    Comparisons, ``and``, ``or``, ``not``, ``in``, + - * /, numbers, texts in quotes. A comparison with a missing value
    does not hold, nor does a verdict of no. Raises UsageError for anything else.
    """
    if not text.strip():
        return lambda record: True
    form = f"{text[:LONGEST]!r} is no condition: write one such as fits and workers <= 256"
    if len(text) > LONGEST:
        raise UsageError(form)
    try:
        read = _compiled(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError):
        raise UsageError(form) from None
    return lambda record: _true(read(record))


def _compiled(node: ast.expr) -> Read:
    """A function that computes an expression for a record; None where a part is missing.

    Raises KeyError for a part that is not allowed.
    """
    kind = type(node)
    return EXPRESSIONS[kind](node)


def _constant(node: ast.Constant) -> Read:
    CONSTANTS[type(node.value)]
    return lambda record: node.value


def _column(node: ast.Name) -> Read:
    require(node.id, FIELDS, "column")
    return operator.itemgetter(node.id)


def _list(node: ast.List | ast.Tuple) -> Read:
    parts = [_compiled(one) for one in node.elts]
    return lambda record: [part(record) for part in parts]


def _all_or_any(node: ast.BoolOp) -> Read:
    chosen = all if isinstance(node.op, ast.And) else any
    parts = [_compiled(one) for one in node.values]
    return lambda record: chosen(_true(part(record)) for part in parts)


def _opposite(node: ast.UnaryOp) -> Read:
    function, part = OPPOSITES[type(node.op)], _compiled(node.operand)
    return lambda record: function(part(record))


def _computed(node: ast.BinOp) -> Read:
    function, left, right = COMPUTED[type(node.op)], _compiled(node.left), _compiled(node.right)
    return lambda record: _known(function, left(record), right(record))


def _compared(node: ast.Compare) -> Read:
    functions = [COMPARED[type(one)] for one in node.ops]
    parts = [_compiled(one) for one in (node.left, *node.comparators)]

    def holds(record: Record) -> bool:
        values = [part(record) for part in parts]
        pairs = zip(functions, values, values[1:], strict=False)
        return all(bool(_known(function, left, right)) for function, left, right in pairs)

    return holds


def _true(value: Any) -> bool:
    return bool(value) and value != NO


def _known(function: Callable[..., Any], *values: Any) -> Any:
    """The function of values; None where one is missing or of another type."""
    if any(value is None for value in values):
        return None
    try:
        return function(*values)
    except (TypeError, ArithmeticError):
        return None


OPPOSITES: Mapping[type, Callable[[Any], Any]] = {
    ast.Not: lambda value: not _true(value),
    ast.USub: lambda value: _known(operator.neg, value),
}
EXPRESSIONS: Mapping[type, Callable[[Any], Read]] = {
    ast.Constant: _constant,
    ast.Name: _column,
    ast.List: _list,
    ast.Tuple: _list,
    ast.BoolOp: _all_or_any,
    ast.UnaryOp: _opposite,
    ast.BinOp: _computed,
    ast.Compare: _compared,
}
"""Parts of a condition that are allowed."""


FITS = "fits"
"""The column that says whether the memory of a GPU is enough."""


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
