"""Clusters of the NCCL model in words: ``nccl:GPUxGPUS_PER_NODE[,BANDWIDTH[/gpu|/node]][,FABRIC][,WORD=VALUE]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from osfmodel.cost import nccl_constants as known
from osfmodel.cost.model import rate_from_spec, says_per
from osfmodel.entities.cluster import EXPERT_KERNELS, FABRICS, NETWORKS, Cluster, NcclShape
from osfmodel.entities.errors import UsageError
from osfmodel.entities.gpus import GPUS, Gpu, gpu_name
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.units import show_rate


def from_spec(name: str, parts: Sequence[str]) -> Cluster:
    """The cluster of ``GPUxGPUS_PER_NODE`` and, for several nodes, the network bandwidth. Raises UsageError.

    It is that of each GPU, or with ``/node`` that of all NICs of a node together. The fabric between nodes (``efa``),
    and the fabric inside nodes if it is not the GPU's usual one (``host``), follow in any order; so do ``p2p=off``
    (GPUs cannot reach each other's memory), ``sockets=1`` (all are at one CPU) or 2, ``oversubscribed=2`` (switches
    pass on half of what nodes send), ``sharp`` (InfiniBand's switches add up), ``nccl=2.21`` (its release)
    and ``a2a=deepep`` (kernels of experts' all-to-alls).
    """
    match = re.fullmatch(r"\s*(.+)x([0-9]{1,6})\s*", parts[0])
    words = [word.strip().lower() for word in parts[1:]]
    said = _values(name, [word for word in words if "=" in word])
    words = [word for word in words if "=" not in word]
    sharp = SHARP in words
    words = [word for word in words if word != SHARP]
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
    within = _reaching(name, device, within, said.get("p2p", ""))
    if between and not rates:
        raise UsageError(
            f"{name!r}: {between} needs the bandwidth of the network, as in nccl:{parts[0]},200Gbps,{between}"
        )
    network = _per_gpu(next(part for part in parts[1:] if part.strip().lower() == rates[0]), gpus) if rates else None
    if network is not None:
        network /= float(said.get("oversubscribed", 1))
    if sharp and (network is None or between not in ("", "ib")):
        raise UsageError(
            f"{name!r}: {SHARP} is for several nodes over InfiniBand, as in nccl:{parts[0]},400Gbps,ib,{SHARP}"
        )
    shape = _at_sockets(_shape(name, device, within or device.fabric, network, between), device, said.get("sockets"))
    shape = replace(shape, sharp=sharp, release=said.get("nccl", ""), experts=said.get("a2a", "").replace("nccl", ""))
    return Cluster(name, "nccl", gpus_per_node=gpus, nodes=None if network else 1, nccl=shape)


SHARP = "sharp"
VALUES = {
    "p2p": ("on", "off"),
    "sockets": ("1", "2"),
    "oversubscribed": ("1", "1.5", "2", "3", "4"),
    "nccl": ("2.21", "2.28"),
    "a2a": ("nccl", *EXPERT_KERNELS),
}
"""Words with values, and examples of these."""
FORMS = {"oversubscribed": r"[0-9]{1,3}(\.[0-9]{1,3})?", "nccl": r"2\.[0-9]{1,3}"}
"""Words whose values are numbers, and how these look."""
MOST_OVERSUBSCRIBED = 100.0


def _values(name: str, words: Sequence[str]) -> dict[str, str]:
    """The words with values. Raises UsageError for others, and for values that they cannot have."""
    found: dict[str, str] = {}
    for word in words:
        key, _, value = (part.strip() for part in word.partition("="))
        if key not in VALUES or key in found:
            what = "is said twice: leave one out" if key in found else f"is unknown: {suggestion(key, VALUES)}"
            raise UsageError(f"{name!r}: {key}= {what}")
        number = key in FORMS and re.fullmatch(FORMS[key], value)
        if value not in VALUES[key] and not (number and 1 <= float(value) <= MOST_OVERSUBSCRIBED):
            raise UsageError(f"{name!r}: {word}: write {key}={f' or {key}='.join(VALUES[key][-2:])}")
        found[key] = value
    return found


def _reaching(name: str, device: Gpu, within: str, p2p: str) -> str:
    """The fabric inside a node by whether GPUs reach each other's memory."""
    if p2p == "off" and within not in ("", "host"):
        raise UsageError(f"{name!r}: without peer access copies go through the host: leave {within} out")
    if p2p == "on" and (within or device.fabric) == "host":
        return "pcie"
    return "host" if p2p == "off" else within


def _at_sockets(shape: NcclShape, device: Gpu, sockets: str | None) -> NcclShape:
    """The shape with GPUs at one CPU or at two; PCIe has two where nothing is said, and host memory is not told."""
    if sockets is None or shape.fabric not in ("pcie", "host", "nvlink-pairs"):
        return shape
    host = known.HOSTS[device.pcie]
    apart = host.between_cpus if sockets == "2" else None
    memory = shape.memory_bandwidth and (shape.memory_bandwidth if sockets == "2" else shape.memory_bandwidth / 2)
    if shape.fabric == "nvlink-pairs" and apart is None:
        apart = host.slot / known.PEER_OVERHEAD
    return replace(shape, host_bandwidth=apart, memory_bandwidth=memory)


def _device(name: str, word: str) -> Gpu:
    """The GPU called ``word``. Raises UsageError."""
    if not _name(word):
        others = "any other GPU is said by its links, as in hierarchical:8,5us,200GB/s,50us,25Gbps"
        raise UsageError(f"{name}: unknown GPU {word!r}: {suggestion(word, GPUS)}; {others}")
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
    host = known.HOSTS[device.pcie]
    if fabric in ("pcie", "host"):
        bandwidth = host.slot / known.PEER_OVERHEAD if fabric == "pcie" else host.slot
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
    parts = [part.strip() for part in words[2].split(",") if "=" not in part]
    rate = next(part for part in parts if part.lower() not in (*FABRICS, *NETWORKS, SHARP))
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
