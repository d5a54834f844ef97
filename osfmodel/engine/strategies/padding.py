"""Bytes of groups of sharded parameters: FSDP2 pads each parameter by itself, along the dimension that it splits.

Source: torch 2.13, ``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.sharding import Sharding
from osfmodel.entities.workload import Layer

EXPERTS, PLAIN_MATRIX = ".experts.", 2
"""Contained in the names of experts' parameters, and dimensions of one expert's."""


def padded_elements(layer: Layer, ranks: int) -> int:
    """Elements of a parameter whose dimension that is split is padded to a multiple of ``ranks``.

    A parameter without a known shape is taken to have one dimension.
    """
    shape = layer.shape or (layer.elements,)
    split = shape[1] if placed(layer, ranks) else shape[0]
    return -(-split // ranks) * ranks * (math.prod(shape) // split)


def placed(layer: Layer, ranks: int) -> bool:
    """Whether trainers split a parameter along dimension 1, which shard_placement_fn says: of experts, if too few.

    Source: torchtitan, ``torchtitan/models/llama4/infra/parallelize.py`` (apply_fsdp), by default FSDP2 splits the
    first dimension of all.
    """
    return EXPERTS in layer.name and len(layer.shape) > PLAIN_MATRIX and layer.shape[0] < ranks


def frozen_bytes(layers: Sequence[Layer], ranks: int) -> int:
    """Bytes of a rank's part of the parameters that are not trained beside ``layers``."""
    return sum(-(-(layer.frozen_bytes or 0) // ranks) for layer in layers)


def gathered_bytes(rules: Sharding, layers: Sequence[Layer], ranks: int) -> int:
    """Bytes of the parameters of ``layers``, padded, as they are gathered from ``ranks`` ranks."""
    return exchanged_bytes(rules, layers, ranks)[0]


def reduced_bytes(rules: Sharding, layers: Sequence[Layer], ranks: int) -> int:
    """Bytes of the gradients of ``layers``, padded, as they are reduced between ``ranks`` ranks."""
    return exchanged_bytes(rules, layers, ranks)[1]


def exchanged_bytes(rules: Sharding, layers: Sequence[Layer], ranks: int) -> tuple[int, int]:
    """Bytes of ``layers``, padded, as their parameters are gathered from ``ranks`` ranks, and gradients reduced."""
    padded: dict[str, int] = {}
    for one in layers:
        padded[one.dtype] = padded.get(one.dtype, 0) + padded_elements(one, ranks)
    gather, reduce = rules.gather_dtype, rules.reduce_dtype or rules.gather_dtype
    gathered = sum(elements * element_bytes(gather or dtype) for dtype, elements in padded.items())
    gathered += ranks * frozen_bytes(layers, ranks)
    return gathered, sum(elements * element_bytes(reduce or dtype) for dtype, elements in padded.items())
