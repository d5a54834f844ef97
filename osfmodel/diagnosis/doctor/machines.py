"""Machines whose bundled tables serve as peers, each in the words of somebody who knows its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from osfmodel.cost.nccl_uncertainty import part_of
from osfmodel.cost.placement import Placement, layout_of
from osfmodel.entities.cluster import Cluster


class KnownMachine(NamedTuple):
    """A machine, and its description for ``load_cluster``. Tables of one machine are no peers of each other."""

    machine: str
    words: str


KNOWN_MACHINES: Mapping[str, KnownMachine] = MappingProxyType(
    {
        "a100-node": KnownMachine("A100 SXM node", "nccl:a100x8"),
        "h100-node": KnownMachine("H100 SXM node", "nccl:h100x8"),
        "b200-node": KnownMachine("B200 SXM node", "nccl:b200x8"),
        "b300-node": KnownMachine("B300 SXM node", "nccl:b300x8"),
        "gb200-node": KnownMachine("GB200 node", "nccl:gb200x4"),
        "h200-node": KnownMachine("Azure ND H200 v5", "nccl:h200x8"),
        "rtx-pro-6000-node": KnownMachine("RTX PRO 6000 node", "nccl:rtx-pro-6000x8"),
        "a100-pcie-pairs": KnownMachine("A100 PCIe in pairs", "nccl:a100-pciex4"),
        "a40-pairs": KnownMachine("A40 in pairs", "nccl:a40x8"),
        "azure-a100-hdr": KnownMachine("Azure ND A100 v4", "nccl:a100x8,200Gbps,ib"),
        "dgx-a100-hdr-2nodes": KnownMachine("2 DGX A100", "nccl:a100x8,200Gbps,ib"),
        "dgx-a100-4nodes": KnownMachine("4 DGX A100 (NICs not stated)", "nccl:a100x8,200Gbps,ib"),
        "rtx-6000d-nics": KnownMachine("2 x 8 GPUs over NICs alone", "nccl:rtx-pro-6000x1,400Gbps,ib"),
        "dgx1-v100-roce": KnownMachine("2 DGX-1 V100", "nccl:v100x8,25Gbps,roce"),
        "oci-a100-rdma": KnownMachine("OCI A100", "nccl:a100x8,200Gbps,roce"),
        "aws-p4d-efa": KnownMachine("AWS p4d", "nccl:a100x8,50Gbps,efa"),
        "aws-g5-25g-pair": KnownMachine("AWS g5", "nccl:a10gx1,25Gbps,efa"),
        "gcp-a3-mega": KnownMachine("GCP A3 Mega", "nccl:h100x8,200Gbps,tcpxo"),
        "aws-10g-pair": KnownMachine("AWS, 10 Gbit/s", "nccl:a10gx1,10Gbps,tcp"),
        "k80-10gbe-osu": KnownMachine("K80 hosts, MPI", "ring:50us,10Gbps"),
        **{
            f"emulated-{kind}": KnownMachine(f"emulated hosts, {kind}", f"ring:50us,{rate}")
            for kind, rate in (
                ("2x1gbit", "1Gbps"),
                ("2x2500mbit", "2.5Gbps"),
                ("2x5gbit", "5Gbps"),
                ("4x1gbit", "1Gbps"),
                ("4x2500mbit", "2.5Gbps"),
                ("4x5gbit", "5Gbps"),
                ("8x1gbit", "1Gbps"),
                ("8x2500mbit", "2.5Gbps"),
                ("sparse-2x500mbit", "500Mbps"),
                ("sparse-4x500mbit", "500Mbps"),
            )
        },
    }
)
"""Bundled cluster -> machine. Clusters of the same emulated hosts that were measured again are left out."""
MEASURED = "measured"
"""Kind of a machine that an earlier measurement describes."""
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "nvlink": "NVLink nodes",
        "pcie": "PCIe nodes",
        "host": "nodes without peer access",
        "by_nic": "InfiniBand or RoCE networks",
        "by_host": "EFA, TCPXO or socket networks",
        "not stated": "InfiniBand or RoCE networks",
        "rccl": "AMD nodes",
        "hosts": "hosts whose CPUs communicate over Ethernet",
        MEASURED: "an earlier measurement",
    }
)
"""Kinds of machines, which are compared with each other, in words."""


def kind_of(cluster: Cluster, place: Placement) -> str:
    """The kind of machine, a key of KINDS, that a collective of this placement runs on."""
    if cluster.tables or cluster.fits or cluster.pieces or cluster.protocols:
        return MEASURED
    if cluster.nccl is None:
        return "hosts"
    part = part_of(cluster.nccl, place)
    return "by_nic" if part == "not stated" else part


def placed(cluster: Cluster, workers: int) -> Placement:
    """The placement of ``workers`` on the nodes of ``cluster``."""
    return layout_of(workers, cluster.gpus_per_node)
