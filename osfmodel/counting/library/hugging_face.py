"""Count a configuration of transformers by the library's own class on the meta device, with inputs of its own sizes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from osfmodel.counting.config import Config
from osfmodel.counting.library.counted import model_of, one_line, quiet
from osfmodel.counting.library.counter import Counter
from osfmodel.counting.library.fused import NAME, Kernels, fused
from osfmodel.counting.library.values import knowing
from osfmodel.counting.modules import Model
from osfmodel.entities.errors import DataError
from osfmodel.entities.lookup import suggestion

USUAL, USUAL_ENCODED = 4096, 512
"""Tokens of a sample where nobody says, if the model has positions for them; of one with encoder and decoder."""
TARGETS = 4
"""Tokens of a text for an encoder, for each of the decoder."""
WAYS = (NAME, "sdpa", "eager")
"""How attention is implemented: counted by closed forms if the class lets them be replaced."""
KINDS = (
    "ImageTextToText", "SpeechSeq2Seq", "Seq2SeqLM", "MaskedLM", "CausalLM", "CTC", "ZeroShotImageClassification",
    "ImageClassification", "AudioClassification", "VideoClassification", "SemanticSegmentation",
    "ObjectDetection", "DepthEstimation", "MaskedImageModeling", "PreTraining",
)  # fmt: skip
"""Automatic classes by what they are trained for, the first that has a type is taken."""
TURNED_OFF = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment", "use_cache")
"""Fields that leave layers or parts of inputs out by chance, or keep keys and values for later tokens."""
SECONDS, SIDE, FRAMES, RATE = 10, 224, 1000, 16_000
"""Of an input that no field describes: seconds of sound, side of an image, frames of a spectrum, samples a second."""


def count(config: Config, tokens: int) -> Model:
    """The model of a configuration for samples of ``tokens`` tokens (0: its usual number). Raises DataError."""
    with quiet():
        import transformers

        made = _configuration(transformers, config)
        with _failing(config):
            kind = class_of(transformers, made)
            problem: Exception | None = None
            for how in WAYS:
                try:
                    return _counted(config.name, kind, made, how, tokens)
                except Exception as error:
                    problem = error
            raise problem or AssertionError


def _counted(name: str, kind: Any, config: Any, how: str, tokens: int) -> Model:
    """The model of a class, with its attention implemented in one way."""
    import torch
    from transformers.initialization import no_init_weights

    kernels = Kernels()
    usual, positions = USUAL_ENCODED if config.is_encoder_decoder else USUAL, _positions(config)
    text = tokens or min(usual, positions or usual)
    if 0 < positions < text:  # as many rows of a learned table
        config.get_text_config().max_position_embeddings = text
    with torch.device("meta"), knowing():
        with no_init_weights():
            model = kind._from_config(copy.deepcopy(config), attn_implementation=how, experts_implementation=NAME)
        model.tie_weights()
        model.train()
        counter = kernels.counter = Counter(model)
        with fused(model, kernels), counter.counting():
            given, logits = _forward(model, model.config, text)
    shapes = {one: tuple(tensor.shape) for one, tensor in model.named_parameters()}
    return model_of(name, counter, shapes, text if "input_ids" in given else 0, logits, _row_parallel(model))


@contextmanager
def _failing(config: Config) -> Iterator[None]:
    """A context whose errors of libraries become one line."""
    try:
        yield
    except (DataError, KeyboardInterrupt):
        raise
    except Exception as error:
        kind = config.word("model_type")
        raise DataError(f"{config.name}: models of type {kind!r} cannot be counted: {one_line(error)}") from error


def _configuration(transformers: Any, config: Config) -> Any:
    """The library's configuration. Code that comes with it is never run."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    kind = config.word("model_type")
    if kind not in known:
        problem = (
            f"transformers {transformers.__version__} has no such type, and code beside a configuration is never run"
        )
        raise DataError(
            f"{config.name}: models of type {kind!r} cannot be counted: {problem}: {suggestion(kind, known)}"
        )
    fields = {name: value for name, value in config.fields.items() if name != "auto_map"}
    with _failing(config):
        made = known[kind].from_dict(fields)
    for part in _parts(made):
        for name in TURNED_OFF:
            if getattr(part, name, None):
                setattr(part, name, type(getattr(part, name))(0))
    return made


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and those inside it."""
    yield config
    for name in getattr(config, "sub_configs", None) or ():
        if (inside := getattr(config, name, None)) is not None and hasattr(inside, "sub_configs"):
            yield from _parts(inside)


def class_of(transformers: Any, config: Any) -> Any:
    """The class that the configuration names, or else the first of the automatic ones for its type."""
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if found is not None and getattr(found, "config_class", None) is type(config):
            return found
    for kind in KINDS:
        known = getattr(transformers, f"AutoModelFor{kind}")._model_mapping
        if type(config) in known and not (kind == "MaskedLM" and getattr(config, "is_decoder", False)):
            return _first(known[type(config)])
    known = transformers.AutoModel._model_mapping
    if type(config) not in known:
        raise DataError("transformers maps the type to no model")
    return _first(known[type(config)])


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple | list) else found


def _positions(config: Any) -> int:
    """Tokens that a configuration has positions for; 0 where it does not say."""
    text = config.get_text_config()
    found = [getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len")]
    return next((one for one in found if isinstance(one, int) and one > 0), 0)


def _row_parallel(model: Any) -> str:
    """A pattern for the names of modules that the library's plan for tensor parallelism divides by rows."""
    plan = getattr(model, "tp_plan", None) or {}
    rows = [name.replace(".", r"\.").replace("*", r"\d+") for name, how in plan.items() if "rowwise" in str(how)]
    return "|".join(name for name in rows if "lm_head" not in name and "embed" not in name)


def _forward(model: Any, config: Any, tokens: int) -> tuple[Mapping[str, Any], int]:
    """Run the forward of a sample: (its inputs, elements of its logits).

    The tower of a model of text and images or sound runs by itself, as where its vectors go among those of the text
    depends on the values of tokens.
    """
    accepted, language = inspect.signature(model.forward).parameters, model
    given = dict(_inputs(model, config, tokens))
    text = "input_ids" in given
    for name, tower in (("pixel_values", "get_image_features"), ("input_features", "get_audio_features")):
        apart = text and name in given and hasattr(model, tower) and model.can_generate()
        if apart and accepted[name].default is None:
            method = getattr(model, tower)
            wanted = inspect.signature(method).parameters
            more = {one: _tensor(MAKERS[one](config, tokens)) for one in BESIDE if one in wanted}
            patched = "image_grid_thw" in more and name == "pixel_values"
            method(_tensor(_patches(config, tokens)) if patched else given[name], **more)
            del given[name]
            inner = getattr(model, "language_model", None)
            language = inner if hasattr(inner, "lm_head") else model
    for name in ("use_cache", "return_loss"):
        if name in accepted:
            given[name] = False
    output = language(**given)
    logits = [value for name, value in output.items() if name.endswith("logits") and text and value.ndim == 3]
    return given, sum(value.numel() for value in logits)


def _inputs(model: Any, config: Any, tokens: int) -> Iterator[tuple[str, Any]]:
    """The inputs that the forward takes, each of its own size."""
    accepted = inspect.signature(model.forward).parameters
    main = model.main_input_name
    required = [
        name for name, one in accepted.items() if one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD
    ]
    if unknown := [name for name in (main, *required) if name in accepted and name not in MAKERS]:
        raise DataError(f"its input {unknown[0]!r} is not known")
    for name, maker in MAKERS.items():
        if name in accepted and (name not in BESIDE or name in required):
            made = maker(config, tokens)
            if made is not None:
                yield name, _tensor(made)


def _tensor(made: Any) -> Any:
    """A tensor of random numbers or of zeros by its shape, or of the numbers in a list."""
    import torch

    if isinstance(made, list):
        return torch.tensor(made)
    shape, whole = made
    return torch.zeros(shape, dtype=torch.long) if whole else torch.randn(shape)


def _field(config: Any, *names: str) -> Any:
    """The first of these fields that a configuration or one inside it has."""
    for part in _parts(config):
        for name in names:
            if getattr(part, name, None) is not None:
                return getattr(part, name)
    return None


def _image(config: Any, _tokens: int) -> tuple[tuple[int, ...], bool]:
    side = _field(config, "image_size", "input_size", "img_size")
    if isinstance(side, Mapping):
        side = (side["height"], side["width"])
    sides = tuple(side) if isinstance(side, list | tuple) else (side or SIDE,) * 2
    channels = _field(config, "num_channels", "in_channels", "in_chans", "n_channels")
    frames = _field(config, "num_frames")
    stack = (
        (frames,) if isinstance(frames, int) and "video" in type(config).__name__.lower() + config.model_type else ()
    )
    return (1, *stack, channels if isinstance(channels, int) else 3, *sides[-2:]), False


def _spectrum(config: Any, _tokens: int) -> tuple[tuple[int, ...], bool]:
    bins = _field(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "input_size") or 80
    most = _field(config, "max_source_positions")
    if most and _field(config, "input_feat_per_channel") is None:  # after Whisper: channels first, all of its positions
        return (1, bins, 2 * most), False
    return (1, FRAMES, bins), False


def _sound(config: Any, _tokens: int) -> tuple[tuple[int, ...], bool]:
    """Samples of sound, or the spectrum that some take under the same name."""
    if _field(config, "frequency_stride") is not None:
        return (1, _field(config, "max_length") or FRAMES, _field(config, "num_mel_bins") or 80), False
    return (1, SECONDS * RATE), False


def _grid_sides(config: Any) -> tuple[int, int] | None:
    """Patches of an image along each side, for a tower that takes patches of any image; None for another."""
    patch = _field(config, "patch_size")
    if not isinstance(patch, int) or _field(config, "spatial_merge_size", "merge_size") is None:
        return None
    merged = _field(config, "spatial_merge_size", "merge_size")
    side = max(1, SIDE // (patch * merged)) * merged
    return side, patch


def _patches(config: Any, tokens: int) -> tuple[tuple[int, ...], bool]:
    """An image for a tower: whole, or as a row for each patch."""
    grid = _grid_sides(config)
    if grid is None:
        return _image(config, tokens)
    frames = _field(config, "temporal_patch_size") or 1
    return (grid[0] ** 2, 3 * frames * grid[1] ** 2), False


def _grid(config: Any, _tokens: int) -> list[list[int]]:
    """Frames of an image, and its patches along each side."""
    grid = _grid_sides(config)
    side = grid[0] if grid else SIDE // 16
    return [[1, side, side]]


def _tokens(_config: Any, tokens: int) -> tuple[tuple[int, ...], bool]:
    return (1, tokens), True


def _decoder_tokens(config: Any, tokens: int) -> tuple[tuple[int, ...], bool] | None:
    if not config.is_encoder_decoder:
        return None
    return (1, _field(config, "max_target_positions") or max(1, tokens // TARGETS)), True


MAKERS: Mapping[str, Callable[[Any, int], Any]] = {
    "input_ids": _tokens,
    "pixel_values": _image,
    "input_features": _spectrum,
    "input_values": _sound,
    "decoder_input_ids": _decoder_tokens,
    "bbox": lambda _config, tokens: ((1, tokens, 4), True),
    "hidden_states": _patches,
    "grid_thw": _grid,
    "image_grid_thw": _grid,
    "input_features_mask": lambda config, tokens: [[1] * max(_spectrum(config, tokens)[0][1:])],
    "image_sizes": lambda config, tokens: [list(_image(config, tokens)[0][-2:])],
}
"""By the name of an input: its shape, and whether it is whole numbers, or its values; None where it is left out."""
BESIDE = ("grid_thw", "image_grid_thw", "input_features_mask", "image_sizes", "hidden_states")
"""Inputs that are given only to forwards which must have them, and to towers."""
