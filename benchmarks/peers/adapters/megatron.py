"""Megatron-LM's formula (github.com/NVIDIA/Megatron-LM): megatron/training/theoretical_memory_usage.py.

One file of the repository is needed; two small functions that it imports are put in their place here.
As its report does, activations are counted with sequence parallelism where they are recomputed selectively.
"""

import importlib.util
import sys
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

from rows import PeerRow

from adapters import Answer, Peer, cloned, need

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
FILE = "megatron/training/theoretical_memory_usage.py"
PACKAGE = "megatron_formula"


@lru_cache(maxsize=1)
def _formula() -> Any:
    path = cloned("Megatron-LM", "https://github.com/NVIDIA/Megatron-LM", COMMIT, FILE) / FILE
    beside = ModuleType(f"{PACKAGE}.utils")
    vars(beside).update(print_rank_0=print, is_hybrid_model=lambda args: False)
    sys.modules[PACKAGE], sys.modules[beside.__name__] = ModuleType(PACKAGE), beside
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}.formula", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _open() -> str:
    _formula()
    return COMMIT[:8]


def _ask(row: PeerRow) -> Answer:
    sizes, groups = row.sizes, row.groups
    need(row.zero < 3, "it has no FSDP")
    need(groups.context == 1 and not sizes.experts, "asked for dense models without context parallelism")
    need(row.setting.checkpointing != "full", "it has no full recomputation")
    said = SimpleNamespace(
        kv_channels=sizes.head_width,
        num_attention_heads=sizes.heads,
        hidden_size=sizes.width,
        group_query_attention=sizes.key_heads < sizes.heads,
        num_query_groups=sizes.key_heads,
        num_experts=None,
        moe_latent_size=None,
        moe_router_topk=None,
        add_bias_linear=not sizes.gated,
        swiglu=sizes.gated,
        moe_shared_expert_intermediate_size=None,
        mtp_num_layers=None,
        normalization="RMSNorm" if sizes.gated else "LayerNorm",
        multi_latent_attention=False,
        ffn_hidden_size=sizes.inner,
        num_layers=sizes.layers,
        padded_vocab_size=sizes.vocabulary,
        untie_embeddings_and_output_weights=True,
        pipeline_model_parallel_size=groups.pipeline,
        tensor_model_parallel_size=groups.tensor,
        use_distributed_optimizer=row.zero > 0,
        data_parallel_size=row.replicas,
        expert_tensor_parallel_size=1,
        expert_model_parallel_size=1,
        world_size=row.stated.gpus,
        seq_length=row.tokens,
        micro_batch_size=row.setting.batch,
        virtual_pipeline_model_parallel_size=None,
    )
    states = _formula().compute_weight_and_optimizer_memory(said)
    selective = row.setting.checkpointing == "selective"
    count = _formula().compute_activation_memory if selective else _formula().compute_activation_memory_without_sp
    return Answer(memory=states + count(said, num_microbatches=row.stated.micro_batches))


PEER = Peer(_open, _ask, "`theoretical_memory_usage.py`", "states and activations")
