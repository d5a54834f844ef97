"""Models of images: (configuration, tokens of a sample, which images have not) -> the model.

All raise DataError for a configuration that lacks something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from osfmodel.counting.config import MOST_LAYERS, Config
from osfmodel.counting.modules import (
    Model,
    Module,
    Product,
    attention,
    batch_norm,
    convolution,
    embedding,
    feed_forward,
    fused_attention,
    linear,
    lone,
    norm,
    split_attention,
)

FIRST, WIDENED = 64, 4
"""Channels of the first convolution, and those of a bottleneck's output over those inside."""
KERNEL, EXPANSION = 7, 4
"""Of ConvNeXt's convolutions; width of a feed-forward part over that of the model, in ConvNeXt and Swin."""


def resnet(config: Config, _tokens: int) -> Model:
    """ResNets of bottlenecks: 1 x 1, 3 x 3 and 1 x 1 convolutions around which the input is added.

    Names and shapes are those of ``ResNet`` with ``Bottleneck`` in torchvision.
    """
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
            channels = WIDENED * inner
    modules.append(linear("fc", channels, config.count("num_classes", default=1000), 1, bias=True))
    return Model(config.name, tuple(modules), 0, tuple(blocks))


def _bottleneck(name: str, inputs: int, inner: int, side: int, stride: int) -> Iterator[Module]:
    """The modules of a block whose output has ``side`` x ``side`` positions; its 3 x 3 convolution has the stride."""
    before, outputs = side * stride, WIDENED * inner
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


def convnext(config: Config, _tokens: int) -> Model:
    """ConvNeXt: a 7 x 7 convolution of each channel by itself, a norm, and two linear layers at each position.

    Names and shapes are those of ``ConvNeXt`` in torchvision.
    """
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
            modules += _convnext_block(name, width, side)
        blocks += names
    modules.append(norm("classifier.0", widths[-1], 1, bias=True, added=False))
    modules.append(linear("classifier.2", widths[-1], config.count("num_classes", default=1000), 1, bias=True))
    return Model(config.name, tuple(modules), 0, tuple(blocks))


def _convnext_block(name: str, width: int, side: int) -> Iterator[Module]:
    rows = side * side
    yield convolution(f"{name}.block.0", width, width, KERNEL, side, groups=width, biased=True)
    yield norm(f"{name}.block.2", width, rows, bias=True, added=False)
    yield from feed_forward((f"{name}.block.3", f"{name}.block.5"), width, EXPANSION * width, rows)
    scaled = Module(name, (("layer_scale", (width, 1, 1)),), moved=5 * rows * width, kept=rows * width)
    yield scaled  # and the addition of the input


def vit(config: Config, _tokens: int) -> Model:
    """Vision transformers: an image cut in patches, an encoder with norms first, a class token.

    Names and shapes are those of ``VisionTransformer`` in torchvision.
    """
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


def hugging_face_vit(config: Config, _tokens: int) -> Model:
    """The same, with matrices of their own for queries, keys and values, as ``ViTForImageClassification`` has them."""
    width, heads, patch = config.count("hidden_size"), config.count("num_attention_heads"), config.count("patch_size")
    config.require_multiple("hidden_size", width, heads)
    side = config.count("image_size") // patch
    rows, inner, biased = side * side + 1, config.count("intermediate_size"), config.flag("qkv_bias", True)
    channels, begin = config.count("num_channels", default=3), "vit.embeddings"
    modules = [
        lone(f"{begin}.cls_token", (1, 1, width)),
        lone(f"{begin}.position_embeddings", (1, rows, width)),
        convolution(f"{begin}.patch_embeddings.projection", channels, width, patch, side, patch, biased=True),
    ]
    blocks = tuple(f"vit.layers.{number}" for number in range(config.layers("num_hidden_layers")))
    for name in blocks:
        modules.append(norm(f"{name}.layernorm_before", width, rows, bias=True))
        *three, last = split_attention(
            [f"{name}.attention.{one}_proj" for one in "qkvo"], width, heads, width // heads, rows, biased
        )
        output = last.parameters if biased else (*last.parameters, ("bias", (width,)))
        modules += [*three, replace(last, parameters=output)]
        modules.append(norm(f"{name}.layernorm_after", width, rows, bias=True))
        modules += feed_forward((f"{name}.mlp.fc1", f"{name}.mlp.fc2"), width, inner, rows)
    modules.append(norm("vit.layernorm", width, rows, bias=True))
    labels = config.value("id2label")
    classes = config.count("num_labels", default=len(labels) if isinstance(labels, dict) and labels else 2)
    modules.append(linear("classifier", width, classes, 1, bias=True))
    return Model(config.name, tuple(modules), 0, blocks)


def swin(config: Config, _tokens: int) -> Model:
    """Swin transformers: attention inside windows of an image, whose positions are merged between stages.

    Names and shapes are those of ``SwinTransformer`` in torchvision.
    """
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
            modules += _swin_block(name, width, heads, side, window)
        blocks += names
    modules.append(norm("norm", width, side * side, bias=True, added=False))
    modules.append(linear("head", width, config.count("num_classes", default=1000), 1, bias=True))
    return Model(config.name, tuple(modules), 0, tuple(blocks))


def _swin_block(name: str, width: int, heads: int, side: int, window: int) -> Iterator[Module]:
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


def clip(config: Config, _tokens: int) -> Model:
    """CLIP: an encoder of images and one of texts, and the product of their results.

    Names and shapes are those of ``CLIPModel`` in transformers. A sample is an image and a text of full length.
    """
    text, vision = config.part("text_config"), config.part("vision_config")
    joint = config.count("projection_dim", default=512)
    modules: list[Module] = []
    blocks: list[str] = []
    for kind, part, begin in (("text", text, _words), ("vision", vision, _patches)):
        rows, begun = begin(part)
        modules += begun
        names = [f"{kind}_model.encoder.layers.{place}" for place in range(part.layers("num_hidden_layers"))]
        for name in names:
            modules += encoder_block(part, name, rows)
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


ENCODER = ("layer_norm1", "layer_norm2", "out_proj")
"""Names of the norms of a block in CLIP and SigLIP, and of the matrix behind attention."""


def encoder_block(part: Config, name: str, rows: int, names: tuple[str, str, str] = ENCODER) -> Iterator[Module]:
    """A block of an encoder: norms first, attention to all of ``rows``, a feed-forward part; all with biases."""
    width, heads = part.count("hidden_size"), part.count("num_attention_heads")
    part.require_multiple("hidden_size", width, heads)
    yield norm(f"{name}.{names[0]}", width, rows, bias=True)
    inside = f"{name}.self_attn"
    matrices = (f"{inside}.q_proj", f"{inside}.k_proj", f"{inside}.v_proj", f"{inside}.{names[2]}")
    yield from split_attention(matrices, width, heads, width // heads, rows)
    yield norm(f"{name}.{names[1]}", width, rows, bias=True)
    yield from feed_forward((f"{name}.mlp.fc1", f"{name}.mlp.fc2"), width, part.count("intermediate_size"), rows)
