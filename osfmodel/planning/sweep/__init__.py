"""A sweep: predictions for every combination of a grid, each a flat record, written as they come.

FIELDS are the columns of its records, LISTS the lists that a grid may have, each with how a value of it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from osfmodel.counting.groups import OPTIONS
from osfmodel.entities.errors import UsageError
from osfmodel.entities.units import parse_bandwidth, parse_time
from osfmodel.planning.what_if import WhatIf, parse_change, parse_factor
from osfmodel.targets.named_plans import named_plan


class Field(NamedTuple):
    """A column of a record: its key, type, summary, and whether more of it is better (None if it is no goal)."""

    key: str
    type: type
    summary: str
    more: bool | None = None


_FIELDS = (
    Field("point", int, "number of the point: equal for equal points, whatever grid has them"),
    Field("workload", str, "name, file or words"),
    Field("cluster", str, "name, file or words"),
    Field("workers", int, "GPUs", more=False),
    Field("plan", str, "named plan"),
    Field("batch_size", int, "samples of a GPU's micro-batch"),
    Field("global_batch", int, "samples of all GPUs and micro-batches, where the grid says it"),
    Field("accumulate", int, "micro-batches of a step"),
    Field("compression", str, "the way gradients are sent"),
    Field("compute", str, "factor on the speed of the device"),
    Field("bandwidth", str, "change of the network's bandwidth"),
    Field("latency", str, "change of the network's latency"),
    Field("effects", str, "effects that are modelled; `usual`: those that the cluster states, or usual ones"),
    *(Field(option, int, f"GPUs of a {kind}-parallel group") for kind, option in OPTIONS.items()),
    Field("price", float, "of a GPU for an hour"),
    Field("step_time_s", float, "seconds of a step", more=False),
    Field("low_s", float, "fast end of the error band, seconds", more=False),
    Field("high_s", float, "slow end of the error band, seconds", more=False),
    Field("samples_per_s", float, "of all GPUs", more=True),
    Field("tokens_per_s", float, "of all GPUs", more=True),
    Field("scaling_factor", float, "time with perfect scaling over the step's time", more=True),
    Field("mfu", float, "model FLOPs utilisation", more=True),
    Field("peak_memory_bytes", int, "live bytes of a GPU at the highest moment of a step", more=False),
    Field("reserved_memory_bytes", int, "bytes that PyTorch's allocator takes for that", more=False),
    Field("fits", str, "yes, tight or no: whether a GPU has room for that"),
    Field("fits_chance", float, "the chance that it has", more=True),
    Field("cost_per_hour", float, "of all GPUs", more=False),
    Field("training_hours", float, "of the whole training, where the grid says its length", more=False),
    Field("cost", float, "of the whole training; without its length, of what `cost_of` says", more=False),
    Field("cost_of", str, "training, million tokens or million samples"),
    Field("command", str, "the command for this point alone; if it does not fit, it says why"),
    Field("error", str, "the reason for which there is no prediction"),
)
FIELDS: Mapping[str, Field] = {one.key: one for one in _FIELDS}
"""Columns of a record, in their order."""
KEYS = tuple(FIELDS)
GIVEN = KEYS[1 : KEYS.index("step_time_s")]
"""Columns that the lists of a grid give."""
USUAL = "usual"
"""The effects that a cluster states, or else the usual ones."""
DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(GIVEN),
    "effects": USUAL,
    **dict.fromkeys(OPTIONS.values(), 1),
    "plan": "ddp",
    "accumulate": 1,
    "compression": "none",
}
"""The value in each of these columns where a grid does not list any."""
GOALS: Mapping[str, bool] = {one.key: one.more for one in FIELDS.values() if one.more is not None}
"""Columns that a goal may name, and whether more of it is better."""
Record: TypeAlias = dict[str, Any]


Value: TypeAlias = str | int | float | None


COST, COST_OF = "cost", "cost_of"
"""Columns of a cost, and of the amount that it is for."""


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
