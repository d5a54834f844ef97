"""llm-analysis (PyPI): LLMAnalysis.training on its own GPU files, at half of the peak.

Its default is the whole peak, and a comment beside it says that Megatron-LM reaches about a half.
Its requirements exclude those of accelerate: install it by ``pip install --no-deps llm-analysis fire termcolor``.
"""

import logging
from functools import lru_cache
from typing import Any

from rows import PeerRow

from adapters import Answer, Peer, installed, need

GPUS = {"a100": "a100-sxm-80gb", "a100-40gb": "a100-sxm-40gb", "h100": "h100-sxm-80gb"}
HALF = 0.5


def _open() -> str:
    found = installed("llm-analysis", "pip install --no-deps llm-analysis fire termcolor")
    from llm_analysis.logger import logger

    logger.setLevel(logging.CRITICAL)
    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    return found


@lru_cache(maxsize=8)
def _gpu(name: str) -> Any:
    from llm_analysis.config import get_gpu_config_by_name

    return get_gpu_config_by_name(name)


def _ask(row: PeerRow) -> Answer:
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig

    groups, sizes = row.groups, row.sizes
    need(row.setting.gpu in GPUS, "it has no such GPU")
    need(groups.context == 1, "it has no context parallelism")
    need(not row.fp8, "its types of training are of 16 bits")
    need(not sizes.experts, "its experts are as wide as a dense model's")
    model = ModelConfig(
        name="model",
        num_layers=sizes.layers,
        n_head=sizes.heads,
        hidden_dim=sizes.width,
        vocab_size=sizes.vocabulary,
        max_seq_len=row.tokens,
        num_key_value_heads=sizes.key_heads,
        # it counts two matrices of the feed-forward part: those of a gated one, as wide as two with as many elements
        ffn_embed_dim=sizes.inner * 3 // 2 if sizes.gated else sizes.inner,
        expansion_ratio=1,
    )
    layout = ParallelismConfig(tp_size=groups.tensor, pp_size=groups.pipeline, dp_size=row.replicas)
    again = {"none": "NONE", "selective": "SELECTIVE", "full": "FULL"}[row.setting.checkpointing]
    analysis = LLMAnalysis(model, _gpu(GPUS[row.setting.gpu]), DtypeConfig(), layout, flops_efficiency=HALF)
    found = analysis.training(
        batch_size_per_gpu=row.setting.batch,
        gradient_accumulation_steps=row.stated.micro_batches,
        seq_len=row.tokens,
        activation_recomputation=ActivationRecomputation[again],
        ds_zero=DSZeRO(row.zero),
    )
    return Answer(found["latency_per_iter"], found["(weight+op_state+grad+act)_memory_per_gpu"])


PEER = Peer(_open, _ask, "`training`, half of peak, no network", "states and activations")
