"""All-to-alls between experts by kernels of their own (DeepEP), instead of NCCL's.

NCCL sends a token k times if k experts want it. These kernels send it once to each node that has some of the experts,
and there once to each GPU. If the experts of a token are drawn alike from P places, that is

    distinct(P, k) = P (1 - (1 - 1/P)^k)

places on average, of which the token's own needs no link. So with g GPUs on each of n nodes

    T = latency + m / k max(distinct(g n, k) (g - 1)/g / (s NVLink), distinct(n, k) (n - 1)/n / (s' NIC))

for m bytes that a GPU sends in k copies of each token; s and s' are the shares of the links that the kernels were
published to reach, and the latency is that of a launch and of a hop between nodes in NCCL's tuner.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from osfmodel.cost.model import layout_of
from osfmodel.cost.nccl import inside
from osfmodel.cost.nccl_constants import BASE_LATENCY, GB, HOP_LATENCY
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import CostError
from osfmodel.entities.gpus import GPUS


class Published(NamedTuple):
    """A published run of nodes of 8 such GPUs: bytes per second of dispatch and combine as printed.

    Printed rates count what stays on the GPU, or on the node, as well. Between nodes they are of the network, with
    400 Gbit/s a GPU.
    """

    gpu: str
    nodes: int
    dispatch: float
    combine: float

    @property
    def shares(self) -> tuple[float, float]:
        """The fractions of the link, without what does not pass it."""
        moved = 1 - 1 / (self.nodes if self.nodes > 1 else 8)
        link = 50 * GB if self.nodes > 1 else GPUS[self.gpu].link
        return self.dispatch * moved / link, self.combine * moved / link


DEEPEP = (
    Published("h800", 1, 153 * GB, 158 * GB),
    Published("h800", 2, 43 * GB, 43 * GB),
    Published("h800", 4, 58 * GB, 57 * GB),
    Published("h800", 8, 51 * GB, 50 * GB),
    Published("b200", 1, 726 * GB, 740 * GB),
    Published("h100", 2, 90 * GB, 81 * GB),
    Published("h100", 4, 61 * GB, 61 * GB),
    Published("b200", 2, 90 * GB, 91 * GB),
)
"""deepseek-ai/DeepEP @ dd758ca: docs/legacy.md (H800; 4,096 tokens, hidden 7,168, top 8) and README.md (8,192 tokens;
SM90 and SM100, taken for H100 and B200; in one node the row of most bandwidth), over ConnectX-7. The two nodes of H800
are held up by NVLink."""
NVLINK_SHARE = median(share for row in DEEPEP if row.nodes == 1 for share in row.shares)
NETWORK_SHARE = median(share for row in DEEPEP if row.nodes > 1 for share in row.shares)
"""Fractions of the links that half of these runs reach."""


def distinct(places: int, copies: int) -> float:
    """The mean number of places, out of so many, that have some of a token's ``copies`` experts."""
    return places * (1 - (1 - 1 / places) ** copies)


def seconds(cluster: Cluster, ranks: int, size: float, copies: int) -> float:
    """Seconds in which each of ``ranks`` GPUs sends ``size`` bytes, ``copies`` of each token, to experts.

    Raises CostError without NVLink between the GPUs of a node, or without a network between several nodes.
    """
    shape, place = cluster.nccl, layout_of(ranks, cluster.gpus_per_node)
    if shape is None or shape.fabric not in ("nvswitch", "nvlink-mesh"):
        raise CostError(f"{cluster.name!r}: DeepEP needs NVLink between the GPUs of a node: leave a2a=deepep out")
    token = size / copies
    here = token * distinct(ranks, copies) * (1 - 1 / place.fullest)
    moving, latency = here / (NVLINK_SHARE * inside(shape, place)), BASE_LATENCY["ring"].simple
    if place.nodes > 1:
        if shape.nic_bandwidth is None:
            raise CostError(f"cluster {cluster.name!r} has no nic_bandwidth for {place.nodes} nodes")
        between = token * distinct(place.nodes, copies) * (1 - 1 / place.nodes)
        moving = max(moving, between / (NETWORK_SHARE * shape.nic_bandwidth))
        latency += HOP_LATENCY["net"]["ring"].simple * shape.net_latency_scale
    return latency + moving
