"""Swin transformers: attention inside windows of an image, whose positions are merged between stages.

Names and shapes are those of ``SwinTransformer`` in torchvision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, attention, convolution, feed_forward, fused_attention, linear, norm

EXPANSION = 4


def build(config: Config, _tokens: int) -> Model:
    """The model. Raises DataError for a configuration that lacks something."""
    width, window = config.count("embed_dim"), config.count("window_size", default=7)
    side = config.count("image_size", default=224) // 4
    modules = [
        convolution("features.0.0", 3, width, 4, side, 4, biased=True),
        norm("features.0.2", width, side * side, bias=True, added=False),
    ]
    blocks: list[str] = []
    for stage, (depth, heads) in enumerate(config.stages("depths", "num_heads")):
        if stage:
            side, name = -(-side // 2), f"features.{2 * stage}"
            modules.append(norm(f"{name}.norm", 4 * width, side * side, bias=True, added=False))
            modules.append(linear(f"{name}.reduction", 4 * width, 2 * width, side * side))
            width *= 2
        config.require_multiple("embed_dim", width, heads)
        names = [f"features.{2 * stage + 1}.{place}" for place in range(depth)]
        for name in names:
            modules += _block(name, width, heads, side, window)
        blocks += names
    modules.append(norm("norm", width, side * side, bias=True, added=False))
    modules.append(linear("head", width, config.count("num_classes", default=1000), 1, bias=True))
    return Model(config.name, tuple(modules), 0, tuple(blocks))


def _block(name: str, width: int, heads: int, side: int, window: int) -> Iterator[Module]:
    """A block, in which images are padded to whole windows for attention."""
    rows, seen = side * side, window * window
    windows = (-(-side // window)) ** 2
    padded = windows * seen
    yield norm(f"{name}.norm1", width, rows, bias=True)
    table = ((2 * window - 1) ** 2, heads)
    yield Module(f"{name}.attn", (("relative_position_bias_table", table),), moved=heads * seen * seen)
    fused, projection = fused_attention((f"{name}.attn.qkv", f"{name}.attn.proj"), width, heads, padded)
    # The products of attention are stored: no kernel adds a table of biases.
    inside = heads * windows * seen * seen
    scores = attention(seen, heads * windows, width // heads)
    yield fused
    yield replace(projection, scores=scores, moved=projection.moved + 6 * inside, kept=projection.kept + 2 * inside)
    yield norm(f"{name}.norm2", width, rows, bias=True)
    yield from feed_forward((f"{name}.mlp.0", f"{name}.mlp.3"), width, EXPANSION * width, rows)
