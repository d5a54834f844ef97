"""A format, a target and a cost model for osfmodel, which its package provides; a solver and a trace format besides."""

from dataclasses import dataclass

import osfmodel as osf
from osfmodel.cost import AffineCost, CostModel, Fit
from osfmodel.cost.fitting import fit_nonnegative
from osfmodel.cost.model import link_from_spec
from osfmodel.entities.plan import PLAIN
from osfmodel.entities.trace import RankTrace, Step, Trace
from osfmodel.formats import Format, of_traces
from osfmodel.formats.source_text import Point, Text, cluster_of, require_workers
from osfmodel.formats.streams import opened
from osfmodel.solve import PlanRule
from osfmodel.solve.caps import AT_MOST, best_cap_elements, cap_forming, in_elements
from osfmodel.solve.solution import answer
from osfmodel.targets import Target
from osfmodel.targets.target import Conversion, SettingsText, SizeKnob, exact_or, ignoring_prices, require_plain


def points_of(text, workers):
    """The rows of a file: bytes and milliseconds."""
    for number, line in text.lines():
        if number > 1:
            fields = line.split()
            if len(fields) != 2:
                raise text.fault(number, line, "is not a size with a time")
            yield Point(workers, text.whole(number, fields[0]), text.number(number, fields[1]) * 1e-3, number)


def read(text, hints):
    """A cluster of the times in the file."""
    points = list(points_of(text, require_workers(None, hints)))
    return [cluster_of(text, points, hints, "example-bench, milliseconds")]


bench = Format(
    lambda head: head.startswith("example-bench v1"), read, "what example-bench prints", label="example-bench output"
)


@dataclass(frozen=True, slots=True)
class Knobs:
    """Maximum elements in a bucket."""

    elements: int = 500_000_000


def to_plan(knobs, workload):
    """The plan of a framework that sends a bucket when the next tensor would not fit any more."""
    return osf.grouped_plan(workload, AT_MOST.layout(in_elements(workload.gradients), knobs.elements))


def exact(plan, workload):
    """The knobs that form the plan."""
    require_plain(plan, workload, "this framework")
    order = {name: position for position, name in enumerate(workload.gradients.names)}
    groups = [[order[block.layer] for block in bucket.blocks] for bucket in plan.buckets]
    cap = cap_forming(groups, in_elements(workload.gradients), AT_MOST) if groups else Knobs().elements
    if cap is None or to_plan(Knobs(cap), workload) != plan:
        raise osf.PlanError("no cap makes this framework form this plan")
    return Knobs(cap)


def nearest(plan, workload, pricing, limits):
    """The best knobs."""
    require_plain(plan, workload, "this framework")
    cap = best_cap_elements(workload, pricing.cost(), AT_MOST, limits)
    if cap is None:
        raise osf.PlanError(limits.unmet("bucket_elements"))
    return Knobs(cap)


target = Target(
    summary="an example framework with one cap in elements",
    convert=Conversion(
        default_knobs=Knobs, from_plan=exact_or(exact, nearest), to_plan=ignoring_prices(to_plan), exact=exact
    ),
    text=SettingsText(
        config=lambda knobs: {"bucket_elements": knobs.elements},
        render=lambda knobs, workload: f"bucket_elements: {knobs.elements}  # for {workload.name}\n",
        ending=".yaml",
    ),
    size=SizeKnob(
        "bucket_elements", Knobs, best=lambda workload, cost: best_cap_elements(workload, cost, AT_MOST), elements=True
    ),
)


def cost(cluster, workers, collective):
    """One latency and all bytes once, at any number of workers; half of it for half of an all-reduce."""
    link, part = cluster.between_nodes, 1 if collective == "all_reduce" else 0.5
    if link is None:
        raise osf.CostError(f"cluster {cluster.name!r} has no between_nodes link, which example-switch needs")
    return AffineCost(((link.latency * part, link.seconds_per_byte * part),))


def fit(samples, gpus_per_node):
    """The link that explains all samples."""
    (latency, per_byte), residuals = fit_nonnegative(samples, lambda workers, size: (1, size))
    return Fit.of(samples, {"between_nodes": osf.Link(latency, per_byte)}, residuals)


def from_spec(name, parts):
    """The cluster of ``example-switch:50us,10Gbps``."""
    return osf.Cluster(name, "example-switch", between_nodes=link_from_spec(*parts))


switch = CostModel(
    cost,
    fit,
    "a switch that reduces: one latency, all bytes once",
    link_parameters=("bandwidth", "latency"),
    from_spec=from_spec,
)


def solve(question):
    """Idle flush: each time, one bucket per dtype of all that is ready when the channel becomes free."""
    question.require_plain("idle flush")
    gradients, cost = question.workload.gradients, question.pricing.cost()
    groups, first, free = [], 0, 0
    while first < len(gradients):
        start = max(free, gradients.ready_times[first])
        end = next((i for i in range(first, len(gradients)) if gradients.ready_times[i] > start), len(gradients))
        for dtype in dict.fromkeys(gradients.dtypes[first:end]):
            groups.append([i for i in range(first, end) if gradients.dtypes[i] == dtype])
            free = start = start + cost(sum(gradients.sizes[i] for i in groups[-1]))
        first = end
    return answer(question, osf.grouped_plan(question.workload, groups))


idle_flush = PlanRule(solve, "when the channel is idle, everything that is ready", serves=PLAIN.permits)


ENDINGS = (".toy",)


def sniff(head):
    """A first line that says so."""
    return head.startswith("example-profiler v1")


def steps_of(text):
    """A line for each step: start and end in milliseconds, all of it computation."""
    for number, line in text.lines():
        if number > 1:
            fields = line.split()
            if len(fields) != 2:
                raise text.fault(number, line, "is no start with an end")
            start, end = (text.number(number, field) * 1e-3 for field in fields)
            if end < start:
                raise text.fault(number, line, "ends before it starts")
            yield Step(number - 2, start, end, compute=((start, end),))


def trace_of(files, hints):
    """A file for each rank."""
    ranks = []
    for rank, (name, pieces) in enumerate(opened(files, sniff, ENDINGS)):
        try:
            steps = tuple(steps_of(Text(name, b"".join(pieces).decode("utf-8", "replace"))))
        except osf.DataError as error:
            raise osf.DataError(f"{name}: {error}") from None
        ranks.append(RankTrace(rank, steps, file=name))
    return Trace(hints.name or "job", tuple(ranks))


profiler = of_traces(sniff, trace_of, "what example-profiler writes", ENDINGS, "a trace of example-profiler")
