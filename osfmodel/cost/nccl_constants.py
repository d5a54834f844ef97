"""Constants of NCCL's tuner about devices: latencies in seconds, bandwidths in bytes per second.

Sources, named at each constant:

* TUNING: NCCL 2.28.3, src/graph/tuning.cc (default tuner constants and the refinements in ncclTopoTuneModel).
* TOPO: NCCL, src/graph/topo.h (link speeds in NCCL's own accounting, below the data sheet's).
* TORCH: PyTorch 2.13, torch/_inductor/comm_analysis.py, which mirrors TUNING and adds channel counts.

Nothing here was fitted; fitted values are in osfmodel.cost.nccl. No measurement of a collective is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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

MESH_RINGS: Mapping[int, int] = {2: 1, 3: 2, 4: 4, 5: 1, 6: 2, 7: 4}
"""Rings of one NVLink each that the first GPUs of a DGX-1 can close without sharing a link, 6 for all 8: counted in the
links of its hybrid cube mesh (DGX-1 white paper, NVIDIA 2017). 5 GPUs close none: through the host, priced as 1."""
MESH_LINKS = 6


class GpuModel(NamedTuple):
    """Properties of a GPU in NCCL's tuner: generation, fabric inside a node, and bytes per second of each GPU's bus."""

    generation: str
    fabric: str
    bandwidth: float
    nvls: bool


DEVICES: Mapping[str, GpuModel] = {
    "v100": GpuModel("volta", "nvlink-mesh", 120 * GB, False),
    "a100": GpuModel("ampere", "nvswitch", 240 * GB, False),
    "h100": GpuModel("hopper", "nvswitch", 370 * GB, True),
    "h200": GpuModel("hopper", "nvswitch", 370 * GB, True),
    "b200": GpuModel("blackwell", "nvswitch", 720 * GB, True),
    "b300": GpuModel("blackwell", "nvswitch", 720 * GB, True),
    "gb200": GpuModel("blackwell", "nvswitch", 720 * GB, True),
    "rtx-pro-6000": GpuModel("blackwell", "pcie", 24 * GB, False),
}
"""TOPO, as in TORCH: V100 6 links of 20 GB/s, A100 12 of 20, H100 18 of 20.6, B200 18 of 40.1 (rounded); PCIe 24 GB/s,
TORCH's figure for rings of GPUs that go through the host."""

GBPS = 1e9 / 8
NETWORKS: Mapping[str, tuple[float, float]] = {
    "v100": (100 * GBPS, 2),
    "a100": (200 * GBPS, 1),
    "h100": (400 * GBPS, 1),
    "h200": (400 * GBPS, 1),
    "b200": (800 * GBPS, 1),
    "b300": (800 * GBPS, 1),
    "gb200": (800 * GBPS, 1),
    "rtx-pro-6000": (400 * GBPS, 1),
}
"""Bytes per second of the fastest usual NIC, and GPUs that share it where a node has 8: DGX-1 (4 x 100 Gb/s), DGX A100
(8 x 200), H100 and H200 (8 x 400), B200 to B300 and GB200 (400 to 800 a GPU). No price depends on it."""


def network_of(device: str, gpus: int) -> float:
    """Bytes per second of network of each of ``gpus`` GPUs in usual machines."""
    rate, sharing = NETWORKS[device]
    return rate / (sharing if gpus > 4 else 1)
