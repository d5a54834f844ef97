"""Inputs for a forward of a class of transformers, by the names in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from osfmodel.counting.library.examples import (
    FRAMES,
    OBJECTS,
    STEPS,
    WORDS,
    Example,
    decoder_tokens,
    frames,
    grid,
    grid_of_patches,
    images,
    mask,
    normal,
    ones,
    past,
    pixel_mask,
    places,
    sides,
    sound,
    spectrum_shape,
    text,
    values,
    vectors,
    video,
    width_of_text,
    zeros,
)
from osfmodel.entities.errors import DataError


def accepted_by(forward: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The inputs that a forward takes by name."""
    return inspect.signature(forward).parameters


def required(accepted: Mapping[str, inspect.Parameter]) -> list[str]:
    """Names of the inputs that a forward must have."""
    return [
        name for name, one in accepted.items() if one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD
    ]


def inputs_of(example: Example, forward: Callable[..., Any], more: bool, main: Collection[str] = ()) -> dict[str, Any]:
    """The inputs that a forward takes by name, each of its own size.

    more: whether those are among them that it does not need to have, such as masks
    main: names of those that it needs although its signature does not say so

    Raises DataError for one that is not known.
    """
    accepted = accepted_by(forward)
    needed = {*required(accepted), *(name for name in main if name in accepted)}
    if unknown := sorted(name for name in needed if name not in MAKERS):
        raise DataError(f"its input {unknown[0]!r} is not known")
    example = example._replace(accepted=accepted)
    left = NEEDED if more else (*NEEDED, *BESIDE)
    left = (*left, "input_ids") if "inputs" in needed else left
    wanted = [name for name in MAKERS if name in accepted and (name in needed or name not in left)]
    made = {name: MAKERS[name](example) for name in wanted}
    return {name: one for name, one in made.items() if one is not None}


MAKERS: Mapping[str, Callable[[Example], Any]] = {
    "input_ids": text,
    "pixel_values": images,
    "pixel_values_videos": video,
    "input_features": lambda one: normal(*spectrum_shape(one)[0]),
    "input_values": sound,
    "audio_mel": lambda one: normal(1, FRAMES, one.number("input_feat_size") or 128),
    "decoder_input_ids": decoder_tokens,
    "bbox": lambda one: zeros(1, one.tokens, 4),
    "hidden_states": vectors,
    "past_values": past,
    "attention_mask": mask,
    "padding_mask": mask,
    "input_features_mask": lambda one: ones(1, spectrum_shape(one)[1]),
    "feature_attention_mask": lambda one: ones(1, spectrum_shape(one)[1]),
    "audio_mel_mask": lambda _: zeros(1, FRAMES).bool(),
    "is_longer": lambda _: ones(1, 1).bool(),
    "grid_thw": grid,
    "image_grid_thw": grid,
    "merge_sizes": lambda one: values([one.number("merge_size") or 1]),
    "image_merge_sizes": lambda one: values([one.number("merge_size") or 1]),
    "target_sizes": grid_of_patches,
    "image_sizes": lambda one: values([list(sides(one))]),
    "spatial_shapes": grid_of_patches,
    "pixel_position_ids": places,
    "image_position_ids": places,
    "pixel_attention_mask": pixel_mask,
    "image_attention_mask": lambda one: ones(1, one.tokens, frames(one)),
    "high_res_pixel_values": lambda one: normal(1, 3, *(one.number("high_res_image_size") or 1024,) * 2),
    "aspect_ratio_ids": lambda _: ones(1, 1),
    "aspect_ratio_mask": lambda one: ones(1, 1, one.number("max_num_tiles") or 4),
    "inputs_embeds": lambda one: normal(1, one.tokens, width_of_text(one)),
    "noise_embeds": lambda one: normal(1, one.tokens, width_of_text(one)),
    "inputs": lambda one: zeros(1, one.tokens),
    "lang_ids": lambda _: zeros(1),
    "question_positions": lambda _: zeros(1, 1),
    "spectrogram_labels": lambda one: normal(1, one.tokens, one.number("num_mel_bins") or 80),
    "duration_labels": lambda one: ones(1, one.tokens),
    "pitch_labels": lambda one: normal(1, one.tokens, 1),
    "energy_labels": lambda one: normal(1, one.tokens, 1),
    "past_values_padding": lambda one: zeros(*past(one).shape[:2]),
    "classes_input_ids": lambda _: zeros(1, WORDS),
    "classes_attention_mask": lambda _: ones(1, WORDS),
    "tasks_input_ids": lambda _: zeros(1, WORDS),
    "tasks_attention_mask": lambda _: ones(1, WORDS),
    "classes_structure": lambda _: ones(1),
    "state": lambda one: normal(1, one.number("max_state_dim") or 1),
    "noise": lambda one: normal(1, one.number("chunk_size"), one.number("max_action_dim")),
    "timestep": lambda _: normal(1),
    "freq": lambda _: zeros(1, 1),
    "states": lambda one: normal(1, STEPS, one.number("state_dim") or 1),
    "actions": lambda one: normal(1, one.number("chunk_size") or STEPS, one.number("act_dim", "max_action_dim") or 1),
    "rewards": lambda _: normal(1, STEPS, 1),
    "returns_to_go": lambda _: normal(1, STEPS, 1),
    "timesteps": lambda _: zeros(1, STEPS),
    "visual_feats": lambda one: normal(1, OBJECTS, one.number("visual_feat_dim") or 1),
    "visual_pos": lambda one: normal(1, OBJECTS, one.number("visual_pos_dim") or 4),
    "prompt_pixel_values": images,
    "prompt_masks": images,
    "task_inputs": lambda one: zeros(1, one.number("task_seq_len") or 77),
    "image_embeds_position_mask": lambda one: ones(1, one.tokens).bool(),
    "encoder_hidden_states": lambda one: normal(1, 257, one.number("encoder_hidden_size") or width_of_text(one)),
    "latents": vectors,
    "context_hidden_states": lambda one: normal(1, one.tokens, width_of_text(one)),
    "qformer_input_ids": lambda one: zeros(1, min(one.tokens, 128)),
    "query_embeds": lambda one: normal(1, one.number("num_query_tokens") or 32, width_of_text(one)),
}
"""By the name of an input, how it is made; None where it is left out."""
BESIDE = (
    "attention_mask", "padding_mask", "input_features_mask", "feature_attention_mask", "audio_mel_mask", "is_longer",
    "grid_thw", "image_grid_thw", "merge_sizes", "image_merge_sizes", "target_sizes", "image_sizes", "spatial_shapes",
    "pixel_position_ids", "image_position_ids", "pixel_attention_mask", "high_res_pixel_values",
    "aspect_ratio_ids", "aspect_ratio_mask", "lang_ids", "question_positions", "spectrogram_labels", "duration_labels",
    "pitch_labels", "energy_labels", "past_values_padding", "image_embeds_position_mask", "visual_feats", "visual_pos",
    "qformer_input_ids", "encoder_hidden_states", "noise", "timestep", "image_attention_mask",
)  # fmt: skip
"""Inputs that are given only to forwards which must have them, and to others that fail without."""
NEEDED = ("hidden_states", "inputs_embeds", "query_embeds", "pixel_values_videos", "noise_embeds", "state")
"""Inputs that are given only to forwards which must have them."""
LAYOUTS = 6
"""How many ways to lay inputs out are tried."""
