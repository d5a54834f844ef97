"""Element types of tensors and their sizes."""

from __future__ import annotations

from functools import lru_cache

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Names of types in settings of several frameworks."""


@lru_cache(maxsize=256)
def element_bytes(dtype: str) -> int:
    """Bytes of one element; a tensor may be cut at multiples of it. 8, which suits all, for an unknown type."""
    return ELEMENT_BYTES.get(dtype.partition("_")[0], 8)


def holds_gradients(dtype: str | None) -> bool:
    """Whether tensors of this type can be gradients: floating-point numbers, or an unknown type."""
    return dtype is None or "float" in dtype
