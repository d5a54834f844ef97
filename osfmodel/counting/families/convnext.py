"""ConvNeXt: a 7 x 7 convolution of each channel by itself, a norm, and two linear layers at each position.

Names and shapes are those of ``ConvNeXt`` in torchvision.
"""

from __future__ import annotations

from collections.abc import Iterator

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, convolution, feed_forward, linear, norm

KERNEL, EXPANSION = 7, 4


def build(config: Config, _tokens: int) -> Model:
    """The model. Raises DataError for a configuration that lacks something."""
    stages = config.stages("widths", "depths")
    widths = [width for width, _ in stages]
    side = config.count("image_size", default=224) // 4
    modules = [
        convolution("features.0.0", 3, widths[0], 4, side, 4, biased=True),
        norm("features.0.1", widths[0], side * side, bias=True, added=False),
    ]
    blocks: list[str] = []
    for stage, (width, depth) in enumerate(stages):
        if stage:
            before, name = widths[stage - 1], f"features.{2 * stage}"
            modules.append(norm(f"{name}.0", before, side * side, bias=True, added=False))
            side //= 2
            modules.append(convolution(f"{name}.1", before, width, 2, side, 2, biased=True))
        names = [f"features.{2 * stage + 1}.{place}" for place in range(depth)]
        for name in names:
            modules += _block(name, width, side)
        blocks += names
    modules.append(norm("classifier.0", widths[-1], 1, bias=True, added=False))
    modules.append(linear("classifier.2", widths[-1], config.count("num_classes", default=1000), 1, bias=True))
    return Model(config.name, tuple(modules), 0, tuple(blocks))


def _block(name: str, width: int, side: int) -> Iterator[Module]:
    rows = side * side
    yield convolution(f"{name}.block.0", width, width, KERNEL, side, groups=width, biased=True)
    yield norm(f"{name}.block.2", width, rows, bias=True, added=False)
    yield from feed_forward((f"{name}.block.3", f"{name}.block.5"), width, EXPANSION * width, rows)
    scaled = Module(name, (("layer_scale", (width, 1, 1)),), moved=5 * rows * width, kept=rows * width)
    yield scaled  # and the addition of the input
