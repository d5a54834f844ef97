"""Decoders that see images as well: (configuration, tokens of a sample) -> the model.

A sample has one image, whose tokens are among those of the sample. All raise DataError for a configuration that lacks
something. Names and shapes are those of the classes ``...ForConditionalGeneration`` in transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from osfmodel.counting.config import Config
from osfmodel.counting.families import llama
from osfmodel.counting.families.images import encoder_block
from osfmodel.counting.modules import (
    Model,
    Module,
    Product,
    attention,
    convolution,
    embedding,
    feed_forward,
    linear,
    norm,
)
from osfmodel.entities.errors import DataError


def longest(config: Config) -> int:
    """The most tokens that the positions of the language model are for."""
    return llama.longest(config.part("text_config"))


def gemma3(config: Config, tokens: int) -> Model:
    """Gemma 3: SigLIP's tower, whose patches are averaged to fewer tokens, and a projection in front of the decoder."""
    text, vision = config.part("text_config"), config.part("vision_config")
    width, seen, name = vision.count("hidden_size"), config.count("mm_tokens_per_image"), "model.vision_tower"
    side, blocks = _side(vision), _names(vision, f"{name}.encoder.layers")
    rows, channels = side * side, vision.count("num_channels")
    _require_room(config, seen, tokens)
    patch = vision.count("patch_size")
    tower = [
        convolution(f"{name}.embeddings.patch_embedding", channels, width, patch, side, patch, biased=True),
        embedding(f"{name}.embeddings.position_embedding", rows, width, rows),
        *(module for block in blocks for module in encoder_block(vision, block, rows)),
        norm(f"{name}.post_layernorm", width, rows, bias=True),
    ]
    if vision.flag("vision_use_head", True):
        tower += _pooling(vision, f"{name}.head", rows)
    joined = "model.multi_modal_projector"
    tower.append(norm(f"{joined}.mm_soft_emb_norm", width, seen, added=False))
    columns = text.count("hidden_size")
    tower.append(
        Module(
            joined, (("mm_input_projection_weight", (width, columns)),), (Product(seen, width, columns),),
            moved=2 * rows * width, kept=seen * width,
        )
    )  # fmt: skip
    tied = {"tie_word_embeddings": config.flag("tie_word_embeddings", True)}  # says the whole, not its part
    modules, names = llama.decoder(Config(text.name, {**text.fields, **tied}), tokens, "model.language_model")
    return Model(config.name, (*_alone(tower), *modules), tokens, (*blocks, *names), causal=True)


LLAMA4 = ("input_layernorm", "post_attention_layernorm", "o_proj")
"""Names as in images.ENCODER."""


def llama4(config: Config, tokens: int) -> Model:
    """Llama 4: a tower with a class token, whose patches are joined by fours, and a projection."""
    text, vision = config.part("text_config"), config.part("vision_config")
    width, name = vision.count("hidden_size"), "vision_model"
    side, blocks = _side(vision), _names(vision, f"{name}.model.layers")
    patches, rows = side * side, side * side + 1
    seen = int(patches * vision.number("pixel_shuffle_ratio", 0.5) ** 2)
    _require_room(config, seen, tokens)
    pixels = vision.count("num_channels") * vision.count("patch_size") ** 2
    inner = vision.count("intermediate_size")
    adapted, output = vision.count("projector_input_dim"), vision.count("projector_output_dim")
    parameters = (("class_embedding", (width,)), ("positional_embedding_vlm", (rows, width)))
    adapter = f"{name}.vision_adapter.mlp"
    tower = [
        linear(f"{name}.patch_embedding.linear", pixels, width, patches),
        Module(name, parameters, moved=5 * rows * width),
        norm(f"{name}.layernorm_pre", width, rows, bias=True, added=False),
        *(module for block in blocks for module in encoder_block(vision, block, rows, LLAMA4)),
        norm(f"{name}.layernorm_post", width, rows, bias=True),
        linear(f"{adapter}.fc1", inner, adapted, seen, moved=2 * patches * width),
        linear(f"{adapter}.fc2", output, output, seen, moved=2 * adapted * seen, kept=adapted * seen),
        linear(
            "multi_modal_projector.linear_1", vision.count("vision_output_dim"), text.count("hidden_size"), seen,
            moved=2 * output * seen, kept=output * seen,
        ),
    ]  # fmt: skip
    modules, names = llama.decoder(text, tokens, "language_model.model", "language_model.lm_head")
    return Model(config.name, (*_alone(tower), *modules), tokens, (*blocks, *names), causal=True)


def _side(vision: Config) -> int:
    """Patches on a side of an image."""
    return vision.count("image_size") // vision.count("patch_size")


def _names(vision: Config, layers: str) -> tuple[str, ...]:
    return tuple(f"{layers}.{number}" for number in range(vision.layers("num_hidden_layers")))


def _require_room(config: Config, seen: int, tokens: int) -> None:
    if seen > tokens:
        raise DataError(f"{config.name}: an image has {seen} tokens, more than a sample of {tokens}: write seq{seen}")


def _alone(tower: Iterable[Module]) -> Iterator[Module]:
    """Modules that no group of GPUs shares, and whose attention is not causal."""
    return (replace(module, keys=0, whole=True, row_parallel=False) for module in tower)


def _pooling(vision: Config, name: str, rows: int) -> Iterator[Module]:
    """SigLIP's pooling, which Gemma's configurations usually leave out: a learned query attends to all patches."""
    width, heads = vision.count("hidden_size"), vision.count("num_attention_heads")
    yield Module(name, (("probe", (1, 1, width)),), moved=width)
    fused = (("in_proj_weight", (3 * width, width)), ("in_proj_bias", (3 * width,)))
    yield Module(f"{name}.attention", fused, (Product(1, width, width), Product(rows, width, 2 * width)))
    scores = attention(1, heads, width // heads, rows)
    yield linear(f"{name}.attention.out_proj", width, width, 1, bias=True, kept=2 * rows * width, scores=scores)
    yield norm(f"{name}.layernorm", width, 1, bias=True)
    yield from feed_forward((f"{name}.mlp.fc1", f"{name}.mlp.fc2"), width, vision.count("intermediate_size"), 1)
