"""Plans and targets by the names that frameworks and people give them."""

from __future__ import annotations

import pytest

from osfmodel import UsageError, load_cluster, load_workload, predict
from osfmodel.cost.clusters import pricing_of
from osfmodel.targets import CONFIG_TARGETS, SPELLINGS, deepspeed, target_name
from osfmodel.targets.named_plans import NAMED_PLANS, called, make_plan, named_plan


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("zero1", "zero-1"),
        ("zero2", "zero-2"),
        ("zero3", "zero-3"),
        ("ZeRO_3", "zero-3"),
        ("zero-0", "ddp"),
        ("no_shard", "ddp"),
        ("ddp-zero1", "zero-1"),
        ("ddp_zero1", "zero-1"),
        ("deepspeed_stage_2", "zero-2"),
        ("zero_stage_3", "zero-3"),
        ("stage3", "zero-3"),
        ("fsdp", "fsdp2"),
        ("FULL_SHARD", "fsdp2"),
        ("ShardingStrategy.FULL_SHARD", "fsdp2"),
        ("ShardingStrategy.SHARD_GRAD_OP", "fsdp2:keep"),
        ("dp_shard", "fsdp2"),
        ("MULTI_GPU", "ddp"),
        ("ddp_spawn", "ddp"),
        ("fully_shard", "fsdp2"),
        ("shard_grad_op", "fsdp2:keep"),
        ("hybrid_shard", "hsdp"),
        ("HYBRID_SHARD_ZERO2", "hsdp:keep"),
        ("fsdp:2,keep", "fsdp2:2,keep"),
        ("hybrid_shard:bf16", "hsdp:bf16"),
        ("shard_grad_op:bf16", "fsdp2:keep,bf16"),
        ("MG_WFBP", "mg-wfbp"),
    ],
)
def test_plans_as_frameworks_call_them(name, plan):
    assert called(name) == plan
    assert called(plan) == plan
    assert named_plan(name).summary == named_plan(plan).summary


def test_names_of_the_table_stay():
    assert [name for name in NAMED_PLANS if called(name) != name] == []
    assert [name for name in CONFIG_TARGETS if target_name(name) != name] == []
    assert [name for name in SPELLINGS.values() if target_name(name) not in CONFIG_TARGETS] == []


@pytest.mark.parametrize(
    ("name", "target"), [("zero1", "deepspeed"), ("FSDP", "fsdp2"), ("zero_3", "zero-3"), ("Megatron-LM", "megatron")]
)
def test_targets_as_frameworks_call_them(name, target):
    assert target_name(name) == target


def test_a_prediction_has_the_listed_name_and_says_so():
    workload, cluster = load_workload("resnet50-v100"), load_cluster("v100-10gbe")
    found, listed = (predict(workload, cluster, name, workers=8) for name in ("full_shard", "fsdp2"))
    assert (found.name, found.iteration_time) == (listed.name, listed.iteration_time)
    assert set(found.caveats) - set(listed.caveats) == {
        f"'full_shard' is predicted as fsdp2: {named_plan('fsdp2').summary}"
    }
    same = predict(workload, cluster, "MG_WFBP", workers=8)
    assert same.caveats == predict(workload, cluster, "mg-wfbp", workers=8).caveats


@pytest.mark.parametrize("name", ["zero-4", "fsd", "", "stage", "deepspeed_stage_9"])
def test_unknown_plans_stay_unknown(name):
    with pytest.raises(UsageError, match="unknown plan"):
        named_plan(name)


@pytest.mark.parametrize("stage", ["zero-1", "zero-2"])
def test_zeros_bound_and_overlap_follow_a_colon(stage):
    """The default bound makes the default plan; another one, and overlap, those of the settings that say so."""
    workload, pricing = load_workload("resnet50-v100"), pricing_of(load_cluster("v100-10gbe"), 16)

    def plan(name):
        return make_plan(name, workload, pricing)

    assert plan(f"{stage}:500000000") == plan(f"{stage}:5e8") == plan(stage)
    for said, elements, overlap in (
        ("2e6", 2_000_000, False),
        ("2e6,overlap", 2_000_000, True),
        ("overlap", 5 * 10**8, True),
    ):
        knobs = deepspeed.DeepSpeedKnobs(elements, overlap, int(stage[-1]))
        assert plan(f"{stage}:{said}") == deepspeed.to_plan(knobs, workload)
    assert len(plan(f"{stage}:2e6").buckets) > len(plan(stage).buckets)
    for wrong in ("", "0", "fast", "1,2", "overlap,overlap", "-5", "9" * 400):
        with pytest.raises(UsageError, match=rf"write {stage}:ELEMENTS, overlap or both, such as {stage}:2e8,overlap"):
            plan(f"{stage}:{wrong}")
