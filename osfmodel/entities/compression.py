"""Gradient compression: COMPRESSIONS turns a workload into one whose gradients are sent compressed.

To add one: a line in COMPRESSIONS, and a function here unless it is a cast. tests/planning/test_what_if.py runs over
the table.
The density of a sparse bucket is the fraction of its elements that it sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError, PlanError, UsageError
from osfmodel.entities.lookup import did_you_mean, nearest
from osfmodel.entities.workload import Layer, Workload


def top_k(elements: int, density: float) -> int:
    """Number of ``elements`` that a sparse bucket sends: the density times their number, rounded up."""
    return min(elements, math.ceil(density * elements))


def require_density(density: float) -> None:
    """Raise PlanError unless the density is above 0 and at most 1."""
    if isinstance(density, bool) or not isinstance(density, int | float) or not 0 < density <= 1:
        raise PlanError(
            f"the density is {density!r}: it must be above 0, since nothing would be sent, and at most 1, since no "
            "tensor has more elements than it has"
        )


NONE, FP16 = "none", "fp16"
LARGEST_RANK = 10**6


class Compression(NamedTuple):
    """An entry of COMPRESSIONS.

    apply:   (layer that has a gradient, rank) -> layer with the bytes to send
    summary: shown by ``osf list``
    ranked:  whether a rank is given with it, as in powersgd:4
    caveat:  a caveat for predictions with it
    hook:    Python that makes DDP do it once ``model`` is wrapped, with "{rank}" for the rank
    """

    apply: Callable[[Layer, int], Layer]
    summary: str
    ranked: bool = False
    caveat: str = ""
    hook: str = ""


def cast(layer: Layer, dtype: str) -> Layer:
    """``layer`` with a gradient that is cast before it is sent, which takes no time here."""
    elements = layer.gradient_bytes // _float_bytes(layer)
    return replace(_sending(layer, element_bytes(dtype) * elements), dtype=dtype)


def power_sgd(layer: Layer, rank: int) -> Layer:
    """``layer`` with the fewest bytes that PowerSGD of that rank can send.

    It sends (n + m) rank elements of an n x m gradient if that saves at least half (PyTorch's
    ``min_compression_rate`` of 2). Profiles do not know shapes, but n + m >= 2 sqrt(n m), a square's: so this is the
    least that it can send, also of a layer of several tensors. (Vogels et al., NeurIPS 2019, algorithm 1.)
    """
    element = _float_bytes(layer)
    elements = layer.gradient_bytes // element
    sides = math.isqrt(4 * elements - 1) + 1 if elements else 0  # ceil(2 sqrt(elements))
    return _sending(layer, sides * rank * element if 2 * sides * rank < elements else layer.gradient_bytes)


def _sending(layer: Layer, size: int) -> Layer:
    """``layer`` with a gradient of which ``size`` bytes are sent, at its old size in memory."""
    held = layer.gradient_bytes if layer.held_bytes is None else layer.held_bytes
    return replace(layer, gradient_bytes=size, held_bytes=held)


def _float_bytes(layer: Layer) -> int:
    """Bytes of an element of the gradient; 4 if it does not hold whole elements of its type."""
    size = element_bytes(layer.dtype)
    return size if size in (2, 4, 8) and layer.gradient_bytes % size == 0 else 4


CAST_HOOK = """\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.{name}_compress_hook)"""
POWER_SGD_HOOK = """\
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
model.register_comm_hook(
    powerSGD_hook.PowerSGDState(None, matrix_approximation_rank={rank}), powerSGD_hook.powerSGD_hook
)"""
COMPRESSIONS: Mapping[str, Compression] = {
    NONE: Compression(lambda layer, _: layer, "gradients as they are"),
    FP16: Compression(
        lambda layer, _: cast(layer, "float16"), "gradients as float16", hook=CAST_HOOK.format(name=FP16)
    ),
    "bf16": Compression(
        lambda layer, _: cast(layer, "bfloat16"), "gradients as bfloat16", hook=CAST_HOOK.format(name="bf16")
    ),
    "powersgd": Compression(
        power_sgd,
        "two thin matrices instead of each gradient, at a rank: powersgd:4",
        ranked=True,
        caveat="PowerSGD is at its best here: without shapes, each gradient is taken as a square matrix, which sends "
        "fewest bytes. Its own computation and its second collective are left out",
        hook=POWER_SGD_HOOK,
    ),
}
"""Compressions by name, the word before the colon. Casting takes no time here."""
SENT_TYPES: Mapping[str, str] = {FP16: "float16", "bf16": "bfloat16"}
"""Types of the compressions that cast."""


def compressed(workload: Workload, how: str) -> Workload:
    """``workload`` sent as ``how`` says: none, fp16, bf16 or powersgd:RANK. Raises UsageError for anything else.

    Its name says so to people; code goes by ``sent_as``.
    """
    entry, rank = compression_called(how)
    kind = how.partition(":")[0]
    if kind == NONE:
        return workload
    layers = tuple(entry.apply(layer, rank) if layer.gradient_bytes else layer for layer in workload.layers)
    sent_as = f"{kind}:{rank}" if entry.ranked else kind
    return replace(workload, name=f"{workload.name}-{sent_as.replace(':', '')}", layers=layers, sent_as=sent_as)


def types_of(workload: Workload, reduced_in: str = "float32") -> tuple[str, str]:
    """The types in which sharded parameters are gathered and gradients reduced; "" for that of the parameters.

    In mixed precision gradients are ``reduced_in``. A cast of what is sent is that of both, or of the gradients alone
    in mixed precision.
    """
    sent = SENT_TYPES.get(workload.sent_as, "")
    return workload.computed_in or sent, sent or reduced_in


def require_shardable_sending(sent_as: str) -> None:
    """Raise UsageError for a compression that no framework has for parameters or optimizers that are sharded."""
    kind = sent_as.partition(":")[0]
    if kind in COMPRESSIONS and COMPRESSIONS[kind].ranked:
        raise UsageError(
            f"{sent_as} compresses all-reduces, which plans that shard do not have: "
            f"give --compression {' or '.join(SENT_TYPES)}, or a plan without sharding"
        )


def hook_of(workload: Workload) -> str:
    """Python that makes DDP send gradients as the workload does; "" without compression.

    Raises DataError for an unknown compression.
    """
    try:
        entry, rank = compression_called(workload.sent_as or NONE)
    except UsageError as error:
        reason = str(error).partition(": ")[2]
        raise DataError(f"workload {workload.name!r} is sent as {workload.sent_as!r}: {reason}") from None
    return entry.hook.format(rank=rank)


def _meant(how: str) -> str:
    known = {name: f"{name}:RANK" if one.ranked else name for name, one in COMPRESSIONS.items()}
    near = nearest(how.partition(":")[0].lower(), known, most=1)
    return did_you_mean(known[name] for name in near) or f"write one of {', '.join(known.values())}"


def compression_called(how: str) -> tuple[Compression, int]:
    """The entry of COMPRESSIONS and the rank, 0 without one. Raises UsageError."""
    match = re.fullmatch(r"([a-z0-9]+)(?::([0-9]{1,7}))?", how)
    entry = COMPRESSIONS.get(match[1]) if match else None
    rank = int(match[2] or 0) if match else 0
    if entry is None or entry.ranked != bool(match and match[2]):
        raise UsageError(f"--compression {how!r}: {_meant(how)}")
    if entry.ranked and not 1 <= rank <= LARGEST_RANK:
        raise UsageError(f"--compression {how!r}: a rank is 1 or more, and no more than a million")
    return entry, rank


SPARSE = (
    "sparse sending changes what training computes: at a density of 10 % small models kept held-out losses within 1 % "
    "in 2 of 2 with plain SGD (no transformer), 2 of 3 with momentum and 1 of 3 with AdamW; at 1 % in 1 of 9"
)
"""As docs/ledger/sparse-training.md shows."""
INSTEAD = "save in another way, or compare losses first"
