"""Count a model of diffusers on the meta device: by its ``config.json``, or the name of its class with its defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from osfmodel.counting.config import Config
from osfmodel.counting.library import inputs
from osfmodel.counting.library.counted import count_module, make_module, quiet
from osfmodel.counting.library.inputs import SAMPLES, TOKENS, Inputs, tensor
from osfmodel.counting.modules import Model
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import suggestion

CLASS = "_class_name"
"""Field of the class in a configuration."""
SIDE, CLIP, TEXT, FRAMES = 64, 77, 512, 16
"""Used where no field says: side of a latent image; tokens of a prompt by CLIP and others; latent frames of a video."""
WIDTHS = ("joint_attention_dim", "caption_channels", "encoder_hid_dim", "text_embed_dim", "text_dim", "cap_feat_dim",
          "context_in_dim", "cross_attention_dim")  # fmt: skip
"""Fields that hold the width of a prompt's vectors."""
CHANNELS = ("in_channels", "latent_channels", "in_dim", "num_channels")
"""Fields that hold the channels of the main input."""
PIXELS = 8
"""Along a side of an image for each latent one."""
RESOLUTION = {"resolution": tensor(SAMPLES, 2), "aspect_ratio": tensor(SAMPLES, 1)}
"""Conditions of PixArt beside a prompt."""


def count(config: Config, tokens: int) -> Model:
    """The model of a configuration for one latent image or video. Raises UsageError for a class that is none."""
    with quiet():
        import diffusers

        name = config.word(CLASS)
        kind: Any = getattr(diffusers, name, None)
        is_model = isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)
        if not is_model:
            said = f"{name!r} is no model of diffusers {diffusers.__version__}"
            if kind is not None:
                raise UsageError(f"{config.name}: {said}: give the folder of its transformer or unet")
            known = [one for one in dir(diffusers) if one.endswith(("Model", "2D", "1D", "UNet"))]
            raise UsageError(f"{said}: {suggestion(name, known, 'its documentation lists them', most=3)}")
        fields = {key: value for key, value in config.fields.items() if key not in ("model_type", inputs.FIELD)}
        module: Any = make_module(config.name, lambda: kind.from_config(fields))
        return count_module(config.name, module, _examples(module), tokens, config.fields.get(inputs.FIELD))


def _examples(module: Any) -> Iterator[Inputs]:
    """Inputs by the names that classes have for them, with the main one as image, as video, as vectors of patches."""
    known, fields = inspect.signature(module.forward).parameters, module.config
    others = dict(_others(known, fields))
    main = next(iter(known))
    for shape in _shapes(module, fields, known):
        yield {main: tensor(SAMPLES, *shape), **others}


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The first number under these names, or the first of a list; 0 for none."""
    values = (one[0] if isinstance(one := fields.get(name), list | tuple) and one else one for name in names)
    return next((one for one in values if isinstance(one, int) and one > 0), 0)


def _shapes(module: Any, fields: Mapping[str, Any], known: Mapping[str, Any]) -> list[tuple[int | str, ...]]:
    channels = _first(fields, CHANNELS) or 4
    size = fields.get("sample_size")
    sides = tuple(size) if isinstance(size, list | tuple) else (size or SIDE,) * 2
    if fields.get("sample_height") and fields.get("sample_width"):
        sides = fields["sample_height"], fields["sample_width"]
    frames = _first(fields, ("sample_frames", "num_frames")) or FRAMES
    frames = -(-frames // (_first(fields, ("temporal_compression_ratio",)) or 1))
    image, video, packed = (channels, *sides), (channels, frames, *sides), (TOKENS, channels)
    if "img_ids" in known or "img_shapes" in known:
        return [packed]
    many = "3D" in type(module).__name__ or "temporal_compression_ratio" in fields or "added_time_ids" in known
    moved = (frames, channels, *sides)
    return [video, moved, packed] if many else [image, packed, video, moved]


def _others(known: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Inputs beside the main one."""
    width = _first(fields, WIDTHS)
    text = _first(fields, ("max_text_seq_length",)) or TEXT
    length = CLIP if fields.get("cross_attention_dim") and not fields.get("caption_channels") else text
    pixels, side = _first(fields, ("conditioning_channels",)), fields.get("sample_size") or SIDE
    axes = len(fields.get("axes_dims_rope") or (0, 0, 0))
    pooled, step = _first(fields, ("pooled_projection_dim",)), fields.get("addition_time_embed_dim")
    joined = fields.get("projection_class_embeddings_input_dim")
    classes = any(fields.get(name) for name in ("num_embeds_ada_norm", "num_class_embeds"))
    conditions: Any = RESOLUTION if fields.get("sample_size") == 128 else {"resolution": None, "aspect_ratio": None}
    if fields.get("addition_embed_type") == "text_time" and step and joined:
        conditions = {"text_embeds": tensor(SAMPLES, joined - 6 * step), "time_ids": tensor(SAMPLES, 6)}
    mask = known.get("encoder_attention_mask")
    found: Mapping[str, tuple[Any, Any]] = {
        "encoder_hidden_states": (width, tensor(SAMPLES, length, width)),
        "encoder_attention_mask": (
            mask and mask.default is inspect.Parameter.empty,
            tensor(SAMPLES, length, dtype="bool"),
        ),
        "encoder_hidden_states_mask": (True, tensor(SAMPLES, length, dtype="bool")),
        "timestep": (True, tensor(SAMPLES)),
        "class_labels": (classes, tensor(SAMPLES, dtype="int64")),
        "pooled_projections": (pooled, tensor(SAMPLES, pooled)),
        "img_ids": (True, tensor(TOKENS, axes)),
        "txt_ids": (True, tensor(length, axes)),
        "img_shapes": (True, [[[1, SIDE, SIDE]]]),
        "added_time_ids": (True, tensor(SAMPLES, 3)),
        "original_size": (True, tensor(SAMPLES, 2)),
        "target_size": (True, tensor(SAMPLES, 2)),
        "crop_coords": (True, tensor(SAMPLES, 2)),
        "controlnet_cond": (pixels, tensor(SAMPLES, pixels, PIXELS * side, PIXELS * side)),
        "guidance": (fields.get("guidance_embeds"), tensor(SAMPLES)),
        "added_cond_kwargs": ("addition_embed_type" not in fields or fields["addition_embed_type"], conditions),
    }
    for name, (there, made) in found.items():
        if there and name in known:
            yield name, made
