"""The nouns in a trace of any format, and a line on what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from osfmodel.errors import DataError
from osfmodel.formats.source_text import Noun
from osfmodel.trace.buckets import usual_steps
from osfmodel.trace.nouns import cluster_of, measurement_of, workload_of
from osfmodel.trace.own_step import doubts
from osfmodel.trace.record import Trace
from osfmodel.units import show_time
from osfmodel.workload import Workload

MOST_SHOWN = 12


def nouns_of(trace: Trace, batch_size: int | None, tell: Callable[[str], None]) -> Sequence[Noun]:
    """The workload, what collectives took and the times of steps, as far as the trace holds them.

    ``tell`` hears what is missing and how to record it.
    """
    for remark in trace.remarks:
        tell(remark)
    nouns: list[Noun] = []
    for make in (workload_of, cluster_of, measurement_of):
        try:
            nouns.append(make(trace))
        except DataError as error:
            tell(f"no {make.__name__.removesuffix('_of')}: the trace {error}")
    for said in doubts(trace):
        tell(said)
    if batch_size is None:
        return nouns
    return [replace(noun, batch_size=batch_size) if isinstance(noun, Workload) else noun for noun in nouns]


def found_in(trace: Trace) -> str:
    """One line on it: ranks, steps, collectives and buckets of a step."""
    pace, steps = trace.pace, usual_steps(trace)
    ranks = f"{len(trace.ranks)} of {trace.workers} ranks" if trace.workers else f"{len(trace.ranks)} rank"
    collectives = f"{len(steps[0].collectives)} collectives a step"
    sizes = [one.elements for one in steps[0].reductions]
    shown = " ".join("?" if size is None else str(size) for size in sizes[:MOST_SHOWN]) + " ..." * (
        len(sizes) > MOST_SHOWN
    )
    buckets = f", of gradients {len(sizes)}: {shown} elements" if sizes else ""
    time = show_time(median(step.time for step in pace.steps))
    return f"{ranks}, {len(pace.steps)} steps of {time}, {collectives}{buckets}"
