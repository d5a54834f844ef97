"""Merge several runs or files into one cluster: the layout that they share, and all their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.entities.source import Source
from osfmodel.formats.source_text import Hints, Noun, Text


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
