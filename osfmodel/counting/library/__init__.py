"""Models that no own family counts: by the library's own class on PyTorch's meta device, once, and then from a file.

A configuration goes through the class of transformers for it, and ``module:function`` through the function. What was
counted of a configuration is kept in the user's folder for caches, by its content and the versions of the libraries,
so that the next time needs no PyTorch. Code that comes with a configuration is never run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from osfmodel.counting.config import LARGEST, MOST_LAYERS, Config
from osfmodel.counting.modules import Model
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files.profiles import write_bytes

FUNCTION = "module:function"
"""``model_type`` of a configuration that is a function of the user's, and its field."""
CALLED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Fields that hold the language model of one with several parts."""
EXTRA = "pip install 'osfmodel[names]'"


def function_config(name: str) -> Config | None:
    """The configuration that stands for a function called ``module:function``; None for another name."""
    return Config(name, {"model_type": FUNCTION, FUNCTION: name}) if CALLED.fullmatch(name) else None


def hub_file(name: str) -> Path | None:
    """The configuration of a model on Hugging Face's hub in the local cache; None where it is not. Nothing is loaded.

    The newest snapshot is taken that has one, that of the branch ``main`` before others.
    """
    if not HUB_NAME.fullmatch(name):
        return None
    folder = hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        main = folder / "snapshots" / (folder / "refs" / "main").read_text().strip() / "config.json"
    except (OSError, ValueError):
        main = folder
    found = [path for path in folder.glob("snapshots/*/config.json") if path.is_file()]
    return max(found, key=lambda path: (path == main, path.stat().st_mtime), default=None)


def hub_cache() -> Path:
    """The folder in which Hugging Face's libraries keep what they load."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def longest(config: Config) -> int:
    """The most tokens that the positions of a configuration are for, where it says so."""
    said = [
        value for part in parts(config) for name in POSITIONS if isinstance(value := part.get(name), int) and value > 1
    ]
    return max(said, default=LARGEST)


def parts(config: Config) -> list[Mapping[str, Any]]:
    """The fields of a configuration, and of the language model inside it."""
    return [config.fields, *(part for one in PARTS if isinstance(part := config.fields.get(one), Mapping))]


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens; 0 for its usual number.

    Raises UsageError for tokens of a model without, and without the libraries; DataError where it cannot be counted.
    """
    model = _function_model(config, tokens) if FUNCTION in config.fields else _kept(config, tokens)
    if tokens and not model.tokens:
        raise UsageError(f"{config.name} has no sequence: leave seq{tokens} out")
    return model


def _function_model(config: Config, tokens: int) -> Model:
    _versions(config, ("torch",))
    from osfmodel.counting.library.functions import count  # imports PyTorch

    return count(config.fields[FUNCTION], tokens)


def _kept(config: Config, tokens: int) -> Model:
    """The model as it was counted before, or counted now and kept."""
    fields = {name: value for name, value in config.fields.items() if name != "quantization_config"}
    for name, value in fields.items():
        if "layers" in name and isinstance(value, int) and value > MOST_LAYERS:
            raise DataError(f"{config.name}: {name!r} is {value}: it must be a whole number up to {MOST_LAYERS}")
    versions = _versions(config, ("torch", "transformers"))
    asked = json.dumps([config.name, fields, tokens, versions, _own_code()], sort_keys=True)
    path = _folder() / f"{sha256(asked.encode()).hexdigest()[:32]}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Model)
    except (OSError, ValueError):  # not there, or damaged
        pass
    from osfmodel.counting.library.hugging_face import count  # imports PyTorch

    model = count(Config(config.name, fields), tokens)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, msgspec.json.encode(model))
    except (OSError, DataError):  # counted each time
        pass
    return model


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "osfmodel" / "models"


def _own_code() -> str:
    """A digest of the code that counts."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("*.py")), here.with_name("modules.py")]
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _versions(config: Config, packages: tuple[str, ...]) -> list[str]:
    """The versions of these packages. Raises UsageError where one is missing."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return [version(package) for package in packages]
    except PackageNotFoundError:
        kind = config.word("model_type")
        what = (
            "a function's model"
            if kind == FUNCTION
            else f"a model of type {kind!r}, which osfmodel has no own way for,"
        )
        raise UsageError(f"{config.name}: to count {what} needs {' and '.join(packages)}: {EXTRA}") from None
