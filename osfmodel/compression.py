"""Sending fewer bytes: COMPRESSIONS turns a workload into one whose gradients are sent compressed.

To add one: a line in COMPRESSIONS, and a function here unless it is a cast. tests/theory/test_what_if.py runs over the
table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from osfmodel.errors import UsageError
from osfmodel.workload import BF16, FP16, Layer, Workload, float_bytes, sending

LARGEST_RANK = 10**6


class Compression(NamedTuple):
    """An entry of COMPRESSIONS.

    apply:   (workload, rank) -> workload with the bytes that are sent
    meaning: half a line for a person
    ranked:  whether a rank is given with it, as in powersgd:4
    caveat:  what is said of predictions with it
    """

    apply: Callable[[Workload, int], Workload]
    meaning: str
    ranked: bool = False
    caveat: str = ""


def power_sgd(workload: Workload, rank: int) -> Workload:
    """``workload`` with the fewest bytes that PowerSGD of that rank can send.

    It sends (n + m) rank elements of an n x m gradient where at least half is saved (PyTorch's
    ``min_compression_rate`` of 2). Profiles do not know shapes, but n + m >= 2 sqrt(n m), a square's: so this is the
    least that it can send, also of a layer of several tensors. (Vogels et al., NeurIPS 2019, algorithm 1.)
    """
    return replace(
        workload,
        name=f"{workload.name}-powersgd{rank}",
        layers=tuple(
            sending(layer, _low_rank(layer, rank)) if layer.gradient_bytes else layer for layer in workload.layers
        ),
    )


def _low_rank(layer: Layer, rank: int) -> int:
    element = float_bytes(layer)
    elements = layer.gradient_bytes // element
    sides = math.isqrt(4 * elements - 1) + 1 if elements else 0  # ceil(2 sqrt(elements))
    return sides * rank * element if 2 * sides * rank < elements else layer.gradient_bytes


COMPRESSIONS: Mapping[str, Compression] = {
    "none": Compression(lambda workload, _: workload, "gradients as they are"),
    "fp16": Compression(lambda workload, _: workload.sent_as("float16", FP16), "gradients as float16"),
    "bf16": Compression(lambda workload, _: workload.sent_as("bfloat16", BF16), "gradients as bfloat16"),
    "powersgd": Compression(
        power_sgd,
        "two thin matrices in the place of each gradient, at a rank: powersgd:4",
        True,
        "PowerSGD is at its best here: the profile does not know shapes, so the bytes are the fewest that this rank "
        "can send, those of square matrices; its own computation and its second collective are left out",
    ),
}
"""What sends fewer bytes, by the word before the colon. Casting takes no time here."""


def compressed(workload: Workload, how: str) -> Workload:
    """``workload`` sent as ``how`` says: none, fp16, bf16 or powersgd:RANK. Raises UsageError for anything else."""
    entry, rank = compression_called(how)
    return entry.apply(workload, rank)


def compression_called(how: str) -> tuple[Compression, int]:
    """The entry of COMPRESSIONS and the rank, 0 where it has none. Raises UsageError."""
    match = re.fullmatch(r"([a-z0-9]+)(?::([0-9]{1,7}))?", how)
    entry = COMPRESSIONS.get(match[1]) if match else None
    rank = int(match[2] or 0) if match else 0
    if entry is None or entry.ranked != bool(match and match[2]):
        known = ", ".join(f"{name}:RANK" if one.ranked else name for name, one in COMPRESSIONS.items())
        raise UsageError(f"--compression {how!r}: write one of {known}")
    if entry.ranked and not 1 <= rank <= LARGEST_RANK:
        raise UsageError(f"--compression {how!r}: a rank is 1 or more, and no more than a million")
    return entry, rank
