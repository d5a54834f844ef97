"""One table of GPUs: every name serves workloads, clusters and drivers' spellings alike."""

from __future__ import annotations

import pytest

from osfmodel import UsageError, load_cluster
from osfmodel.cost.nccl_words import gpu_in_words
from osfmodel.counting.words import parse_words
from osfmodel.entities.gpus import GPUS, generation_of, gpu_called, gpu_name, same_chip


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_of_one_side_is_one_of_the_other(name):
    assert parse_words(f"llama3-8b:{name},batch1").setting.gpu == name
    cluster = load_cluster(f"nccl:{name}x4,100Gbps")
    assert gpu_in_words(cluster.name) == name
    assert cluster.gpus_per_node == 4
    assert generation_of(name), f"add {name} to a pattern of GENERATIONS in osfmodel/entities/gpus.py"


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100-SXM-64GB", "a100-64gb"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6", "b300"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100-pcie"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("Tesla T4", "t4"),
        ("Tesla K80", "k80"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("rtx_3090", "rtx3090"),
        ("4090", "rtx4090"),
        ("A6000", "rtx-a6000"),
        ("H100_SXM5_80GB", "h100"),
        ("gb300-nvl72", "gb300"),
    ],
)
def test_names_that_drivers_and_people_write(printed, name):
    assert gpu_name(printed) == name
    assert parse_words(f"llama3-8b:{printed},batch1").setting.gpu == name
    assert load_cluster(f"nccl:{printed}x8,100Gbps").nccl == load_cluster(f"nccl:{name}x8,100Gbps").nccl


@pytest.mark.parametrize("name", ["h101", "a100-20gb", "NVIDIA", "a800-pcie", "h100 80gb 96gb", "", "x"])
def test_unknown_gpus_are_unknown_everywhere(name):
    assert gpu_name(name) == ""
    with pytest.raises(UsageError, match="unknown GPU"):
        gpu_called(name)
    with pytest.raises(UsageError):
        load_cluster(f"nccl:{name}x8")


def test_chips_differ_by_more_than_memory_and_slot():
    assert same_chip("a100", "a100-pcie-40gb")
    assert same_chip("h100-nvl", "h100")
    assert not same_chip("rtx-pro-6000", "rtx-a6000")
    assert not same_chip("b200", "gb200")
