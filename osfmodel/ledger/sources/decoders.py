"""Decoder-only transformers from their published dimensions: parameters, and computation by floating-point operations.

A matrix product of a parameter takes 2 operations for each of its elements and tokens in forward, attention 4 for each
token, width and length of the sequence; backward takes twice as many, and once more the part of a block that is
recomputed. That is how the sources of sharded runs count as well. Times are operations at one pace, which a recipe
finds on one run. The update of Adam is bound by memory: it moves ADAM_BYTES for each parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.source import Source
from osfmodel.entities.workload import Layer, Workload

ADAM_BYTES = 28
"""Bytes that an update moves for each parameter: float32 weight and both moments, read and written; gradient, read."""
MEMORY_RATES = {"A100-40GB": 1555e9, "A100-64GB": 1640e9, "A100-80GB": 2039e9, "H100-80GB": 3350e9}
"""Bytes per second of a GPU's memory, of data sheets (64GB: the GPU of Leonardo)."""


LEAST_WORKERS = 8
"""Workers beside which a GPU's pace was measured, in all sources; more in some series."""
TERA = 1e12
ATTENTION, ALL = "attention", "all"


class Decoder(NamedTuple):
    """Dimensions of a model.

    gated:     whether the feed-forward part has three matrices instead of two
    tied:      whether the head is the embedding
    keys:      width of keys and of values; 0 for that of the model
    positions: number of learned positions
    biased:    which parts have biases: "" for none, ATTENTION for its projections, or ALL, norms included
    """

    layers: int
    width: int
    feed_forward: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    keys: int = 0
    positions: int = 0
    biased: str = ""


class MicroBatch(NamedTuple):
    """A micro-batch on a GPU of MEMORY_RATES.

    sequence, batch: tokens of a sample, and samples
    recomputed: part of the forward of blocks that is repeated in backward
    dtype:      of parameters, in memory
    flat:       whether the parameters of a block are one (FSDP1's FlatParameter)
    """

    sequence: int
    batch: int
    gpu: str
    recomputed: float = 0
    dtype: str = "float32"
    flat: bool = True


def block(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of a block, in forward order."""
    width, inner = decoder.width, decoder.feed_forward
    parts = {
        "norm1": (width,),
        "attention.qkv": (width + 2 * (decoder.keys or width), width),
        "attention.out": (width, width),
        "norm2": (width,),
        "mlp.up": (inner, width),
        **({"mlp.gate": (inner, width)} if decoder.gated else {}),
        "mlp.down": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parts.items():
        shapes[f"{name}.weight"] = shape
        if decoder.biased == ALL or name.startswith(decoder.biased or ALL):
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


def workload(name: str, decoder: Decoder, step: MicroBatch, pace: float) -> Workload:
    """The model on one GPU, at ``pace`` seconds for 10^12 floating-point operations."""
    layers = tuple(_layers(decoder, step, pace))
    update = ADAM_BYTES * sum(layer.elements for layer in layers) / MEMORY_RATES[step.gpu]
    conditions = f"counted from published dimensions; {step.batch} samples of {step.sequence} tokens"
    source = Source("the dimensions that the source publishes", conditions, "facts", step.gpu)
    return Workload(name, layers, step.batch, update, source, profiled_workers=LEAST_WORKERS)


def _layers(decoder: Decoder, step: MicroBatch, pace: float) -> Iterator[Layer]:
    tokens = step.sequence * step.batch
    embedding = (decoder.vocabulary + decoder.positions, decoder.width)
    yield _layer("embedding.weight", embedding, step.dtype, 0)
    attention = 4 * step.sequence * decoder.width * tokens
    for number in range(decoder.layers):
        shapes = block(decoder)
        if step.flat:
            elements = sum(map(prod, shapes.values()))
            operations = 2 * sum(_products(shape) for shape in shapes.values()) * tokens + attention
            yield _layer(f"layers.{number}", (elements,), step.dtype, operations * pace / TERA, step.recomputed)
            continue
        for key, shape in shapes.items():
            operations = 2 * _products(shape) * tokens + attention * (key == "attention.out.weight")
            yield _layer(f"layers.{number}.{key}", shape, step.dtype, operations * pace / TERA, step.recomputed)
    head = 2 * decoder.vocabulary * decoder.width * tokens * pace / TERA
    norm = decoder.width * (1 + (decoder.biased == ALL))
    yield _layer("norm.weight", (norm,), step.dtype, head if decoder.tied else 0)
    if not decoder.tied:
        yield _layer("head.weight", (decoder.vocabulary, decoder.width), step.dtype, head)


def _products(shape: tuple[int, ...]) -> int:
    """Elements of a parameter that is multiplied with each token; 0 for a norm or a bias."""
    return prod(shape) if len(shape) > 1 else 0


def _layer(name: str, shape: tuple[int, ...], dtype: str, forward: float, recomputed: float = 0) -> Layer:
    size = prod(shape) * element_bytes(dtype)
    return Layer(name, forward, (2 + recomputed) * forward, size, dtype, shape=shape)
