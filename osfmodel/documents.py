"""JSON documents <-> nouns. Units stand in the key names; every document carries a schema version.

Workload and cluster files are read strictly (an unknown field is an error, for it is most often a misspelt one); in
plan files further fields are welcome, so the output of ``osf tune`` is itself a plan file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, TypeVar

import msgspec

from osfmodel.cluster import AlphaBeta, Cluster, Link, NcclShape, Pieces, Protocol, Table
from osfmodel.effects import Effects
from osfmodel.errors import DataError, OsfError
from osfmodel.plan import Block, Bucket, Plan
from osfmodel.source import Source
from osfmodel.workload import Layer, Workload

SCHEMA_VERSION = 1
KINDS = {"workload": "layers", "cluster": "cost_model", "plan": "buckets", "measurements": "runs", "bands": "cells"}
"""Each kind of document, and the field that gives it away where it does not say."""


class Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A document or part of one in which an unknown field is an error."""


class _Layer(Strict):
    name: str
    forward_time_s: float
    backward_time_s: float
    gradient_bytes: int
    dtype: str = "float32"
    activation_bytes: int | None = None
    enqueue_time_s: float | None = None


class _Workload(Strict):
    schema_version: int
    name: str
    layers: list[_Layer]
    kind: str = ""
    batch_size: int | None = None
    update_time_s: float = 0.0
    source: Source = Source()


class _Link(Strict):
    latency_s: float
    seconds_per_byte: float
    reduce_seconds_per_byte: float = 0.0


class _Fit(Strict):
    workers: int
    latency_s: float
    seconds_per_byte: float
    collective: str = "all_reduce"


class _Table(Strict):
    workers: int
    bytes: list[int]
    time_s: list[float]
    collective: str = "all_reduce"


class _Effects(Strict):
    launch_latency_s: float = 0
    hook_time_s: float = 0
    copy_in_s_per_byte: float = 0
    copy_out_s_per_byte: float = 0
    fusion_copy_s_per_byte: float = 0
    compute_slowdown: float = 0
    straggler_deviation: float = 0


class _Nccl(Strict):
    generation: str
    fabric: str
    gpu_bytes_per_s: float
    nic_bytes_per_s: float | None = None
    nvls: bool = False
    latency_scale: float = 1.0
    net_latency_scale: float = 1.0


class _Pieces(Strict):
    workers: int
    latency_s: list[float]
    seconds_per_byte: list[float]
    collective: str = "all_reduce"


class _Protocol(Strict):
    latency_s: float
    seconds_per_byte: float
    in_node: _Link | None = None
    between_nodes: _Link | None = None


class _Cluster(Strict):
    schema_version: int
    name: str
    cost_model: str
    kind: str = ""
    gpus_per_node: int = 1
    nodes: int | None = None
    nics_per_node: int = 1
    between_nodes: _Link | None = None
    in_node: _Link | None = None
    fits: list[_Fit] = []
    tables: list[_Table] = []
    nccl: _Nccl | None = None
    pieces: list[_Pieces] = []
    protocols: list[_Protocol] = []
    effects: _Effects | None = None
    source: Source = Source()


class _Bucket(msgspec.Struct):
    blocks: list[Block]
    release_time_s: float = 0.0


class _Plan(msgspec.Struct):
    schema_version: int
    workload: str
    buckets: list[_Bucket]
    channels: int = 1
    forward_overlap: bool = False
    split: bool = False


Document = TypeVar("Document", bound=msgspec.Struct)


def decode_workload(text: bytes) -> Workload:
    """A workload file's content. Raises DataError saying what is wrong and where in the document."""
    document = decode(text, "workload", _Workload)
    layers = tuple(
        Layer(
            row.name, row.forward_time_s, row.backward_time_s, row.gradient_bytes, row.dtype, row.activation_bytes,
            row.enqueue_time_s,
        )
        for row in document.layers
    )  # fmt: skip
    return Workload(document.name, layers, document.batch_size, document.update_time_s, document.source)


def decode_cluster(text: bytes) -> Cluster:
    """A cluster file's content. Raises DataError saying what is wrong and where in the document."""
    document = decode(text, "cluster", _Cluster)
    return Cluster(
        name=document.name,
        cost_model=document.cost_model,
        gpus_per_node=document.gpus_per_node,
        nodes=document.nodes,
        nics_per_node=document.nics_per_node,
        between_nodes=_link(document.between_nodes),
        in_node=_link(document.in_node),
        fits=tuple(
            AlphaBeta(row.workers, row.latency_s, row.seconds_per_byte, row.collective) for row in document.fits
        ),
        tables=tuple(
            Table(row.workers, tuple(row.bytes), tuple(row.time_s), row.collective) for row in document.tables
        ),
        nccl=_nccl(document.nccl),
        effects=Effects(*msgspec.structs.astuple(document.effects or _Effects())),
        pieces=tuple(
            Pieces(row.workers, tuple(row.latency_s), tuple(row.seconds_per_byte), row.collective)
            for row in document.pieces
        ),
        protocols=tuple(
            Protocol(row.latency_s, row.seconds_per_byte, _link(row.in_node), _link(row.between_nodes))
            for row in document.protocols
        ),
        source=document.source,
    )


def decode_plan(text: bytes) -> Plan:
    """A plan file's content, or the plan inside the output of ``osf tune``. Raises DataError."""
    raw = parse_object(text)
    inner = raw.get("plan")
    if isinstance(inner, dict) and "buckets" not in raw:
        _require_version(raw)
        text = msgspec.json.encode(inner)
    document = decode(text, "plan", _Plan)
    buckets = tuple(Bucket(tuple(row.blocks), row.release_time_s) for row in document.buckets)
    return Plan(document.workload, buckets, document.channels, document.forward_overlap, document.split)


def parse_object(text: bytes) -> dict[str, Any]:
    """The JSON object in ``text``. Raises DataError, with line and column, for anything else."""
    raw = parse_json(text)
    if not isinstance(raw, dict):
        raise DataError(f"holds a JSON {type(raw).__name__}, but an object {{...}} is needed")
    return raw


def parse_json(text: bytes) -> Any:
    """What the JSON in ``text`` says. Raises DataError, with line and column, for what is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"is not valid JSON: {_position(str(error), text)}") from None
    except RecursionError:
        raise DataError("is nested too deeply to be a profile") from None


def decode(text: bytes, kind: str, document: type[Document]) -> Document:
    """``text`` as a document of ``kind``, a key of KINDS. Raises DataError saying what is wrong and where."""
    raw = parse_object(text)
    found = raw.get("kind") or next((name for name, field in KINDS.items() if field in raw), kind)
    if kind != "plan" and isinstance(raw.get("plan"), dict):
        found = "plan"
    if found != kind:
        raise DataError(f"is a {found}, but a {kind} is needed here")
    _require_version(raw)
    try:
        return msgspec.json.decode(text, type=document)
    except msgspec.ValidationError as error:
        raise DataError(_place(str(error))) from None


def _require_version(raw: Mapping[str, Any]) -> None:
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        have = "no schema_version" if version is None else f"schema_version {version!r}"
        raise DataError(f"has {have}: this osfmodel reads version {SCHEMA_VERSION}")


def _place(message: str) -> str:
    """msgspec's message with plain quotes, and for a misspelt field the nearest known one."""
    from difflib import get_close_matches

    message = message.replace(" - at `$", " at `").replace("`", "'")
    _, unknown, rest = message.partition("unknown field '")
    if unknown:
        known = {
            field
            for struct in (_Workload, _Layer, _Cluster, _Link, _Fit, _Table, _Pieces, _Protocol, _Nccl, _Effects)
            for field in struct.__struct_fields__
        }
        near = get_close_matches(rest.partition("'")[0], sorted(known), n=1, cutoff=0.5)
        message += f": did you mean '{near[0]}'?" if near else ""
    return message


def _position(message: str, text: bytes) -> str:
    """msgspec's "... (byte 123)" as line and column."""
    head, separator, tail = message.partition("(byte ")
    if not separator:
        return message
    before = text[: int(tail.rstrip(")"))]
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    return f"{head.removeprefix('JSON is malformed: ')}at line {line}, column {column}"


def _link(row: _Link | None) -> Link | None:
    return None if row is None else Link(row.latency_s, row.seconds_per_byte, row.reduce_seconds_per_byte)


def _nccl(row: _Nccl | None) -> NcclShape | None:
    return None if row is None else NcclShape(*msgspec.structs.astuple(row))


def _nccl_row(shape: NcclShape | None) -> _Nccl | None:
    return None if shape is None else _Nccl(*astuple(shape))


def _link_row(link: Link | None) -> _Link | None:
    return None if link is None else _Link(link.latency, link.seconds_per_byte, link.reduce_seconds_per_byte)


def workload_document(workload: Workload) -> dict[str, Any]:
    """The JSON-ready form that :func:`decode_workload` reads."""
    layers = [
        _Layer(
            layer.name, layer.forward_time, layer.backward_time, layer.gradient_bytes, layer.dtype,
            layer.activation_bytes, layer.enqueue_time,
        )
        for layer in workload.layers
    ]  # fmt: skip
    return _builtins(
        _Workload(
            SCHEMA_VERSION,
            workload.name,
            layers,
            "workload",
            workload.batch_size,
            workload.update_time,
            workload.source,
        )
    )


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """The JSON-ready form that :func:`decode_cluster` reads."""
    return _builtins(
        _Cluster(
            schema_version=SCHEMA_VERSION,
            name=cluster.name,
            cost_model=cluster.cost_model,
            kind="cluster",
            gpus_per_node=cluster.gpus_per_node,
            nodes=cluster.nodes,
            nics_per_node=cluster.nics_per_node,
            between_nodes=_link_row(cluster.between_nodes),
            in_node=_link_row(cluster.in_node),
            fits=[_Fit(row.workers, row.latency, row.seconds_per_byte, row.collective) for row in cluster.fits],
            tables=[_Table(row.workers, list(row.sizes), list(row.times), row.collective) for row in cluster.tables],
            effects=_Effects(*astuple(cluster.effects)) if cluster.effects.active else None,
            nccl=_nccl_row(cluster.nccl),
            pieces=[
                _Pieces(row.workers, list(row.latencies), list(row.seconds_per_byte), row.collective)
                for row in cluster.pieces
            ],
            protocols=[
                _Protocol(row.latency, row.seconds_per_byte, _link_row(row.in_node), _link_row(row.between_nodes))
                for row in cluster.protocols
            ],
            source=cluster.source,
        )
    )


def plan_document(plan: Plan) -> dict[str, Any]:
    """The JSON-ready form that :func:`decode_plan` reads."""
    buckets = []
    for bucket in plan.buckets:
        row: dict[str, Any] = {"blocks": [msgspec.to_builtins(block) for block in bucket.blocks]}
        if bucket.release_time:
            row["release_time_s"] = bucket.release_time
        buckets.append(row)
    return {
        "schema_version": SCHEMA_VERSION,
        "workload": plan.workload,
        "channels": plan.channels,
        "forward_overlap": plan.forward_overlap,
        "split": plan.split,
        "buckets": buckets,
    }


def _builtins(document: msgspec.Struct) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(document)
    return built


def encode(document: Mapping[str, Any]) -> str:
    """JSON with one line per field, and one line per entry of a long list of objects."""
    lines = []
    for key, value in document.items():
        text = _dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n    ".join(_dumps(row) for row in value)
            text = f"[\n    {rows}\n  ]"
        lines.append(f"  {_dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dumps(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise OsfError(f"cannot be written as JSON: {error}") from None
