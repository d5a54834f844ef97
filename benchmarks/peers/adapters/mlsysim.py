"""mlsysim (PyPI): DistributedModel on its own nodes and fabrics, at its default efficiency of 0.5."""

from functools import lru_cache
from typing import Any

from rows import PeerRow

from adapters import Answer, Peer, installed, need

NODES = {"a100": "DGX_A100", "a100-40gb": "DGX_A100", "h100": "DGX_H100", "b200": "DGX_B200"}
FABRICS = {"a100": "InfiniBand_HDR", "a100-40gb": "InfiniBand_HDR", "h100": "InfiniBand_NDR", "b200": "InfiniBand_NDR"}


def _open() -> str:
    found = installed("mlsysim")
    import mlsysim.solvers  # noqa: F401

    return found


@lru_cache(maxsize=64)
def _fleet(gpu: str, gpus: int) -> Any:
    from mlsysim import Systems
    from mlsysim.systems.types import Fleet

    node, fabric = getattr(Systems.Nodes, NODES[gpu]), getattr(Systems.Fabrics, FABRICS[gpu])
    return Fleet(name=gpu, node=node, count=gpus // node.accelerators_per_node, fabric=fabric)


def _ask(row: PeerRow) -> Answer:
    from mlsysim.core.units import Q_
    from mlsysim.models.types import SparseTransformerWorkload, TransformerWorkload
    from mlsysim.solvers import DistributedModel

    groups, sizes, gpu = row.groups, row.sizes, row.setting.gpu
    need(gpu in NODES and row.node == 8, "it has no such node")
    need(groups.context == 1, "it has no context parallelism")
    need(not row.fp8, "which part of training is in float8 cannot be said")
    need(row.stated.gpus % 8 == 0, "its nodes are whole")
    need(groups.expert == 1, "its expert groups are no data-parallel ranks")
    shared = {
        "name": "model",
        "architecture": "Transformer",
        "parameters": Q_(row.model.parameters, "count"),
        "layers": sizes.layers,
        "hidden_dim": sizes.width,
        "heads": sizes.heads,
        "kv_heads": sizes.key_heads,
        "head_dim": sizes.head_width,
        "vocab_size": sizes.vocabulary,
    }
    model = (
        SparseTransformerWorkload(
            **shared,
            active_parameters=Q_(row.model.active, "count"),
            experts=sizes.experts,
            active_experts_per_token=sizes.chosen,
        )
        if sizes.experts
        else TransformerWorkload(**shared)
    )
    found = DistributedModel().solve(
        model,
        _fleet(gpu, row.stated.gpus),
        batch_size=row.global_batch,
        precision="bf16",
        tp_size=groups.tensor,
        pp_size=groups.pipeline,
        microbatch_count=row.stated.micro_batches,
        zero_stage=row.zero,
        activation_recomputation=row.setting.checkpointing == "full",
        gradient_accumulation_steps=1 if groups.pipeline > 1 else row.stated.micro_batches,
        overlap_comm=True,
        seq_len=row.tokens,
    )
    return Answer(
        found.step_latency_total.m_as("s"),
        found.node_profile.memory_footprint.m_as("byte") if found.node_profile else None,
    )


PEER = Peer(_open, _ask, "`DistributedModel`, its nodes and fabrics, overlap on", "states and activations")
