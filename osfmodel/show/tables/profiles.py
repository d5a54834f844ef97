"""Columns of what profiles and plan files hold: layers, buckets, and the figures of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.files.documents import document_of
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.sharding import ParameterGroup
from osfmodel.entities.units import show_rate
from osfmodel.entities.workload import Layer, Workload
from osfmodel.show.tables import Column, column, spaced


class LayerRow(NamedTuple):
    """A layer, and the second of the iteration in which its gradient is ready; None without one."""

    layer: Layer
    ready: float | None


def layer_rows(workload: Workload) -> list[LayerRow]:
    """A row for each layer, from the input to the output."""
    ready = dict(zip(workload.gradients.names, workload.gradients.ready_times, strict=True))
    return [LayerRow(layer, ready.get(layer.name)) for layer in workload.layers]


LAYERS: tuple[Column[LayerRow], ...] = (
    column("layer", "layer", lambda row: row.layer.name),
    column("forward_time_s", "forward", lambda row: row.layer.forward_time, show_time),
    column("backward_time_s", "backward", lambda row: row.layer.backward_time, show_time),
    column("ready_s", "ready", lambda row: row.ready, show_time),
    column("gradient_bytes", "gradient", lambda row: row.layer.gradient_bytes, show_bytes),
    column("dtype", "dtype", lambda row: row.layer.dtype),
    column("shape", "shape", lambda row: list(row.layer.shape) or None, spaced),
    column("activation_bytes", "activations", lambda row: row.layer.activation_bytes, show_bytes),
    column("peak_bytes", "peak", lambda row: row.layer.peak_bytes, show_bytes),
    column("steady_bytes", None, lambda row: row.layer.steady_bytes),
    column("held_bytes", None, lambda row: row.layer.held_bytes),
    column("enqueue_time_s", None, lambda row: row.layer.enqueue_time),
)
"""Columns of a layer."""


class PlannedBucket(NamedTuple):
    """A bucket of a plan, its number, and the rules of its group if its parameters are sharded."""

    number: int
    bucket: Bucket
    group: ParameterGroup | None


def bucket_rows(plan: Plan) -> list[PlannedBucket]:
    """A row for each bucket, in the order in which they are sent."""
    groups = [None] * len(plan.buckets) if plan.sharding is None else plan.sharding.groups
    return [PlannedBucket(number, *pair) for number, pair in enumerate(zip(plan.buckets, groups, strict=True))]


BUCKETS: tuple[Column[PlannedBucket], ...] = (
    column("bucket", "bucket", lambda row: row.number),
    column("bytes", "size", lambda row: row.bucket.size, show_bytes),
    column("blocks", "blocks", lambda row: len(row.bucket.blocks)),
    column("first_layer", "from", lambda row: row.bucket.blocks[0].layer if row.bucket.blocks else None),
    column("last_layer", "to", lambda row: row.bucket.blocks[-1].layer if row.bucket.blocks else None),
    column("release_time_s", "not before", lambda row: row.bucket.release_time or None, show_time),
    column("density", "density", lambda row: row.bucket.density, "{:.3g}".format),
    column("modules", "modules", lambda row: None if row.group is None else list(row.group.modules), spaced),
    column("reshard", "resharded", lambda row: None if row.group is None else row.group.reshard),
)
"""Columns of a bucket."""

PARTS = ("tables", "fits", "pieces", "protocols", "contention", "between_nodes", "in_node", "nccl")
"""Keys of a cluster's document that hold figures of its network."""


def figures(cluster: Cluster) -> list[dict[str, Any]]:
    """A row for each measured size, line or link; parts and keys are those of the cluster's file."""
    document = document_of(cluster)
    rows = [
        {"part": part, **row}
        for part in PARTS
        for found in _several(document.get(part, []))
        for row in _unlisted(found)
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _unlisted(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows without lists: one for each place of the lists, such as sizes and their times; links in words of keys."""
    flat = {
        f"{key}_{inner}" if isinstance(value, dict) else key: each
        for key, value in row.items()
        for inner, each in (value.items() if isinstance(value, dict) else [("", value)])
    }
    longest = max((len(value) for value in flat.values() if isinstance(value, list)), default=1)
    for place in range(longest):
        yield {key: value[place] if isinstance(value, list) else value for key, value in flat.items()}


ENDINGS = (("_bytes_per_s", show_rate), ("_s_per_byte", None), ("_s", show_time), ("bytes", show_bytes))
"""Ends of keys, and the function that writes such a value for people; None if the unit is in the heading."""


def figure_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column[Mapping[str, Any]]]:
    """A column for each key of the rows of :func:`figures`."""
    return [_figure(key) for key in (rows[0] if rows else {})]


def _figure(key: str) -> Column[Mapping[str, Any]]:
    ending, write = next(((end, write) for end, write in ENDINGS if key.endswith(end)), ("", None))
    head = key if write is None else key.removesuffix(ending) or key
    return column(key, head.replace("_", " "), lambda row: row[key], write or _plain)


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
