"""The nouns in a trace of any format, and a line on what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from osfmodel.cluster import Cluster
from osfmodel.errors import DataError
from osfmodel.formats.source_text import Hints, Noun
from osfmodel.trace.nouns import cluster_of, gpus_per_node, measurement_of, workload_of
from osfmodel.trace.own_step import cautions
from osfmodel.trace.record import Trace
from osfmodel.trace.usual import usual_step
from osfmodel.units import how_many, show_time
from osfmodel.what_if import idle
from osfmodel.workload import Workload

MOST_SHOWN = 12
ONE_SIZE = (
    "all-reduces have about one size: the cluster prices others in proportion to their bytes, as if nothing was "
    "start-up; record another bucket_cap_mb, or use osf bench"
)


def nouns_of(trace: Trace, hints: Hints, tell: Callable[[str], None]) -> Sequence[Noun]:
    """The workload, what collectives took and the times of steps, as far as the trace holds them.

    ``tell`` hears what is missing and how to record it; ``hints`` say what no trace does: the batch, and what few do,
    how many GPUs hosts have.
    """
    for remark in (*trace.remarks, *_contradicted(trace, hints)):
        tell(remark)
    nouns: list[Noun] = []
    for make in (workload_of, cluster_of, measurement_of):
        try:
            nouns.append(make(trace))
        except DataError as error:
            tell(f"no {make.__name__.removesuffix('_of')}: the trace {error}")
    if any(isinstance(noun, Cluster) and not noun.tables for noun in nouns):
        tell(ONE_SIZE)
    for idleness in (idle(noun) for noun in nouns if isinstance(noun, Workload)):
        if idleness:
            tell(f"{idleness}, the rest is the host, input or other collectives, which no faster device shortens")
    for said in cautions(trace):
        tell(said)
    return [_as_told(noun, hints) for noun in nouns]


def _contradicted(trace: Trace, hints: Hints) -> list[str]:
    """What was told that is not so by the trace."""
    said = []
    if hints.workers not in (None, trace.workers):
        said.append(f"--workers {hints.workers} is not taken: by the trace the job has {trace.workers}")
    if trace.workers is not None and (hints.gpus_per_node or 0) > trace.workers:
        said.append(f"--gpus-per-node {hints.gpus_per_node} is more than the job's {how_many(trace.workers, 'worker')}")
    return said


def _as_told(noun: Noun, hints: Hints) -> Noun:
    if isinstance(noun, Workload) and hints.batch_size is not None:
        return replace(noun, batch_size=hints.batch_size)
    if isinstance(noun, Cluster) and hints.gpus_per_node is not None:
        nodes = -(-(noun.nodes or 1) * noun.gpus_per_node // hints.gpus_per_node)
        return replace(noun, gpus_per_node=hints.gpus_per_node, nodes=nodes)
    return noun


def found_in(trace: Trace) -> str:
    """One line on it: ranks, steps, collectives and buckets of a step."""
    step = usual_step(trace)
    ranks = f"{len(trace.ranks)} of {trace.workers} ranks" if trace.workers else f"{len(trace.ranks)} rank"
    each = gpus_per_node(trace)
    ranks += f", {each} on each node by their GPUs" if each else ""
    collectives = f"{how_many(len(step.collectives), 'collective')} a step"
    sizes = [one.elements for one in step.reductions]
    shown = " ".join("?" if size is None else str(size) for size in sizes[:MOST_SHOWN]) + " ..." * (
        len(sizes) > MOST_SHOWN
    )
    buckets = f", of gradients {len(sizes)}: {shown} elements" if sizes else ""
    time = show_time(measurement_of(trace).iteration_time)
    return f"{ranks}, {how_many(len(trace.pace.steps), 'step')} of {time}, {collectives}{buckets}"
