"""Constants of NCCL's tuner about devices: latencies in seconds, bandwidths in bytes per second.

Sources, named at each constant:

* TUNING: NCCL 2.28.3, src/graph/tuning.cc (default tuner constants and the refinements in ncclTopoTuneModel); what
  2.30.7 has otherwise on NVLSTree, and PAT and CollNet, from there.
* TOPO: NCCL, src/graph/topo.h (link speeds in NCCL's own accounting, below the data sheet's).
* TORCH: PyTorch 2.13, torch/_inductor/comm_analysis.py, which mirrors TUNING and adds channel counts.
* RCCL: ROCm/rccl, src/graph/topo.h (speeds of an xGMI link by GPU).
* OFI: aws/aws-ofi-nccl, src/platform-aws.cpp (latency that the plugin reports, protocols that it leaves on).
* GCP: NCCL's settings for GPUDirect-TCPXO on A3 Mega machines, as published with jobs there (allenai/OLMo and others).

Of measured collectives HOST_SHARE, CROWDED, PACES and EFA's pace were taken; others fitted are in osfmodel.cost.nccl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")

US = 1e-6
GB = 1e9
PROTOCOLS = ("LL", "LL128", "Simple")
"""Protocols: low latency (8-byte flags), low latency with 128-byte lines, and plain copies with a flag per chunk."""


class ByProtocol(NamedTuple):
    """One number per protocol."""

    ll: float
    ll128: float
    simple: float


BASE_LATENCY: Mapping[str, ByProtocol] = {
    "tree": ByProtocol(6.8 * US, 14.0 * US, 8.4 * US),
    "ring": ByProtocol(6.6 * US, 14.0 * US, 8.4 * US),
}
"""TUNING baseLatencies."""
HOP_LATENCY: Mapping[str, Mapping[str, ByProtocol]] = {
    "nvlink": {
        "tree": ByProtocol(0.6 * US, 1.25 * US, 4.0 * US),
        "ring": ByProtocol(0.6 * US, 1.9 * US, 3.4 * US),
    },
    "pcie": {
        "tree": ByProtocol(1.0 * US, 1.9 * US, 4.0 * US),
        "ring": ByProtocol(1.0 * US, 2.5 * US, 5.7 * US),
    },
    "net": {
        "tree": ByProtocol(5.0 * US, 8.5 * US, 14.0 * US),
        "ring": ByProtocol(2.7 * US, 4.0 * US, 14.0 * US),
    },
}
"""TUNING hwLatencies, per step over NVLink, PCIe and the network."""
NVLS_LATENCY = 25 * US
"""TUNING hwLatencies, NVLS over NVLink: the whole operation; it has no base latency."""
NVLS_NET_LATENCY, NVLS_TREE_NET_LATENCY, OLDER_NVLS_TREE_NET_LATENCY = 18 * US, 20.9 * US, 14 * US
"""TUNING hwLatencies over the network: NVLS once (with SHARP), NVLSTree per level up and down, and to 2.28.7."""
NVLS_HALVES_RANKS = 32
"""GPUs of a node up to which its all-gathers and reduce-scatters are NVLS (device.h NCCL_MAX_NVLS_ARITY)."""


class CollNet(NamedTuple):
    """All-reduces that the network's switches add up: SHARP, whose tree of switches is one hop whatever the nodes.

    step: of each pass inside a node; each: besides, for every other GPU; net: the network; by_ring: whether GPUs of a
    node follow each other (steps count) or all send to all
    """

    step: float
    each: float
    net: float
    by_ring: bool


COLLNET: Mapping[str, CollNet] = {
    "CollNetDirect": CollNet(3.7 * US, 0.4 * US, 31 * US, False),
    "CollNetChain": CollNet(2.8 * US, 0.0, 30 * US, True),
}
"""TUNING hwLatencies, for NVLink and PCIe alike; they have no base latencies."""
COLLNET_GPUS = 8
"""GPUs of a node up to which both are taken (device.h NCCL_MAX_DIRECT_ARITY + 1)."""
COLLNET_DIRECT_SHARE: Mapping[str, float] = {"hopper": 0.85, "blackwell": 0.85, "": 1.0}
"""TUNING: the fraction of the bus that CollNetDirect reaches."""


class Pat(NamedTuple):
    """PAT, all-gathers and reduce-scatters over nodes of one GPU: base, parts of a hop for each doubling of nodes,
    seconds for each rank, and its share of the bus."""

    base: float
    hops: float
    rank: float
    share: float


PAT = Pat(8 * US, 1 / 3.5, 2.8 * US, 0.75)
"""TUNING baseLatencies and ncclTopoTuneModel."""
SINCE: Mapping[str, tuple[int, int]] = {
    "NVLS": (2, 17),
    "NVLSTree": (2, 18),
    "PAT": (2, 23),
    "NVLSTree's tuning": (2, 29),
}
"""NCCL's release from which each is used (src/graph/tuning.cc of each tag). NVLSTree's tuning: its latency, which
2.28.9 has as well, and TREE_CORRECTION for Blackwell on x86 (taken for Grace as well)."""
NET_OVERHEAD = ByProtocol(1 * US, 1 * US, 3 * US)
"""TUNING getNetOverhead (Intel; AMD has 2), 3 times that for Simple: least latency of a ring's step on a network."""
RING_PLATEAU: Mapping[str, float] = {"volta": 1.9, "ampere": 1.4, "hopper": 1.4, "blackwell": 1.4}
"""TUNING ncclTopoGetAlgoTime: a factor on the latency of Ring/Simple all-reduces between nodes."""

ScaledByNodes = tuple[float, float, float]
"""Values for 1 node, 2 nodes, and more."""
LL_MAX_BANDWIDTH: Mapping[str, ScaledByNodes] = {
    "volta": (39.0 * GB, 39.0 * GB, 20.4 * GB),
    "ampere": (87.7 * GB, 22.5 * GB, 19.0 * GB),
    "hopper": (141.0 * GB, 45.0 * GB, 35.0 * GB),
    "blackwell": (282.0 * GB, 90.0 * GB, 70.0 * GB),
}
"""TUNING llMaxBws, whole bus. Between nodes the row goes by the CPU's vendor: Volta's (Intel) is used, as in TORCH."""
RING_LL128_CHANNEL: Mapping[str, ScaledByNodes] = {
    "volta": (20.0 * GB, 20.0 * GB, 20.0 * GB),
    "ampere": (20.0 * GB, 20.0 * GB, 20.0 * GB),
    "hopper": (36.7 * GB, 36.7 * GB, 36.7 * GB),
    "blackwell": (73.4 * GB, 73.4 * GB, 73.4 * GB),
}
"""TUNING perChMaxRingLL128Bws."""
TREE_LL128_CHANNEL: Mapping[str, ScaledByNodes] = {
    "volta": (20.0 * GB, 20.0 * GB, 20.0 * GB),
    "ampere": (20.0 * GB, 20.0 * GB, 20.0 * GB),
    "hopper": (36.7 * GB, 36.7 * GB, 29.0 * GB),
    "blackwell": (55.6 * GB, 31.67 * GB, 20.0 * GB),
}
"""TUNING perChMaxTreeLL128Bws."""
TREE_CHANNEL: Mapping[str, ScaledByNodes] = {
    "volta": (26.5 * GB, 18.5 * GB, 10.0 * GB),
    "ampere": (24.0 * GB, 23.6 * GB, 17.8 * GB),
    "hopper": (38.7 * GB, 41.4 * GB, 36.0 * GB),
    "blackwell": (70.0 * GB, 42.8 * GB, 24.0 * GB),
}
"""TUNING perChMaxTreeBws."""
NVLS_TREE_CHANNEL: Mapping[str, ScaledByNodes] = {
    "hopper": (0.0, 57.7 * GB, 45.5 * GB),
    "blackwell": (0.0, 96.0 * GB, 80.0 * GB),
}
"""TUNING perChMaxNVLSTreeBws."""
CHANNELS: Mapping[str, int] = {"volta": 2, "ampere": 8, "hopper": 16, "blackwell": 32}
"""TORCH _GPU_NCHANNELS: a stand-in for NCCL's search of the topology."""
NVLS_EFFICIENCY: Mapping[str, float] = {"hopper": 0.85, "blackwell": 0.74}
"""TUNING nvlsEfficiency."""
LL_SHARE, LL128_SHARE = 1 / 2, 120 / 128
"""TUNING: payload of the ring's LL (half of it flags) and LL128 lines."""
TREE_SHARE, TREE_LL_SHARE, TREE_LL128_SHARE_ONE_NODE = 0.92, 1 / 3.8, 7 / 9
"""TUNING: the fraction of the bus that trees reach; LL's and LL128's fraction of that (LL128_SHARE between nodes)."""

TREE_CORRECTION: Mapping[str, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1),
    "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9),
}  # fmt: skip
"""TUNING treeCorrectionFactor on the bandwidth of tree all-reduces of 64 B, 128 B, ... 256 MiB."""

MESH_RINGS: Mapping[int, int] = {2: 1, 3: 2, 4: 4, 5: 2, 6: 2, 7: 4}
"""Rings of one NVLink each that the first GPUs of a DGX-1 can close without sharing a link, 6 for all 8: counted in the
links of its hybrid cube mesh (DGX-1 white paper, NVIDIA 2017). Of 5 GPUs the last is joined to the first alone, by two
links, so a ring comes back through the first (a path of two NVLinks, NVB in TOPO), once for each link."""
MESH_LINKS = 6


class HostPaths(NamedTuple):
    """A host's part in copies between GPUs: bytes per second of a GPU's slot, between CPUs, and of all memory."""

    slot: float
    between_cpus: float
    memory: float


HOSTS: Mapping[int, HostPaths] = {
    3: HostPaths(12 * GB, 10 * GB, 256 * GB),
    4: HostPaths(24 * GB, 24 * GB, 410 * GB),
    5: HostPaths(48 * GB, 24 * GB, 614 * GB),
}
"""By generation of PCIe. Slot: TOPO, 12 GB/s for 16 lanes of generation 3, then twice that each. Between CPUs: TOPO,
Skylake 10, EPYC Zen 3 and 4 24. Memory: data sheets of two sockets, 6 x DDR4-2666, 8 x DDR4-3200, 8 x DDR5-4800."""
PEER_OVERHEAD = 6 / 5
"""TOPO INTEL_P2P_OVERHEAD: the slot bandwidth that copies between GPUs take, as a multiple of their bytes."""
HOST_SHARE = 0.73
"""Fraction of slot and memory that copies through host memory reach: 8 x RTX 5090 with 16 x DDR5-4800 were published
at bus bandwidths of 28 GB/s for 8 GPUs and 35 for 4 (NVIDIA/nccl, issue 1639), 73 % of memory, and of a slot."""


LIKE: Mapping[str, str] = {"cdna": "ampere"}
"""Generations without constants of their own. RCCL is a fork of NCCL that has no NVLS; nothing was compared."""

GBPS = 1e9 / 8


class Crowd(NamedTuple):
    """Nodes beyond which seconds per byte grow, and the exponent with which they do."""

    nodes: int
    exponent: float


CROWDED = Crowd(8, 0.25)
"""Learned by benchmarks/anchors.py on InternEvo's machine (RoCE) and Leonardo (InfiniBand): each teaches 0.2 to 0.3
alone, and the other is then 8 to 13 points nearer from 256 GPUs on. MosaicML's, up to 256 GPUs, shows neither."""


class NetworkFabric(NamedTuple):
    """A network between nodes, as NCCL's transport uses it.

    latency:   seconds of a hop beyond TUNING's, by GPU generation ("" for all others)
    protocols: allowed between nodes, by GPU generation ("" for all others)
    by_nic:    whether NICs move data on their own (RDMA); elsewhere the host or its plugin has a part in each chunk
    nvls:      whether NVLSTree is used
    summary:   shown by ``osf list fabrics``, with its evidence
    flow:      most bytes per second of a flow; a ring is one between two nodes
    pace:      seconds of each step of an all-gather or reduce-scatter at least, by GPU generation; 0 for TUNING's
    whole_nodes: crowds of all-reduces of more than two GPUs a node, by GPU generation
    """

    latency: Mapping[str, float]
    protocols: Mapping[str, tuple[str, ...]]
    by_nic: bool
    nvls: bool
    summary: str
    flow: float = math.inf
    pace: Mapping[str, float] = {"": 0.0}
    whole_nodes: Mapping[str, Crowd] = {"": CROWDED}


ALL = {"": PROTOCOLS}
PACES = (6 * US, 84 * US)
"""Seconds that a step of an all-gather or a reduce-scatter between nodes took on published machines, at the least and
at the most; bands reach from one to the other."""
MIDDLE_PACE = math.sqrt(PACES[0] * PACES[1])
ASSUMED_PACE = {"": MIDDLE_PACE}
"""Pace where the machine is not known: the geometric middle. Runs on Leonardo are nearer so than with the tuner's."""
BETWEEN_NODES: Mapping[str, NetworkFabric] = {
    "ib": NetworkFabric(
        {"": 0.0}, ALL, True, True, "InfiniBand (latencies: NCCL's tuner; pace: middle of published)", pace=ASSUMED_PACE
    ),
    "roce": NetworkFabric(
        {"": 0.0}, ALL, True, True, "RDMA over Ethernet (latencies and pace as ib)", pace=ASSUMED_PACE
    ),
    "efa": NetworkFabric(
        {"volta": 150 * US, "blackwell": 35 * US, "": 75 * US},
        {"volta": ("Simple",), "ampere": ("Simple",), "": PROTOCOLS},
        False,
        True,
        "AWS EFA (latency and protocols: aws-ofi-nccl; pace: nanotron's 8 to 512 H100)",
        pace={"": 39 * US},
        whole_nodes={"hopper": Crowd(2, 0.6), "": CROWDED},
    ),
    "tcpxo": NetworkFabric(
        {"": 75 * US},
        {"": ("LL128", "Simple")},
        False,
        False,
        "Google's GPUDirect-TCPXO (protocols: its settings; latency and pace as efa)",
        pace={"": 39 * US},
    ),
    "tcp": NetworkFabric({"": 30 * US}, {"": ("LL", "Simple")}, False, True, "kernel sockets (latency: nccl-tests)"),
    "ena": NetworkFabric(
        {"": 30 * US},
        {"": ("LL", "Simple")},
        False,
        True,
        "AWS without EFA: kernel sockets, 5 Gbit/s a flow (EC2's user guide)",
        5 * GBPS,
    ),
}
"""Latency: OFI, 75 us (p4d, p5), 150 (p3dn), 35 (p5en, p6); TCPXO's plugin states none, and has EFA's. TCP: a broadcast
of 8 bytes between two nodes took 38 us (NVIDIA/nccl-tests, issue 82), less TUNING's base. Protocols: OFI leaves Simple
alone where bytes may arrive out of order (before Hopper); GCP has NCCL_PROTO=Simple,LL128 and NCCL_NVLS_ENABLE=0;
TUNING has LL128 only where NICs reach the GPU's memory. A flow of EC2 carries 5 Gbit/s at most outside of a cluster
placement group, and 10 inside one. EFA's pace and crowd: means of 256 MiB on 2 to 64 nodes of H100 (nanotron), within
20 %, a cloud of many jobs whose repeats differ five-fold; assumed for its other generations and TCPXO."""
NIC_SHARE = 0.96
"""Fraction of a NIC's rate that NCCL reaches: TOPO NET_BW, 12 GB/s of 100 Gbit/s."""


def by_generation(values: Mapping[str, Value], generation: str) -> Value:
    """The entry for a GPU generation, or that for all others."""
    return values.get(generation, values[""])


class Corrections(NamedTuple):
    """Corrections of the tuner's formula.

    pipeline:   kappa above inside a node, 0 for none
    by_nic:     kappa between nodes whose NICs move data on their own (ib, roce), and of NVLSTree on every network: its
                pieces have 256 KiB at most (NCCL's src/enqueue.cc), those of a ring 1 MiB
    by_host:    kappa between nodes where host or plugin has a part in each chunk (efa, tcpxo, tcp)
    own:        extra time of a ring over NVLink: that of sending this fraction of a GPU's own 1/n of the message
    launch:     factor on the tuner's base latencies, and on its steps inside a node
    nvls_bytes: NVLS moves (n + 1)/n of the message through each GPU's link, instead of half of a ring's bytes whatever
                the number n of GPUs (NVIDIA: N + 1 instead of 2 N operations)
    two_roots:  generations whose trees over two nodes use the network twice, since each half of a message has its root
                on another node. TUNING says so of all; measured machines with A100 and V100 did not show it.
    at_scale:   whether fabrics have a pace and are crowded, as was measured
    """

    pipeline: float
    by_nic: float
    by_host: float
    own: float
    launch: float
    nvls_bytes: bool
    two_roots: tuple[str, ...] = ("hopper", "blackwell")
    at_scale: bool = False


TUNER = Corrections(0.0, 0.0, 0.0, 0.0, 1.0, False)
"""NCCL's own constants, nothing corrected."""
CORRECTED = Corrections(0.22, 0.22, 0.52, 0.3, 1.5, True, at_scale=True)
"""Learned by benchmarks/nccl_model.py on the machines named in docs/reference/nccl.md."""
