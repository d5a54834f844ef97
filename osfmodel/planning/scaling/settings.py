"""The settings of a framework for the last point of a scaling curve."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from osfmodel.cost.clusters import strided
from osfmodel.counting import in_words
from osfmodel.counting.training import NOTHING
from osfmodel.counting.words import model_of, parse_words
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.lookup import require
from osfmodel.entities.modules import SHARDED
from osfmodel.entities.plan import Plan
from osfmodel.planning.predictions import compare
from osfmodel.planning.results import Tuning
from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint
from osfmodel.planning.scaling.replicas import in_stages, of_each_gpu
from osfmodel.planning.scaling.strategies import StrategyRow, reserved_near
from osfmodel.planning.tuning import tune, tuned_rule
from osfmodel.planning.tuning.choosing import STRATEGY_PLANS, strategy_row
from osfmodel.solve.solution import Limits, MemoryLimit, PlanRule
from osfmodel.solve.verdicts import NO, TIGHT
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.targets.named_plans import NAMED_PLANS, named_plan
from osfmodel.targets.target import JobSettings


def says_groups(target: str) -> bool:
    """Whether the settings of a target say tensor, pipeline, context and expert groups. Raises UsageError."""
    return require(target, CONFIG_TARGETS, "target").text.in_job is not None


def settings(curve: ScaleCurve, target: str) -> Tuning:
    """The settings of ``target`` for the largest number of workers of ``curve``, within its limit of memory.

    Raises as ``tune``, and UsageError where there are groups and the target has no settings for them.
    """
    last, groups = curve.points[-1], curve.groups.document
    chosen = require(target, CONFIG_TARGETS, "target")
    if groups and not says_groups(target):
        others = ", ".join(filter(says_groups, CONFIG_TARGETS))
        raise UsageError(f"--for {target} has no settings for {curve.groups.words}: give {others}")
    workload = of_each_gpu(curve.workload, curve.groups, curve.what_if, last.workers)
    cluster = strided(curve.cluster, curve.groups.tensor)

    def judged(limit: MemoryLimit | None) -> tuple[Tuning, StrategyRow | None]:
        """The settings within a limit of live bytes, and how they fit into that of the curve."""
        found = tune(workload, cluster, last.ranks, target, Limits(memory=limit))
        if curve.limit is None:
            return found, None
        rule = in_stages((target, tuned_rule(found)), curve.groups)
        (predicted,) = compare(workload, cluster, last.ranks, [rule]).predictions
        return found, strategy_row(predicted, last.ranks, curve.limit, True, curve.groups)

    limit = curve.limit if chosen.objective.strategy in SHARDED else None
    try:
        found, row = judged(limit)
    except PlanError:
        if limit is None or last.fits != TIGHT or last.best.peak is None:
            raise
        # As tight as the plan in the table.
        found, row = judged(replace(limit, bytes=max(limit.bytes, last.best.peak.bytes)))
    if chosen.objective.strategy in SHARDED and row is not None and row.fits == NO and row.reserved and curve.limit:
        with suppress(PlanError):  # live bytes for which PyTorch reserves no more than there is
            found, row = judged(replace(curve.limit, bytes=curve.limit.bytes**2 // row.reserved))
    taken = last.best.prediction.plan
    if last.fits != NO and not _alike(found.plan, taken, last.ranks):
        said = f"these settings of {target} are not of {last.best.name}, which the table takes"
        shown = f"--plan {_name_of(found.plan, target, last.best.name)} shows their step"
        others = f", --for {last.best.name} has those of {last.best.name}" if last.best.name in CONFIG_TARGETS else ""
        found = replace(found, warnings=(*found.warnings, f"{said}: {shown}{others}"))
    if curve.limit is not None and row is not None and row.fits == NO:
        need, room = show_bytes(reserved_near(row, last.ranks) or 0), show_bytes(curve.limit.bytes)
        said = f"the settings of {target} do not fit: PyTorch reserves about {need} of {room}"
        found = replace(found, warnings=(*found.warnings, f"{said}: see the strategies above for what does"))
    how = parse_words(curve.workload.name).setting.checkpointing if in_words(curve.workload.name) else NOTHING
    if chosen.text.in_job is None and how != NOTHING:
        said = f"the settings of {target} do not checkpoint: have blocks do so in your code, as ac={how} says"
        found = replace(found, warnings=(*found.warnings, said))
    if chosen.text.in_job is not None and in_words(curve.workload.name):
        knobs = chosen.text.in_job(found.knobs, _job(curve, last))
        found = replace(
            found, knobs=knobs, config=chosen.text.config(knobs), rendered=chosen.text.render(knobs, workload)
        )
    return found.under(replace(curve.what_if, accumulate=last.accumulated))


def _name_of(plan: Plan, target: str, taken: str) -> str:
    """The named plan that predicts the settings of a target, where its own has other rules than the one ``taken``."""
    kinds = {kind.objective.strategy: name for name in STRATEGY_PLANS if isinstance(kind := named_plan(name), PlanRule)}
    return target if target in NAMED_PLANS and target != taken else kinds.get(plan.strategy, target)


def _alike(one: Plan, other: Plan, ranks: int) -> bool:
    """Whether two plans keep and exchange gradients under one strategy, and shard between as many ranks."""
    each = [None if plan.sharding is None else plan.sharding.ranks(ranks) for plan in (one, other)]
    return one.objective.strategy == other.objective.strategy and each[0] == each[1]


def _job(curve: ScaleCurve, point: ScalePoint) -> JobSettings:
    """The settings of a point's job, of a workload in words. Raises UsageError for a portion that is checkpointed."""
    parsed, kinds = parse_words(curve.workload.name), tuple(curve.groups.document.items())
    how, blocks = parsed.setting, len(model_of(parsed).blocks)
    if how.portion != 1:
        raise UsageError("--for has no settings for a portion that is checkpointed: give ac=none, selective or full")
    batch, samples, tokens = point.workload.batch_size or 1, point.samples or 1, point.workload.sample_tokens
    return JobSettings(
        kinds,
        batch,
        samples,
        point.accumulated,
        tokens,
        how.checkpointing,
        how.dtype,
        how.stack,
        blocks,
        how.overlap if curve.groups.tensor > 1 else "",
    )
