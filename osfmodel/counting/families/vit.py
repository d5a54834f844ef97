"""Vision transformers: an image cut in patches, an encoder with norms first, a class token.

Names and shapes are those of ``VisionTransformer`` in torchvision.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, convolution, feed_forward, fused_attention, linear, lone, norm


def build(config: Config, _tokens: int) -> Model:
    """The model. Raises DataError for a configuration that lacks something."""
    width, heads, patch = config.count("hidden_dim"), config.count("num_heads"), config.count("patch_size")
    config.require_multiple("hidden_dim", width, heads)
    side = config.count("image_size", default=224) // patch
    rows, inner = side * side + 1, config.count("mlp_dim")
    modules = [
        lone("class_token", (1, 1, width)),
        convolution("conv_proj", 3, width, patch, side, patch, biased=True),
        lone("encoder.pos_embedding", (1, rows, width)),
    ]
    blocks = tuple(f"encoder.layers.encoder_layer_{number}" for number in range(config.layers("num_layers")))
    for name in blocks:
        modules.append(norm(f"{name}.ln_1", width, rows, bias=True))
        inside = f"{name}.self_attention"
        fused, projection = fused_attention((inside, f"{inside}.out_proj"), width, heads, rows)
        parameters = tuple((f"in_proj_{parameter}", shape) for parameter, shape in fused.parameters)
        modules += [replace(fused, parameters=parameters), projection]
        modules.append(norm(f"{name}.ln_2", width, rows, bias=True))
        modules += feed_forward((f"{name}.mlp.0", f"{name}.mlp.3"), width, inner, rows)
    modules.append(norm("encoder.ln", width, rows, bias=True))
    modules.append(linear("heads.head", width, config.count("num_classes", default=1000), 1, bias=True))
    return Model(config.name, tuple(modules), 0, blocks)
