"""torchtitan: the groups that it makes, and its job config."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osfmodel import Layer, PlanError, Workload, load_cluster, load_workload, tune
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.units import parse_room
from osfmodel.solve.solution import Limits, MemoryLimit
from osfmodel.solve.verdicts import peak_of
from osfmodel.targets import torchtitan
from osfmodel.targets.torchtitan import TitanKnobs

NAMES = (
    "tok_embeddings.weight", "layers.0.attention.wq.weight", "layers.0.norm.weight", "layers.1.attention.wq.weight",
    "norm.weight", "output.weight",
)  # fmt: skip
PRICING = Pricing.free(16)
LLAMA = Workload("llama", tuple(Layer(name, 1.0, 2.0, 400) for name in NAMES))


def groups(knobs, workload=LLAMA):
    plan = torchtitan.to_plan(knobs, workload, Pricing.free(8))
    return [(group.modules, group.reshard) for group in plan.sharding.groups]


@pytest.mark.parametrize(
    ("policy", "freed", "last"), [("default", True, False), ("always", True, True), ("never", False, False)]
)
def test_groups_are_the_embedding_the_blocks_and_all_behind_them(policy, freed, last):
    assert groups(TitanKnobs(policy)) == [
        (("tok_embeddings",), freed), (("layers.0",), freed), (("layers.1",), freed), (("norm", "output"), last)
    ]  # fmt: skip


def test_parameters_of_the_model_itself_stay_in_the_root():
    own = replace(LLAMA, layers=(Layer("scale", 1.0, 1.0, 4), *LLAMA.layers))
    assert groups(TitanKnobs(), own)[-1] == ((), False)


def test_types_and_replicas_come_back_from_the_plan():
    for knobs in (TitanKnobs(), TitanKnobs("never", 2, "", ""), TitanKnobs("always", 4, "float16", "float32")):
        plan = torchtitan.to_plan(knobs, LLAMA, Pricing.free(8))
        assert plan.strategy == ("hybrid-sharded" if knobs.replicas > 1 else "fully-sharded")
        assert torchtitan.exact(plan, LLAMA) == knobs
    with pytest.raises(PlanError, match="no settings of torchtitan"):
        torchtitan.exact(replace(plan, sharding=replace(plan.sharding, reduce_inputs=2)), LLAMA)


def test_memory_decides_what_is_kept():
    """Enough for all groups, then less: the policy frees more, and what does not fit is said."""
    workload, cluster = load_workload("resnet50-memory"), load_cluster("nccl:v100x8,25Gbps")
    levels, policies = [], []
    for room in ("2.7GiB", "2.64GiB", "2.63GiB"):
        limit = MemoryLimit(parse_room(room))
        tuned = tune(workload, cluster, 16, "torchtitan", Limits(memory=limit))
        timeline = predict_timeline(workload, tuned.plan, PRICING)
        levels.append(peak_of(workload, tuned.plan, timeline, 16).bytes)
        policies.append(tuned.knobs.reshard)
        assert levels[-1] <= limit.bytes
    assert policies[0] == "never" != policies[-1]
    with pytest.raises(
        PlanError, match=r"does not fit: fsdp_reshard_after_forward = '.*' needs .*; the largest part is"
    ):
        tune(workload, cluster, 16, "torchtitan", Limits(memory=MemoryLimit(100 << 20)))


def test_the_config_is_complete():
    knobs = TitanKnobs("never", 2, "bfloat16", "float32")
    assert torchtitan.render(knobs, LLAMA).splitlines()[1:] == [
        "[parallelism]",
        "data_parallel_replicate_degree = 2",
        "data_parallel_shard_degree = -1",
        'fsdp_reshard_after_forward = "never"',
        "[training]",
        'mixed_precision_param = "bfloat16"',
        'mixed_precision_reduce = "float32"',
    ]
