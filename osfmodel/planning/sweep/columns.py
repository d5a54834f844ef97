"""The columns of a sweep's records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from osfmodel.counting.groups import OPTIONS


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
