"""calculon (github.com/calculon-ai/calculon): Llm on its own system files; it is in no package index.

It knows two matrices of a feed-forward part, so those of a gated one are as wide as two with as many elements, and
sharding of the optimizer, which FSDP and HSDP are taken for: of these its memory is not asked.
"""

import logging
import sys
from functools import lru_cache
from typing import Any

from rows import PeerRow

from adapters import Answer, Peer, UnsaidError, cloned, need

COMMIT = "caa4b11f8fe1fee3ba57adaacb7590d7deabd053"
SYSTEMS = {"a100": "a100_80g", "a100-40gb": "a100_80g", "h100": "h100_80g_nvl8"}


def _folder() -> Any:
    return cloned("calculon", "https://github.com/calculon-ai/calculon", COMMIT, "calculon/llm/llm.py")


def _open() -> str:
    folder = str(_folder())
    if folder not in sys.path:
        sys.path.append(folder)
    import calculon

    return f"{calculon.__version__} ({COMMIT[:8]})"


@lru_cache(maxsize=8)
def _system(name: str) -> Any:
    import calculon

    said = calculon.io.read_json_file(str(_folder() / "systems" / f"{name}.json"))
    said["mem1"]["GiB"] = 10**6  # these runs did fit: parameters that FSDP shards it has whole
    return calculon.System(said)


def _ask(row: PeerRow) -> Answer:
    from calculon.llm import Llm

    sizes, groups = row.sizes, row.groups
    need(row.setting.gpu in SYSTEMS and row.node == 8, "it has no such system")
    need(sizes.key_heads == sizes.heads, "its queries have keys of their own")
    need(not sizes.experts, "it has no experts")
    need(groups.context == 1, "it has no context parallelism")
    need(not row.fp8, "which products are in float8 cannot be said")
    application = Llm.Application(
        {
            "hidden": sizes.width,
            "feedforward": sizes.inner * 3 // 2 if sizes.gated else sizes.inner,
            "seq_size": row.tokens,
            "attn_heads": sizes.heads,
            "attn_size": sizes.head_width,
            "num_blocks": sizes.layers,
        }
    )
    several, inside = row.replicas > 1, row.stated.gpus <= row.node
    execution = Llm.Execution(
        num_procs=row.stated.gpus,
        tensor_par=groups.tensor,
        pipeline_par=groups.pipeline,
        data_par=row.replicas,
        tensor_par_net=0,
        pipeline_par_net=int(not inside),
        data_par_net=int(not inside),
        batch_size=row.global_batch,
        microbatch_size=row.setting.batch,
        datatype="float16",
        fused_activation=True,
        attention_type="multihead",
        activation_recompute={"none": "none", "selective": "attn_only", "full": "full"}[row.setting.checkpointing],
        pipeline_interleaving=1,
        optimizer_sharding=several and row.zero > 0,
        tensor_par_comm_type="rs_ag",
        tensor_par_overlap="none",
        seq_par_ag_redo=False,
        data_par_overlap=several,
        weight_offload=False,
        activations_offload=False,
        optimizer_offload=False,
        training=True,
    )
    model, system = Llm(application, logging.getLogger("calculon")), _system(SYSTEMS[row.setting.gpu])
    try:
        model.compile(system, execution)
        model.run(system)
    except Llm.Error as error:
        raise UnsaidError(str(error)) from None
    return Answer(model.get_total_time(), model.get_mem_tier1_cap_req() if row.zero < 3 else None)


PEER = Peer(_open, _ask, "`Llm` on its A100 and H100, ZeRO-3 as a sharded optimizer", "all of a GPU's first memory")
