"""JSON of others, parsed with the place of the fault."""

from __future__ import annotations

from typing import Any, TypeVar

from osfmodel.documents import parse_json, parse_object
from osfmodel.errors import DataError
from osfmodel.formats.source_text import Text

Kind = TypeVar("Kind")
LARGEST_JSON = 8 * 2**20
"""Characters. Parsed, a byte of JSON can take some twenty of memory."""


def parse(text: Text) -> dict[str, Any]:
    """The object in ``text``. Raises DataError for what is no JSON object."""
    return parse_object(content(text))


def parse_list(text: Text) -> list[Any]:
    """The list in ``text``. Raises DataError for what is no JSON list."""
    raw = parse_json(content(text))
    if not isinstance(raw, list):
        raise DataError(f"holds a JSON {type(raw).__name__}, but a list [...] is needed")
    return raw


def content(text: Text) -> bytes:
    """``text`` as bytes. Raises DataError where it is too large to be parsed."""
    if len(text.content) > LARGEST_JSON:
        raise DataError(f"has more than {LARGEST_JSON >> 20} MiB of JSON, which no log or profile has")
    return text.content.encode()


def require(text: Text, document: dict[str, Any], field: str, kind: type[Kind]) -> Kind:
    """``document[field]``. Raises DataError where it is missing or of another kind."""
    value = document.get(field)
    if not isinstance(value, kind):
        raise DataError(f"{field!r} is {value!r:.60}, not a {kind.__name__}")
    return value
