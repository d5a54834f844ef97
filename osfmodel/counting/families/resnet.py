"""ResNets of bottlenecks: 1 x 1, 3 x 3 and 1 x 1 convolutions around which the input is added.

Names and shapes are those of ``ResNet`` with ``Bottleneck`` in torchvision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from osfmodel.counting.config import MOST_LAYERS, Config
from osfmodel.counting.modules import Model, Module, batch_norm, convolution, linear

FIRST, EXPANSION = 64, 4
"""Channels of the first convolution, and those of a bottleneck's output over those inside."""


def build(config: Config, _tokens: int) -> Model:
    """The model. Raises DataError for a configuration that lacks something."""
    side = -(-config.count("image_size", default=224) // 2)
    stem = batch_norm("bn1", FIRST, side)
    # The pooling behind it keeps its input, and an index of 64 bits for each of its outputs, a quarter as many.
    pooled = replace(stem, moved=stem.moved + 2 * stem.kept, kept=3 * stem.kept)
    modules = [convolution("conv1", 3, FIRST, 7, side, stride=2), pooled]
    side, channels = -(-side // 2), FIRST
    blocks: list[str] = []
    for stage, number in enumerate(config.counts("layers", MOST_LAYERS)):
        inner = FIRST << stage
        for place in range(number):
            stride = 2 if stage and not place else 1
            side = -(-side // stride)
            blocks.append(f"layer{stage + 1}.{place}")
            modules += _bottleneck(blocks[-1], channels, inner, side, stride)
            channels = EXPANSION * inner
    modules.append(linear("fc", channels, config.count("num_classes", default=1000), 1, bias=True))
    return Model(config.name, tuple(modules), 0, tuple(blocks))


def _bottleneck(name: str, inputs: int, inner: int, side: int, stride: int) -> Iterator[Module]:
    """The modules of a block whose output has ``side`` x ``side`` positions; its 3 x 3 convolution has the stride."""
    before, outputs = side * stride, EXPANSION * inner
    yield convolution(f"{name}.conv1", inputs, inner, 1, before)
    yield batch_norm(f"{name}.bn1", inner, before)
    yield convolution(f"{name}.conv2", inner, inner, 3, side, stride)
    yield batch_norm(f"{name}.bn2", inner, side)
    yield convolution(f"{name}.conv3", inner, outputs, 1, side)
    yield batch_norm(f"{name}.bn3", outputs, side, added=True)
    if inputs != outputs or stride > 1:
        made = convolution(f"{name}.downsample.0", inputs, outputs, 1, side, stride)
        yield Module(made.name, made.parameters, made.products)  # its input is kept by conv1
        yield batch_norm(f"{name}.downsample.1", outputs, side, activated=False)
