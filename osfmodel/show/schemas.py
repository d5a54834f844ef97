"""JSON Schemas of our files, made from the types that read them, for editors and other programs."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from osfmodel.engine.band_values import BandsFile
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.files import documents
from osfmodel.entities.files.measurements import MeasurementsFile
from osfmodel.entities.files.usual_effects import EffectsFile
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ENDING = ".schema.json"
"""The end of the name of a schema's file."""
FIELD = re.compile(r"^([a-z_]+(?:, [a-z_]+)*):\s+(\S.*(?:\n[ ]+\S.*)*)", re.MULTILINE)
"""A field, or several, and its meaning in the docstring of a noun."""


class SchemaEntry(NamedTuple):
    """A kind of file: its summary, () -> the type that reads it, and the noun that it holds, if it holds one."""

    summary: str
    struct: Callable[[], Any]
    noun: type | None = None


SCHEMAS: Mapping[str, SchemaEntry] = {
    "workload": SchemaEntry(
        "a workload: layers, their times and gradients", partial(documents.document_type, Workload), Workload
    ),
    "cluster": SchemaEntry(
        "a cluster: its machines, and the figures of its network", partial(documents.document_type, Cluster), Cluster
    ),
    "plan": SchemaEntry("a plan: buckets in the order in which they are sent", documents.plan_type, Plan),
    "measurements": SchemaEntry("measured runs of one source", lambda: MeasurementsFile),
    "bands": SchemaEntry("error bands that come with osfmodel", lambda: BandsFile),
    "effects": SchemaEntry("usual effects that come with osfmodel", lambda: EffectsFile),
}
"""The kinds of our files; ``osf list schemas KIND`` writes the schema of each."""


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file. Values that only the noun itself refuses, such as negative times, pass it."""
    entry = SCHEMAS[kind]
    made = msgspec.json.schema(entry.struct())
    parts: dict[str, Any] = made["$defs"]
    for part in parts.values():  # msgspec before 0.23 leaves the indent of docstrings
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])
    for noun in () if entry.noun is None else _nouns(entry.noun):
        if noun.__name__ in parts:
            _describe(parts[noun.__name__], noun)
    root = parts[made["$ref"].rpartition("/")[2]]
    root["properties"] |= {"schema_version": {"const": documents.SCHEMA_VERSION}, "kind": {"const": kind}}
    return {"$schema": DIALECT, "title": f"osfmodel {kind}", "description": entry.summary, **made}


def schema_text(kind: str) -> str:
    """The schema as the text of a file."""
    return json.dumps(schema_of(kind), indent=2) + "\n"


def _nouns(noun: type) -> Iterator[type]:
    """The noun and those inside it."""
    yield noun
    for kind in get_type_hints(noun).values():
        for inner in _inside(kind):
            yield from _nouns(inner) if inner is not noun else ()


def _inside(kind: Any) -> Iterator[type]:
    if is_dataclass(kind):
        yield kind  # type: ignore[misc]
    for part in get_args(kind):
        yield from _inside(part)


def _describe(part: dict[str, Any], noun: type) -> None:
    """Add the meaning of the noun and those of its fields, as its docstring has them."""
    text = inspect.getdoc(noun) or ""
    part["description"] = text.partition("\n\n")[0].replace("\n", " ")
    for names, meaning in FIELD.findall(text):
        for name in names.split(", "):
            found = part["properties"].get(documents.keys_of(noun).get(name, name))
            if found is not None:
                found["description"] = " ".join(meaning.split())
