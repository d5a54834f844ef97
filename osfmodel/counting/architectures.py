"""Architectures: configurations of models, bundled by name or from a file, and the family that counts them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.counting.config import Config
from osfmodel.counting.families import MODEL_FAMILIES, ModelFamily
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.lookup import letters, suggestion

PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Fields that hold the language model of one with several parts."""


class Architecture(NamedTuple):
    """A bundled architecture.

    kind:       its ``model_type``
    parameters: as published
    sequence:   tokens of a sample where nobody says; 0 for images
    longest:    the most tokens of a sample; 0 for images
    source:     of its dimensions
    """

    kind: str
    parameters: int
    sequence: int
    longest: int
    source: str


def architecture_of(path: Path) -> Architecture:
    """The architecture in a file. Raises DataError for a file that is none."""
    document = profiles.read(path, _decoded)
    config = configuration(str(path))
    family, parameters = family_of(config), Config(path.stem, document).count("parameters", most=10**15)
    sequence, longest = usual_tokens(family, config), family.longest(config)
    return Architecture(config.word("model_type"), parameters, sequence, longest, str(document.get("source", "")))


def usual_tokens(family: ModelFamily, config: Config) -> int:
    """Tokens of a sample where nobody says; 0 for images."""
    return min(family.usual, family.longest(config))


def family_of(config: Config) -> ModelFamily:
    """The family of a configuration. Raises DataError for one that cannot be counted."""
    kind = config.word("model_type")
    if not kind:
        raise DataError(f"{config.name}: the configuration has no 'model_type', which says how to count it")
    if kind not in MODEL_FAMILIES:
        parts = [name for name in PARTS if isinstance(config.fields.get(name), Mapping)]
        inside = f"; its {parts[0]!r} alone may be, in a file of its own" if parts else ""
        near = suggestion(kind, MODEL_FAMILIES)
        raise DataError(f"{config.name}: models of type {kind!r} cannot be counted{inside}: {near}")
    if config.fields.get("quantization_config"):
        advice = "take 'quantization_config' out for training in full precision"
        raise DataError(f"{config.name}: the weights are quantised, and such training cannot be counted: {advice}")
    return MODEL_FAMILIES[kind]


def architecture_name(model: str) -> str:
    """The bundled architecture of that name in any case and hyphens, also as on a hub (``meta-llama/Llama-3.1-8B``).

    ``model`` in lower case where there is none.
    """
    owner, _, last = model.rpartition("/")
    short = model if "/" in owner or Path(model).exists() else last.lower().removesuffix("-hf")
    return {letters(one): one for one in profiles.names("architecture")}.get(letters(short), model.lower())


def configuration(model: str) -> Config:
    """The configuration of an architecture by name (:func:`architecture_name`), or of a file.

    Raises UsageError or DataError.
    """
    bundled, name = profiles.names("architecture"), architecture_name(model)
    path = bundled.get(name)
    if path is None:
        path = Path(model)
        if path.is_dir():
            path = path / "config.json"
        if not path.suffix and not path.exists():
            near = suggestion(name, bundled, "'osf list architectures' shows those there are", most=3)
            raise UsageError(f"no architecture named {model!r}, and no configuration in a file of that name: {near}")
        name = path.absolute().parent.name if path.name == "config.json" else path.stem
    document = profiles.read(path, _decoded)
    inside = document.get("config") if document.get("kind") == "architecture" else document
    if not isinstance(inside, Mapping):
        raise DataError(f"{path}: has no 'config' with the fields of a model")
    return Config(name, inside)


def _decoded(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise DataError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError("is not the configuration of a model: it must be an object with fields")
    return found
