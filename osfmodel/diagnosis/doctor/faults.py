"""Known faults of networks: the curve of each, the sentence about it, and the experiment that would prove it.

A fault is a set of variants, each a shift of ln(time) at every measured size. Most are priced: the machine's
description with the fault put in, by the same cost model, so nothing here was learned from a faulty machine. A variant
may also have ``noise``, scatter from one size to the next that healthy machines do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from osfmodel.cost import nccl_constants as known
from osfmodel.cost.faster_network import Change, faster_network
from osfmodel.cost.fitting import noise
from osfmodel.cost.shapes import Array
from osfmodel.diagnosis.doctor.curves import (
    BUSY_TAILS,
    CLASSES,
    FIRST,
    HEALTHY_TAIL,
    LAST,
    LOSS_TAILS,
    Curve,
    Tail,
    over,
    prices_of,
    ratios_of,
)
from osfmodel.entities.cluster import Cluster, NcclShape
from osfmodel.entities.display import how_many, show_bytes
from osfmodel.entities.units import show_rate


class Variant(NamedTuple):
    """A form of a fault: its words, ln(time with it / time without) at every point, and scatter of ln(time).

    ``tails`` are distributions of the slowest repeats between nodes, each as likely.
    """

    words: str
    shift: Array
    noise: float = 0.0
    tails: tuple[Tail, ...] = (HEALTHY_TAIL,)


class MeasuredMachine(NamedTuple):
    """Curves of one machine, beside the description of the healthy one."""

    against: Cluster
    curves: tuple[Curve, ...]

    def each(self, value: Callable[[Curve], Array]) -> Array:
        """``value`` of every curve, one after the other."""
        return np.concatenate([value(curve) for curve in self.curves])

    @property
    def prices(self) -> Array:
        """Seconds that the description says, at every point."""
        return self.each(lambda curve: np.array(curve.prices))

    @property
    def spread_out(self) -> bool:
        """Whether some curve crosses nodes."""
        return any(curve.crosses_nodes for curve in self.curves)

    @property
    def crossing(self) -> Array:
        """Whether each point is of a curve that crosses nodes."""
        return self.each(lambda curve: np.full(len(curve.sizes), curve.crosses_nodes))

    def slowdown(self, part: str, where: Callable[[Curve], bool] = lambda curve: True) -> float:
        """Measured / expected time: the median over a part of the curves, or the size next to it if it has none."""
        ratios = ratios_of(curve for curve in self.curves if where(curve))
        low, high = CLASSES[part]
        found = over(ratios, low, high)
        if found is None:
            found = ratios[min(ratios, key=lambda octave: max(low - octave, octave - high))]
        return math.exp(found)

    def under(self, words: str, fault: Cluster, where: Callable[[Curve], bool] = lambda curve: True) -> Variant:
        """The variant with the prices of ``fault`` on the curves for which ``where`` is true."""
        hit = self.each(lambda curve: np.full(len(curve.sizes), where(curve)))
        return Variant(words, np.where(hit, np.log(prices_of(fault, self.curves) / self.prices), 0.0))


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """A fault of a network.

    variants:   its forms on a machine; none where it cannot occur
    summary:    the fault in a few words
    sentence:   about a machine that has it, given the words of the likeliest variant
    experiment: the command that would prove it or rule it out
    """

    variants: Callable[[MeasuredMachine], Iterator[Variant]]
    summary: str
    sentence: Callable[[str], str]
    experiment: str


PARTS = (1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 8, 1 / 16)
"""Parts of the bandwidth that are tried: one or some of 2 to 16 NICs, a port or a slot at a lower speed."""
NEAR = 0.05
"""Maximum relative difference between the measured part of the bandwidth and that of the NICs that are named."""
LONGER = (4.0, 16.0, 64.0, 256.0)
"""Factors on the latency of a hop that are tried."""
SOCKETS = tuple(rate * 1e9 / 8 for rate in (10, 25, 50, 100))
"""Bytes per second of a node over kernel sockets: usual Ethernet ports."""
STEPS = (1.5, 2.5, 4.0)
"""Factors on the time beyond a cliff that are tried."""
EDGE = 2
"""Octaves at either end of a curve where a step is no cliff, since too few sizes show it."""
SCATTER = (0.25, 0.6)
"""Standard deviations of ln(time) from one size to the next, of a network that others use or that loses packets."""
SEEN = 0.1
"""Minimum scatter of the measured times, as a standard deviation of ln(time), for which scatter is an explanation."""
SLOWED = 1.6
"""Factor on the time while others use the network: about half of its bandwidth, at all sizes."""
SHARED_PART = 1 / 2
"""Part of the bandwidth that is left beside one other stream."""
FULL_RATE = 1.7
"""Minimum factor between the prices of a size and half of it where bytes decide the time."""


def _bandwidth(measured: MeasuredMachine) -> Iterator[Variant]:
    between = measured.spread_out
    if not between and measured.against.nccl is None:
        return
    where = _crosses if between else (lambda curve: True)
    got = 1 / measured.slowdown(LAST, where)
    words = f"{got:.0%} of the bandwidth that they should{_nics(measured.against, got) if between else ''}"
    for part in PARTS:
        yield measured.under(words, faster_network(measured.against, Change(part)), where)


def _crosses(curve: Curve) -> bool:
    return curve.crosses_nodes


def _nics(against: Cluster, part: float) -> str:
    """The NICs that would have about this part of a node's bandwidth, if there are so many."""
    stated = against.nics_per_node > 1
    count = against.nics_per_node if stated else against.gpus_per_node
    used = round(part * count)
    if not 1 <= used < count or abs(part * count / used - 1) > NEAR:
        return ""
    return f", as with {used} of {how_many(count, 'NIC')}{'' if stated else ' (one per GPU)'}"


def _latency(measured: MeasuredMachine) -> Iterator[Variant]:
    longer = measured.slowdown(FIRST)
    words = f"{longer:.0f}x" if longer >= 10 else f"{longer:.1f}x"
    for factor in LONGER:
        fault = faster_network(measured.against, latency=Change(factor))
        yield measured.under(words, fault)


def _sockets(measured: MeasuredMachine) -> Iterator[Variant]:
    shape = measured.against.nccl
    if shape is None or shape.nic_bandwidth is None or not measured.spread_out or shape.network in ("tcp", "ena"):
        return
    for rate in SOCKETS:
        each = min(shape.nic_bandwidth, rate / measured.against.gpus_per_node)
        fault = replace(measured.against, nccl=replace(shape, network="tcp", nic_bandwidth=each))
        yield measured.under(f"sockets of {show_rate(rate)} per node", fault, _crosses)


def _peer_access(measured: MeasuredMachine) -> Iterator[Variant]:
    shape, gpus = measured.against.nccl, measured.against.gpus_per_node
    if shape is None or shape.fabric == "host" or all(curve.place.fullest == 1 for curve in measured.curves):
        return
    host = known.HOSTS[4 if shape.generation == "ampere" else 3 if shape.generation == "volta" else 5]
    staged = _without_nvlink(shape, "host", host.slot, host)
    yield measured.under("copies through host memory", replace(measured.against, nccl=staged))
    if shape.fabric != "pcie":
        direct = _without_nvlink(shape, "pcie", host.slot / known.PEER_OVERHEAD, host)
        yield measured.under("copies over PCIe", replace(measured.against, nccl=direct))
    if shape.nic_bandwidth is not None and gpus > 1:
        yield measured.under("copies inside nodes over NICs", replace(measured.against, gpus_per_node=1, nodes=None))


def _without_nvlink(shape: NcclShape, fabric: str, bandwidth: float, host: known.HostPaths) -> NcclShape:
    return replace(
        shape, fabric=fabric, gpu_bandwidth=bandwidth, nvls=False,
        host_bandwidth=host.between_cpus, memory_bandwidth=host.memory,
    )  # fmt: skip


def _cliff(measured: MeasuredMachine) -> Iterator[Variant]:
    """Steps at sizes where bus bandwidth falls: over a few octaves, or for good once bytes decided the time before."""
    octaves = measured.each(lambda curve: curve.octaves)
    last = int(octaves.max())
    full = set().union(*map(_at_full_rate, measured.curves))
    for start in sorted(set().union(*map(_falls, measured.curves))):
        ends = [end for end in (start + 1, start + 2, start + 4) if end <= last - EDGE]
        for end in [*ends, last + 1] if start in full else ends:
            inside = (octaves >= start) & (octaves < end)
            for factor in STEPS:
                yield Variant(f"from {show_bytes(2**start)} on", np.where(inside, np.log(factor), 0.0))


def _at_full_rate(curve: Curve) -> set[int]:
    """The octaves before which, by the price, bytes decide the time over two octaves."""
    growth = np.array(curve.prices[1:]) / np.array(curve.prices[:-1])
    steep = (growth[:-1] >= FULL_RATE) & (growth[1:] >= FULL_RATE)
    return {int(octave) + 1 for octave in curve.octaves[2:][steep]}


def _falls(curve: Curve) -> set[int]:
    """The octaves where bus bandwidth is below that of the next smaller size by FALL or more, away from the ends."""
    rates = np.array(curve.sizes) / np.array(curve.times)
    fallen = curve.octaves[1:][rates[1:] < (1 - FALL) * rates[:-1]]
    return {int(octave) for octave in fallen if octave - curve.octaves[0] >= EDGE <= curve.octaves[-1] - octave}


FALL = 0.1
"""Minimum relative fall of bus bandwidth, from one octave to the next, that may be a cliff."""


def _contention(measured: MeasuredMachine) -> Iterator[Variant]:
    """Scatter from size to size, or queues of others before each message and a part of the bandwidth beside them."""
    if not measured.spread_out:
        return
    # One kink is no scatter: the median of second differences does not see it.
    seen = max(noise(curve.times) for curve in measured.curves if curve.crosses_nodes)
    scatter = SCATTER if seen >= SEEN else ()
    for spread in scatter:
        yield Variant("times that scatter", np.where(measured.crossing, np.log(SLOWED), 0.0), spread, BUSY_TAILS)
    for factor in LONGER[1:]:
        fault = faster_network(measured.against, Change(SHARED_PART), Change(factor))
        queued = measured.under("half of the bandwidth, and queues", fault, _crosses)
        yield from (queued._replace(noise=spread, tails=BUSY_TAILS) for spread in (0.0, *scatter))


def _loss(measured: MeasuredMachine) -> Iterator[Variant]:
    """Some repeats wait for a timeout; medians are as they should be, or scatter. Needs slowest repeats."""
    crossing = [curve for curve in measured.curves if curve.crosses_nodes]
    if not any(curve.lateness.any() for curve in crossing):
        return
    scattered = [one for one in _contention(measured) if one.noise]
    none = Variant("", np.zeros(len(measured.prices)))
    for seconds, tails in LOSS_TAILS.items():
        yield from (one._replace(words=f"{seconds:g} s or more", tails=tails) for one in (none, *scattered))


def _slow_host(measured: MeasuredMachine) -> Iterator[Variant]:
    """Some groups of ranks are slow and others are not; one of all hosts is slow whenever another is."""
    crossing = [curve for curve in measured.curves if curve.crosses_nodes]
    names = list(dict.fromkeys(_group(curve) for curve in crossing))
    widest = max((curve.place.nodes for curve in crossing), default=0)
    whole = {_group(curve) for curve in crossing if curve.place.nodes == widest}
    must = whole if len(whole) < len(names) else set()
    for count in range(1, min(len(names), MOST_GROUPS + 1)):
        for chosen in combinations(names, count):
            if must <= set(chosen):
                yield from _slow_groups(measured, chosen, _slowest(chosen, crossing))


def _slow_groups(measured: MeasuredMachine, chosen: Sequence[tuple[str, int]], words: str) -> Iterator[Variant]:
    for part in PARTS:
        fault = faster_network(measured.against, Change(part))
        yield measured.under(words, fault, lambda curve: _group(curve) in chosen)


MOST_GROUPS = 6
"""Maximum number of slow groups of ranks that are tried."""


def _group(curve: Curve) -> tuple[str, int]:
    return curve.label, curve.place.workers


def _slowest(chosen: Sequence[tuple[str, int]], curves: Sequence[Curve]) -> str:
    """The smallest slow group, in words."""
    label, workers = min(chosen, key=lambda group: (group[1], group[0]))
    others = {curve.label for curve in curves} != {label}
    return label if others else f"the {workers} workers"


NETWORK_FAULTS: Mapping[str, NetworkFault] = MappingProxyType(
    {
        "bandwidth": NetworkFault(
            _bandwidth,
            "part of the bandwidth: some NICs of several, a port or a slot at a lower speed, or one slow host",
            lambda words: f"Large messages get about {words}.",
            "count the NICs in use (ibstat | grep -c 'State: Active', NCCL_DEBUG=INFO | grep 'NET/'). Look at each "
            "port's rate (ethtool, ibstat). Then measure pairs of hosts and give all files to osf doctor",
        ),
        "slow-host": NetworkFault(
            _slow_host,
            "one slow host among others that are well",
            lambda words: f"One host of {words} is slow; the other groups are fine.",
            "pair each host of that group with a host of a good group, measure each pair, and give all files to osf "
            "doctor",
        ),
        "latency": NetworkFault(
            _latency,
            "a longer way between hosts, or hosts that wake up late",
            lambda words: f"Small messages are slow: start-up is {words} what was expected. Bandwidth is normal.",
            "ping -c 100 -i 0.01 HOST between two of the hosts: a healthy network answers in 0.1 ms or less",
        ),
        "sockets": NetworkFault(
            _sockets,
            "kernel sockets in the place of RDMA",
            lambda words: f"NCCL uses TCP, not RDMA: the curve is most like {words}.",
            "NCCL_DEBUG=INFO, then grep 'NET/Socket' (bad) or 'NET/IB' and 'NET/OFI' (good)",
        ),
        "peer-access": NetworkFault(
            _peer_access,
            "no direct access between the GPUs of a node",
            lambda words: f"GPUs of a node do not reach each other directly: {words}.",
            "nvidia-smi topo -p2p r; nvidia-smi nvlink --status; NCCL_DEBUG=INFO | grep -E 'via (P2P|SHM|NET)'; unset "
            "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL",
        ),
        "cliff": NetworkFault(
            _cliff,
            "a switch of protocol or algorithm at the wrong size",
            lambda words: f"Time jumps {words}, as when a protocol is switched at the wrong size.",
            "run the sizes around it with NCCL_PROTO=Simple, then LL128, and with NCCL_ALGO=Ring, then Tree; or set "
            "another NCCL_BUFFSIZE",
        ),
        "contention": NetworkFault(
            _contention,
            "other traffic on the network (or lost packets, where single repeats are not known)",
            lambda words: "Most times are long and scatter from size to size, as when others use the network.",
            "measure again on the idle network, and between other hosts",
        ),
        "loss": NetworkFault(
            _loss,
            "lost packets: a bad cable or port, or full queues",
            lambda words: (
                f"Most calls are fast; some stall for {words}, the retransmission timeout: packets are being lost."
            ),
            "nstat -az TcpRetransSegs (sockets), or perfquery -x and ethtool -S (RDMA: discards, out of order, PFC "
            "pauses), on each host before and after a measurement",
        ),
    }
)
"""Faults by name. A small MTU is none of them: it costs 5 % or less, which no curve tells from healthy machines."""
