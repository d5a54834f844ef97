"""Pictures of a workload on a cluster, as data: the iteration under each plan, curves, and runs of a band's sources.

The terminal, PNG and SVG, the HTML report and the Chrome trace all show these and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.engine.bands import Band
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import OsfError
from osfmodel.entities.units import show_time
from osfmodel.entities.workload import Workload
from osfmodel.formats.traces import Trace, plan_of
from osfmodel.formats.traces.cautions import cautions
from osfmodel.formats.traces.usual import step_times, usual_step, usual_steps
from osfmodel.ledger.check import check
from osfmodel.planning.predictions import Comparison, Given, Prediction, compare
from osfmodel.planning.tuning import WORTHWHILE, Tuning, tune
from osfmodel.planning.what_if import WhatIf
from osfmodel.show.pictures.curves import Scaling, Sweep, counts_around, scaling, sweep
from osfmodel.show.pictures.gantt import Gantt, measured, predicted
from osfmodel.show.pictures.scatter import Scatter, scatter
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.targets.named_plans import NAMED_PLANS, STOCK_PLANS

TUNED = "tuned"
"""The name of the plan that tuning finds."""
TRACED = "as traced"
"""The name of the plan that a trace itself shows."""
BELOW = 0.01
"""By what part a measured step must be shorter than a lower bound to be said to be: steps are not all alike."""
Curve = Scaling | Sweep | Scatter
"""What a form of a picture draws below the iterations; each form has a table by these types."""
BEST = "optimal"
"""What is best at each worker count, beside what is tuned for one."""


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """What is to be shown.

    workers:  at which count the iteration is shown and tuned for
    counts:   those of the curve over workers; none for some around ``workers``
    target:   the framework whose default and tuned plans are shown first
    plans:    what is shown beside them
    traces:   measured jobs to stand beside the predictions
    evidence: whether the measured runs of the sources of the error band are shown, all of them
    inputs:   what was asked for, as pairs of words, to be shown
    what_if:  what of workload and cluster was changed; the cluster has been, the workload is as profiled
    """

    workload: Workload
    cluster: Cluster
    workers: int
    counts: tuple[int, ...] = ()
    target: str = "ddp"
    plans: tuple[Given, ...] = STOCK_PLANS
    traces: tuple[Trace, ...] = ()
    evidence: bool = False
    inputs: tuple[tuple[str, str], ...] = ()
    what_if: WhatIf = WhatIf()

    def changed(self, workers: int) -> Workload:
        """The workload as it is to be at so many workers."""
        return self.what_if.of_workload(self.workload, workers)

    def compared(self, plans: Sequence[Given], workers: int) -> Comparison:
        """``plans`` at so many workers. Raises as ``compare``."""
        comparison = compare(self.changed(workers), self.cluster, workers, plans)
        return comparison.under(self.what_if, self.what_if.alone(self.workload, workers))


@dataclass(frozen=True, slots=True)
class Pictures:
    """All pictures of a request.

    predicted: a chart for each prediction of ``comparison``, in its order
    why:       what limits each measured job, in a sentence or two, where its trace tells
    remarks:   what could not be shown, and why, each with what it is about
    curves:    those that have something to show, one of a type at most
    """

    request: PictureRequest
    tuning: Tuning = field(repr=False)
    comparison: Comparison = field(repr=False)
    predicted: tuple[Gantt, ...] = field(repr=False)
    measured: tuple[Gantt, ...] = field(repr=False)
    curves: tuple[Curve, ...] = field(repr=False)
    why: tuple[str, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """What is shown, in a line."""
        return f"{self.request.workload.name} {self.where}"

    @property
    def where(self) -> str:
        """On what, with which changes, and on how many workers."""
        request = self.request
        changed = f" with {request.what_if.words}" if request.what_if.words else ""
        count = "1 worker" if request.workers == 1 else f"{request.workers} workers"
        return f"on {request.cluster.name}{changed}, {count}"

    @property
    def default(self) -> Prediction:
        """What the framework does without being asked."""
        return self.comparison.predictions[0]

    @property
    def bound(self) -> float:
        """Seconds that no schedule under the rules of the default can beat; plans under other rules may."""
        return self.default.lower_bound

    @property
    def tuned(self) -> Prediction:
        """What it does as tuned."""
        return self.comparison.predictions[1]

    @property
    def shown(self) -> int:
        """The place of what is shown first and measured steps are held against: as traced, where there is that."""
        return next((place for place, one in enumerate(self.comparison.predictions) if one.name == TRACED), 0)

    @property
    def verdict(self) -> str:
        """What tuning brings, in a sentence or two: over the buckets of the trace if known, else over the default."""
        traced = self.comparison.predictions[self.shown]
        if traced.name != TRACED:
            return self.tuning.verdict
        gain = 1 - self.tuned.iteration_time / traced.iteration_time
        if gain < WORTHWHILE:
            return f"No improvement worth having: {max(gain, 0):.2%} over the buckets of the trace. Keep them."
        saved = f"{gain:.1%} less time than with the buckets of the trace"
        if not self.tuning.improvement:
            return f"{saved}: by the default of {self.request.target}, over which tuning brings nothing."
        return f"{saved}. {self.tuning.verdict}"

    @property
    def main(self) -> tuple[Gantt, ...]:
        """What is shown where not all can be: default, tuned, as traced, and what was measured."""
        return (*(self.predicted[place] for place in dict.fromkeys((0, 1, self.shown))), *self.measured)

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence for each measured step that is faster than any can be by the prediction it is held against."""
        against = self.comparison.predictions[self.shown]
        limit = against.lower_bound * (1 - BELOW)
        # Where steps differ, the one that is drawn may be fast although others, as usual as it, are not.
        fast = [gantt for trace in self.request.traces if _longest(trace) < limit for gantt in _measured(trace)]
        return tuple(
            f"The measured step ({gantt.name}) takes {show_time(gantt.end)}, less than the lower bound of "
            f"{against.name}, {show_time(against.lower_bound)}: the job computed or communicated faster than the "
            "workload or the cluster says, so predictions from them are too slow."
            for gantt in fast
            if gantt.end < limit
        )

    @property
    def notes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """All that there is to be careful about, each with the plans that it is about."""
        found: dict[str, list[str]] = {}
        for prediction in self.comparison.predictions:
            for note in prediction.notes:
                found.setdefault(note, []).append(prediction.name)
        for note in self.tuning.notes:
            found.setdefault(note, [TUNED])
        for remark, about in self.remarks:
            found.setdefault(remark, []).append(about)
        for trace in self.request.traces:
            for remark in (*trace.remarks, *cautions(trace)):
                found.setdefault(remark, []).append(f"trace {trace.name}")
        return tuple((note, tuple(names)) for note, names in found.items())


def pictures(request: PictureRequest) -> Pictures:
    """Tune, predict and draw. Raises as ``tune`` and ``compare``, and DataError for a trace without a step."""
    workload, cluster, workers = request.changed(request.workers), request.cluster, request.workers
    seen = tuple(chart for trace in request.traces for chart in _measured(trace))
    tuning = tune(workload, cluster, workers, request.target).under(request.what_if)
    default = request.target if request.target in NAMED_PLANS else "ddp"
    both: list[Given] = [default, (TUNED, tuning.named)]
    traced, remarks = _traced(request.traces, workload)
    others = [plan for plan in dict.fromkeys(request.plans) if plan != default]
    comparison = request.compared([*both, *traced, *others], workers)
    counts = sorted(request.counts) if len(request.counts) > 1 else counts_around(cluster, workers)
    bands = [one.band for one in comparison.predictions]
    curves: tuple[Curve | None, ...] = (
        scaling(partial(request.compared, [*both, BEST]), counts, workers),
        sweep(comparison, request.target),
        _evidence(bands) if request.evidence else None,
    )
    return Pictures(
        request,
        tuning,
        comparison,
        predicted=tuple(map(predicted, comparison.predictions)),
        measured=seen,
        curves=tuple(curve for curve in curves if curve is not None),
        why=_why(request.traces),
        remarks=(*remarks, *_knobless(request.target)),
    )


def _traced(traces: Sequence[Trace], workload: Workload) -> tuple[list[Given], list[tuple[str, str]]]:
    """The buckets of the first trace that has them and whose layers are those of the workload; why not of others."""
    remarks: list[tuple[str, str]] = []
    for trace in traces:
        try:
            return [(TRACED, plan_of(trace, workload))], remarks
        except OsfError as error:
            remarks.append((f"the buckets of the trace are not among the plans: {error}", f"trace {trace.name}"))
    return [], remarks


def _why(traces: Sequence[Trace]) -> tuple[str, ...]:
    """As ``osf explain`` says it; nothing for traces that do not fit together, which that command says why."""
    found = []
    for trace in traces:
        with suppress(OsfError):
            found.append(explain_trace(trace).verdict)
    return tuple(found)


def _knobless(target: str) -> list[tuple[str, str]]:
    if CONFIG_TARGETS[target].size is not None:
        return []
    return [(f"no curve over bucket sizes: {target} has no one setting that limits all messages", target)]


def _measured(trace: Trace) -> list[Gantt]:
    """The usual step of the first rank that has it, and of the rank on which it is the longest, where that is another.

    Raises DataError for a trace without a step.
    """
    number = usual_step(trace).number
    steps = [(rank.rank, step) for rank in trace.ranks for step in rank.steps if step.number == number]
    longest = max(steps, key=lambda one: one[1].time)
    return [
        measured(step, f"{trace.name}, rank {rank}, step {number}") for rank, step in dict([steps[0], longest]).items()
    ]


def _longest(trace: Trace) -> float:
    """Seconds of the longest of the usual steps, each in the mean over the ranks."""
    times = step_times(trace)
    return max(times[step.number] for step in usual_steps(trace))


def _evidence(bands: Sequence[Band | None]) -> Scatter | None:
    """All runs of the sources of the bands, of which a band takes those that communicate alike; None for no runs."""
    sources = sorted({source for band in bands if band is not None for source in band.sources})
    found = scatter(check(sources) if sources else ())
    return found if found.clouds else None
