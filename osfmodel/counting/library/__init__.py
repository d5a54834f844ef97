"""Models that no own family counts: by the library's own class on PyTorch's meta device, once, and then from a file.

A configuration goes through the class of transformers, timm or diffusers for it, ``module:function`` through the
function. What was counted of a configuration is kept in the user's folder for caches, by its content and the versions
of the libraries, so that the next time needs no PyTorch. Code that comes with a configuration is never run.
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
TIMM, DIFFUSERS = "timm", "diffusers"
"""``model_type`` of models of these packages, and how their names begin."""
MAKERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    FUNCTION: (("torch",), "names"), TIMM: (("torch", "timm"), TIMM), DIFFUSERS: (("torch", "diffusers"), DIFFUSERS),
}  # fmt: skip
"""By ``model_type``: the packages that a model needs, and the extra that installs these."""
OTHERS = (("torch", "transformers"), "names")
"""The same for all other types."""
CONFIGURATIONS = ("config.json", "transformer/config.json", "unet/config.json")
"""Places of the configuration in the folder of a model, and of the part of a pipeline that is trained."""
HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Fields that hold the language model of one with several parts."""


def function_config(name: str) -> Config | None:
    """The configuration that stands for a function called ``module:function``; None for another name."""
    return Config(name, {"model_type": FUNCTION, FUNCTION: name}) if CALLED.fullmatch(name) else None


def maker_config(name: str) -> Config | None:
    """The configuration that stands for ``timm/NAME`` or ``diffusers/CLASS``; None for another name."""
    maker, _, model = name.partition("/")
    field = {TIMM: "architecture", DIFFUSERS: "_class_name"}.get(maker)
    return Config(model, {"model_type": maker, field: model}) if field and model and "/" not in model else None


def with_type(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a configuration, with a ``model_type`` for one as timm or diffusers writes it."""
    if "model_type" in fields:
        return fields
    of = DIFFUSERS if "_class_name" in fields else TIMM if {"architecture", "pretrained_cfg"} <= fields.keys() else ""
    return {"model_type": of, **fields} if of else fields


def in_folder(folder: Path) -> Path:
    """The configuration of the model, or of the pipeline, in a folder: ``config.json`` if there is none."""
    return next((path for one in CONFIGURATIONS if (path := folder / one).is_file()), folder / CONFIGURATIONS[0])


def hub_file(name: str) -> Path | None:
    """The configuration of a model on Hugging Face's hub in the local cache; None where it is not. Nothing is loaded.

    The newest snapshot is taken that has one, that of the branch ``main`` before others.
    """
    if not HUB_NAME.fullmatch(name):
        return None
    folder = hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        main = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        main = folder
    found = [path for one in folder.glob("snapshots/*") if (path := in_folder(one)).is_file()]
    return max(found, key=lambda path: (path.is_relative_to(main), path.stat().st_mtime), default=None)


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
    model = _kept(config, tokens)
    if tokens and not model.tokens:
        raise UsageError(f"{config.name} has no sequence: leave seq{tokens} out")
    return model


def _kept(config: Config, tokens: int) -> Model:
    """The model as it was counted before, or counted now and kept, but for a function, which may change."""
    fields = {name: value for name, value in config.fields.items() if name != "quantization_config"}
    for name, value in fields.items():
        if "layers" in name and isinstance(value, int) and value > MOST_LAYERS:
            raise DataError(f"{config.name}: {name!r} is {value}: it must be a whole number up to {MOST_LAYERS}")
    versions = _versions(config, *MAKERS.get(config.word("model_type"), OTHERS))
    if FUNCTION in config.fields:
        return _count(config, tokens)
    asked = json.dumps([config.name, fields, tokens, versions, _own_code()], sort_keys=True)
    path = _folder() / f"{sha256(asked.encode()).hexdigest()[:32]}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Model)
    except (OSError, ValueError):  # not there, or damaged
        pass
    model = _count(Config(config.name, fields), tokens)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, msgspec.json.encode(model))
    except (OSError, DataError):  # counted each time
        pass
    return model


def _count(config: Config, tokens: int) -> Model:
    """The model, by a module that imports PyTorch. Raises DataError if a package does not load."""
    kind = config.word("model_type")
    try:
        if kind == FUNCTION:
            from osfmodel.counting.library.counted import count_function as count
        elif kind == TIMM:
            from osfmodel.counting.library.counted import count_timm as count
        elif kind == DIFFUSERS:
            from osfmodel.counting.library.diffusers_models import count
        else:
            from osfmodel.counting.library.hugging_face import count
        return count(config, tokens)
    except (ImportError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise DataError(f"{config.name} cannot be counted: {type(error).__name__}: {said}") from error


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "osfmodel" / "models"


def _own_code() -> str:
    """A digest of the code that counts."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("*.py")), here.with_name("modules.py")]
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _versions(config: Config, packages: tuple[str, ...], extra: str) -> list[str]:
    """The versions of these packages. Raises UsageError where one is missing, with the extra that installs them."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return [version(package) for package in packages]
    except PackageNotFoundError:
        kind = config.word("model_type")
        what = {FUNCTION: "a function's model", TIMM: "a model of timm", DIFFUSERS: "a model of diffusers"}.get(
            kind, f"a model of type {kind!r}, which osfmodel does not count by itself,"
        )
        install = f"pip install 'osfmodel[{extra}]'"
        raise UsageError(f"{config.name}: to count {what} needs {' and '.join(packages)}: {install}") from None
