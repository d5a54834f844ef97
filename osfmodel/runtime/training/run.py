"""``osf run`` under PyTorch DDP and osf.execute: train for real under one plan after the other, and measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from osfmodel.cost.pricing import Pricing
from osfmodel.counting import load_workload
from osfmodel.engine import without_priority
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.measurement import COMPUTATION, Measurement
from osfmodel.entities.workload import Workload
from osfmodel.runtime import training
from osfmodel.runtime.job.ranks import Place, Voice, Watchdog, require_agreement, require_torch
from osfmodel.runtime.profiler.conditions import other_threads
from osfmodel.runtime.training import TrainingSettings
from osfmodel.runtime.training.ddp_buckets import Carried, carried
from osfmodel.runtime.training.request import UNMEASURED, RunRequest, is_executed, is_file, keep_turns, plan_called
from osfmodel.runtime.training.subjects import TrainingSubject, agreed, replayed, trained
from osfmodel.targets.named_plans import make_plan

FIXED = " (fixed order)"
"""Suffix of plans that would send by priority, but send in their predicted order."""


def require_installed(command: str) -> None:
    """Raise UsageError if PyTorch is not installed."""
    require_torch(command)


def run(
    asked: RunRequest, settings: TrainingSettings, place: Place, voice: Voice, watch: Watchdog
) -> list[Measurement]:
    """Run all turns; rank 0 keeps a file of finished ones. Raises whatever torch or the model does."""
    require_agreement(repr((asked, settings)))
    watch.telling = voice.progress
    subject = _subject(asked, place, voice)
    watch.patience += 2 * subject.workload.compute_time
    pricing = asked.pricing(place.world)
    conditions = training.conditions_of(subject, settings, place)
    plans = []
    for number, name in enumerate(asked.plans, 1):
        watch.beat(f"preparing plan {name} ({number} of {len(asked.plans)})")
        plans.append(_carried(name, asked, subject, pricing, conditions))
    losses: dict[str, float] = {}
    if asked.verify:
        several = _default_first(plans, subject.workload)
        each = {one.label: partial(training.losses_under, subject, one, settings, place, watch) for one in several}
        losses = training.loss_difference(each, place)
    first = _first(asked, settings, place, subject)
    if subject.real:  # a replay computes as its profile says
        told = (COMPUTATION, f"{training.computation(subject, settings, place, watch):.6g}")
        first = replace(first, conditions=(*first.conditions, told))
    runs: list[Measurement] = []
    for ran in training.run_all(subject, plans, settings, place, watch):
        one = training.measurement_of(ran, first, losses)
        runs.append(replace(one, plan=asked.relative(one.plan)))
        if place.rank == 0:
            keep_turns(runs, settings.repeats * len(plans), asked.output, watch, voice.progress)
    return runs


def _subject(asked: RunRequest, place: Place, voice: Voice) -> TrainingSubject:
    if not asked.real:
        return replayed(asked.variation.of(load_workload(asked.subject)), place.device)
    known = None if asked.workload is None else load_workload(asked.workload)
    note = "" if known is None or place.rank else other_threads(known, place.device)
    if note:
        voice.line(f"warning: {note}")
    return agreed(trained(asked.subject, place.device, known))


def _carried(
    label: str, asked: RunRequest, subject: TrainingSubject, pricing: Pricing, conditions: dict[str, str]
) -> Carried:
    if not is_executed(label):
        plan = plan_called(label, subject.workload, pricing.under(conditions))
        return carried(label, plan, subject.workload, asked.hook)
    name, pricing = label.removeprefix(RUNTIME.prefix), pricing.under(conditions | RUNTIME.conditions)
    plan = plan_called(name, subject.workload, pricing)
    if plan.credit is not None and not is_file(name):
        label, plan = label + FIXED, without_priority(subject.workload, plan, pricing)
    return training.executed(label, plan, subject)


def _default_first(plans: Sequence[Carried], workload: Workload) -> list[Carried]:
    """The plans, with DDP's default first: its losses are the reference."""
    return [default_of(workload), *(planned for planned in plans if not planned.by_default)]


def default_of(workload: Workload) -> Carried:
    """DDP's default plan."""
    return carried("ddp", make_plan("ddp", workload, UNMEASURED), workload)


def _first(asked: RunRequest, settings: TrainingSettings, place: Place, subject: TrainingSubject) -> Measurement:
    """A measurement with everything that all runs share; files are relative to the measurement file."""
    named = asked.workload or (asked.subject if not asked.real else subject.workload.name)
    names = asked.relative(named), asked.relative(asked.cluster or "unmeasured")
    return training.first_of(subject, settings, place, names, None if asked.real else asked.variation)
