"""JSON documents <-> nouns. Units are in the key names; every document carries a schema version.

The form of a document follows from the fields of its noun: a field is written under its own name, or under its name
in KEYS, and left out if it has its default. So a new field, or a new noun inside a cluster, needs only a line in
KEYS here, if its name does not say its unit.

Workload and cluster files are read strictly (an unknown field is an error, for it is most often a misspelt one);
plan files may have further fields, so the output of ``osf tune`` is itself a plan file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, reduce
from operator import or_
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.effects import EFFECTS
from osfmodel.entities.errors import REMEDY, DataError, OsfError, UsageError
from osfmodel.entities.lookup import did_you_mean, nearest
from osfmodel.entities.plan import REPLICATED, SPLIT, Block, Bucket, Plan
from osfmodel.entities.workload import Workload

SCHEMA_VERSION = 1
KINDS = {
    "workload": "layers",
    "cluster": "cost_model",
    "plan": "buckets",
    "measurements": "runs",
    "bands": "cells",
    "effects": "values",
}
"""Kinds of document, each with a field that identifies it if the document does not name its kind."""
PLURAL = ("measurements", "bands", "effects")
UNIT_ENDINGS = {"s": "_s", "s/byte": "_s_per_byte", "fraction": ""}
KEYS = {
    "forward_time": "forward_time_s",
    "backward_time": "backward_time_s",
    "enqueue_time": "enqueue_time_s",
    "update_time": "update_time_s",
    "ideal_time": "ideal_time_s",
    "release_time": "release_time_s",
    "smallest": "smallest_bytes",
    "largest": "largest_bytes",
    "latency": "latency_s",
    "latencies": "latency_s",
    "sizes": "bytes",
    "times": "time_s",
    "startups": "startup_s",
    "trains": "train_s",
    "slowest": "slowest_s",
    "gpu_bandwidth": "gpu_bytes_per_s",
    "nic_bandwidth": "nic_bytes_per_s",
    "host_bandwidth": "host_bytes_per_s",
    "memory_bandwidth": "memory_bytes_per_s",
    "pace": "pace_s",
    **{name: name + UNIT_ENDINGS[effect.unit] for name, effect in EFFECTS.items()},
    "credit": "credit_bytes",
}
"""JSON keys, with the unit, of fields whose names lack it."""
OLD_MIRROR = KEYS["mirror"]
"""Key of a plan's ``mirror``, which is no effect, in files of earlier versions."""
PLAN_KEYS = {name: key for name, key in KEYS.items() if key != OLD_MIRROR}
"""The same of a plan."""
OPEN = (Plan, Bucket, Block)
"""Nouns whose documents may have further fields."""
OTHER_KEYS = {"runs", "warm_ups", "iteration_time_s", "deviation_s", "conditions", "plan", "workload", "cluster"}
"""Keys of measurement files, for the advice on a misspelt one."""
ALWAYS = ("channels", "forward_overlap", "strategy")
"""Fields that are always written, even with their default, so that a plan is complete for its readers."""


class Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A document, or a part of one, in which an unknown field is an error."""


Document = TypeVar("Document", bound=msgspec.Struct)
Noun = TypeVar("Noun")


def decode_workload(text: bytes) -> Workload:
    """A workload file's content. Raises DataError saying what is wrong and where in the document."""
    return _noun(Workload, decode(text, "workload", document_type(Workload)))


def decode_cluster(text: bytes) -> Cluster:
    """A cluster file's content. Raises DataError saying what is wrong and where in the document."""
    return _noun(Cluster, decode(text, "cluster", document_type(Cluster)))


class TunedPlan(msgspec.Struct):
    """A worker count in the output of ``osf tune``, with its plan if that is not the first one."""

    workers: int
    plan: msgspec.Raw = msgspec.Raw()


class TunedPlans(msgspec.Struct):
    """The output of ``osf tune``, as far as predictions read it."""

    plan: msgspec.Raw
    sweep: tuple[TunedPlan, ...] = ()
    options: dict[str, int | str | tuple[str, ...]] | None = None


class PlanFile(NamedTuple):
    """A plan file: its plan or, in the output of ``osf tune``, that of the first worker count.

    others:  plans of further worker counts, where they differ
    options: of ``osf tune``, by name, that decided workload and cluster; None if not known
    """

    plan: Plan
    others: Mapping[int, Plan] = MappingProxyType({})
    options: Mapping[str, Any] | None = None

    def at(self, workers: int) -> Plan:
        """The plan for so many workers."""
        return self.others.get(workers, self.plan)


def decode_plan_file(text: bytes) -> PlanFile:
    """A plan file's content, or that of the output of ``osf tune``. Raises DataError."""
    raw = parse_object(text)
    if not isinstance(raw.get("plan"), dict) or "buckets" in raw:
        return PlanFile(_plan(raw, text))
    tuned = decode(text, "plan", TunedPlans)
    more = [row for row in tuned.sweep if bytes(row.plan)]
    first, *rows = (_plan(parse_object(part), part) for part in (bytes(tuned.plan), *(bytes(row.plan) for row in more)))
    return PlanFile(first, {row.workers: plan for row, plan in zip(more, rows, strict=True)}, tuned.options)


def decode_plan(text: bytes) -> Plan:
    """The plan in a plan file, or the first in the output of ``osf tune``. Raises DataError."""
    return decode_plan_file(text).plan


def _plan(raw: dict[str, Any], text: bytes) -> Plan:
    if OLD_MIRROR in raw:
        text = msgspec.json.encode({"mirror": raw.pop(OLD_MIRROR), **raw})
    document = decode(text, "plan", plan_type())
    if document.split is not msgspec.UNSET:
        named = SPLIT if document.split else REPLICATED
        if document.strategy not in (msgspec.UNSET, named):
            raise DataError(f"says split {document.split} and strategy {document.strategy!r}: leave one of them out")
        document.strategy = named
    return _noun(Plan, document)


@cache
def plan_type() -> Any:
    """The msgspec type of a plan document, which may have ``split`` instead of ``strategy``."""
    rows = [("split", bool | msgspec.UnsetType, msgspec.UNSET)]
    return msgspec.defstruct("Plan", rows, bases=(document_type(Plan),), kw_only=True)


def keys_of(noun: type) -> Mapping[str, str]:
    """JSON keys of the fields of a noun whose names lack their unit."""
    return PLAN_KEYS if noun is Plan else KEYS


def document_of(noun: Workload | Cluster | Plan) -> dict[str, Any]:
    """The JSON-ready form that the decoding functions read."""
    if isinstance(noun, Plan):
        split = {"split": noun.split} if noun.strategy in (REPLICATED, SPLIT) else None
        row = {"schema_version": SCHEMA_VERSION}
        for key, value in _row(noun).items():
            row |= split if key == "strategy" and split else {key: value}
        return row
    return {"schema_version": SCHEMA_VERSION, "kind": type(noun).__name__.lower(), **_row(noun)}


@cache
def _struct(noun: type) -> type[msgspec.Struct]:
    """The msgspec type that checks a document of ``noun``; a field with a default may be missing."""
    hints = get_type_hints(noun)
    rows: list[Any] = []
    for field in fields(noun):
        if _written(field):
            wire = _wire(hints[field.name])
            needed = field.default is MISSING
            rows.append((field.name, wire) if needed else (field.name, wire | msgspec.UnsetType, msgspec.UNSET))
    strict = noun not in OPEN
    return msgspec.defstruct(noun.__name__, rows, rename=keys_of(noun), forbid_unknown_fields=strict, kw_only=True)


@cache
def document_type(noun: type) -> type[msgspec.Struct]:
    """The msgspec type of a whole document, with the fields with which every document begins."""
    rows: list[Any] = [("schema_version", int), ("kind", str, "")]
    strict = noun not in OPEN
    return msgspec.defstruct(
        noun.__name__, rows, bases=(_struct(noun),), rename=keys_of(noun), forbid_unknown_fields=strict, kw_only=True
    )


def _written(field: Field[Any]) -> bool:
    """Whether a field is in documents: it is given, and no function."""
    return field.init and "Callable" not in str(field.type)


def _wire(kind: Any) -> Any:
    """The type of a field in a document, with structs for nouns."""
    if is_dataclass(kind):
        return _struct(kind)  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        return tuple[_wire(get_args(kind)[0]), ...]  # type: ignore[misc]
    if isinstance(kind, UnionType):
        return reduce(or_, map(_wire, get_args(kind)))
    return kind


def _noun(kind: Callable[..., Noun], document: Any) -> Noun:
    """The noun that a checked document describes; making it runs its own checks."""
    found = {}
    for name, wanted in _nested(kind):
        value = getattr(document, name)
        if value is not msgspec.UNSET:
            if wanted is not None and value is not None:
                value = (
                    tuple(_noun(wanted, item) for item in value) if isinstance(value, tuple) else _noun(wanted, value)
                )
            found[name] = value
    return kind(**found)


@cache
def _nested(noun: Any) -> tuple[tuple[str, type | None], ...]:
    """Each field of ``noun``, and the noun type in it (also in a tuple or an option), if any."""
    hints = get_type_hints(noun)
    return tuple((field.name, _inner_noun(hints[field.name])) for field in fields(noun) if _written(field))


def _inner_noun(kind: Any) -> type | None:
    if is_dataclass(kind):
        return kind  # type: ignore[return-value]
    return next((found for part in get_args(kind) if (found := _inner_noun(part)) is not None), None)


def _row(noun: Any) -> dict[str, Any]:
    found, keys = {}, keys_of(type(noun))
    for field in fields(noun):
        value = getattr(noun, field.name)
        if _written(field) and (field.default is MISSING or value != field.default or field.name in ALWAYS):
            found[keys.get(field.name, field.name)] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _row(value) if is_dataclass(value) else value


def parse_object(text: bytes) -> dict[str, Any]:
    """The JSON object in ``text``. Raises DataError, with line and column, for anything else."""
    raw = parse_json(text)
    if not isinstance(raw, dict):
        raise DataError(f"holds a JSON {type(raw).__name__}, but an object {{...}} is needed")
    return raw


def parse_json(text: bytes) -> Any:
    """The data in the JSON ``text``. Raises DataError, with line and column, if it is not JSON."""
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
        shown = found if found in tuple(KINDS) else f"{found!r:.40}"
        is_what = f"holds {found}" if found in PLURAL else f"is a {shown}"
        raise DataError(f"{is_what}, but {kind + ' are' if kind in PLURAL else f'a {kind} is'} needed here")
    _require_version(raw)
    try:
        return msgspec.json.decode(text, type=document)
    except msgspec.ValidationError as error:
        raise DataError(_place(str(error))) from None


def _require_version(raw: Mapping[str, Any]) -> None:
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        if version is None and "model_type" in raw:
            raise UsageError("is a model's configuration: add a colon and a GPU, as in config.json:h100,seq4096,bf16")
        if version is None:
            raise DataError(f"is not an osfmodel file (no schema_version); {REMEDY}")
        raise DataError(f"has schema_version {version!r:.40}: this osfmodel reads version {SCHEMA_VERSION}")


def _place(message: str) -> str:
    """msgspec's message with plain quotes, and with the nearest known field for a misspelt one."""
    message = message.replace(" - at `$", " at `").replace("`", "'")
    _, unknown, rest = message.partition("unknown field '")
    if unknown:
        known = sorted(_keys(Workload) | _keys(Cluster) | OTHER_KEYS)
        name = rest.partition("'")[0]
        meant = did_you_mean(f"'{key}'" for key in nearest(name, known, most=1, cutoff=0.5))
        message += f": {name!r} belongs to another part of the file" if name in known else meant and f": {meant}"
    return message


def _keys(noun: type) -> set[str]:
    """Every key that a document of ``noun`` may have, at any depth."""
    inner = [_keys(nested) for _, nested in _nested(noun) if nested is not None]
    return {keys_of(noun).get(name, name) for name, _ in _nested(noun)}.union(*inner)


def _position(message: str, text: bytes) -> str:
    """msgspec's "... (byte 123)" as line and column."""
    head, separator, tail = message.partition("(byte ")
    if not separator:
        return message
    before = text[: int(tail.rstrip(")"))]
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    return f"{head.removeprefix('JSON is malformed: ')}at line {line}, column {column}"


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
