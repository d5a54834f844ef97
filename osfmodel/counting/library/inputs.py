"""Inputs of a forward: from a file, or examples by the names of its arguments and by its first layers.

Both have one form, JSON: ``{"x": {"shape": ["batch", 3, 224, 224], "dtype": "float32"}}``, with ``batch`` for the
samples of a micro-batch and ``seq`` for the tokens of a sample. Lists and objects of tensors may be nested; all else is
passed as it is.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files.profiles import read
from osfmodel.entities.lookup import suggestion

FIELD = "osfmodel_inputs"
"""Of a configuration: the inputs in the file that words name."""
SAMPLES, TOKENS = "batch", "seq"
"""Words for sizes; a sample is counted by itself, and so the first is 1."""
TYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
MOST_AXES, LARGEST = 8, 10**7
"""Of a tensor: axes, and elements of an axis."""
USUAL = 4096
"""Tokens of a sample where nobody says, if the model has positions for them."""
POSITIONS = ("max_position_embeddings", "block_size", "max_seq_len", "max_seq_length", "context_length", "n_positions",
             "seq_len", "max_len", "seq_length")  # fmt: skip
"""Attributes of models and of their configurations that hold the most tokens of a sample."""
SIDES = (224, 32, 28, 64, 256, 384, 512, 1024)
"""Of images, tried one after the other where no attribute says."""
LENGTHS, FRAMES = (16_000, 1024, 128), 16
"""Of a signal, as sides of images; frames of a video."""
Inputs = Mapping[str, Any]


def from_file(path: Path) -> Inputs:
    """The inputs in a file. Raises DataError, which names the place, for what is none."""
    return read(path, _decoded)


def _decoded(content: bytes) -> Inputs:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise DataError(f"is not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise DataError('needs an object of arguments, such as {"x": {"shape": ["batch", 3, 224, 224]}}')
    for name, given in found.items():
        _require(name, given)
    return found


def _require(name: str, given: Any) -> None:
    """Raise DataError for a tensor of impossible shape or type."""
    if isinstance(given, list):
        for place, one in enumerate(given):
            _require(f"{name}[{place}]", one)
    if not isinstance(given, dict):
        return
    if "shape" not in given:
        for key, one in given.items():
            _require(f"{name}.{key}", one)
        return
    if others := [key for key in given if key not in ("shape", "dtype")]:
        raise DataError(f"{name}: {others[0]!r} is not known: a tensor has a shape and a dtype")
    if (dtype := given.get("dtype", TYPES[0])) not in TYPES:
        raise DataError(f"{name}: dtype {dtype!r}: {suggestion(str(dtype), TYPES)}")
    shape = given["shape"]
    if not isinstance(shape, list) or len(shape) > MOST_AXES:
        raise DataError(f"{name}: shape {shape!r:.60}: write a list of sizes, such as [{SAMPLES!r}, 3, 224, 224]")
    for size in shape:
        whole = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= LARGEST
        if not whole and size not in (SAMPLES, TOKENS):
            raise DataError(
                f"{name}: {size!r} in its shape: write a whole number from 1 to {LARGEST:,}, {SAMPLES!r} or {TOKENS!r}"
            )


def says(given: Any, word: str) -> bool:
    """Whether a size among inputs is this word."""
    if isinstance(given, Mapping):
        return word in given["shape"] if "shape" in given else any(says(one, word) for one in given.values())
    return isinstance(given, list | tuple) and any(says(one, word) for one in given)


def tensors(given: Any, tokens: int) -> Any:
    """The inputs of one sample as tensors of PyTorch on its present device."""
    import torch

    if isinstance(given, Mapping) and "shape" in given:
        sizes = [{SAMPLES: 1, TOKENS: tokens}.get(size, size) for size in given["shape"]]
        dtype = getattr(torch, given.get("dtype", TYPES[0]))
        if dtype.is_floating_point:
            return torch.randn(sizes).to(dtype)
        return torch.ones(sizes, dtype=dtype) if dtype == torch.bool else torch.zeros(sizes, dtype=dtype)
    if isinstance(given, Mapping):
        return {name: tensors(one, tokens) for name, one in given.items()}
    return [tensors(one, tokens) for one in given] if isinstance(given, list) else given


def in_words(given: Inputs, tokens: int) -> str:
    """The tensors of one sample: ``x 1 x 3 x 224 x 224``."""
    return ", ".join(
        f"{name} {' x '.join(str({SAMPLES: 1, TOKENS: tokens}.get(size, size)) for size in one['shape']) or 'scalar'}"
        for name, one in given.items()
        if isinstance(one, Mapping) and "shape" in one
    )


def tensor(*sizes: int | str, dtype: str = TYPES[0]) -> dict[str, Any]:
    """A tensor among inputs."""
    return {"shape": list(sizes), "dtype": dtype}


def template(model: Any) -> str:
    """A remedy that shows the file for a model's forward."""
    names = wanted(model)
    guessed = {name: _known(name) or ((SAMPLES, "..."), TYPES[0]) for name in names}
    shown = json.dumps({name: tensor(*sizes, dtype=dtype) for name, (sizes, dtype) in guessed.items()})
    return f"describe {'it' if len(names) == 1 else 'them'} in a file and add input=FILE, JSON such as {shown}"


def wanted(model: Any) -> list[str]:
    """Names of the arguments that a forward must have; the first where it needs none."""
    known = inspect.signature(model.forward).parameters.values()
    names = [one for one in known if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return [one.name for one in names if one.default is one.empty] or [one.name for one in names[:1]] or ["input"]


def call(model: Any, given: Inputs, tokens: int) -> Any:
    """The output of a forward. Raises UsageError for inputs that it does not take."""
    known = inspect.signature(model.forward).parameters
    kinds = {one.kind for one in known.values()}
    anything = inspect.Parameter.VAR_POSITIONAL in kinds
    for name in given:
        if name not in known and not anything and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UsageError(f"its forward takes no {name!r}: {suggestion(name, known)}")
    made = {name: tensors(one, tokens) for name, one in given.items()}
    plain = [
        value for name, value in made.items()
        if (name not in known and anything) or (name in known and known[name].kind == known[name].POSITIONAL_ONLY)
    ]  # fmt: skip
    named = {name: value for name, value in made.items() if not any(value is one for one in plain)}
    return model(*plain, **named)


def positions(model: Any) -> int:
    """The most tokens that a model's attributes, or those of its configuration, say; 0 where none does."""
    for part in (model, getattr(model, "config", None)):
        found = [getattr(part, name, None) for name in POSITIONS]
        if said := [one for one in found if isinstance(one, int) and not isinstance(one, bool) and one > 0]:
            return said[0]
    return 0


def examples(model: Any, tokens: int) -> Iterator[Inputs]:
    """Inputs that a forward may take, the likely ones first: by names of its arguments, or else by its first layers.

    A layer that looks up vectors is given tokens, a convolution an image or signal, a linear or recurrent layer
    vectors, one for each token where ``tokens`` are asked for or there is attention.
    """
    names = wanted(model)
    by_name = {
        name: tensor(*sizes, dtype=dtype) for name in names if (known := _known(name)) for sizes, dtype in [known]
    }
    images = [name for name in names if name not in by_name]
    if not images:
        yield by_name
        return
    for made in _by_layer(model, tokens):
        yield {name: by_name.get(name, made) for name in names}


def _known(name: str) -> tuple[tuple[str, ...], str] | None:
    """The sizes and type of an argument by its name; None where that says too little."""
    name = name.lower()
    if "mask" in name:
        return (SAMPLES, TOKENS), "bool"
    if name == "idx" or name.endswith("ids") or "token" in name:
        return (SAMPLES, TOKENS), "int64"
    return ((SAMPLES,), "float32") if name in ("t", "timestep", "timesteps", "sigma", "time") else None


def _by_layer(model: Any, tokens: int) -> Iterator[dict[str, Any]]:
    """Inputs that the layers of a model, each kind once, would have."""
    from torch import nn

    layers: dict[type, Any] = {}
    for layer in model.modules():
        layers.setdefault(type(layer), layer)
    attends = any(isinstance(layer, nn.MultiheadAttention) for layer in model.modules())
    makers: Mapping[Any, Callable[[Any], Iterator[dict[str, Any]]]] = {
        nn.Embedding | nn.EmbeddingBag: lambda _: iter([tensor(SAMPLES, TOKENS, dtype="int64")]),
        nn.Conv2d: lambda layer: (tensor(SAMPLES, layer.in_channels, *sides) for sides in _sides(model)),
        nn.Conv1d: lambda layer: (tensor(SAMPLES, layer.in_channels, length) for length in LENGTHS),
        nn.Conv3d: lambda layer: (tensor(SAMPLES, layer.in_channels, FRAMES, *sides) for sides in _sides(model)),
        nn.RNNBase: lambda layer: iter([
            tensor(*((SAMPLES, TOKENS) if layer.batch_first else (TOKENS, SAMPLES)), layer.input_size)
        ]),
        nn.Linear: lambda layer: _vectors(layer.in_features, bool(tokens) or attends),
    }  # fmt: skip
    for layer in layers.values():
        for kind, make in makers.items():
            if isinstance(layer, kind):
                yield from make(layer)


def _vectors(width: int, sequence: bool) -> Iterator[dict[str, Any]]:
    """Vectors: one for a sample, or one for each token, in the order that is more likely."""
    both = [tensor(SAMPLES, width), tensor(SAMPLES, TOKENS, width)]
    return iter(both[::-1] if sequence else both)


def _sides(model: Any) -> Iterator[tuple[int, int]]:
    """Sides of an image: those that an attribute says, or else usual ones."""
    for part in model.modules():
        for name in ("image_size", "img_size"):
            side = getattr(part, name, None)
            pair: list[Any] = [*side] if isinstance(side, tuple | list) else [side, side]
            if len(pair) == 2 and all(isinstance(one, int) and one > 1 for one in pair):
                yield pair[0], pair[1]
                return
    yield from ((side, side) for side in SIDES)


def unsampled(path: str) -> list[str]:
    """A remark on a file whose inputs name no samples."""
    if says(from_file(Path(path)), SAMPLES):
        return []
    return [f"no shape in {path} has {SAMPLES!r}: all of it is counted as one sample"]
