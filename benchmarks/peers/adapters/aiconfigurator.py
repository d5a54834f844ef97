"""aiconfigurator-core (PyPI): its measured kernels as a roofline of training, which is not what it is made for.

Products are asked for forward, and taken twice more for backward; attention 2.5 times more, as FlashAttention's paper
counts; recomputation is one more forward. A pipeline adds its bubble. Collectives and the update are left out.
"""

import contextlib
import logging
import os
from functools import lru_cache
from typing import Any

from rows import PeerRow

from adapters import Answer, Peer, UnsaidError, installed, need

SYSTEMS = {
    "a100": "a100_sxm",
    "a100-40gb": "a100_sxm",
    "h100": "h100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
BACKEND = "vllm"


def _open() -> str:
    found = installed("aiconfigurator-core")
    import aiconfigurator_core.sdk.engine  # noqa: F401

    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    return found


@lru_cache(maxsize=8)
def _database(gpu: str) -> Any:
    from aiconfigurator_core.sdk.perf_database import get_database

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        return get_database(SYSTEMS[gpu], BACKEND, "current")


@lru_cache(maxsize=4096)
def _product(gpu: str, narrow: bool, rows: int, inner: int, columns: int) -> float:
    """Seconds."""
    from aiconfigurator_core.sdk.common import GEMMQuantMode
    from aiconfigurator_core.sdk.engine import _evaluate_single_op
    from aiconfigurator_core.sdk.operations import GEMM

    kernel = GEMM("product", 1.0, columns, inner, GEMMQuantMode.fp8 if narrow else GEMMQuantMode.bfloat16)
    found = _evaluate_single_op(_database(gpu), kernel, is_context=True, batch_size=1, s=rows, x=rows)
    return float(found) / 1e3


@lru_cache(maxsize=4096)
def _attention(gpu: str, batch: int, tokens: int, heads: int, key_heads: int, width: int) -> float:
    """Seconds of causal attention's forward."""
    from aiconfigurator_core.sdk.common import FMHAQuantMode, KVCacheQuantMode
    from aiconfigurator_core.sdk.engine import _evaluate_single_op
    from aiconfigurator_core.sdk.errors import PerfDataNotAvailableError
    from aiconfigurator_core.sdk.operations import ContextAttention

    kernel = ContextAttention(
        "attention", 1.0, heads, key_heads, KVCacheQuantMode.bfloat16, FMHAQuantMode.bfloat16, head_size=width
    )
    try:
        return float(_evaluate_single_op(_database(gpu), kernel, is_context=True, batch_size=batch, s=tokens)) / 1e3
    except PerfDataNotAvailableError:
        raise UnsaidError(f"its attention on {gpu} has no heads of {width}") from None


def _ask(row: PeerRow) -> Answer:
    sizes, groups, gpu = row.sizes, row.groups, row.setting.gpu
    need(gpu in SYSTEMS, "it has no such GPU")
    need(not sizes.experts, "its mixtures of experts are those of inference")
    need(groups.context == 1, "its attention has no context groups in training")
    need(_database(gpu) is not None, "it has no kernels of that GPU")
    split, tokens = groups.tensor, row.setting.batch * row.tokens
    keys = max(1, sizes.key_heads // split)
    queries = sizes.heads // split
    inner = sizes.inner // split
    block = (
        (sizes.width, (queries + 2 * keys) * sizes.head_width),
        (queries * sizes.head_width, sizes.width),
        (sizes.width, inner * (1 + sizes.gated)),
        (inner, sizes.width),
    )
    products = sum(_product(gpu, row.fp8, tokens, *shape) for shape in block)
    scores = _attention(gpu, row.setting.batch, row.tokens, queries, keys, sizes.head_width)
    again = row.setting.checkpointing == "full"
    layers = -(-sizes.layers // groups.pipeline)
    head = 3 * _product(gpu, False, tokens, sizes.width, sizes.vocabulary // split)
    slowest = layers * ((3 + again) * products + (3.5 + again) * scores) + head
    return Answer((row.stated.micro_batches + groups.pipeline - 1) * slowest)


PEER = Peer(_open, _ask, "its kernels of vLLM, 3 times forward, no network")
