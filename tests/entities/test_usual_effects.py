"""Usual effects: where they apply, which values, and that a source can be left out of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.files.usual_effects import (
    UsualValue,
    effects_for,
    gpu_generation,
    gpu_unknown,
    usual_effects,
    usual_values,
)
from osfmodel.entities.gpus import generation_of
from osfmodel.entities.measurement import NO_GPU, Source, imported

V100, CLUSTER = osf.load_workload("resnet50-v100"), osf.load_cluster("nccl:v100x8,100Gbps/node,ib")
USUAL = ("tensor_time", "hook_time", "compute_slowdown", "node_slowdown")


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere"),
        ("Tesla V100-SXM2-32GB", "volta"),
        ("NVIDIA GeForce RTX 4090", "ada"),
        ("NVIDIA RTX PRO 6000", "blackwell"),
        ("GH200", "hopper"),
        ("T4", "turing"),
        ("K80", "kepler"),
        ("AMD Instinct MI300X", "cdna"),
        ("some other device", ""),
    ],
)
def test_generations_by_the_names_of_gpus(name, generation):
    assert generation_of(name) == generation


def test_they_apply_on_gpus_whose_cluster_states_no_effects():
    assert set(usual_effects(V100, CLUSTER).active) == set(USUAL)
    assert usual_effects(V100, replace(CLUSTER, effects=Effects(copy_in=1e-12))) == NO_EFFECTS
    assert usual_effects(V100, replace(CLUSTER, usual_effects=False)) == NO_EFFECTS
    assert usual_effects(replace(V100, profiled_workers=8), CLUSTER) == NO_EFFECTS
    on_cpu = replace(V100, source=Source(gpu=NO_GPU))
    assert usual_effects(on_cpu, CLUSTER) == NO_EFFECTS
    assert usual_effects(V100, replace(CLUSTER, source=Source(gpu=NO_GPU))) == NO_EFFECTS
    unknown = replace(V100, source=Source())
    assert usual_effects(unknown, osf.load_cluster("ring:50us,10Gbps")) == NO_EFFECTS
    assert usual_effects(unknown, CLUSTER) != NO_EFFECTS  # the cluster names a V100


def test_a_generation_has_its_own_value_and_a_group_can_be_left_out():
    values = [
        UsualValue("hook_time", 1.0, 1.0, 1.0, "all"),
        UsualValue("hook_time", 2.0, 2.0, 2.0, "volta", "volta"),
        UsualValue("hook_time", 3.0, 3.0, 3.0, "without a", without="a"),
    ]
    assert effects_for("volta", values).hook_time == 2.0
    assert effects_for("hopper", values).hook_time == 1.0
    assert effects_for("volta", values, "a").hook_time == 3.0
    assert effects_for("volta", values, "b").hook_time == 2.0


def test_every_bundled_value_has_evidence_and_lies_within_its_spread():
    assert {one.effect for one in usual_values()} == set(USUAL)
    for one in usual_values():
        assert one.evidence, one
        assert one.low <= one.value <= one.high, one


def test_a_single_worker_and_none_pay_nothing():
    assert osf.predict(V100, CLUSTER, "ddp", 1).iteration_time == V100.compute_time
    ideal = osf.predict(V100, replace(CLUSTER, usual_effects=False), "ddp", 8)
    usual = osf.predict(V100, CLUSTER, "ddp", 8)
    assert ideal.iteration_time < usual.iteration_time
    assert "--effect none" in " ".join(usual.notes)
    assert usual.alone == V100.compute_time  # scaling is against one GPU alone


def test_a_fit_does_not_say_which_gpu_computes():
    """The curve of an H100 may fit the times of an A100."""
    nameless = replace(V100, source=Source())
    words = osf.load_cluster("nccl:h100x8,400Gbps")
    assert gpu_generation(nameless, words) == "hopper"
    assert gpu_generation(nameless, replace(words, source=imported("run.log", "nccl fitted"))) == ""


def test_without_a_gpu_a_prediction_says_what_it_leaves_out():
    nameless, network = replace(V100, source=Source()), osf.load_cluster("ring:50us,10Gbps")
    on_cpu = replace(V100, source=Source(gpu=NO_GPU))
    assert gpu_unknown(nameless, network)
    assert not any(gpu_unknown(job, network) for job in (V100, on_cpu))
    assert not gpu_unknown(nameless, replace(network, usual_effects=False))
    for job, said in ((nameless, 1), (V100, 0), (on_cpu, 0)):
        found = osf.compare(job, network, 8, ["ddp"]).predictions[0]
        assert sum("no GPU is named" in note for note in found.notes) == said
        assert sum("no GPU is named" in note for note in osf.tune(job, network, 8).notes) == said
