"""A format, a target and a cost model for osfmodel."""

from dataclasses import dataclass

import osfmodel as osf
from osfmodel.cost import AffineCost, CostModel, Fit
from osfmodel.cost.fitting import fit_nonnegative
from osfmodel.cost.model import link_from_spec
from osfmodel.formats import Format
from osfmodel.formats.source_text import Point, cluster_of, require_workers
from osfmodel.solve.caps import AT_MOST, best_cap_elements, cap_forming, in_elements
from osfmodel.targets import Target
from osfmodel.targets.target import Conversion, SettingsText, exact_or, ignoring_prices, require_plain


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
        render=lambda knobs, workload: f"bucket_elements: {knobs.elements}\n",
        ending=".yaml",
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


switch = CostModel(cost, fit, "a switch that reduces: one latency, all bytes once", from_spec=from_spec)
