"""``osf run`` under PyTorch DDP and osf.execute: train for real under one plan after the other, and measure it.

A request of ``osf run`` is the subject, the plans, and the reading of its names and files. At its end stand a summary,
a line for each plan, and warnings of what is wrong with any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isinf, isnan
from pathlib import Path
from statistics import median
from typing import NamedTuple

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.counting import load_workload
from osfmodel.engine import without_priority
from osfmodel.entities.batches import Variation
from osfmodel.entities.display import show_time
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import save_measurements
from osfmodel.entities.measurement import COMPUTATION, DEFAULTS, Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.runtime import training
from osfmodel.runtime.job import Place, Voice, Watchdog, require_agreement, require_torch
from osfmodel.runtime.profiler.conditions import other_threads
from osfmodel.runtime.training import TrainingSettings
from osfmodel.runtime.training.ddp_buckets import Carried, carried
from osfmodel.runtime.training.factories import is_factory
from osfmodel.runtime.training.subjects import TrainingSubject, agreed, replayed, trained
from osfmodel.targets.named_plans import make_plan

UNMEASURED = Pricing.of(FREE, workers=2)
"""Placeholder prices, for plans that can be made without any."""


def keep_turns(
    runs: Sequence[Measurement], total: int, output: str, watch: Watchdog, tell: Callable[[str], None]
) -> None:
    """Save the finished turns in ``output``, and tell of the last of them; for the rank that keeps the file."""
    save_measurements(Path(output).stem, runs, output)
    watch.kept = f"; {len(runs)} finished turns are in {output}"
    tell(f"{len(runs)} of {total}: {runs[-1].plan} {show_time(runs[-1].iteration_time)} per iteration")


class RunRequest(NamedTuple):
    """The request of the command line."""

    subject: str
    plans: tuple[str, ...]
    cluster: str | None
    workload: str | None
    variation: Variation
    output: str
    hook: bool | None
    verify: bool
    timeline: str | None = None
    compression: str | None = None
    asynchronous: bool = False

    @property
    def real(self) -> bool:
        """Whether the subject is a user's model."""
        return is_factory(self.subject)

    def pricing(self, workers: int) -> Pricing:
        """Prices of the cluster, if one is given."""
        return UNMEASURED if self.cluster is None else pricing_of(load_cluster(self.cluster), workers)

    def relative(self, name: str) -> str:
        """A file's path relative to the output's folder; other names are unchanged."""
        if is_executed(name):
            return RUNTIME.prefix + self.relative(name.removeprefix(RUNTIME.prefix))
        return os.path.relpath(name, Path(self.output).resolve().parent) if is_file(name) else name


def is_executed(plan: str) -> bool:
    """Whether a plan is for osf.execute, in a run that also has plans for DDP."""
    return plan.startswith(RUNTIME.prefix)


def is_file(name: str) -> bool:
    """Whether it names a file, not something known by that name."""
    return name.endswith(".json")


def plan_called(name: str, workload: Workload, pricing: Pricing) -> Plan:
    """The plan in a file, or the named one at these prices. Raises OsfError if there is none."""
    return profiles.load_plan(name, workload) if is_file(name) else make_plan(name, workload, pricing)


SAME_LOSS = 1e-4
"""Relative difference of losses below which two plans train alike: only sums in another order differ."""


def summary(runs: Sequence[Measurement]) -> str:
    """A line per plan: the median over its repeats, compared with the default."""
    times = {run.plan: [one.iteration_time for one in runs if one.plan == run.plan] for run in runs}
    lines = []
    for plan, found in times.items():
        run = next(run for run in runs if run.plan == plan)
        said = dict(run.conditions)
        count = len(said.get("buckets", "").split())
        buckets = f"{count} bucket{'' if count == 1 else 's'}" if count else said.get("collectives") or _settings(said)
        span = f"{show_time(min(found))} to {show_time(max(found))}"
        default = next((name for name in DEFAULTS if name in times), None)
        ratio = "" if default is None else _ratio(default, times[default], found)
        losses = f", losses {_in_words(run)}" if "loss_difference" in dict(run.conditions) else ""
        lines.append(f"{plan}: {buckets}, {show_time(median(found))} per iteration ({span}){ratio}{losses}\n")
    return "".join(lines)


def _settings(said: Mapping[str, str]) -> str:
    groups = len(said.get("sent", "").partition(": ")[2].split())
    return f"settings {said['settings']}" + (f" and {groups} groups" if groups else "")


def _ratio(name: str, default: Sequence[float], times: Sequence[float]) -> str:
    """A plan's time compared with the default's, and whether its turns differ by more than that."""
    ratio = median(default) / median(times)
    spread = max(max(found) / min(found) - 1 for found in (default, times))
    inside = f", which is inside the spread of {spread:.1%}" if 0 < abs(ratio - 1) <= spread else ""
    return f", {ratio:.3f} times as fast as {name}{inside}"


def notes(runs: Sequence[Measurement]) -> list[str]:
    """Notes about runs: other buckets than planned, other losses than the default's."""
    formed = [
        f"plan {run.plan!r}: {run.condition('buckets_as_planned').removeprefix('no: ')}"
        for run in runs
        if dict(run.conditions).get("buckets_as_planned", "yes") != "yes"
    ]
    losses = [f"plan {run.plan!r}: its losses {_in_words(run)}" for run in runs if apart_from_default(run)]
    return formed + losses


def _in_words(run: Measurement) -> str:
    """The losses compared with the default's, in words."""
    difference = _loss(run)
    if isnan(difference):
        return "cannot be compared with the default's: neither is finite"
    if isinf(difference):
        return "differ from the default's: one is finite, the other not"
    return f"differ from the default's by {difference:.2g}, relative"


def _loss(run: Measurement) -> float:
    return float(dict(run.conditions).get("loss_difference", "0"))


def apart_from_default(run: Measurement) -> bool:
    """Whether its losses differ from the default's: by 1e-4 or more, or beyond comparison."""
    return not _loss(run) <= SAME_LOSS  # nor is what cannot be compared alike


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
        several = [default_of(subject.workload), *(planned for planned in plans if not planned.by_default)]
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


def default_of(workload: Workload) -> Carried:
    """DDP's default plan."""
    return carried("ddp", make_plan("ddp", workload, UNMEASURED), workload)


def _first(asked: RunRequest, settings: TrainingSettings, place: Place, subject: TrainingSubject) -> Measurement:
    """A measurement with everything that all runs share; files are relative to the measurement file."""
    named = asked.workload or (asked.subject if not asked.real else subject.workload.name)
    names = asked.relative(named), asked.relative(asked.cluster or "unmeasured")
    return training.first_of(subject, settings, place, names, None if asked.real else asked.variation)
