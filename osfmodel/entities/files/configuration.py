"""The user's own defaults: ``osf.toml``, or ``[tool.osfmodel]`` of ``pyproject.toml``, here or in a folder above."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import read
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.records import dataclass

OWN, SHARED = "osf.toml", "pyproject.toml"
SECTION = "tool.osfmodel"
Words = tuple[str, ...]
"""Values of an option, as on the command line."""


class ConfigurationKey(NamedTuple):
    """A key of the file.

    summary:  its meaning
    kind:     the values that it takes, in words, with an example
    words:    (value) -> the values of its option; none for a value of another type
    built_in: the value without a file, in words
    """

    summary: str
    kind: str
    words: Callable[[Any], Words]
    built_in: str


def _text(value: Any) -> Words:
    return (value,) if isinstance(value, str) and value.strip() else ()


def _count(value: Any) -> Words:
    return (str(value),) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _number(value: Any) -> Words:
    return (str(value),) if isinstance(value, int | float) and not isinstance(value, bool) else ()


def _texts(value: Any) -> Words:
    words = tuple(value) if isinstance(value, list) else ()
    return words if all(map(_text, words)) else ()


def _form(value: Any) -> Words:
    return (value,) if value in ("table", "json", "yaml", "csv") else ()


SETTINGS: Mapping[str, ConfigurationKey] = {
    "cluster": ConfigurationKey(
        "--cluster of predict, tune, scale, report and memory",
        'a name, a file or words, such as "v100-10gbe"',
        _text,
        "none",
    ),
    "workers": ConfigurationKey(
        "--workers of the same commands",
        'a count such as 16, or a range such as "4..64"',
        _count,
        "none",
    ),
    "effects": ConfigurationKey(
        "--effect, which replaces the usual effects",
        'a list of effects, such as ["none"]',
        _texts,
        "usual",
    ),
    "price": ConfigurationKey(
        "--price of scale, and --price-per-gpu-hour of predict with --samples",
        "a number, such as 2.5",
        _number,
        "none",
    ),
    "format": ConfigurationKey(
        "--format of what is printed, without -o",
        'one of "table", "json", "yaml" and "csv"',
        _form,
        "table",
    ),
}
"""The keys of the file."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The keys of one file, in words of the command line."""

    path: Path
    section: str
    words: Mapping[str, Words]

    @property
    def name(self) -> str:
        """The file's path, from the current folder if that is shorter."""
        try:
            return min(os.path.relpath(self.path), str(self.path), key=len)
        except ValueError:  # on another drive
            return str(self.path)

    def place(self, key: str) -> str:
        """The file and the full name of a key."""
        return f"{self.name}: {self.section}.{key}" if self.section else f"{self.name}: {key}"


def nearest_configuration(folder: Path) -> Configuration | None:
    """The file in ``folder`` or the nearest one above it; ``osf.toml`` wins over ``pyproject.toml`` beside it.

    Raises DataError, with file, key and remedy, for a file that cannot be read.
    """
    return next(_configurations(folder), None)


def _configurations(folder: Path) -> Iterator[Configuration]:
    for place in (folder, *folder.parents):
        for name, section in ((OWN, ""), (SHARED, SECTION)):
            path = place / name
            if os.path.isfile(path):
                found = read(path, partial(_decoded, path, section))
                if found is not None:
                    yield found


def _decoded(path: Path, section: str, content: bytes) -> Configuration | None:
    """The keys in the section of a file; None without it. A file without the section's name is not parsed."""
    if section.encode() not in content:
        return None
    table: Any = _toml(content)
    for name in filter(None, section.split(".")):
        table = table.get(name) if isinstance(table, dict) else None
    return Configuration(path, section, _words(path.parent, table)) if isinstance(table, dict) else None


def _toml(content: bytes) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:
        raise DataError(f"is not TOML: {error}: correct it, or leave it out by osf --no-config") from None


def _words(folder: Path, table: Mapping[str, Any]) -> Mapping[str, Words]:
    """The keys of a table in words of the command line. Raises DataError for an unknown key or a bad value."""
    words = {}
    for key, value in table.items():
        if key not in SETTINGS:
            raise DataError(f"unknown key {key!r}: {suggestion(key, SETTINGS)}")
        words[key] = SETTINGS[key].words(value)
        if not words[key]:
            raise DataError(f"key {key!r} is {value!r}: give {SETTINGS[key].kind}")
    if "cluster" in words:
        words["cluster"] = (_beside(folder, words["cluster"][0]),)
    return words


def _beside(folder: Path, name: str) -> str:
    """A cluster file as the current folder sees it; a name and words stay as they are."""
    return os.path.relpath(folder / name) if name.endswith(".json") else name
