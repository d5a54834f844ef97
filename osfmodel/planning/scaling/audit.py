"""Audit of a job as it is set up: its step, the best layout, and the single changes that gain most.

A gain is the part of the step's time that a change saves. For its interval both steps are predicted under the same
draws from what is doubtful about prices and computation. Added is what pairs of measured plans differ by beyond that
where the strategy alone changes, else what pairs of measured layouts do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from math import inf

from osfmodel.counting import load_workload
from osfmodel.counting.groups import DEGREES, Parallelism
from osfmodel.counting.training import NOTHING
from osfmodel.counting.words import parse_words
from osfmodel.engine import predict_timeline
from osfmodel.engine.bands import gain_doubt
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import UsageError
from osfmodel.formats.jobs import JOB_FORMATS
from osfmodel.formats.jobs.job import JobConfig
from osfmodel.planning.results import WORTHWHILE
from osfmodel.planning.scaling.audited import Audit, AuditedStep
from osfmodel.planning.scaling.curve import ScalePoint
from osfmodel.planning.scaling.layouts import LayoutSearch, simplest
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask, curve_of
from osfmodel.planning.scaling.spaces import Layout, Limit, Space, parse_space
from osfmodel.planning.tuning.chances import chance, doubted
from osfmodel.solve.verdicts import NO, TIGHT
from osfmodel.targets.named_plans import called

MOST_CHANGES = 3
LAYOUT_DOUBTS = ((1, 0.13), (2, 0.19), (16, 0.81), (inf, 5.95))
"""Nodes at most -> part by which the ratio of two layouts' steps may be off, of nine in ten pairs of nanotron's layouts
that differ in one thing (``benchmarks/layouts.py`` prints it): the only source that has measured enough of them."""
ROOM = {NO: 0, TIGHT: 1}
"""Verdicts on memory in their order; all others are better."""


def audit(
    job: JobConfig, words: str, cluster: Cluster, gpus: int, options: ScaleOptions = ScaleOptions(), limits: str = "any"
) -> Audit:
    """The audit of ``job`` with ``gpus`` GPUs on ``cluster``; ``words``: its workload, ``limits``: of the search.

    Raises UsageError where its groups do not divide the GPUs, the model or the batch, and CostError where the cluster
    cannot price it.
    """
    groups, plan = Parallelism(**job.groups), called(job.plan)
    if job.replicas and plan.startswith("hsdp") and job.replicas != _hosts(groups, cluster, gpus):
        plan = plan.replace("hsdp", "fsdp2")
        said = (
            f"{job.replicas} replicas that each shard are predicted as one, {plan}, which holds less and gathers more"
        )
        job = replace(job, plan=plan, notes=(*job.notes, said))
    replicas, setting = groups.replicas(gpus), parse_words(words).setting
    batch, how = setting.batch, setting.checkpointing
    how += f":{setting.portion:g}" if setting.portion != 1 else ""
    whole = job.whole or batch * (job.accumulate or 1) * replicas
    if whole % (batch * replicas):
        each = batch * replicas
        near = " or ".join(
            f"--global-batch {size}" for size in (whole // each * each, -(-whole // each) * each) if size
        )
        raise UsageError(
            f"a step of {whole} samples is not whole micro-batches of {batch} on {replicas} replicas: {near}"
        )
    layout = Layout(groups, batch, whole // (batch * replicas), how)
    own = replace(options, plans=(plan,))
    every = replace(options, plans=tuple(dict.fromkeys((*JOB_FORMATS[job.framework].plans, plan))))
    free = LayoutSearch(words, cluster, gpus, every)
    kept = copy(free)  # with what it has counted
    kept.options = own
    point = kept.price(layout) or _refused(words, cluster, gpus, own, layout)
    now = AuditedStep("as it is", point)
    found = free.best(free.candidates(parse_space(limits).with_checkpointing_of(words), whole))
    place = simplest(found) if found else 0
    best = found[place][1] if found else point
    changes = [*_other_strategies(free, layout, point), *_other_layouts(kept, layout, whole)]
    workload, task = kept.again(layout)
    curve = curve_of(task, workload, cluster, [point], task.limit, job.notes)
    listed = tuple(replace(one, taken=number == place) for number, (_, one) in enumerate(found))
    best = best if (best.fits != NO and best.time < point.time) or point.fits == NO else point
    nodes = -(-gpus // max(1, cluster.gpus_per_node))
    steps = [now, _gained("best layout", best, now, nodes), *_most(now, changes, nodes)]
    return Audit(job, replace(curve, combinations=listed, groups=groups), tuple(steps))


def _hosts(groups: Parallelism, cluster: Cluster, gpus: int) -> int:
    """Nodes that the data-parallel ranks are on, on each of which HSDP has a replica."""
    return -(-groups.ranks(gpus) // max(1, cluster.gpus_per_node // groups.tensor))


def _refused(words: str, cluster: Cluster, gpus: int, options: ScaleOptions, layout: Layout) -> ScalePoint:
    """The point of a layout that the search leaves out; most likely an error that says why."""
    whole = layout.groups == Parallelism()
    workload = load_workload(words) if whole else replica_workload(words, cluster, layout.groups)
    what_if = replace(options.what_if, accumulate=layout.accumulated)
    task = ScaleTask.of(workload, cluster, replace(options, what_if=what_if, groups=layout.groups))
    return replace(task.point(workload, gpus), groups=layout.groups)


def _other_strategies(search: LayoutSearch, layout: Layout, now: ScalePoint) -> Iterator[tuple[str, str, ScalePoint]]:
    """The layout with each other strategy: the kind of change, the change, and its point."""
    point = search.price(layout)
    if point is None:
        return
    for row in point.rows:
        if row.name != now.best.name:
            yield "strategy", row.name, replace(point, best=row)


def _other_layouts(search: LayoutSearch, layout: Layout, samples: int) -> Iterator[tuple[str, str, ScalePoint]]:
    """The layouts that differ in one thing, with the strategy that there is; the samples of a step stay."""
    groups = layout.groups
    sizes = {short: getattr(groups, kind) for kind, short in DEGREES.items()} | {"batch": layout.batch}
    fixed = {name: Limit(size, size) for name, size in sizes.items()}
    fixed["ac"] = Limit(0, words=(layout.checkpointing,))
    for name in fixed:
        space = Space({other: limit for other, limit in fixed.items() if other != name})
        for other in search.candidates(space, samples):
            if other == layout:
                continue
            point = search.price(other)
            if point is not None:
                yield name, _said(name, other), point


def _said(name: str, layout: Layout) -> str:
    if name == "batch":
        return f"{how_many(layout.batch, 'sample')} a micro-batch"
    if name == "ac":
        return "no checkpointing" if layout.checkpointing == NOTHING else f"{layout.checkpointing} checkpointing"
    kind = next(kind for kind, short in DEGREES.items() if short == name)
    return f"{name} {getattr(layout.groups, kind)}"


def _most(now: AuditedStep, changes: Sequence[tuple[str, str, ScalePoint]], nodes: int) -> list[AuditedStep]:
    """The best change of each kind, of these the best few; those that make a job fit that does not, at any cost."""
    room = ROOM.get(now.point.fits or "", 2)
    best: dict[str, tuple[str, ScalePoint]] = {}
    for kind, said, point in sorted(changes, key=lambda one: one[2].time):
        fits = ROOM.get(point.fits or "", 2)
        if fits >= max(room, 1) and (room == 0 or point.time < now.point.time * (1 - WORTHWHILE)):
            best.setdefault(kind, (said, point))
    chosen = sorted(best.values(), key=lambda one: one[1].time)[:MOST_CHANGES]
    return [_gained(said, point, now, nodes) for said, point in chosen]


def _gained(said: str, point: ScalePoint, now: AuditedStep, nodes: int) -> AuditedStep:
    if point is now.point:
        return AuditedStep(said, point, 0.0)
    alike = (point.groups, point.workload.name) == (now.point.groups, now.point.workload.name)
    both = (now.point.best.prediction, point.best.prediction)
    doubt = (
        max(gain_doubt(one.plan, one.bound.question.pricing) for one in both)
        if alike
        else next(doubt for most, doubt in LAYOUT_DOUBTS if nodes <= most)
    )
    return AuditedStep(said, point, 1 - point.time / now.point.time, chance(_times(point), _times(now.point), doubt))


def _times(point: ScalePoint) -> list[float]:
    """Seconds of the step under each draw from what is doubtful."""
    found = point.best.prediction
    asked = found.bound.question
    return [
        predict_timeline(workload, found.plan, pricing, found.timeline).iteration_time
        for workload, pricing in doubted(asked.workload, asked.pricing)
    ]
