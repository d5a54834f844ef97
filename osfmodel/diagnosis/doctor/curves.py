"""Measured times of a collective by size, beside the price from data sheets; its slowest repeats; peers of its machine.

Machines whose bundled tables serve as peers are known here, each in the words of somebody who knows its data sheet.
All machines are compared by ln(measured / price from data sheets), so machines of other sizes and rates are peers. A
machine with several worker counts of one kind counts once, with the median of its tables at each size.

Slowest repeats of a size tell healthy machines, busy networks and lost packets apart: a lost packet is sent again after
a timeout: 0.2 s with Linux's TCP, whatever the size, and up to seconds with RDMA. So a few calls are very late and the
median is as it should be. Other traffic disturbs most calls, by less.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from osfmodel.cost import COST_MODELS, cost_of
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.model import Placement, layout_of
from osfmodel.cost.nccl_fit import LARGE, part_of
from osfmodel.cost.shapes import Array
from osfmodel.entities.cluster import Cluster, Table
from osfmodel.entities.display import brief, how_many
from osfmodel.entities.files import profiles
from osfmodel.entities.rounding import plain_sum


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
        "sharp": "InfiniBand or RoCE networks",
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
    return "by_nic" if part in ("not stated", "sharp") else part


def placed(cluster: Cluster, workers: int) -> Placement:
    """The placement of ``workers`` on the nodes of ``cluster``."""
    return layout_of(workers, cluster.gpus_per_node)


@dataclass(frozen=True, slots=True)
class Curve:
    """One table, thinned to a size per octave: seconds measured and seconds priced, by bytes.

    label:   the file, or the bundled cluster
    kind:    a key of machines.KINDS
    slowest: seconds of the slowest repeat of each size, its time where that is not known; () if no size has it
    """

    label: str
    collective: str
    place: Placement
    kind: str
    sizes: tuple[int, ...]
    times: tuple[float, ...]
    prices: tuple[float, ...]
    slowest: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return brief(self, f"{self.label}: {self.collective} with {how_many(self.place.workers, 'worker')}")

    @property
    def crosses_nodes(self) -> bool:
        """Whether its workers are on several nodes."""
        return self.place.nodes > 1

    @property
    def octaves(self) -> Array:
        """The whole base-2 logarithm next to each size."""
        return np.array([round(math.log2(size)) for size in self.sizes])

    @property
    def ratios(self) -> Array:
        """ln(measured / priced) at each size."""
        found: Array = np.log(np.array(self.times) / np.array(self.prices))
        return found

    @property
    def lateness(self) -> Array:
        """ln(slowest repeat / median) at each size, 0 where that is not known."""
        found: Array = np.log(np.array(self.slowest or self.times) / np.array(self.times))
        return found


def curve_of(label: str, table: Table, against: Cluster) -> Curve:
    """The table beside the prices of ``against``. Raises CostError where that has too few workers or no network."""
    kept = by_octave(table.sizes, table.times)
    price = cost_of(against, table.workers, table.collective)
    place = placed(against, table.workers)
    return Curve(
        label,
        table.collective,
        place,
        kind_of(against, place),
        tuple(table.sizes[k] for k in kept),
        tuple(table.times[k] for k in kept),
        tuple(float(price(table.sizes[k])) for k in kept),
        tuple(table.slowest[k] for k in kept) if table.slowest else (),
    )


def prices_of(cluster: Cluster, curves: Sequence[Curve]) -> Array:
    """Seconds on ``cluster`` of every point of ``curves``, one curve after the other. Raises CostError."""
    found = [
        cost_of(cluster, curve.place.workers, curve.collective)(np.array(curve.sizes, dtype=float)) for curve in curves
    ]
    return np.concatenate(found)


def by_octave(sizes: Sequence[int], times: Sequence[float]) -> list[int]:
    """Positions of the sizes nearest to each power of two, one of an octave; times of 0 are left out."""
    nearest: dict[int, tuple[float, int]] = {}
    for place, (size, time) in enumerate(zip(sizes, times, strict=True)):
        octave = round(math.log2(size))
        off = abs(math.log2(size) - octave)
        if time > 0 and off < nearest.get(octave, (math.inf, 0))[0]:
            nearest[octave] = off, place
    return [place for _, (_, place) in sorted(nearest.items())]


class Tail(NamedTuple):
    """Distribution of ln(slowest repeat / median) of a size: a t distribution around ``middle``, as wide as ``spread``.

    At a fraction ``share`` of the sizes some repeat has waited for ``seconds`` beside.
    """

    middle: float = 0.2
    spread: float = 0.3
    share: float = 0.0
    seconds: float = 0.0


HEALTHY_TAIL = Tail()
BUSY_TAILS = (HEALTHY_TAIL, Tail(0.7, 0.7))
"""Of a network that others use: a steady stream delays all calls alike."""
LOSS_TAILS: Mapping[float, tuple[Tail, ...]] = {
    seconds: tuple(Tail(share=share, seconds=seconds) for share in (0.25, 0.75)) for seconds in (0.2, 1.0)
}
"""Of lost packets, by the seconds of a timeout: of Linux's TCP, and of RDMA with NCCL's settings."""
ANY_TAIL = (*BUSY_TAILS, *chain.from_iterable(LOSS_TAILS.values()))
FREEDOM = 4.0
"""Degrees of freedom of all t distributions here: of slowest repeats, and of medians."""
WAITED = 0.5
"""Spread of ln(slowest / median) where a repeat waited: timeouts add up, or grow."""
ODD, RANGE = 0.02, math.log(1000)
"""Fraction of sizes with a slowest repeat that has nothing to do with the network, and the range of its logarithm."""


def log_likelihood(lateness: Array, times: Array, tail: Tail) -> float:
    """ln of the density of ``lateness``, ln(slowest / median) of each size, with these medians in seconds."""
    found = (1 - tail.share) * _density(lateness, tail.middle, tail.spread)
    if tail.share:
        found = found + tail.share * _density(lateness, np.log1p(tail.seconds / times) + tail.middle, WAITED)
    return float(np.log((1 - ODD) * found + ODD / RANGE).sum())


def _density(values: Array, middle: Array | float, spread: float) -> Array:
    found: Array = np.exp(log_density_of_t(((values - middle) / spread) ** 2)) / spread
    return found


def log_density_of_t(squares: Array) -> Array:
    """ln of the density of a t distribution of FREEDOM degrees, at values with these squares."""
    half = (FREEDOM + 1) / 2
    top = math.lgamma(half) - math.lgamma(FREEDOM / 2) - 0.5 * math.log(FREEDOM * math.pi)
    found: Array = top - half * np.log1p(squares / FREEDOM)
    return found


Ratios = Mapping[int, float]
"""ln(measured / priced) by octave."""
NINETY = 1.645
"""Standard deviations on either side of the mean that hold nine tenths of a normal distribution."""
STATED = 2.0
"""Weight, in machines, of the uncertainty that the cost model states, beside the spread of the peers."""
LAST, FIRST = "bandwidth", "start-up"
CLASSES: Mapping[str, tuple[int, int]] = {FIRST: (0, 17), "middle": (17, 23), LAST: (23, 99)}
"""Octaves of the parts of a curve: to below 128 KiB, to below 8 MiB, and beyond."""
LEAST_SPREAD = 0.05
"""Minimum standard deviation of ln(measured / price): repeats of one measurement differ by as much."""


@dataclass(frozen=True, slots=True)
class PercentileRange:
    """A place among ``peers`` machines: faster, for its price, than ``low`` to ``high`` of all machines (0 to 1)."""

    low: float
    high: float
    peers: int


@cache
def known_curves() -> tuple[tuple[str, Curve], ...]:
    """(machine, curve) of every bundled all-reduce table of KNOWN_MACHINES, beside the price of its own words."""
    found = []
    present = profiles.names("cluster")
    for name, known in KNOWN_MACHINES.items():
        if name in present:
            against = load_cluster(known.words)
            tables = (table for table in load_cluster(name).tables if table.collective == "all_reduce")
            found += [(known.machine, curve_of(name, table, against)) for table in tables]
    return tuple(found)


def ratios_of(curves: Iterable[Curve]) -> Ratios:
    """The median over ``curves``, of one machine and kind, of ln(measured / priced), by octave."""
    found: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for octave, ratio in zip(curve.octaves.tolist(), curve.ratios.tolist(), strict=True):
            found[octave].append(ratio)
    return {octave: median(values) for octave, values in sorted(found.items())}


def peers_of(kind: str, without: str = "") -> Mapping[str, Sequence[Curve]]:
    """Curves of each known machine of ``kind``, except the machine ``without``."""
    found: dict[str, list[Curve]] = defaultdict(list)
    for machine, curve in known_curves():
        if curve.kind == kind and machine != without:
            found[machine].append(curve)
    return found


def percentile(ratio: float, peers: Sequence[float]) -> PercentileRange | None:
    """The place of ``ratio`` among those of ``peers``; None without any.

    With k of n peers slower, each of the n + 1 places is as likely for one more machine, so the share of all machines
    that are slower lies between k / (n + 1) and (k + 1) / (n + 1). Peers that are equal widen the range.
    """
    if not peers:
        return None
    slower, equal = sum(peer > ratio for peer in peers), sum(peer == ratio for peer in peers)
    places = len(peers) + 1
    return PercentileRange(slower / places, (slower + equal + 1) / places, len(peers))


def nearest(workers: int, curves: Sequence[Curve]) -> tuple[float, Ratios]:
    """Ratios of a machine's tables with the nearest worker count, and their weight: 1 for the same, less for others."""
    apart = {curve.place.workers: abs(math.log2(curve.place.workers / workers)) for curve in curves}
    least = min(apart.values())
    return 1 / (1 + least), ratios_of(curve for curve in curves if apart[curve.place.workers] == least)


def at_octave(octave: int, peers: Mapping[str, Sequence[Curve]]) -> list[float]:
    """The ratios of the peers that were measured at this octave."""
    return [ratios[octave] for ratios in map(ratios_of, peers.values()) if octave in ratios]


def over(ratios: Ratios, low: int, high: int) -> float | None:
    """The median ratio of the octaves from ``low`` to below ``high``; None if none was measured."""
    found = [ratio for octave, ratio in ratios.items() if low <= octave < high]
    return median(found) if found else None


def expected(curve: Curve, against: Cluster, peers: Mapping[str, Sequence[Curve]]) -> tuple[Array, Array]:
    """Mean and standard deviation of ln(measured / priced) of a healthy machine, at each size of ``curve``.

    Those of the peers at that size, of which machines with as many workers weigh most; with the cost model's own
    uncertainty in the place of STATED machines. A new machine also strays by the uncertainty of their mean.
    """
    doubts = COST_MODELS[against.cost_model].uncertainty(against, curve.place.workers)
    whole, large = (math.log1p(doubt) / NINETY for doubt in doubts)
    near = [nearest(curve.place.workers, curves) for curves in peers.values()]
    means, spreads = [], []
    for octave in curve.octaves.tolist():
        found = [(weight, ratios[octave]) for weight, ratios in near if octave in ratios]
        weights = plain_sum(weight for weight, _ in found)
        mean = plain_sum(weight * ratio for weight, ratio in found) / (weights + 1)
        prior = large if 2**octave >= LARGE else whole
        squares = STATED * prior**2 + plain_sum(weight * (ratio - mean) ** 2 for weight, ratio in found)
        means.append(mean)
        spreads.append(max(math.sqrt(squares / (STATED + weights) * (1 + 1 / (weights + 1))), LEAST_SPREAD))
    return np.array(means), np.array(spreads)
