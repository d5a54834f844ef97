"""The nouns in a trace of any format, a line on its content, and warnings if its parts or its ranks do not agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median, mode

from osfmodel.cost.clusters import pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.entities.batches import idle
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_time
from osfmodel.entities.errors import DataError, OsfError, PlanError
from osfmodel.entities.plan import Plan
from osfmodel.entities.trace import Trace
from osfmodel.entities.workload import Workload
from osfmodel.formats.source_text import Hints, Noun
from osfmodel.formats.traces import cluster_of, gpus_per_node, measurement_of, plan_of, workload_of
from osfmodel.formats.traces.network import exposed_others
from osfmodel.formats.traces.sharded import doubts_of, is_sharded
from osfmodel.formats.traces.usual import unsteady, usual_step, usual_steps

OFF = 0.05
"""Relative difference from which a reassembled step is reported as off, and ranks as apart."""


def off(again: float, measured: float) -> str:
    """A warning if the parts give ``again`` seconds where a step of ``measured`` was seen; "" if they agree."""
    if not measured or abs(again / measured - 1) <= OFF:
        return ""
    return f"put together again, the step is off by {again / measured - 1:+.0%}: take predictions from it as rough"


def apart(seconds: float, step: float, slowest: str = "the last rank") -> str:
    """A warning if ``slowest`` has its gradients so much later than the first rank; "" below 5 % of a step."""
    if not step or seconds <= OFF * step:
        return ""
    return (
        f"ranks are apart: {slowest} has its gradients {show_time(seconds)} later than the first "
        f"({seconds / step:.0%} of a step); predictions keep that wait at every number of workers"
    )


MOST_SHOWN = 12
ONE_SIZE = (
    "all-reduces have about one size: the cluster prices others in proportion to their bytes, as if nothing was "
    "start-up; record another bucket_cap_mb, or use osf bench"
)


def nouns_of(trace: Trace, hints: Hints, tell: Callable[[str], None]) -> Sequence[Noun]:
    """The workload, the cluster and the measured steps, as far as the trace holds them; the cluster of inference.

    ``tell`` receives what is missing and how to record it; ``hints`` add what no trace has, the batch size, and what
    few have, the number of GPUs per host. Raises DataError for inference without a table of collectives.
    """
    for remark in (*trace.remarks, *_contradicted(trace, hints)):
        tell(remark)
    if trace.inference:
        with suppress(DataError):
            cluster = cluster_of(trace)
            tell("is a trace of inference: only the network is read from it")
            return [_as_told(cluster, hints)]
    trace.require_training()
    nouns: list[Noun] = []
    sharded = is_sharded(trace)
    makers: list[Callable[[Trace], Noun]] = [workload_of, *([_plan_alone] if sharded else [])]
    for make in (*makers, cluster_of, measurement_of):
        try:
            nouns.append(make(trace))
        except DataError as error:
            tell(f"no {'plan' if make is _plan_alone else make.__name__.removesuffix('_of')}: the trace {error}")
    if sharded and any(isinstance(noun, Plan) for noun in nouns):
        for said in doubts_of(trace):
            tell(said)
    if any(isinstance(noun, Cluster) and not noun.tables for noun in nouns):
        tell(ONE_SIZE)
    for idleness in (idle(noun) for noun in nouns if isinstance(noun, Workload)):
        if idleness:
            tell(
                f"{idleness}, the rest is the host, input or other collectives, which a faster device does not shorten"
            )
    for said in cautions(trace):
        tell(said)
    return [_as_told(noun, hints) for noun in nouns]


def _plan_alone(trace: Trace) -> Plan:
    """The plan in a trace, for the workload there. Raises DataError if its parts do not make one."""
    try:
        return plan_of(trace, workload_of(trace))
    except PlanError as error:
        raise DataError(f"makes none: {error}") from None


def _contradicted(trace: Trace, hints: Hints) -> list[str]:
    """Warnings about hints that contradict the trace."""
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
    """One line on a trace: ranks, steps, collectives and buckets of a step."""
    step = usual_step(trace)
    ranks = f"{len(trace.ranks)} of {trace.workers} ranks" if trace.workers else f"{len(trace.ranks)} rank"
    each = gpus_per_node(trace)
    ranks += f", {each} on each node by their GPUs" if each else ""
    collectives = f"{how_many(len(step.collectives), 'collective')} a step"
    sizes = [one.elements for one in step.reductions]
    if sizes and None not in sizes and len(set(sizes)) == 1:
        shown = f"{sizes[0]} elements{' each' * (len(sizes) > 1)}"
    else:
        several = " ".join("?" if size is None else str(size) for size in sizes[:MOST_SHOWN])
        shown = f"{several}{' ...' * (len(sizes) > MOST_SHOWN)} elements"
    buckets = f", {len(sizes)} of gradients: {shown}" if sizes and not trace.inference else ""
    modules = {one.shard.module for one in step.sharded if one.shard}
    if modules:
        buckets = f", of {how_many(len(modules), 'group')} of sharded parameters"
    time = show_time(measurement_of(trace).iteration_time)
    return f"{ranks}, {how_many(len(trace.pace.steps), 'step')} of {time}, {collectives}{buckets}"


OTHERS = 0.01
"""Fraction of a step from which collectives that a workload has as computation are reported."""


def own_step(trace: Trace) -> float | None:
    """Seconds of an iteration put together from the parts of ``trace``; None if one of them is missing."""
    try:
        workload = workload_of(trace)
        pricing = pricing_of(cluster_of(trace), trace.workers or 1)
        return predict_timeline(workload, plan_of(trace, workload), pricing).iteration_time
    except OsfError:
        return None  # what is missing is said where that part is asked for


def cautions(trace: Trace) -> tuple[str, ...]:
    """A sentence on each reason to take results from ``trace`` with care, besides its remarks."""
    return *unsteady(trace), *_apart(trace), *doubts(trace), *_others(trace)


def _apart(trace: Trace) -> tuple[str, ...]:
    """A sentence that names the rank that most often has its gradients last, if that is 5 % of a step; else none."""
    late, slowest = [], []
    for number in (step.number for step in usual_steps(trace)):
        ends = [
            (step.backward[1], rank.rank)
            for rank in trace.ranks
            for step in rank.steps
            if step.number == number and step.backward
        ]
        if len(ends) == len(trace.ranks) > 1:
            late.append(max(ends)[0] - min(ends)[0])
            slowest.append(max(ends)[1])
    said = apart(median(late), measurement_of(trace).iteration_time, f"rank {mode(slowest)}") if late else ""
    return (said,) if said else ()


def doubts(trace: Trace) -> tuple[str, ...]:
    """A sentence if the parts give a step time different from the measured median, else none."""
    again = own_step(trace)
    measured = 0.0 if again is None else measurement_of(trace).iteration_time
    said = "" if again is None else off(again, measured)
    return (f"{said}; osf explain says where its time went",) if said else ()


def _others(trace: Trace) -> tuple[str, ...]:
    """A sentence if collectives that a workload does not have keep the device waiting, else none."""
    step = usual_step(trace)
    other = exposed_others(step)
    if other < OTHERS * step.time:
        return ()
    return (
        f"{show_time(other)} of a step are exposed in collectives other than all-reduces of gradients: the workload "
        "keeps that time, whatever the network and the number of workers",
    )
