"""Gather the content of a report from a request: tune, predict, explain."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import OsfError
from osfmodel.entities.workload import Workload
from osfmodel.formats.traces import Trace, plan_of
from osfmodel.formats.traces.cautions import cautions
from osfmodel.formats.traces.usual import step_times, usual_step, usual_steps
from osfmodel.planning.curves import counts_around, scaling, size_curve
from osfmodel.planning.predictions import Given, compare
from osfmodel.planning.report import BEST, TRACED, TUNED, MeasuredStep, Report
from osfmodel.planning.results import Comparison
from osfmodel.planning.tuning import tune, tuned_rule
from osfmodel.planning.what_if import WhatIf
from osfmodel.targets import CONFIG_TARGETS, is_stock
from osfmodel.targets.named_plans import STOCK_PLANS


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A request for a report.

    workers:  count at which the iteration is shown and tuned
    counts:   counts on the curve over workers; empty for some around ``workers``
    target:   the framework whose default and tuned plans are shown first
    plans:    further plans to show
    traces:   measured jobs to show beside the predictions
    inputs:   the user's options, as pairs of words, to be shown
    what_if:  changes of workload and cluster; they are already made in ``cluster``, not yet in ``workload``
    """

    workload: Workload
    cluster: Cluster
    workers: int
    counts: tuple[int, ...] = ()
    target: str = "ddp"
    plans: tuple[Given, ...] = STOCK_PLANS
    traces: tuple[Trace, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    what_if: WhatIf = WhatIf()

    def changed(self, workers: int) -> Workload:
        """The workload as each of ``workers`` workers computes it."""
        return self.what_if.of_workload(self.workload, workers)

    def compared(self, plans: Sequence[Given], workers: int) -> Comparison:
        """``plans`` compared at ``workers`` workers. Raises as ``compare``."""
        comparison = compare(self.changed(workers), self.cluster, workers, plans)
        return comparison.under(self.what_if, self.what_if.alone(self.workload, workers))


def gather(request: ReportRequest) -> Report:
    """Tune, predict and explain. Raises as ``tune`` and ``compare``, and DataError for a trace of no training step."""
    workload, cluster, workers = request.changed(request.workers), request.cluster, request.workers
    for trace in request.traces:
        trace.require_training()
    seen = tuple(step for trace in request.traces for step in _measured(trace))
    tuning = tune(workload, cluster, workers, request.target).under(request.what_if)
    default = request.target if is_stock(CONFIG_TARGETS[request.target]) else "ddp"
    both: list[Given] = [default, (TUNED, tuned_rule(tuning))]
    traced, remarks = _traced(request.traces, workload)
    others = [plan for plan in dict.fromkeys(request.plans) if plan != default]
    comparison = request.compared([*both, *traced, *others], workers)
    best = () if tuning.plan.sharding else (BEST,)  # the optimum of plans that replicate parameters
    counts = sorted(request.counts) if len(request.counts) > 1 else counts_around(cluster, workers)
    return Report(
        request.workload,
        tuning,
        comparison,
        scaling(partial(request.compared, [*both, *best]), counts, workers),
        size_curve(comparison, request.target),
        measured=seen,
        why=_why(request.traces),
        remarks=(*remarks, *_knobless(request.target), *_of_traces(request.traces)),
        inputs=request.inputs,
    )


def _traced(traces: Sequence[Trace], workload: Workload) -> tuple[list[Given], list[tuple[str, str]]]:
    """The buckets of the first trace that has them for this workload, and why earlier traces gave none."""
    remarks: list[tuple[str, str]] = []
    for trace in traces:
        try:
            return [(TRACED, plan_of(trace, workload))], remarks
        except OsfError as error:
            remarks.append((f"the buckets of the trace are not among the plans: {error}", f"trace {trace.name}"))
    return [], remarks


def _why(traces: Sequence[Trace]) -> tuple[str, ...]:
    """The verdict of ``osf explain`` on each trace, without traces that it cannot explain."""
    found = []
    for trace in traces:
        with suppress(OsfError):
            found.append(explain_trace(trace).verdict)
    return tuple(found)


def _knobless(target: str) -> list[tuple[str, str]]:
    if CONFIG_TARGETS[target].size is not None:
        return []
    return [(f"no curve over bucket sizes: {target} has no one setting that limits all messages", target)]


def _of_traces(traces: Sequence[Trace]) -> list[tuple[str, str]]:
    return [(remark, f"trace {trace.name}") for trace in traces for remark in (*trace.remarks, *cautions(trace))]


def _measured(trace: Trace) -> list[MeasuredStep]:
    """The usual step of the first rank that has it, and of the rank on which it takes longest, if that is another.

    Raises DataError for a trace without a step.
    """
    number = usual_step(trace).number
    steps = [(rank.rank, step) for rank in trace.ranks for step in rank.steps if step.number == number]
    shown = dict([steps[0], max(steps, key=lambda one: one[1].time)])
    return [
        MeasuredStep(f"{trace.name}, rank {rank}, step {number}", step, _longest(trace)) for rank, step in shown.items()
    ]


def _longest(trace: Trace) -> float:
    """Seconds of the longest usual step, averaged over the ranks."""
    times = step_times(trace)
    return max(times[step.number] for step in usual_steps(trace))
