"""Logs and tables of collectives -> clusters: the collective of a run, and several runs or files as one cluster.

The collective of an nccl-tests run comes from its program's name, else its columns; its bandwidths check it.
nccl-tests prints two bandwidths, bytes over time (algbw) and the same scaled to what a link carries (busbw). Their
ratio is a factor of the collective and the worker count n (nccl-tests, doc/PERFORMANCE.md): 2 (n-1) / n for all-reduce,
(n-1) / n for reduce-scatter, all-gather and all-to-all, 1 for send-receive, reduce and broadcast.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import Source
from osfmodel.formats.source_text import Hints, Noun, Text

PARTS = ("reduce_scatter", "all_gather", "alltoall", "gather", "scatter", "hypercube")
WHOLE = ("sendrecv", "reduce", "broadcast")
NAMES = ("all_reduce", *PARTS, *WHOLE)
PROGRAM = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(NAMES)})_perf")
FLAG = f"give --collective {'|'.join(COLLECTIVES)}"
ROUNDING = 0.005
"""Half of the last digit that nccl-tests prints of a bandwidth, in GB/s; also the relative error that is accepted."""


class NamedCollective(NamedTuple):
    """Evidence of a run for its collective.

    stated:     the name that nccl-tests itself prints; "" if it prints none
    mentioned:  the last name on a command line before the run; "" if there is none
    redop:      the reduction, "none" for collectives without one
    root:       the column root, -1 for a collective without one; "" if there is no such column
    bandwidths: (algbw, busbw) in GB/s
    place:      where it was read, as in "line 7"
    """

    stated: str
    mentioned: str
    redop: str
    root: str
    bandwidths: Sequence[tuple[float, float]]
    place: str


def collective_of(text: Text, seen: NamedCollective, workers: int, hints: Hints) -> str:
    """The collective, one of COLLECTIVES. Raises DataError for others, for contradictions, and in doubt."""
    if seen.stated and hints.collective not in (None, seen.stated):
        raise DataError(f"{seen.place}: says {seen.stated}, --collective {hints.collective}: leave --collective out")
    named = seen.stated or hints.collective or seen.mentioned
    if not named:
        return _guessed(seen, workers)
    _require_read(seen, [named])
    if not _agrees(seen, named, workers):
        wrong = (
            f"busbw/algbw is {_ratio(seen):.3g}, but {named} with {workers} workers has {factor(named, workers):.3g}"
        )
        if hints.collective is None:
            raise DataError(f"{seen.place}: {wrong}: another collective or worker count; if it is right, {FLAG}")
        text.tell(f"{seen.place}: {wrong}: taken as {named}, as told")
    return named


def factor(name: str, workers: int) -> float:
    """The ratio busbw / algbw of a collective."""
    part = (workers - 1) / workers
    return 2 * part if name == "all_reduce" else part if name in PARTS else 1.0


def _guessed(seen: NamedCollective, workers: int) -> str:
    """The only collective that columns and bandwidths allow."""
    likely = [name for name in _by_columns(seen) if _agrees(seen, name, workers)]
    _require_read(seen, likely)
    if len(likely) != 1:
        known = f"which may be {' or '.join(likely)}" if likely else f"and busbw/algbw, {_ratio(seen):.3g}, fits none"
        raise DataError(f"{seen.place}: the file does not name the collective, {known}: {FLAG}")
    return likely[0]


def _by_columns(seen: NamedCollective) -> Sequence[str]:
    if seen.root.isdigit():
        return ("broadcast", "gather", "scatter") if seen.redop == "none" else ("reduce",)
    if seen.redop == "none":
        return ("all_gather", "alltoall", "hypercube")
    # Send-receive prints a reduction too; it is younger than the column "root".
    return ("all_reduce", "reduce_scatter", "sendrecv") if seen.root else ("all_reduce", "reduce_scatter")


def _require_read(seen: NamedCollective, names: Sequence[str]) -> None:
    """Raise DataError if none of ``names`` is a collective that carries gradients."""
    if names and not set(names) & set(COLLECTIVES):
        raise DataError(f"{seen.place}: is a test of {' or '.join(names)}; read are only {', '.join(COLLECTIVES)}")


def _largest(seen: NamedCollective) -> tuple[float, float]:
    """The most precise bandwidths: with two decimals printed, those are the largest."""
    return max(seen.bandwidths, default=(0.0, 0.0))


def _ratio(seen: NamedCollective) -> float:
    alg, bus = _largest(seen)
    return bus / alg if alg else float("nan")


def _agrees(seen: NamedCollective, name: str, workers: int) -> bool:
    """Whether the bandwidths may be those of ``name`` before rounding; True without bandwidths."""
    alg, bus = _largest(seen)
    expected = factor(name, workers)
    return abs(bus - expected * alg) <= ROUNDING * (1 + expected) * (1 + alg)


class RunLayout(NamedTuple):
    """Layout of a run's workers on nodes; 0 if not stated. ``place`` names the run for people."""

    place: str
    gpus_per_node: int = 0
    nodes: int = 0


def layout_of(place: str, hosts: Iterable[str]) -> RunLayout:
    """The layout from the host of each worker: the most workers on one node, and the number of nodes."""
    counts = Counter(hosts)
    return RunLayout(place, max(counts.values(), default=0), len(counts))


def shared_gpus_per_node(layouts: Sequence[RunLayout]) -> int | None:
    """GPUs per node, shared by all runs; a run on one node may use fewer. None if no run states it.

    Raises DataError, naming both, where runs on several nodes have them filled differently.
    """
    spread = [layout for layout in layouts if layout.nodes > 1]
    known = [layout for layout in layouts if layout.gpus_per_node]
    for first in spread[:1]:
        for other in known:
            more = other.gpus_per_node > first.gpus_per_node
            if more or (other.nodes > 1 and other.gpus_per_node != first.gpus_per_node):
                both = f"{first.place} has {first.gpus_per_node} GPUs per node, {other.place} {other.gpus_per_node}"
                raise DataError(f"{both}: a cluster has one layout, so import them apart")
    return max((layout.gpus_per_node for layout in known), default=None)


def told_gpus_per_node(text: Text, layouts: Sequence[RunLayout], hints: Hints) -> int | None:
    """GPUs per node from the user, who knows whether pods share a node, else from the runs."""
    if hints.gpus_per_node is None:
        return shared_gpus_per_node(layouts)
    for layout in layouts:
        apart = layout.gpus_per_node != hints.gpus_per_node and layout.nodes > 1
        if apart or layout.gpus_per_node > hints.gpus_per_node:
            told = f"taken as {hints.gpus_per_node}, as told"
            text.tell(f"{layout.place}: the hosts have {layout.gpus_per_node} GPUs each: {told}")
    return hints.gpus_per_node


def as_one_cluster(found: Sequence[tuple[str, Sequence[Noun]]], name: str) -> Cluster:
    """One cluster with the tables of several files, and the effects of the file with most workers.

    ``library`` is what all of them state. Raises DataError, naming the file, for one that holds anything else than one
    cluster of tables; and, naming both, where two hold the same collective and worker count, which are rarely repeats
    of one set-up, or differ in layout.
    """
    clusters = [(file, _only_tables(file, nouns)) for file, nouns in found]
    origin: dict[tuple[str, int], str] = {}
    for file, cluster in clusters:
        for table in cluster.tables:
            other = origin.setdefault((table.collective, table.workers), file)
            if other != file:
                what = f"{table.collective} with {table.workers} workers"
                raise DataError(f"{other} and {file} both hold {what}: keep one, or join repeats of it in one file")
    layouts = [RunLayout(file, cluster.gpus_per_node, cluster.nodes or 0) for file, cluster in clusters]
    gpus_per_node = shared_gpus_per_node(layouts) or 1
    tables = sorted(
        (table for _, cluster in clusters for table in cluster.tables), key=lambda t: (t.collective, t.workers)
    )
    libraries = {cluster.library for _, cluster in clusters}
    largest = max((cluster for _, cluster in clusters), key=lambda one: max(table.workers for table in one.tables))
    return Cluster(
        name=name,
        cost_model="tabulated",
        gpus_per_node=gpus_per_node,
        nodes=-(-max(table.workers for table in tables) // gpus_per_node),
        tables=tuple(tables),
        effects=largest.effects,
        library=libraries.pop() if len(libraries) == 1 else "",
        source=_source_of([cluster for _, cluster in clusters]),
    )


def _only_tables(file: str, nouns: Sequence[Noun]) -> Cluster:
    if len(nouns) != 1 or not isinstance(nouns[0], Cluster) or not nouns[0].tables:
        raise DataError(f"{file}: several files are read as the tables of one cluster, which this one does not hold")
    return nouns[0]


def _source_of(clusters: Sequence[Cluster]) -> Source:
    """A source that combines the clusters' sources, each text once."""
    origins, conditions, licences, gpus = (
        "; ".join(dict.fromkeys(getattr(cluster.source, field) for cluster in clusters))
        for field in ("origin", "conditions", "licence", "gpu")
    )
    return Source(origins, conditions, licences, gpus)
