"""JSON of others, parsed with the place of the fault."""

from __future__ import annotations

from typing import Any, TypeVar

from osfmodel.documents import parse_object
from osfmodel.errors import DataError
from osfmodel.formats.source_text import Text

Kind = TypeVar("Kind")


def parse(text: Text) -> dict[str, Any]:
    """The object in ``text``. Raises DataError for what is no JSON object."""
    return parse_object(text.content.encode())


def require(text: Text, document: dict[str, Any], field: str, kind: type[Kind]) -> Kind:
    """``document[field]``. Raises DataError where it is missing or of another kind."""
    value = document.get(field)
    if not isinstance(value, kind):
        raise DataError(f"{field!r} is {value!r:.60}, not a {kind.__name__}")
    return value
