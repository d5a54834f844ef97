"""Recipes of training in narrow types: what a scale is for, which rate products have, and what is sent.

The matrices of blocks alone are multiplied so, in forward and backward: the head over the vocabulary, attention and all
that is no product stay in bfloat16. Formats: documentation of torchao (torchao.float8, mx_formats) and of Transformer
Engine (DelayedScaling to NVFP4BlockScaling), whose table of supported GPUs ``GPUS`` follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WIDE = "bfloat16"
"""The type of all else in a recipe."""
FLOAT8 = "float8"


class NarrowRecipe(NamedTuple):
    """How the matrices of blocks are cast and multiplied.

    said:     what it is, for people
    rate:     type by which a data sheet has its rate
    width:    bytes of an element, with its part of a scale
    gathered: type in which sharded parameters are gathered; gradients are never sent in a narrow type
    like:     recipe whose speed it has where no run taught its own; "" for none
    stacks:   those that run it in published runs, if these are of two sources or more
    """

    said: str
    rate: str
    width: float
    gathered: str
    like: str
    stacks: tuple[str, ...]


RECIPES: Mapping[str, NarrowRecipe] = {
    FLOAT8: NarrowRecipe("float8, a scale for each tensor", FLOAT8, 1, FLOAT8, "", ("compile", "te")),
    "float8-rowwise": NarrowRecipe("float8, a scale for each row", FLOAT8, 1, WIDE, FLOAT8, ()),
    "mxfp8": NarrowRecipe("MXFP8, a scale for each 32 values", "mxfp8", 1 + 1 / 32, WIDE, FLOAT8, ("te",)),
    "nvfp4": NarrowRecipe("NVFP4, a scale for each 16 values", "nvfp4", 0.5 + 1 / 16, WIDE, "mxfp8", ()),
}
"""By the type of computation. torchao gathers in float8 with ``enable_fsdp_float8_all_gather``, which takes scales of
tensors alone."""


def rate_type(dtype: str) -> str:
    """The type by which a data sheet has the rate of products in ``dtype``."""
    return RECIPES[dtype].rate if dtype in RECIPES else dtype


def gathered_type(dtype: str) -> str:
    """The type in which sharded parameters of float32 are gathered; "" for their own."""
    return RECIPES[dtype].gathered if dtype in RECIPES else "" if dtype in ("float32", "tf32") else dtype


def wide_type(dtype: str) -> str:
    """The type of activations, and of products that a recipe leaves out."""
    return WIDE if dtype in RECIPES else dtype
