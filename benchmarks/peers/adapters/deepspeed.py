"""DeepSpeed (PyPI): estimate_zero2_ and estimate_zero3_model_states_mem_needs, without offloading."""

from functools import lru_cache
from itertools import groupby

from rows import PeerRow

from adapters import Answer, Peer, UnsaidError, installed, need
from osfmodel.counting.modules import Model


def _open() -> str:
    found = installed("deepspeed")
    import deepspeed.runtime.zero.stage3
    import deepspeed.runtime.zero.stage_1_and_2  # noqa: F401

    return found


@lru_cache(maxsize=64)
def _largest(model: Model) -> int:
    blocks = groupby(model.modules, model.block_of)
    return max(sum(module.elements for module in own) for _, own in blocks)


def _ask(row: PeerRow) -> Answer:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as three
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as two

    need(row.groups.gpus == 1, "its estimators know data parallelism alone")
    nodes = max(1, row.stated.gpus // row.node)
    machine = {"num_gpus_per_node": min(row.node, row.stated.gpus), "num_nodes": nodes, "cpu_offload": False}
    if row.zero == 3:
        _, found, _ = three(row.model.parameters, _largest(row.model), **machine, cpu_offload_params=False)
    elif row.zero:
        _, found = two(row.model.parameters, **machine)
    else:
        raise UnsaidError("its estimators are of ZeRO")
    return Answer(memory=found)


PEER = Peer(_open, _ask, "`estimate_zero2` and `3_model_states_mem_needs`", "states alone, as it says")
