"""Notes of a prediction on the cores that sending takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel import Cluster, DataError, Layer, Table, Workload
from osfmodel.cost.clusters import cpu_share
from osfmodel.planning.what_if import WhatIf

BYTES = 1000
TABLE = Table(4, (10, 100), (0.1, 1.0), cpu_share=0.95)
"""0.01 s a byte, so that 1000 bytes take 10 s, in which 95 % of the cores are used."""


def network(share):
    return Cluster("cores", "tabulated", tables=(replace(TABLE, cpu_share=share),), library="gloo")


def job(computed):
    return Workload("job", (Layer("a", 0.0, computed, BYTES),))


@pytest.mark.parametrize(
    ("computed", "share", "said"),
    [(0.1, 0.95, True), (10.0, 0.95, False), (0.1, 0.65, True), (0.1, 0.55, False), (0.1, None, False)],
)
def test_a_run_that_leaves_no_time_of_the_cores_is_told(computed, share, said):
    found = osf.compare(job(computed), network(share), 4, ["single"]).predictions[0]
    expected = None if share is None else share * 10 / (10 + computed)
    assert cpu_share(network(share), found.plan, 4, found.iteration_time) == pytest.approx(expected)
    assert any("time of the cores" in note for note in found.notes) == said


@pytest.mark.parametrize(("overlap", "said"), [(False, True), (True, False)])
def test_a_forward_in_which_nothing_is_sent_does_not_count(overlap, said):
    """20 s of sending after a forward of 30 s, or of which half is beside the next one."""
    workload = Workload("job", (Layer("a", 30.0, 0.0, BYTES), Layer("b", 0.1, 0.0, BYTES)))
    rules = {"forward_overlap": True} if overlap else {}
    found = osf.compare(workload, network(0.65), 4, ["wfbp"], rules).predictions[0]
    assert any("time of the cores" in note for note in found.notes) == said


def test_other_worker_counts_say_nothing_of_the_cores():
    found = osf.compare(job(1.0), network(0.95), 4, ["single"]).predictions[0]
    assert cpu_share(network(0.95), found.plan, 8, found.iteration_time) is None


def test_a_share_is_a_number():
    with pytest.raises(DataError, match="cpu_share of the all_reduce table for 4 workers"):
        network(-0.1)


def test_workers_that_fill_a_node_in_part_are_told():
    workload, nodes = osf.load_workload("resnet50-v100"), osf.load_cluster("nccl:v100x8,100Gbps,ib")
    for workers, said in ((8, 0), (5, 0), (16, 0), (17, 1)):
        found = osf.compare(workload, nodes, workers, ["ddp"]).predictions[0]
        assert sum("the last node has 1" in note for note in found.notes) == said


def test_workers_that_are_slower_than_one_are_told():
    workload, fast, slow = job(1.0), network(None), replace(network(None), tables=(replace(TABLE, times=(1.0, 10.0)),))
    for cluster, said in ((fast, 1), (slow, 1), (replace(fast, tables=(replace(TABLE, times=(1e-4, 1e-3)),)), 0)):
        found = osf.compare(workload, cluster, 4, ["single"]).predictions[0]
        assert (found.iteration_time > 4 * workload.compute_time) == said
        assert sum("train more slowly than one alone" in note for note in found.notes) == said
        tuned = osf.tune(workload, cluster, 4)
        assert sum("train more slowly than one alone" in note for note in tuned.notes) == said


@pytest.mark.parametrize(
    ("gpu", "cluster", "said"),
    [
        ("V100", "nccl:h100x8", 1),
        ("H100 SXM", "nccl:h100x8", 0),
        ("A100", "v100-10gbe", 1),
        ("mine", "v100-10gbe", 0),
        ("none (CPU)", "nccl:a100x8", 1),
        ("none (CPU)", "ring:50us,10Gbps", 0),
    ],
)
def test_a_profile_of_another_device_than_the_clusters_is_told(gpu, cluster, said):
    workload = replace(osf.load_workload("resnet50-v100"), source=osf.Source(gpu=gpu))
    found = osf.compare(workload, osf.load_cluster(cluster), 8, ["ddp"]).predictions[0]
    assert sum("times, and limits of memory unless given, are those of" in note for note in found.notes) == said
    assert any("those of CPU, the cluster has A100" in note for note in found.notes) == ("a100" in cluster)


@pytest.mark.parametrize(
    ("gpu", "cluster", "said"),
    [
        (
            "a100",
            "nccl:a100-40gbx8",
            "times, and limits of memory unless given, are those of A100 SXM 80GB, the cluster has A100 SXM 40GB",
        ),
        (
            "h100",
            "nccl:h100-pciex8",
            "times, and limits of memory unless given, are those of H100 SXM, the cluster has H100 PCIe",
        ),
        ("a100-40gb", "nccl:a100-40gbx8", ""),
        ("mi300x", "nccl:mi300xx8", ""),
    ],
)
def test_words_of_another_card_than_the_clusters_are_told(gpu, cluster, said):
    workload = osf.load_workload(f"gpt2:{gpu},batch1,bf16")
    (found,) = osf.compare(workload, osf.load_cluster(cluster), 8, ["ddp"]).predictions
    notes = [note.partition(": --compute")[0] for note in found.notes if "limits of memory unless given" in note]
    assert notes == [said] * bool(said)


@pytest.mark.parametrize(
    ("cluster", "workers", "said"),
    [
        ("nccl:v100x8,25Gbps", 12, "12 workers do not fill nodes of 8"),
        ("nccl:v100x8,25Gbps", 8, "8 workers are on one node"),
        ("nccl:v100x1,25Gbps", 4, "4 workers are on nodes of one GPU"),
        ("nccl:v100x8,25Gbps", 16, ""),
    ],
)
def test_hsdp_with_one_replica_is_told(cluster, workers, said):
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster(cluster)
    results = [osf.predict(workload, cluster, name, workers) for name in ("hsdp", "fsdp2")]
    notes = [[note for note in one.notes if "one replica" in note] for one in results]
    told = [f"HSDP has one replica here, as FSDP2: {said}"] if said else []
    assert notes == [told, []]
    assert [note for note in osf.tune(workload, cluster, workers, "hsdp").notes if "one replica" in note] == told


def test_the_forward_of_all_micro_batches_is_left_out_of_the_cores_time():
    """As `osf predict` and `osf tune` say it, whatever the strategy does with micro-batches."""
    workload = osf.load_workload("gpt2:a100,seq512,batch1,bf16")
    accumulated = WhatIf(accumulate=2, compute=0.25).of_workload(workload, 4)
    found = osf.compare(accumulated, osf.load_cluster("emulated-4x5gbit"), 4, ["zero-2"]).predictions[0]
    assert any("sending takes 60% of the time of the cores" in note for note in found.notes)


@pytest.mark.parametrize(("plan", "known", "said"), [("fsdp2", 0.0, 1), ("fsdp2", 1e-3, 0), ("ddp", 0.0, 0)])
def test_a_host_whose_work_is_not_known_is_told(plan, known, said):
    """Groups of FSDP2 alone, if collectives block it."""
    cluster = osf.load_cluster("emulated-4x1gbit")
    cluster = replace(cluster, effects=replace(cluster.effects, group_time=known))
    found = osf.compare(osf.load_workload("transformer-6x256-cpu"), cluster, 4, [plan]).predictions[0]
    assert sum("what the host takes for each collective" in note for note in found.warnings) == said
