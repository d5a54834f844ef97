"""The lists that a grid may have, and how a value of each is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from osfmodel.counting.groups import OPTIONS
from osfmodel.entities.errors import UsageError
from osfmodel.entities.units import parse_bandwidth, parse_time
from osfmodel.planning.sweep.columns import DEFAULTS
from osfmodel.planning.what_if import WhatIf, parse_change, parse_factor
from osfmodel.targets.named_plans import named_plan

Value: TypeAlias = str | int | float | None


class GridList(NamedTuple):
    """A list of a grid: ``key`` in its file, ``column`` in a record; ``read``: one value, checked.

    each: whether a new value needs another workload or cluster
    """

    key: str
    column: str
    read: Callable[[Any], Value]
    each: bool = False

    @property
    def default(self) -> Value:
        """The value where the grid does not list any."""
        return DEFAULTS[self.column]  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{value!r}: give a name or words")
    return value.strip()


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{value!r}: give a whole number from 1 on")
    return value


def _plan(value: Any) -> str:
    if _text(value).endswith(".json"):
        raise UsageError(f"{value}: a sweep is over named plans only: name a plan, or osf predict it")
    named_plan(_text(value))
    return _text(value)


def _price(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        raise UsageError(f"{value!r}: give the price of a GPU for an hour, above 0")
    return float(value)


def _changed(parse: Callable[[str], float], value: Any) -> str:
    parse_change("change", text := _text(value), parse)
    return text


def _factor(value: Any) -> str:
    parse_factor("factor", text := _text(value))
    return text


def _compression(value: Any) -> str:
    WhatIf(compression=_text(value).lower())
    return _text(value).lower()


def _effects(value: Any) -> str:
    """A set of effects, as words with spaces between."""
    return " ".join(map(_text, value)) if isinstance(value, list) else _text(value)


_LISTS = (
    GridList("workloads", "workload", _text, each=True),
    GridList("clusters", "cluster", _text, each=True),
    GridList("effects", "effects", _effects, each=True),
    GridList("bandwidth", "bandwidth", partial(_changed, parse_bandwidth), each=True),
    GridList("latency", "latency", partial(_changed, parse_time), each=True),
    *(GridList(option, option, _count, each=True) for option in OPTIONS.values()),
    GridList("batch_sizes", "batch_size", _count),
    GridList("global_batches", "global_batch", _count),
    GridList("accumulate", "accumulate", _count),
    GridList("compression", "compression", _compression),
    GridList("compute", "compute", _factor),
    GridList("workers", "workers", _count),
    GridList("plans", "plan", _plan),
    GridList("prices", "price", _price),
)
LISTS: Mapping[str, GridList] = {one.key: one for one in _LISTS}
"""Lists of a grid, the slowest to change first: those first that change a workload, which takes time."""
