"""The network between the workers: links, published fits, or measured tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from osfmodel.entities.display import VIEWED, brief, how_many, show_bytes, show_time
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.errors import DataError, require_count, require_name, require_positive, require_time
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.measurement import Source

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
GPU_GENERATIONS = ("volta", "ampere", "hopper", "blackwell", "cdna")
LIBRARIES = ("", "nccl", "ccl", "mpi", "gloo")
"""Libraries that run collectives; "" if not stated."""
BLOCKING = ("ccl", "mpi", "gloo")
"""Libraries whose collectives block the calling thread when Horovod calls them."""
REPEATED = 5
"""Minimum number of repeats of a size whose slowest is kept."""
FABRICS = ("nvswitch", "nvlink-mesh", "nvlink-pairs", "pcie", "host")
"""Fabrics of a node: a switch, the DGX-1's hybrid cube mesh of 6 NVLinks a GPU, NVLink bridges between pairs, PCIe with
peer access, or copies through the host's memory."""
NETWORKS = ("ib", "roce", "efa", "tcpxo", "tcp", "ena")
"""Fabrics between nodes: InfiniBand, RDMA over Ethernet, AWS EFA, Google's TCPXO, and kernel sockets."""
EXPERT_KERNELS = ("deepep",)
"""Kernels of all-to-alls between experts besides NCCL's."""


@dataclass(frozen=True, slots=True)
class Link:
    """A point-to-point path: seconds of latency, seconds per byte sent, seconds per byte added up (reduced)."""

    latency: float
    seconds_per_byte: float
    reduce_seconds_per_byte: float = 0.0
    __repr__ = brief

    def __post_init__(self) -> None:
        require_time(self.latency, "latency of a link")
        require_time(self.seconds_per_byte, "seconds per byte of a link")
        require_time(self.reduce_seconds_per_byte, "reduce seconds per byte of a link")


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """A published or fitted Hockney line for one worker count: time = latency + seconds_per_byte * bytes."""

    workers: int
    latency: float
    seconds_per_byte: float
    collective: str = "all_reduce"
    __repr__ = brief

    def __post_init__(self) -> None:
        require_count(self.workers, "workers of an alpha-beta fit", least=2)
        require_time(self.latency, f"latency of the fit for {self.workers} workers")
        require_time(self.seconds_per_byte, f"seconds per byte of the fit for {self.workers} workers")
        _require_collective(self.collective)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines for one worker count, of which the lowest applies: time = min_k latencies[k] + seconds_per_byte[k] * bytes.

    Examples are NCCL's choice among protocols, and a fit to a table.
    """

    workers: int
    latencies: tuple[float, ...]
    seconds_per_byte: tuple[float, ...]
    collective: str = "all_reduce"

    def __post_init__(self) -> None:
        where = f"the {self.collective} pieces for {self.workers!r} workers"
        require_count(self.workers, f"workers of {where}", least=2)
        _require_collective(self.collective)
        if len(self.latencies) != len(self.seconds_per_byte) or not self.latencies:
            raise DataError(f"{where} need as many latencies as seconds per byte, 1 or more")
        for value in (*self.latencies, *self.seconds_per_byte):
            require_time(value, f"a figure of {where}")

    def __repr__(self) -> str:
        lines = how_many(len(self.latencies), "line")
        return brief(self, f"{self.collective} with {how_many(self.workers, 'worker')}: {lines}")


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol that a library may use for a collective over two levels, the same for every worker count.

    ``latency`` and ``seconds_per_byte`` are paid once, whatever the worker count (a launch, a copy in local memory);
    ``in_node`` and ``between_nodes`` are the cost of a hop there, None if no such hop was measured.
    """

    latency: float
    seconds_per_byte: float
    in_node: Link | None = None
    between_nodes: Link | None = None

    def __post_init__(self) -> None:
        require_time(self.latency, "latency of a protocol")
        require_time(self.seconds_per_byte, "seconds per byte of a protocol")

    def __repr__(self) -> str:
        links = (("in a node", self.in_node), ("between nodes", self.between_nodes))
        hops = "".join(f", {show_time(link.latency)} per hop {where}" for where, link in links if link is not None)
        return brief(self, f"{show_time(self.latency)} per message{hops}")


@dataclass(frozen=True, slots=True)
class Table:
    """Measured times of one collective for one worker count: ``times[k]`` seconds for ``sizes[k]`` bytes.

    ``startups[k]`` seconds of them are start-up, which overlaps with that of others in flight, if that was measured.
    ``trains[k]`` seconds is the time of each of many messages of ``sizes[k]`` bytes back to back in one queue; the
    largest sizes, or all, may be left out. ``cpu_share`` is the processor time of the ranks of a host over that of its
    cores while the largest messages went, None if that was not measured. ``slowest[k]`` seconds took the slowest
    repeat of ``sizes[k]``, whose median is the time; sizes of fewer than REPEATED repeats have the time itself.
    """

    workers: int
    sizes: tuple[int, ...]
    times: tuple[float, ...]
    collective: str = "all_reduce"
    startups: tuple[float, ...] = ()
    trains: tuple[float, ...] = ()
    cpu_share: float | None = None
    slowest: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        where = f"the {self.collective} table for {self.workers!r} workers"
        require_count(self.workers, f"workers of {where}", least=2)
        _require_collective(self.collective)
        if len(self.sizes) != len(self.times) or len(self.sizes) < 2:
            raise DataError(
                f"{where} has {len(self.sizes)} sizes and {len(self.times)} times: it needs 2 or more of each"
            )
        for size, time in zip(self.sizes, self.times, strict=True):
            require_count(size, f"a size in {where}", least=1)
            require_time(time, f"the time of {size} bytes in {where}")
        for before, after in zip(self.sizes, self.sizes[1:], strict=False):
            if before >= after:
                raise DataError(f"{where}: size {after} follows {before}, but sizes must increase")
        if len(self.startups) not in (0, len(self.times)):
            raise DataError(f"{where} has {len(self.times)} times and {len(self.startups)} start-ups")
        for startup, time in zip(self.startups, self.times, strict=False):
            require_time(startup, f"a start-up in {where}")
            if startup > time:
                raise DataError(f"{where}: a start-up of {startup!r} s is longer than its time, {time!r} s")
        if len(self.trains) > len(self.sizes):
            raise DataError(f"{where} has {len(self.sizes)} sizes and {len(self.trains)} times of trains")
        for size, train in zip(self.sizes, self.trains, strict=False):
            require_time(train, f"the time of {size} bytes in a train in {where}")
        if len(self.slowest) not in (0, len(self.times)):
            raise DataError(f"{where} has {len(self.times)} times and {len(self.slowest)} slowest ones")
        for slowest, time in zip(self.slowest, self.times, strict=False):
            require_time(slowest, f"a slowest time in {where}")
            if slowest < time:
                raise DataError(f"{where}: the slowest repeat, {slowest!r} s, is shorter than the time, {time!r} s")
        if self.cpu_share is not None:
            require_time(self.cpu_share, f"cpu_share of {where}")

    def __repr__(self) -> str:
        sizes = f"{len(self.sizes)} sizes, {show_bytes(self.sizes[0])} to {show_bytes(self.sizes[-1])}"
        return brief(self, f"{self.collective} with {how_many(self.workers, 'worker')}: {sizes}")


@dataclass(frozen=True, slots=True)
class NcclShape:
    """Properties of the machines that NCCL's tuner needs: the GPUs, the fabric of a node, and the network.

    gpu_bandwidth:     bytes per second that each GPU sends over the fabric of its node, in NCCL's accounting
    nic_bandwidth:     bytes per second of network per GPU; None for a single node
    network:           fabric between nodes; "" if not stated, priced as ib
    host_bandwidth:    bytes per second of each GPU between CPUs, for more than two GPUs of pcie, host and nvlink-pairs
    memory_bandwidth:  bytes per second of the memory of a host, which all GPUs of fabric host share
    nvls:              whether NVSwitch adds up for the GPUs (NVLink SHARP)
    latency_scale:     factor on NCCL's latencies inside a node, 1 unless fitted
    net_latency_scale: factor on NCCL's latencies of the network and on pace, 1 unless fitted
    pace:              seconds that each step of an all-gather or reduce-scatter between nodes takes at least; None for
                       what is known of the fabric
    sharp:             whether the switches between nodes add up (SHARP of InfiniBand, NCCL_COLLNET_ENABLE=1)
    release:           NCCL's, such as "2.21"; "" for the newest that is known
    experts:           kernels of all-to-alls to experts, "deepep"; "" for NCCL's
    """

    generation: str
    fabric: str
    gpu_bandwidth: float
    nic_bandwidth: float | None = None
    nvls: bool = False
    latency_scale: float = 1.0
    net_latency_scale: float = 1.0
    network: str = ""
    host_bandwidth: float | None = None
    memory_bandwidth: float | None = None
    pace: float | None = None
    sharp: bool = False
    release: str = ""
    experts: str = ""
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.generation not in GPU_GENERATIONS:
            raise DataError(
                f"unknown GPU generation {self.generation!r}: {suggestion(self.generation, GPU_GENERATIONS)}"
            )
        if self.fabric not in FABRICS:
            raise DataError(f"unknown fabric {self.fabric!r} inside a node: {suggestion(self.fabric, FABRICS)}")
        require_positive(self.gpu_bandwidth, "the bandwidth of a GPU inside its node")
        if self.nic_bandwidth is not None:
            require_positive(self.nic_bandwidth, "the network bandwidth of a GPU")
        if self.network and self.network not in NETWORKS:
            raise DataError(f"unknown network {self.network!r} between nodes: {suggestion(self.network, NETWORKS)}")
        for value, what in ((self.host_bandwidth, "between CPUs"), (self.memory_bandwidth, "of the host's memory")):
            if value is not None:
                require_positive(value, f"the bandwidth {what}")
        if self.fabric == "nvlink-pairs" and self.host_bandwidth is None:
            raise DataError("nvlink-pairs need the bandwidth of each GPU between pairs (host_bytes_per_s)")
        require_time(self.latency_scale, "the latency scale inside nodes")
        require_time(self.net_latency_scale, "the latency scale of the network")
        if self.pace is not None:
            require_time(self.pace, "the pace of the network")
        if self.sharp and self.network not in ("", "ib"):
            raise DataError(f"SHARP is InfiniBand's: {self.network} has none")
        if self.release and not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", self.release):
            raise DataError(f"the release of NCCL is {self.release!r}: write it as 2.21")
        if self.experts not in ("", *EXPERT_KERNELS):
            raise DataError(f"unknown kernels to experts {self.experts!r}: {suggestion(self.experts, EXPERT_KERNELS)}")
        if self.nvls and (self.fabric != "nvswitch" or self.generation not in ("hopper", "blackwell")):
            raise DataError("NVLS needs an nvswitch fabric and hopper or later GPUs")


@dataclass(frozen=True, slots=True)
class FittedRange:
    """The sizes, from ``smallest`` to ``largest``, and ``workers`` of the samples behind a fitted cluster."""

    smallest: int
    largest: int
    workers: tuple[int, ...]
    __repr__ = brief

    def __post_init__(self) -> None:
        require_count(self.smallest, "the smallest size of a fit", least=1)
        require_count(self.largest, "the largest size of a fit", least=self.smallest)
        for count in self.workers:
            require_count(count, "workers of a fit", least=2)


@dataclass(frozen=True, slots=True)
class Contention:
    """Speed-up of many simultaneous collectives between so many workers: together ``gain`` times that of one.

    It is 1 if a single one already fills the network. See ``osfmodel.cost.pricing`` for a few at once.
    """

    workers: int
    gain: float

    def __post_init__(self) -> None:
        require_count(self.workers, "workers of a contention", least=2)
        require_time(self.gain, f"the gain of simultaneous collectives with {self.workers} workers")
        if self.gain < 1:
            raise DataError(f"the gain of simultaneous collectives is {self.gain!r}: it must be 1 or more")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The workers' machines and network.

    cost_model:    the entry of ``osfmodel.cost.COST_MODELS`` that prices collectives here; it reads the data that it
                   needs: links, ``fits``, ``tables``, ``nccl``, ``pieces`` or ``protocols``
    gpus_per_node: workers of a node; they fill one node after the other
    nodes:         largest number of nodes, if limited
    nics_per_node: links ``between_nodes`` of a node, which its workers share evenly (read by the hierarchical model)
    between_nodes, in_node: links
    fitted:        the range of a fit, beyond which prices are extrapolated
    effects:       those that were measured there; without any, those that are usual on its GPUs apply
                   (``entities.files.usual_effects``)
    usual_effects: whether they do
    doubt:         fraction by which prices may be off, either way, beyond what those of the cost model are, as of a
                   what-if
    in_flight:     collectives of one queue (a process group) that the library runs at once: 1 with NCCL, the worker
                   threads of gloo
    library:       one of LIBRARIES
    """

    name: str
    cost_model: str
    gpus_per_node: int = 1
    nodes: int | None = None
    nics_per_node: int = 1
    between_nodes: Link | None = None
    in_node: Link | None = None
    fits: tuple[AlphaBeta, ...] = ()
    tables: tuple[Table, ...] = ()
    nccl: NcclShape | None = None
    pieces: tuple[Pieces, ...] = ()
    protocols: tuple[Protocol, ...] = ()
    contention: tuple[Contention, ...] = ()
    fitted: FittedRange | None = None
    effects: Effects = NO_EFFECTS
    usual_effects: bool = True
    doubt: float = 0
    in_flight: int = 1
    library: str = ""
    source: Source = Source()
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __post_init__(self) -> None:
        require_name(self.name, "the name of the cluster")
        require_count(self.gpus_per_node, f"GPUs per node of cluster {self.name!r}", least=1)
        require_count(self.nics_per_node, f"NICs per node of cluster {self.name!r}", least=1)
        require_time(self.doubt, f"the doubt of cluster {self.name!r}")
        require_count(self.in_flight, f"collectives in flight of cluster {self.name!r}", least=1)
        if self.library not in LIBRARIES:
            meant = suggestion(self.library, filter(None, LIBRARIES))
            raise DataError(f"unknown library {self.library!r} of cluster {self.name!r}: {meant}")
        if self.nodes is not None:
            require_count(self.nodes, f"nodes of cluster {self.name!r}", least=1)
        for kind, keys in (
            ("fits", [(row.collective, row.workers) for row in self.fits]),
            ("tables", [(row.collective, row.workers) for row in self.tables]),
            ("pieces", [(row.collective, row.workers) for row in self.pieces]),
        ):
            if len(set(keys)) < len(keys):
                raise DataError(f"cluster {self.name!r} has two {kind} for the same collective and worker count")

    def __repr__(self) -> str:
        counts = sorted({row.workers for rows in (self.fits, self.pieces, self.tables) for row in rows})
        known = f", for {', '.join(map(str, counts))} workers" if counts else ""
        nodes = "" if self.nodes is None else f"{how_many(self.nodes, 'node')}, "
        gpus = how_many(self.gpus_per_node, "GPU")
        return brief(self, f"{self.name}: {self.cost_model}, {nodes}{gpus} per node{known}")

    @property
    def capacity(self) -> int | None:
        """Maximum number of workers that fit, or None without a limit."""
        return None if self.nodes is None else self.nodes * self.gpus_per_node


def _require_collective(name: str) -> None:
    if name not in COLLECTIVES:
        raise DataError(f"unknown collective {name!r}: {suggestion(name, COLLECTIVES)}")
