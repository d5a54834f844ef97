"""Seconds of the collectives inside a replica, by the modules that wait for them.

Tensor groups of N GPUs may send in N parts while products compute those that are there (Wang et al., ASPLOS'23;
Transformer Engine's user buffers, PyTorch's asynchronous tensor parallelism): one part is waited for, and the others as
far as they take longer than all computation of the block in that pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from osfmodel.cost import experts
from osfmodel.cost.clusters import pricing_of, strided
from osfmodel.cost.pricing import Pricing
from osfmodel.counting.groups import GroupMessage, Parallelism, Shard
from osfmodel.counting.recipes import FLOAT8, RECIPES
from osfmodel.counting.roofline import Waits
from osfmodel.counting.stacks import STACKS
from osfmodel.counting.training import FULL, SELECTIVE, TENSOR_OVERLAP, TrainingSetup
from osfmodel.entities.cluster import Cluster

Price: TypeAlias = Callable[[str, float, int], float]
"""(collective, bytes, experts of each token) -> seconds."""


def prices_of(cluster: Cluster, groups: Parallelism) -> dict[str, Price]:
    """The time of a message inside each kind of group."""
    return {
        kind: partial(_to_experts if kind == "expert" else _time, where, pricing_of(where, size))
        for kind, (apart, size) in groups.spread.items()
        for where in [strided(cluster, apart, size)]
    }


def _time(cluster: Cluster, pricing: Pricing, collective: str, size: float, copies: int) -> float:
    return float(pricing.cost(collective)(size))


def _to_experts(cluster: Cluster, pricing: Pricing, collective: str, size: float, copies: int) -> float:
    """Seconds of an all-to-all: of as many bytes as an all-gather, each for another node through its own GPU's NIC."""
    if cluster.nccl is not None and cluster.nccl.experts:
        return experts.seconds(cluster, pricing.workers, size, copies)
    return max(_time(cluster, pricing, collective, size, copies), size * _outside(cluster, pricing.workers))


def _outside(cluster: Cluster, size: int) -> float:
    """Seconds for each byte of an all-to-all, of all that a GPU sends, between the nodes of a group."""
    rate = None if cluster.nccl is None else cluster.nccl.nic_bandwidth
    return 0.0 if rate is None else (1 - min(1, cluster.gpus_per_node / size)) / rate


def beside_of(
    shard: Shard, setting: TrainingSetup, prices: Mapping[str, Price], batches: Sequence[int]
) -> Iterator[tuple[str, Waits, Waits]]:
    """Modules with the seconds of their collectives, at the first and last of ``batches``."""
    blocks = tuple(f"{block}." for block in shard.model.blocks)
    known: dict[Any, list[Waits]] = {}  # most blocks are alike
    for name, sent in shard.sent.items():
        inside = name.startswith(blocks)
        form = (tuple(sent), inside)
        if form not in known:
            known[form] = [_both(sent, prices, setting, inside, batch) for batch in batches]
        yield name, known[form][0], known[form][-1]


def _both(
    sent: Sequence[GroupMessage],
    prices: Mapping[str, Price],
    setting: TrainingSetup,
    in_block: bool,
    batch: int,
) -> Waits:
    """Seconds of a module's collectives.

    Recomputing a block repeats all of forward's; selective checkpointing repeats its all-gathers alone, as torchtitan.
    """
    repeated = {FULL: ("all_gather", "reduce_scatter"), SELECTIVE: ("all_gather",)}.get(setting.checkpointing, ())
    forward, backward, hidden, hidden_backward = 0.0, 0.0, 0.0, 0.0
    for one in sent:
        time = prices[one.group](one.collective, one.elements * batch * _width(one, setting, in_block), one.copies)
        again = setting.portion * (in_block and one.collective in repeated)
        overlaps = in_block and one.group == "tensor" and setting.overlap == TENSOR_OVERLAP
        part = time / one.among if overlaps else time
        back = one.backward + one.forward * again
        forward += part * one.forward
        backward += part * back
        hidden += (time - part) * one.forward
        hidden_backward += (time - part) * back
    return Waits(forward, backward, hidden, hidden_backward)


def _width(sent: GroupMessage, setting: TrainingSetup, in_block: bool) -> float:
    """Bytes of an element of a message: inputs of a recipe's products are cast before tensor groups gather them.

    torchao does so with scales of tensors, Transformer Engine with all.
    """
    recipe = RECIPES.get(setting.dtype)
    cast = recipe and in_block and (sent.group, sent.collective) == ("tensor", "all_gather")
    if recipe and cast and (recipe.gathered == FLOAT8 or STACKS[setting.stack].casts):
        return recipe.width
    return setting.width
