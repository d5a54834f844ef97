"""Gather the content of a report from a request: tune, predict, explain, and the curves over workers and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from osfmodel.cost import worker_counts
from osfmodel.cost.clusters import pricing_of
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.engine import predict_timeline
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import OsfError
from osfmodel.entities.rounding import within
from osfmodel.entities.trace import Trace
from osfmodel.entities.workload import Workload
from osfmodel.formats.traces import plan_of
from osfmodel.formats.traces.cautions import cautions
from osfmodel.formats.traces.usual import step_times, usual_step, usual_steps
from osfmodel.planning.predictions import Given, compare
from osfmodel.planning.report import BEST, TRACED, TUNED, MeasuredStep, Report, Scaling, ScalingLine, SizeCurve
from osfmodel.planning.results import Comparison
from osfmodel.planning.tuning import tune, tuned_rule
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.caps import in_elements
from osfmodel.targets import CONFIG_TARGETS, is_stock
from osfmodel.targets.named_plans import STOCK_PLANS

FURTHER = 4
"""Largest worker count of a default curve, as a multiple of the report's."""
CAPS = 96
"""Number of bucket sizes of a curve, evenly spaced over the logarithm."""
CLOCKED_CAPS = 32
"""Number of bucket sizes for a framework with a clock, whose loop is simulated for each."""
SMALLEST_PART = 1 / 4096
"""Minimum bucket size of a curve, as a fraction of all gradients, unless the largest tensor is smaller still."""


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
    of_traces = [(said, f"trace {one.name}") for one in request.traces for said in (*one.remarks, *cautions(one))]
    return Report(
        request.workload,
        tuning,
        comparison,
        scaling(partial(request.compared, [*both, *best]), counts, workers),
        size_curve(comparison, request.target),
        measured=seen,
        why=_why(request.traces),
        remarks=(*remarks, *_knobless(request.target), *of_traces),
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


def counts_around(cluster: Cluster, workers: int) -> tuple[int, ...]:
    """Worker counts for a curve: those that ``cluster`` was measured with, else powers of two up to 4 x ``workers``.

    One worker is included if there would be only one point.
    """
    found = {workers, *worker_counts(cluster)}
    if not worker_counts(cluster):
        found |= {2**power for power in range(1, (FURTHER * workers).bit_length())}
    return tuple(sorted(found if len(found) > 1 else {1, *found}))


def scaling(compared: Callable[[int], Comparison], counts: Sequence[int], chosen: int) -> Scaling:
    """Scaling curves from the comparison at each count; counts that cannot be priced are left out.

    Raises OsfError if ``chosen`` itself cannot be priced.
    """
    rows = []
    for count in counts:
        try:
            rows.append(compared(count))
        except OsfError:
            if count == chosen:
                raise
    lines = [
        ScalingLine(one.name, tuple(row.predictions[place].scaling_factor for row in rows),
             tuple(row.predictions[place].iteration_time for row in rows))
        for place, one in enumerate(rows[0].predictions)
    ]  # fmt: skip
    bounds = tuple(row.predictions[0].alone / row.predictions[0].lower_bound for row in rows)
    return Scaling(tuple(row.workers for row in rows), tuple(lines), bounds, chosen)


def size_curve(comparison: Comparison, target: str) -> SizeCurve | None:
    """Iteration time of a framework at each of many bucket size limits, with its default in ``comparison``.

    None if it has no such setting, or there is nothing to send.
    """
    framework, workload, default = CONFIG_TARGETS[target], comparison.workload, comparison.predictions[0]
    knob, gradients = framework.size, workload.gradients
    if knob is None or not gradients or not workload.gradient_bytes:
        return None
    pricing = pricing_of(comparison.cluster, comparison.workers, workload).for_rules(
        framework.objective, framework.executor
    )
    sizes = in_elements(gradients).sizes if knob.elements else gradients.held_sizes
    caps = _caps(sizes, CLOCKED_CAPS if framework.clock else CAPS, knob.best(workload, pricing.cost()))
    plans = [framework.convert.to_plan(knob.knobs(cap), workload, pricing) for cap in caps]
    known = {plan: predict_timeline(workload, plan, pricing).iteration_time for plan in set(plans)}
    times = tuple(known[plan] for plan in plans)
    best = max(place for place, time in enumerate(times) if time <= within(min(times)))
    counts = tuple(len(plan.buckets) for plan in plans)
    bound = default.lower_bound
    return SizeCurve(target, knob.name, knob.elements, caps, times, counts, best, default.iteration_time, bound)


def _caps(sizes: Sequence[int], count: int, also: int | None) -> tuple[int, ...]:
    """``count`` limits, from the largest tensor or 1/4096 of all gradients, whichever is less, up to all of them."""
    whole = sum(sizes)
    least = max(min(max(sizes), int(whole * SMALLEST_PART)), 1)
    steps = [least * (whole / least) ** (number / (count - 1)) for number in range(count)]
    found = [round(step) for step in steps] + ([] if also is None else [also])
    return tuple(sorted({min(max(cap, 1), whole) for cap in found}))
