"""nvidia-smi topo -m: links, sockets and NICs of a node, and tables that are not whole."""

from __future__ import annotations

import pytest

import osfmodel as osf
from osfmodel.entities.gpus import GPUS
from osfmodel.formats import topology
from osfmodel.formats.source_text import Hints, Text


def table(near="PIX", far="SYS"):
    """Four GPUs in pairs, two at each CPU."""
    rows = ["\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNUMA Affinity"]
    for a in range(4):
        links = [" X " if a == b else near if a // 2 == b // 2 else far for b in range(4)]
        rows.append("\t".join([f"GPU{a}", *links, "PIX", "0"]))
    return "\n".join(rows)


def read(text, gpu="l40s"):
    told = []
    (cluster,) = topology.read(Text("topo.txt", text, tell=told.append), Hints("", gpu=gpu))
    return cluster, told[0]


def switched(count, link="NV18"):
    names = [f"GPU{number}" for number in range(count)]
    rows = [f"{a} " + " ".join("X" if a == b else link for b in names) for a in names]
    return "\n".join(["  ".join(["", *names, "mlx5_0"]), *rows])


@pytest.mark.parametrize(
    ("text", "gpu", "words"),
    [
        (table(), "l40s", "nccl:l40sx4,sockets=2"),
        (table(far="NODE"), "l40s", "nccl:l40sx4,sockets=1"),
        (table("NV4"), "a40", "nccl:a40x4,sockets=2"),
        (table(), "a40", "nccl:a40x4,pcie,sockets=2"),
        (table(), "rtx4090", "nccl:rtx4090x4,sockets=2"),
        (switched(8), "h100", "nccl:h100x8"),
        (switched(2), "h100", "nccl:h100x2"),
    ],
)
def test_a_table_becomes_the_node_of_its_words(text, gpu, words):
    assert topology.sniff(text)
    cluster, told = read(text, gpu)
    assert cluster.nccl == osf.load_cluster(words).nccl
    assert f"in words this node is {words}," in told
    assert cluster.source.gpu == GPUS[gpu].called


@pytest.mark.parametrize(
    ("text", "gpu", "said"),
    [
        (table(), "", "give --gpu"),
        (table("NV4"), "l40s", "this GPU has no nvlink-pairs"),
        (table().rpartition("GPU3")[0], "l40s", "3 rows of 4 GPUs"),
        (table().replace("PIX\tSYS", "PIX\tABC", 1), "l40s", "is not the row of GPU 0"),
    ],
)
def test_what_is_missing_or_damaged_is_said(text, gpu, said):
    with pytest.raises(osf.DataError, match=said):
        read(text, gpu)
