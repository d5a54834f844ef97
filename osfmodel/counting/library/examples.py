"""Samples that models of transformers take: texts, images, sound, by a configuration and by first layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import isqrt, prod
from typing import Any, NamedTuple

TARGETS = 4
"""Tokens of a text for an encoder, for each of the decoder."""
SECONDS, SIDE, FRAMES, RATE, TILES, MORE_BINS = 10, 224, 1000, 16_000, 2, 128
"""Of an input that no field describes: seconds of sound, side of an image, frames of a spectrum, samples a second,
images or frames that are seen together, and numbers for each frame if 80 are too few."""
SCALES = 4
"""How often the side of a patch goes into that of an image of which parts are seen at several scales."""
STEPS, OBJECTS, WORDS = 20, 36, 16
"""Of the past of an agent, objects in an image, tokens of a class."""
SEEN, HEARD = ("patch", "visual", "vision", "image", "video"), ("audio", "speech", "feature", "encoder")
"""Contained in names of modules that take images, and sound."""


class Example(NamedTuple):
    """The model and the text that inputs are made for.

    model:    and its configuration
    tokens:   of its text
    accepted: names of inputs that its forward, or that of its tower, takes
    layout:   which of several ways to lay an input out is tried
    """

    model: Any
    config: Any
    tokens: int
    accepted: Collection[str]
    layout: int = 0

    def field(self, *names: str) -> Any:
        """The first of these fields that the configuration or one inside it has."""
        for part in parts_of_config(self.config):
            for name in names:
                if (value := getattr(part, name, None)) is not None and not callable(value):
                    return value
        return None

    def number(self, *names: str) -> int:
        """The first whole number under these fields; 0 where there is none."""
        found = self.field(*names)
        return found if isinstance(found, int) else 0

    def first_layer(self, words: Collection[str]) -> Any:
        """The first layer in a module with the first of these words in its name that one has, or else of all."""
        from torch import nn

        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm)
        layers = [(name, one) for name, one in self.model.named_modules() if isinstance(one, kinds)]
        for word in (*words, ""):
            for name, one in layers:
                if word in name.lower():
                    return one
        return None


def parts_of_config(config: Any) -> Iterator[Any]:
    """A configuration and those inside it."""
    yield config
    for name in getattr(config, "sub_configs", None) or ():
        if (inside := getattr(config, name, None)) is not None and hasattr(inside, "sub_configs"):
            yield from parts_of_config(inside)


def normal(*shape: int) -> Any:
    """Random numbers of a shape."""
    import torch

    return torch.randn(shape)


def zeros(*shape: int) -> Any:
    """Integers of a shape, all 0."""
    import torch

    return torch.zeros(shape, dtype=torch.long)


def ones(*shape: int) -> Any:
    """Integers of a shape, all 1."""
    import torch

    return torch.ones(shape, dtype=torch.long)


def values(made: Any) -> Any:
    """Given numbers."""
    import torch

    return torch.tensor(made)


def sides(example: Example) -> tuple[int, int]:
    """The sides of an image, as fields or the first layer to know them say."""
    layers = (getattr(one, "img_size", None) for one in example.model.modules())
    side = example.field("image_size", "input_size", "img_size", "max_img_size") or next(filter(None, layers), None)
    if isinstance(side, Mapping):
        side = (side["height"], side["width"])
    both = tuple(side)[-2:] if isinstance(side, list | tuple) else (side or SIDE,)
    merged = (
        example.number("scale_factor", "pixel_shuffle_factor") * example.number("patch_size") or 1
    )  # as many patches as can be merged
    height, width = (-(-one // merged) * merged for one in (both[0], both[-1]))
    return height, width


def _channels(example: Example) -> int:
    found = example.field("num_channels", "in_channels", "in_chans", "n_channels")
    return found if isinstance(found, int) else 3


def frames(example: Example) -> int:
    """Frames of a video, or images that are seen together."""
    found = example.field("num_frames", "frames_per_clip", "video_frames")
    return found if isinstance(found, int) else TILES


def _patch_grid(example: Example) -> int | None:
    """Patches along each side of an image, for a tower that takes patches of any image; None for another."""
    patch = example.number("patch_size")
    merged = example.field("spatial_merge_size", "merge_size", "downsample_factor", "merge_kernel_size")
    if isinstance(merged, list | tuple):
        merged = merged[0]
    if not patch or not ({"grid_thw", "image_grid_thw", "grid_hws"} & set(example.accepted) or merged):
        return None
    merged = merged or 1
    return max(1, SIDE // (patch * merged)) * int(merged)


def _width(example: Example) -> int:
    """Numbers in a patch, as the first layer of the tower takes them."""
    layer = example.first_layer(SEEN)
    if layer is None:
        return 3 * (example.number("patch_size") or 16) ** 2
    if hasattr(layer, "in_features"):
        return int(layer.in_features)
    if hasattr(layer, "normalized_shape"):
        return int(layer.normalized_shape[-1])
    return int(layer.in_channels * prod(layer.kernel_size))


def _rows(example: Example) -> tuple[int, ...] | None:
    """A row for each patch of an image."""
    side = _patch_grid(example)
    return None if side is None else (side * side, _width(example))


def _sequence_side(example: Example) -> int:
    """Patches along each side of an image that is a sequence of them."""
    patches = example.number("num_patches", "default_output_length", "max_num_patches")
    side = sides(example)[0] // (example.number("patch_size") or 16)
    scale = example.number("downsample_factor", "pooling_kernel_size", "scale_factor", "pixel_shuffle_factor") or 1
    return max(scale, (isqrt(patches) or side) // scale * scale)


def images(example: Example) -> Any:
    """Images: whole, as a row for each patch, as a sequence of patches, or several of them."""
    height, width = sides(example)
    if "prompt_pixel_values" in example.accepted:  # above it
        height //= 2
    whole = (_channels(example), height, width)
    rows, side = _rows(example), _sequence_side(example)
    moving = "video" in type(example.config).__name__.lower() + example.config.model_type
    several = ((1, frames(example), *whole),)
    sequence = ((1, side * side, _width(example)),)
    if {"grid_thw", "image_grid_thw", "grid_hws"} & set(example.accepted) and rows:
        patch = example.number("patch_size")
        ways = [rows, *sequence, (1, *whole), (rows[0], whole[0], patch, patch)]
    elif {"spatial_shapes", "pixel_position_ids", "image_position_ids"} & set(example.accepted):
        ways = [*sequence, *several]
    elif moving:
        ways = [*several, (1, *whole)]
    elif pinned := example.field("image_grid_pinpoints"):  # the smallest grid of tiles that holds it, and the whole
        area = min(one[0] * one[1] for one in pinned if one[0] >= height and one[1] >= width)
        ways = [(1, 1 + area // (height * width), *whole)]
    else:
        ways = [(1, *whole), *several, *sequence, *([rows] if rows else ()), (1, TILES + 1, *whole)]
        ways.append((1, whole[0], SCALES * height, SCALES * width))
    return normal(*ways[min(example.layout, len(ways) - 1)])


def vectors(example: Example) -> Any:
    """The input of a part of a model: images, or channels of sound or of its code."""
    layer = example.first_layer(())
    if len(getattr(layer, "kernel_size", ())) == 1:
        return normal(1, layer.in_channels, FRAMES if layer.in_channels > 1 else SECONDS * RATE)
    return images(example)


def video(example: Example) -> Any:
    """The frames of a video."""
    return normal(1, frames(example), _channels(example), *sides(example))


def _bins(example: Example) -> int:
    """Numbers for each frame of a spectrum."""
    layer = example.first_layer(HEARD)
    if len(TURNS) <= example.layout < 2 * len(TURNS) and layer is not None:
        shape = getattr(layer, "normalized_shape", None)
        return int(shape[-1] if shape else getattr(layer, "in_features", 0) or layer.in_channels)
    return example.number("num_mel_bins", "feature_size", "input_feat_per_channel", "input_size") or 80


TURNS = (False, True)
"""Whether a spectrum has its axes the other way round."""


def spectrum_shape(example: Example) -> tuple[tuple[int, ...], int]:
    """The shape of a spectrum, and its frames."""
    bins, most = _bins(example), example.number("max_source_positions")
    whisper = bool(most) and example.field("input_feat_per_channel") is None  # channels first, all of its positions
    frames = 2 * most if whisper else FRAMES
    window = example.number("n_window")
    if window:  # that divide them
        frames = 2 * window * max(1, frames // (2 * window))
    if example.layout == 2 * len(TURNS):
        return (1, 1, frames, bins), frames
    if example.layout > 2 * len(TURNS):
        return (1, frames, MORE_BINS), frames
    first = whisper ^ TURNS[example.layout % len(TURNS)]
    return ((1, bins, frames) if first else (1, frames, bins)), frames


def sound(example: Example) -> Any:
    """Samples of sound, or the spectrum that some take under the same name."""
    if example.field("frequency_stride") is not None:
        return normal(1, example.number("max_length") or FRAMES, example.number("num_mel_bins") or 80)
    ways: list[tuple[int, ...]] = [(1, SECONDS * RATE), (1, 1, SECONDS * RATE), (1, FRAMES, _bins(example))]
    if "input_features" in example.accepted:
        ways = [ways[1]]
    return normal(*ways[min(example.layout, len(ways) - 1)])


def decoder_tokens(example: Example) -> Any:
    """Tokens of the text that is made, for a model with encoder and decoder; None for others."""
    if not example.config.is_encoder_decoder:
        return None
    channels = example.number("num_channels") if hasattr(example.config, "delay_pattern") else 0
    length = example.number("max_target_positions") or max(1, example.tokens // TARGETS)
    return zeros(1, length, *([channels] if channels else ()))


def mask(example: Example) -> Any:
    """A mask of tokens, frames or samples: all count."""
    if "input_ids" in example.accepted:
        return ones(1, example.tokens)
    return ones(1, SECONDS * RATE if "input_values" in example.accepted else spectrum_shape(example)[1])


def grid(example: Example) -> Any:
    """Frames of an image, and its patches along each side."""
    side = _patch_grid(example) or SIDE // 16
    return values([[1, side, side]])


def grid_of_patches(example: Example) -> Any:
    """Patches of an image along each side, for a tower that takes a sequence of them."""
    side = _sequence_side(example)
    return values([[side, side]])


def places(example: Example) -> Any:
    """Column and row of each patch of an image."""
    side = _sequence_side(example)
    return values([[[column, row] for row in range(side) for column in range(side)]])


def pixel_mask(example: Example) -> Any:
    """A mask of patches or pixels of images: all count."""
    if "spatial_shapes" in example.accepted:
        return ones(1, _sequence_side(example) ** 2)
    return ones(1, frames(example), *sides(example))


def width_of_text(example: Example) -> int:
    """Width of the vectors of a text."""
    return example.number("hidden_size", "d_model")


def past(example: Example) -> Any:
    """Values of a series that are known, with those that lags look back on."""
    length = example.number("context_length") or 512
    lags = example.field("lags_sequence")
    length += max(lags) if isinstance(lags, list | tuple) and lags else 0
    channels = example.number("num_input_channels", "input_size")
    return normal(1, length, *([channels] if channels > 1 or example.field("num_input_channels") else ()))


def text(example: Example) -> Any:
    """Tokens; or, for a model of sound in codes, as many of them at each place."""
    codes = example.number("num_codebooks")
    deep = (codes + 1, codes)[min(example.layout - 1, 1)] if codes and example.layout else 0
    return zeros(1, example.tokens, *([deep] if deep else ()))
