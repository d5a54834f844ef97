"""Configurations of models, as Hugging Face writes them: numbers and flags by name, checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import bundled_file

LARGEST = 10**9
"""Above any dimension of a model."""
MOST_LAYERS = 10_000
"""Above any number of layers of a model."""


class OptionError(DataError):
    """A configuration has an option that its own family does not count, though its library's class may."""


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    """Defaults of the classes of transformers, by ``model_type``: made by ``python profiles/make_defaults.py``."""
    made: Mapping[str, Mapping[str, Any]] = json.loads(bundled_file("defaults.json").read_bytes())["defaults"]
    return made


@dataclass(frozen=True, slots=True)
class Config:
    """Fields of a model's configuration; ``name`` is said in errors."""

    name: str
    fields: Mapping[str, Any]

    def value(self, name: str) -> Any:
        """The value under ``name``; where a file leaves it out, the default of its type's class; else None."""
        if name in self.fields:
            return self.fields[name]
        return _defaults().get(str(self.fields.get("model_type")), {}).get(name)

    def count(self, *names: str, default: int | None = None, most: int = LARGEST, least: int = 1) -> int:
        """The whole number, from ``least`` to ``most``, under the first of ``names`` that has one. Raises DataError.

        What a file says goes before the defaults of its type.
        """
        for name in sorted(names, key=lambda name: name not in self.fields):
            value = self.value(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise DataError(f"{self.name}: {name!r} is {value!r}: it must be a whole number from {least} to {most}")
            return value
        if default is None:
            raise DataError(f"{self.name}: the configuration has no {names[0]!r}, which its model needs")
        return default

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers under the first of ``names`` that has one. Raises DataError."""
        return self.count(*names, default=default, most=MOST_LAYERS)

    def counts(self, name: str, most: int = LARGEST, least: int = 1) -> tuple[int, ...]:
        """The whole numbers, from ``least`` to ``most``, of the list under ``name``. Raises DataError."""
        value = self.value(name)
        if not isinstance(value, list) or not value:
            raise DataError(f"{self.name}: {name!r} is {value!r:.60}: it must be a list of whole numbers")
        return tuple(Config(self.name, {name: one}).count(name, most=most, least=least) for one in value)

    def stages(self, first: str, second: str) -> list[tuple[int, int]]:
        """Pairs of the lists of whole numbers under two names. Raises DataError unless they are as long."""
        one, other = self.counts(first, MOST_LAYERS), self.counts(second, MOST_LAYERS)
        if len(one) != len(other):
            raise DataError(f"{self.name}: {first!r} has {len(one)} stages and {second!r} {len(other)}")
        return list(zip(one, other, strict=True))

    def flag(self, name: str, default: bool) -> bool:
        """Whether ``name`` is set. Raises DataError for anything but true and false."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise DataError(f"{self.name}: {name!r} is {value!r}: it must be true or false")
        return value

    def word(self, name: str, default: str = "") -> str:
        """The text under ``name``. Raises DataError for anything else."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise DataError(f"{self.name}: {name!r} is {value!r}: it must be a text")
        return value

    def part(self, name: str) -> Config:
        """The configuration inside this one under ``name``. Raises DataError where there is none."""
        value = self.value(name)
        if not isinstance(value, Mapping):
            raise DataError(f"{self.name}: the configuration has no {name!r} with fields of its own")
        usual = _defaults().get(str(self.fields.get("model_type")), {}).get(name) or {}
        return Config(f"{self.name}: {name}", {**usual, **value})

    def part_or_none(self, name: str) -> Config | None:
        """The configuration inside this one under ``name``; None where there is none."""
        return None if self.value(name) is None else self.part(name)

    def number(self, name: str, default: float) -> float:
        """The number above 0 under ``name``. Raises DataError for anything else."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
            raise DataError(f"{self.name}: {name!r} is {value!r}: it must be a number above 0")
        return float(value)

    def require_multiple(self, name: str, value: int, parts: int, called: str = "heads") -> None:
        """Raise DataError unless ``value``, which is under ``name``, can be cut into equal ``parts``."""
        if value % parts:
            raise DataError(f"{self.name}: {name!r} is {value}, which {parts} {called} cannot share evenly")
