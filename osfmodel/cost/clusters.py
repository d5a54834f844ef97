"""Load clusters by name, by file, or from a specification in words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, TypeVar

from osfmodel.cost import COST_MODELS, cost_of, worker_counts
from osfmodel.cost.pricing import BROADCAST, Pricing
from osfmodel.entities.cluster import BLOCKING, AlphaBeta, Cluster, Pieces, Table
from osfmodel.entities.effects import Effects
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.files import documents
from osfmodel.entities.files.profiles import locate, read_own
from osfmodel.entities.files.usual_effects import usual_effects
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload

LARGEST_WORKER_COUNT = 10**7


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """A bundled cluster by name, one from a JSON file, or one in words.

    In words: ``"ring:50us,10Gbps"``, a textbook algorithm with the latency and the bandwidth of each worker's link; or
    ``"hierarchical:8,5us,200GB/s,50us,25Gbps"``, GPUs per node, the link inside a node, and the link between nodes; or
    ``"nccl:h100x8,400Gbps,ib"``, kind of GPU, GPUs per node, the bandwidth of the network, left out for a single node,
    and its fabric (ib, roce, efa, tcpxo, tcp).
    A bandwidth is that of each GPU; the last two take that of a whole node as ``3200Gbps/node``. After
    ``hierarchical``'s may follow a number of NICs per node; then it is that of each NIC. Raises UsageError for an
    unknown name or a bad quantity, DataError for a file that cannot be used.
    """
    model, separator, words = str(name_or_path).partition(":")
    if separator and model in COST_MODELS:
        from_spec = COST_MODELS[model].from_spec
        if from_spec is None:
            said = ", ".join(name for name, entry in COST_MODELS.items() if entry.from_spec is not None)
            raise UsageError(
                f"a cluster of {model!r} cannot be said in words, it has figures from a file: those that can are {said}"
            )
        return from_spec(f"{model}:{words}", words.split(","))
    return read_own(locate(name_or_path, "cluster"), documents.decode_cluster, "cluster")


def require_nouns(workload: object, cluster: object) -> None:
    """Raise UsageError, saying how to get one, if either is not a Workload or not a Cluster."""
    for value, noun, load in ((workload, Workload, "load_workload"), (cluster, Cluster, "load_cluster")):
        if not isinstance(value, noun):
            raise UsageError(f"{value!r} is not a {noun.__name__}: get one with osfmodel.{load}(name or path)")


def pricing_of(
    cluster: Cluster,
    workers: int,
    workload: Workload | None = None,
    usual: Callable[[Workload, Cluster], Effects] = usual_effects,
) -> Pricing:
    """The prices of communication between ``workers`` workers of ``cluster``.

    A single worker launches nothing. A reduce-scatter or all-gather without a price of its own costs half an
    all-reduce. The gain of several in flight is that of the nearest worker count for which one was measured, 1 if
    none was. With a workload, the usual effects on its GPUs, ``usual`` (workload, cluster), are in it where the cluster
    states none. Raises as ``cost_of``.
    """
    whole = cost_of(cluster, workers)
    costs, assumed = {"all_reduce": whole}, []
    for half in ("reduce_scatter", "all_gather"):
        try:
            costs[half] = cost_of(cluster, workers, half)
        except CostError:
            costs[half] = whole.slower(0.5)
            assumed.append(half)
    effects = cluster.effects if workers > 1 else cluster.effects.apart_from_cost.apart_from_compute
    assume = workload is not None and workers > 1 and not effects.active
    if workload is not None and assume:
        effects = usual(workload, cluster)
    measured = sorted(cluster.contention, key=lambda row: (abs(row.workers - workers), row.workers))
    gain = measured[0].gain if measured else 1
    model = COST_MODELS[cluster.cost_model]
    costs |= {BROADCAST: model.broadcast(cluster, workers)} if model.broadcast is not None and workers > 1 else {}
    in_flight = cluster.in_flight if workers > 1 else 1
    doubts = model.uncertainty(cluster, workers) if workers > 1 else (0.0, 0.0)
    uncertainty, large = (doubt + cluster.doubt * (1 + doubt) for doubt in doubts)
    return Pricing(
        costs, workers, gain, effects, uncertainty, in_flight,
        blocking=cluster.library in BLOCKING, per_host=min(cluster.gpus_per_node, workers),
        startups=model.startups(cluster, workers),
        alone=model.alone(cluster, workers) if in_flight > 1 else {},
        assumed=tuple(assumed),
        uncertainty_large=large,
        usual=assume,
        slowest=model.slowest(cluster, workers) if workers > 1 else {},
        parts=_Between(cluster, workload, usual),
    )  # fmt: skip


class _Between:
    """Prices between some of the workers of a cluster, each computed once."""

    def __init__(
        self, cluster: Cluster, workload: Workload | None, usual: Callable[[Workload, Cluster], Effects]
    ) -> None:
        self.cluster, self.workload, self.usual = cluster, workload, usual
        self.made: dict[tuple[int, int], Pricing] = {}

    def __call__(self, ranks: int, apart: int) -> Pricing:
        if (ranks, apart) not in self.made:
            found = pricing_of(strided(self.cluster, apart), ranks, self.workload, self.usual)
            self.made[ranks, apart] = found
        return self.made[ranks, apart]


APART_DOUBT = 0.5
"""Fraction by which prices between ranks that are apart may be off where those of all ranks together were measured:
assumed, not measured."""


def strided(cluster: Cluster, apart: int, size: int = 0) -> Cluster:
    """The cluster for a group of ranks, each ``apart`` from the next, while the groups in between communicate as well.

    Fewer of them are on a node, and share its NICs with all others there. Of the groups of ``size`` ranks, side by side
    on nodes that they fill unevenly, the one with the fewest ranks on a node decides; 0 for one group of all ranks.

    Where prices were measured between so many ranks, those of a node serve wherever on it the ranks are. Between nodes,
    the groups that communicate at once send together what an all-reduce of all their ranks sends of as many times the
    bytes. That includes what these send inside nodes, so that prices are rather too high.
    """
    gpus = cluster.gpus_per_node
    here = max(1, gcd(apart * size, gpus) // apart)
    if here == gpus or (apart, here) == (1, size):
        return cluster
    link, shared = cluster.between_nodes, max(1.0, gpus / cluster.nics_per_node) / here
    if link is not None:
        link = replace(link, seconds_per_byte=link.seconds_per_byte * shared)
    capacity = cluster.capacity and -(-cluster.capacity // apart)
    found = replace(
        cluster,
        gpus_per_node=here,
        nodes=capacity and -(-capacity // here),
        nics_per_node=1,
        between_nodes=link,
        fits=_apart(cluster.fits, apart, gpus),
        pieces=_apart(cluster.pieces, apart, gpus),
        tables=_apart(cluster.tables, apart, gpus),
    )
    measured = apart > 1 and worker_counts(cluster)
    return replace(found, doubt=cluster.doubt + APART_DOUBT) if measured else found


Row = TypeVar("Row", bound=AlphaBeta | Pieces | Table)


def _apart(rows: Sequence[Row], apart: int, gpus: int) -> tuple[Row, ...]:
    """The rows of a cluster with ``gpus`` GPUs a node for ranks that are ``apart`` from each other."""
    groups = min(apart, gpus)
    inside = [row for row in rows if row.workers * apart <= gpus]
    between = [row for row in rows if row.workers > max(gpus, groups) and row.workers % groups == 0]
    return (*inside, *(_of_groups(row, groups) for row in between))


def _of_groups(row: Any, groups: int) -> Any:
    """The row of each of so many equal groups of its ranks, which all send at once."""
    found = replace(row, workers=row.workers // groups)
    if isinstance(row, AlphaBeta):
        return replace(found, seconds_per_byte=row.seconds_per_byte * groups)
    if isinstance(row, Pieces):
        return replace(found, seconds_per_byte=tuple(each * groups for each in row.seconds_per_byte))
    places = {max(1, size // groups): place for place, size in enumerate(row.sizes)}
    figures = {
        name: tuple(getattr(row, name)[place] for place in places.values() if place < len(getattr(row, name)))
        for name in ("times", "startups", "trains", "slowest")
    }
    return replace(found, sizes=tuple(places), **figures)


def counts_in_words(text: str, cluster: Cluster, option: str = "--workers") -> tuple[list[int], str]:
    """``"16"``, ``"4,8"`` or ``"4..64"`` as worker counts, and a remark on those of a range that are left out, or "".

    A range holds the counts that ``cluster`` was measured with; where it serves any count, the doublings of its start,
    and its end. Raises UsageError, and CostError where the cluster was measured with none of a range.
    """
    counts: list[int] = []
    remarks = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise UsageError(f"{option} {text!r}: write counts such as 16, 4,8,16 or 4..64")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= LARGEST_WORKER_COUNT:
            order = "" if match[2] is None else ", the smaller first"
            raise UsageError(f"{option} {text!r}: write counts from 1 to {LARGEST_WORKER_COUNT}{order}")
        inside, missing = ([first], []) if match[2] is None else _range(first, last, cluster, option)
        counts += inside
        if missing:
            have, others = ", ".join(map(str, worker_counts(cluster))), ", ".join(map(str, missing))
            remarks.append(
                f"{option} {first}..{last}: cluster {cluster.name!r} was measured with {have}; left out: {others}"
            )
    return list(dict.fromkeys(counts)), "; ".join(remarks)


def _range(first: int, last: int, cluster: Cluster, option: str) -> tuple[list[int], list[int]]:
    """The counts of a range, and the doublings that were not measured."""
    doublings = []
    count = first
    while count < last:
        doublings.append(count)
        count *= 2
    doublings.append(last)
    measured = worker_counts(cluster)
    if not measured:
        return doublings, []
    inside = [count for count in measured if first <= count <= last]
    if not inside:
        have = ", ".join(map(str, measured))
        near = min(measured, key=lambda count: abs(count - last))
        raise CostError(f"{option} {first}..{last}: cluster {cluster.name!r} was measured with {have}: write {near}")
    return inside, [count for count in doublings if count not in measured]


def cpu_share(cluster: Cluster, plan: Plan, workers: int, seconds: float) -> float | None:
    """The part of the cores' time, in ``seconds``, that sending a plan takes, at that of the largest messages measured.

    None where no processor time was measured for all-reduces of so many workers.
    """
    for table in cluster.tables:
        if table.workers == workers and table.collective == "all_reduce" and table.cpu_share is not None:
            sending = sum(bucket.size for bucket in plan.buckets) * table.times[-1] / table.sizes[-1]
            return table.cpu_share * sending / seconds if seconds else None
    return None
