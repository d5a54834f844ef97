"""Workloads, clusters and plans as documents, the same as in their files, as rows, and in a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_bytes, show_time
from osfmodel.entities.files.documents import document_of
from osfmodel.entities.measurement import LOGGED, SPREAD, UNKNOWN, Measurement
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.sharding import ParameterGroup
from osfmodel.entities.units import show_rate
from osfmodel.entities.workload import Layer, Workload
from osfmodel.show.table import Column, Sheet, column, json_row, listed_rows, spaced


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
    column("frozen_bytes", None, lambda row: row.layer.frozen_bytes),
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


def _figure(key: str) -> Column[Mapping[str, Any]]:
    ending, write = next(((end, write) for end, write in ENDINGS if key.endswith(end)), ("", None))
    head = key if write is None else key.removesuffix(ending) or key
    return column(key, head.replace("_", " "), lambda row: row[key], write or _plain)


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class FileContent:
    """The content of a file of ours."""

    def __init__(self, noun: Workload | Cluster | Plan) -> None:
        self.noun = noun

    def document(self) -> dict[str, Any]:
        """The document of the file."""
        return document_of(self.noun)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer, bucket or figure."""
        if isinstance(self.noun, Workload):
            return [json_row(LAYERS, row) for row in layer_rows(self.noun)]
        if isinstance(self.noun, Plan):
            return [json_row(BUCKETS, row) for row in bucket_rows(self.noun)]
        return figures(self.noun)

    def sheet(self) -> Sheet:
        """The layers, buckets or figures, under the noun's repr without its brackets."""
        if isinstance(self.noun, Workload):
            table = listed_rows("", LAYERS, layer_rows(self.noun))
        elif isinstance(self.noun, Plan):
            table = listed_rows("", BUCKETS, bucket_rows(self.noun))
        else:
            rows = figures(self.noun)
            table = listed_rows("", [_figure(key) for key in (rows[0] if rows else {})], rows)
        return Sheet(repr(self.noun)[1:-1], [table])


def _logged(run: Measurement) -> str:
    """A clause on the steps of a trainer's log: their spread, and how many lines were kept; "" for other runs."""
    told = dict(run.conditions)
    if not run.warm_ups or LOGGED not in told:
        return ""
    spread = f" (median; spread {float(told[SPREAD]):.2%})" if SPREAD in told else ""
    return f"{spread}: {len(run.samples)} of {told[LOGGED]} logged lines kept, {run.warm_ups} of warm-up left out"


def summary(noun: Workload | Cluster | Measurement | Plan) -> str:
    """One line about the content of a profile."""
    if isinstance(noun, Measurement):
        plan = "" if noun.plan == UNKNOWN else f" of {noun.plan}"
        what = f"{how_many(len(noun.samples), 'iteration')}{plan} with {how_many(noun.workers, 'worker')}"
        buckets = [len(value.split()) for key, value in noun.conditions if key == "buckets"]
        formed = "".join(f" in {how_many(count, 'message')}" for count in buckets)
        each = " each" * (len(noun.samples) > 1)
        return f"measurement: {what}, {show_time(noun.iteration_time)}{each}{formed}{_logged(noun)}"
    if isinstance(noun, Workload):
        size, tensors = show_bytes(noun.gradient_bytes), how_many(len(noun.gradients), "tensor")
        return f"workload {noun.name}: {tensors}, {size}, {show_time(noun.compute_time)} per iteration"
    if isinstance(noun, Plan):
        groups = noun.sharding.groups if noun.sharding else ()
        again = sum(group.reshard is not False for group in groups)
        return (
            f"plan {noun.workload}: {noun.strategy}, {how_many(len(noun.buckets), 'group')}, of which backward gathers "
            f"{again} again"
        )
    for kind, rows in (("fits", noun.fits), ("pieces", noun.pieces)):
        if rows:
            return f"cluster {noun.name}: {kind} for {', '.join(str(row.workers) for row in rows)} workers"
    if not noun.tables:
        return f"cluster {noun.name}: {noun.cost_model}, for any worker count"
    parts = []
    for table in noun.tables:
        span = f"{show_bytes(table.sizes[0])} to {show_bytes(table.sizes[-1])}"
        parts.append(f"{table.collective} with {table.workers} workers, {span}")
    return f"cluster {noun.name}: {'; '.join(parts)}"
