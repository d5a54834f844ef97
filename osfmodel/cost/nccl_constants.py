"""Constants of NCCL's tuner about devices: latencies in seconds, bandwidths in bytes per second.

Sources, named at each constant:

* TUNING: NCCL 2.28.3, src/graph/tuning.cc (default tuner constants and the refinements in ncclTopoTuneModel).
* TOPO: NCCL, src/graph/topo.h (link speeds in NCCL's own accounting, below the data sheet's).
* TORCH: PyTorch 2.13, torch/_inductor/comm_analysis.py, which mirrors TUNING and adds channel counts.
* RCCL: ROCm/rccl, src/graph/topo.h (speeds of an xGMI link by GPU).
* OFI: aws/aws-ofi-nccl, src/platform-aws.cpp (latency that the plugin reports, protocols that it leaves on).
* GCP: NCCL's settings for GPUDirect-TCPXO on A3 Mega machines, as published with jobs there (allenai/OLMo and others).

Nothing here was fitted, and of measured collectives only HOST_SHARE uses two; fitted values are in osfmodel.cost.nccl.

With them clusters of the NCCL model are given in words: ``nccl:GPUxGPUS_PER_NODE[,BANDWIDTH[/gpu|/node]][,FABRIC]``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from osfmodel.cost.model import rate_from_spec, says_per
from osfmodel.entities.cluster import FABRICS, NETWORKS, Cluster, NcclShape
from osfmodel.entities.errors import UsageError
from osfmodel.entities.gpus import GPUS, Gpu, gpu_name
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.units import show_rate

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
NVLS_TREE_NET_LATENCY = 14 * US
"""TUNING hwLatencies, NVLSTree over the network, per level up and down."""
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
    "blackwell": (0.0, 96.0 * GB, 43.1 * GB),
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


class NetworkFabric(NamedTuple):
    """A network between nodes, as NCCL's transport uses it.

    latency:   seconds of a hop beyond TUNING's, by GPU generation ("" for all others)
    protocols: allowed between nodes, by GPU generation ("" for all others)
    by_nic:    whether NICs move data on their own (RDMA); elsewhere the host or its plugin has a part in each chunk
    nvls:      whether NVLSTree is used
    summary:   shown by ``osf list fabrics``, with its evidence
    flow:      most bytes per second of a flow; a ring is one between two nodes
    """

    latency: Mapping[str, float]
    protocols: Mapping[str, tuple[str, ...]]
    by_nic: bool
    nvls: bool
    summary: str
    flow: float = math.inf


ALL = {"": PROTOCOLS}
BETWEEN_NODES: Mapping[str, NetworkFabric] = {
    "ib": NetworkFabric({"": 0.0}, ALL, True, True, "InfiniBand (latencies: NCCL's tuner)"),
    "roce": NetworkFabric({"": 0.0}, ALL, True, True, "RDMA over Ethernet (latencies as ib)"),
    "efa": NetworkFabric(
        {"volta": 150 * US, "blackwell": 35 * US, "": 75 * US},
        {"volta": ("Simple",), "ampere": ("Simple",), "": PROTOCOLS},
        False,
        True,
        "AWS EFA (latency and protocols: aws-ofi-nccl)",
    ),
    "tcpxo": NetworkFabric(
        {"": 75 * US},
        {"": ("LL128", "Simple")},
        False,
        False,
        "Google's GPUDirect-TCPXO (protocols: its settings; latency as efa)",
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
placement group, and 10 inside one."""
NIC_SHARE = 0.96
"""Fraction of a NIC's rate that NCCL reaches: TOPO NET_BW, 12 GB/s of 100 Gbit/s."""


PACES = (6 * US, 84 * US)
"""Seconds that a step of an all-gather or a reduce-scatter between nodes took on published machines, at the least and
at the most. MIDDLE_PACE is between them, as factors go."""
MIDDLE_PACE = math.sqrt(PACES[0] * PACES[1])


def by_generation(values: Mapping[str, Value], generation: str) -> Value:
    """The entry for a GPU generation, or that for all others."""
    return values.get(generation, values[""])


def from_spec(name: str, parts: Sequence[str]) -> Cluster:
    """The cluster of ``GPUxGPUS_PER_NODE`` and, for several nodes, the network bandwidth. Raises UsageError.

    It is that of each GPU, or with ``/node`` that of all NICs of a node together. The fabric between nodes (``efa``),
    and the fabric inside nodes if it is not the GPU's usual one (``host``), follow in any order.
    """
    match = re.fullmatch(r"\s*(.+)x([0-9]{1,6})\s*", parts[0])
    words = [word.strip().lower() for word in parts[1:]]
    rates = [word for word in words if any(map(str.isdigit, word))]
    if match is None or len(rates) > 1 or "" in words:
        form = (
            "write nccl:GPUxGPUS_PER_NODE[,BANDWIDTH[/gpu|/node]][,FABRIC], for example nccl:h100x8,400Gbps,ib "
            "(400 Gbps per GPU)"
        )
        raise UsageError(f"{name!r} is not a cluster: {form}")
    device, gpus = _device(name, match[1].lower()), int(match[2])
    if not gpus:
        raise UsageError(f"{name!r}: no GPU in a node: write {match[1]}x1 or more, such as {match[1]}x8")
    within, between = _fabrics(name, [word for word in words if word not in rates])
    if between and not rates:
        raise UsageError(
            f"{name!r}: {between} needs the bandwidth of the network, as in nccl:{parts[0]},200Gbps,{between}"
        )
    network = _per_gpu(parts[1 + words.index(rates[0])], gpus) if rates else None
    shape = _shape(name, device, within or device.fabric, network, between)
    return Cluster(name, "nccl", gpus_per_node=gpus, nodes=None if network else 1, nccl=shape)


def _device(name: str, word: str) -> Gpu:
    """The GPU called ``word``. Raises UsageError."""
    if not _name(word):
        raise UsageError(f"{name}: unknown GPU {word!r}: {suggestion(word, GPUS)}")
    return GPUS[_name(word)]


def gpu_in_words(name: str) -> str:
    """The GPU of a cluster in such words; "" for any other cluster."""
    words = re.fullmatch(r"nccl:\s*([^,]+)x[0-9]{1,6}\s*(,.*)?", name)
    return _name(words[1].lower()) if words else ""


def _name(word: str) -> str:
    """The name in GPUS of a GPU, or ""; its last x may have been read as a multiplication sign (8 of mi300x)."""
    return gpu_name(f"{word}x") or gpu_name(word)


def _fabrics(name: str, words: Sequence[str]) -> tuple[str, str]:
    """The fabrics inside and between nodes among ``words``, "" for one that is not there."""
    found = []
    for table, where in ((FABRICS, "inside"), (NETWORKS, "between")):
        said = [word for word in words if word in table]
        if len(said) > 1:
            raise UsageError(f"{name!r}: two fabrics {where} nodes, {' and '.join(said)}: leave one out")
        found.append(said[0] if said else "")
    for word in words:
        if word not in found:
            meant = suggestion(CALLED.get(word, word), (*NETWORKS, *FABRICS))
            raise UsageError(f"{name!r}: unknown fabric {word!r}: {meant}")
    return found[0], found[1]


CALLED = {"infiniband": "ib", "ndr": "ib", "hdr": "ib", "edr": "ib", "xdr": "ib", "ethernet": "tcp"}
"""Fabrics by names that are not spelt like theirs."""


def _shape(name: str, device: Gpu, fabric: str, nic_bandwidth: float | None, network: str) -> NcclShape:
    """The shape of machines with this GPU. Raises UsageError for a fabric inside nodes that it does not have."""
    host = HOSTS[device.pcie]
    if fabric in ("pcie", "host"):
        bandwidth = host.slot / PEER_OVERHEAD if fabric == "pcie" else host.slot
        between_cpus = host.between_cpus if fabric == "pcie" else None
        memory = host.memory if fabric == "host" else None
        return NcclShape(
            device.tuned_as, fabric, bandwidth, nic_bandwidth,
            network=network, host_bandwidth=between_cpus, memory_bandwidth=memory,
        )  # fmt: skip
    if fabric != device.fabric:
        *first, last = dict.fromkeys((device.fabric, "host", "pcie"))
        raise UsageError(f"{name!r}: this GPU has no {fabric}: write {', '.join(first)} or {last}")
    pairs = host.between_cpus if fabric == "nvlink-pairs" else None
    return NcclShape(
        device.tuned_as, fabric, device.link, nic_bandwidth, device.nvls, network=network, host_bandwidth=pairs
    )


def _per_gpu(bandwidth: str, gpus: int) -> float:
    """Bytes per second of network of each GPU."""
    rate = rate_from_spec(bandwidth, ("gpu", "node"), ", for nccl: does not know how many NICs a node has")
    return rate.bytes_per_second / (gpus if rate.per == "node" else 1)


def doubts(cluster: Cluster, workers: int) -> tuple[str, ...]:
    """A question if words give each GPU many times the network of usual machines, without saying of what it is.

    For AMD's GPUs, a warning that no price of RCCL was compared.
    """
    if cluster.nccl is not None and cluster.nccl.generation == "cdna":
        return (f"{cluster.name}: AMD GPUs run RCCL, of which no price was compared with a measurement",)
    words = re.fullmatch(r"nccl:\s*(.+)x[0-9]+\s*,(.+)", cluster.name)
    if words is None or workers <= cluster.gpus_per_node:
        return ()
    rate = next(part.strip() for part in words[2].split(",") if part.strip().lower() not in (*FABRICS, *NETWORKS))
    if says_per(rate):
        return ()
    device, gpus = _name(words[1].lower()), cluster.gpus_per_node
    taken, usual = _per_gpu(rate, gpus), GPUS[device].network(gpus)
    if taken < DOUBTFUL * usual:
        return ()
    meant = f". If the node has {rate} in all, write {rate}/node" if gpus > 1 else ""
    have = f"machines with {device.upper()} have {show_rate(usual)} per GPU"
    return (f"{cluster.name}: {rate} is taken per GPU; {have}{meant}",)


def rates(cluster: Cluster) -> str:
    """The network of each GPU and of a node, in words; "" without one."""
    if cluster.nccl is None or cluster.nccl.nic_bandwidth is None:
        return ""
    rate = cluster.nccl.nic_bandwidth
    whole = f", {show_rate(rate * cluster.gpus_per_node)} per node" if cluster.gpus_per_node > 1 else ""
    fabric = cluster.nccl.network or "fabric not stated, priced as ib"
    return f"{show_rate(rate)} per GPU{whole}, {fabric}"


DOUBTFUL = 2.0
"""Minimum multiple of the usual network of a GPU that is questioned."""
