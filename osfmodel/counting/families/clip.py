"""CLIP: an encoder of images and one of texts, and the product of their results.

Names and shapes are those of ``CLIPModel`` in transformers. A sample is an image and a text of full length.
"""

from __future__ import annotations

from collections.abc import Iterator

from osfmodel.counting.config import Config
from osfmodel.counting.modules import (
    Model,
    Module,
    Product,
    convolution,
    embedding,
    feed_forward,
    linear,
    norm,
    split_attention,
)  # fmt: skip


def build(config: Config, _tokens: int) -> Model:
    """The model. Raises DataError for a configuration that lacks something."""
    text, vision = config.part("text_config"), config.part("vision_config")
    joint = config.count("projection_dim", default=512)
    modules: list[Module] = []
    blocks: list[str] = []
    for kind, part, begin in (("text", text, _words), ("vision", vision, _patches)):
        rows, begun = begin(part)
        modules += begun
        names = [f"{kind}_model.encoder.layers.{place}" for place in range(part.layers("num_hidden_layers"))]
        for name in names:
            modules += _block(part, name, rows)
        blocks += names
        width, last = part.count("hidden_size"), {"text": "final_layer_norm", "vision": "post_layernorm"}[kind]
        modules.append(norm(f"{kind}_model.{last}", width, rows if kind == "text" else 1, bias=True))
        modules.append(linear({"text": "text_projection", "vision": "visual_projection"}[kind], width, joint, 1))
    modules.append(Module("logit_scale", (("", ()),), (Product(1, joint, 1),)))
    return Model(config.name, tuple(modules), 0, tuple(blocks))


def _words(part: Config) -> tuple[int, list[Module]]:
    """Tokens of a text, and the modules before its blocks."""
    rows, width = part.count("max_position_embeddings", default=77), part.count("hidden_size")
    name = "text_model.embeddings"
    return rows, [
        embedding(f"{name}.token_embedding", part.count("vocab_size"), width, rows),
        embedding(f"{name}.position_embedding", rows, width, rows),
    ]


def _patches(part: Config) -> tuple[int, list[Module]]:
    """Patches of an image and its class token, and the modules before its blocks."""
    patch, width = part.count("patch_size"), part.count("hidden_size")
    side = part.count("image_size") // patch
    rows, name = side * side + 1, "vision_model.embeddings"
    return rows, [
        Module(name, (("class_embedding", (width,)),), moved=2 * rows * width),
        convolution(f"{name}.patch_embedding", part.count("num_channels", default=3), width, patch, side, patch),
        embedding(f"{name}.position_embedding", rows, width, rows),
        norm("vision_model.pre_layrnorm", width, rows, bias=True),
    ]


def _block(part: Config, name: str, rows: int) -> Iterator[Module]:
    width, heads = part.count("hidden_size"), part.count("num_attention_heads")
    part.require_multiple("hidden_size", width, heads)
    yield norm(f"{name}.layer_norm1", width, rows, bias=True)
    inside = f"{name}.self_attn"
    names = (f"{inside}.q_proj", f"{inside}.k_proj", f"{inside}.v_proj", f"{inside}.out_proj")
    yield from split_attention(names, width, heads, width // heads, rows)
    yield norm(f"{name}.layer_norm2", width, rows, bias=True)
    inner = part.count("intermediate_size")
    yield from feed_forward((f"{name}.mlp.fc1", f"{name}.mlp.fc2"), width, inner, rows)
