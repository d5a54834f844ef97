"""Choose between DDP, ZeRO, FSDP2 and HSDP at several worker counts, by step time and memory.

All are compared with their default settings. DDP is taken if it fits, else the first by the turns in STRATEGY_PLANS
that does, unless another one that fits is faster on nearly all plausible networks: then the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from osfmodel.cost import worker_counts
from osfmodel.cost.clusters import pricing_of
from osfmodel.counting.groups import Parallelism
from osfmodel.engine.bands import gain_doubt
from osfmodel.engine.memory import known
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_bytes
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.modules import step_of
from osfmodel.entities.rounding import least
from osfmodel.entities.sharding import Form
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import BANDLESS
from osfmodel.planning.predictions import Given, PricedSubject, compare
from osfmodel.planning.results import WORTHWHILE, Chance, Prediction, Tuning
from osfmodel.planning.scaling.strategies import (
    StrategyChoice,
    StrategyRow,
    StrategyTuning,
    chance_of_room,
    possible,
    reserved_near,
    shorter,
)
from osfmodel.planning.tuning import tune, tuned_rule
from osfmodel.planning.tuning.chances import chance, plan_times
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MEMORY, Limits, MemoryLimit
from osfmodel.solve.verdicts import NO, TIGHT, YES, peak_of, reserved_of, safe_bytes, setup_of, verdict_of
from osfmodel.targets import ALIASES, CONFIG_TARGETS
from osfmodel.targets.fsdp2_knobs import FsdpKnobs
from osfmodel.targets.named_plans import named_plan

STRATEGY_PLANS: Mapping[str, int] = MappingProxyType(
    {"ddp": 0, "zero-1": 4, "zero-2": 5, "fsdp2": 1, "fsdp2:keep": 3, "hsdp": 2}
)
"""Named plans of the strategies as they are shown, and the turn of each: the first that fits is taken."""
KEPT = "fsdp2:keep"
"""The plan with reshard_after_forward=False."""
TARGETS: Mapping[str, str] = MappingProxyType({**ALIASES, KEPT: "fsdp2"})
"""Targets that print the settings of a plan, where they have another name."""


def counts_up_to(cluster: Cluster, workers: int) -> tuple[int, ...]:
    """Worker counts up to ``workers``: those that ``cluster`` was measured with, else powers of two, and itself."""
    found = worker_counts(cluster) or [2**power for power in range(1, workers.bit_length())]
    return tuple(sorted({workers, *(count for count in found if count < workers)}))


def tune_any(
    workload: Workload,
    cluster: Cluster,
    counts: Sequence[int],
    limit: MemoryLimit | None = None,
    what_if: WhatIf = WhatIf(),
) -> StrategyTuning:
    """The strategy to take at each of ``counts``, and the settings for the last of them.

    Counts at which the cluster has no prices are left out, but for the last. Raises CostError where that has none,
    DataError for a limit where it is not known what the optimizer keeps, and UsageError for one with compression.
    """
    changed = what_if.of_workload(workload, 1)
    if limit is not None and what_if.compression != "none":
        raise UsageError("--compression does not work with --memory: what it keeps is not known")
    sized = limit is not None or (workload.state_bytes is not None and what_if.compression == "none")
    choices = []
    for count in counts:
        try:
            choices.append(_choice(changed, cluster, count, limit, sized))
        except CostError:
            if count == counts[-1]:
                raise
    predictions = [row.prediction for row in choices[-1].rows]
    caveats = [note for one in predictions for note in one.caveats if not note.startswith(BANDLESS)]
    notes = (*caveats, *what_if.caveats(workload, cluster))
    made = StrategyTuning(
        workload,
        cluster,
        None if limit is None else limit.bytes,
        tuple(choices),
        tuple(dict.fromkeys((*_unsaid(workload, limit, sized), *_bandless(predictions), *notes))),
        tuple(dict.fromkeys(warning for one in predictions for warning in one.warnings)),
        what_if,
    )
    return _settled(made, changed, limit)


def _unsaid(workload: Workload, limit: MemoryLimit | None, sized: bool) -> list[str]:
    """Remarks on the memory that is not known."""
    if not sized:
        return ["memory is not compared: give --memory SIZE, and --optimizer adamw if the profile does not say which"]
    found = [] if limit is not None else ["without --memory SIZE all of them are taken to fit"]
    if not known(workload):
        found.append("memory is without activations, which this profile does not have: leave room for them")
    return found


def _bandless(predictions: Sequence[Prediction]) -> list[str]:
    """A remark on the strategies without an error band, of which the table says which they are."""
    if all(one.band for one in predictions):
        return []
    return ["a strategy without an error band was not measured under comparable conditions"]


def _choice(
    workload: Workload, cluster: Cluster, workers: int, limit: MemoryLimit | None, sized: bool
) -> StrategyChoice:
    """The strategies at one worker count. Raises CostError where the cluster has no prices."""
    predictions = strategies_at(PricedSubject(workload, cluster, workers))
    alike = {one.plan: one for one in reversed(predictions)}  # HSDP with one replica is FSDP2
    rows = tuple(strategy_row(one, workers, limit, sized) for one in predictions if alike[one.plan] is one)
    room = {row.name: row for row in possible(rows)}
    if not room:
        return StrategyChoice(workers, rows)
    base = min(room.values(), key=lambda row: STRATEGY_PLANS[row.name])
    fastest = least(room.values(), lambda row: row.expected_time)
    if fastest.expected_time > base.expected_time * (1 - WORTHWHILE):
        return StrategyChoice(workers, rows, base, base, base)
    found = _chance(workload, cluster, workers, fastest.prediction, base.prediction)
    return StrategyChoice(workers, rows, base, fastest, fastest if found.sure else base, found)


def strategies_at(subject: PricedSubject, plans: Sequence[Given] | None = None) -> list[Prediction]:
    """Predictions of ``plans``, or of all strategies, that the cluster can price; HSDP needs prices inside nodes too.

    Raises CostError if there are none.
    """
    found: list[Prediction] = []
    first: CostError | None = None
    for name in STRATEGY_PLANS if plans is None else plans:
        try:
            found.append(subject.predict(name))
        except CostError as error:
            first = first or error
    if not found and first is not None:
        raise first
    return found


def strategy_row(
    prediction: Prediction, workers: int, limit: MemoryLimit | None, sized: bool, groups: Parallelism = Parallelism()
) -> StrategyRow:
    """A prediction with its memory, if it is ``sized``, held against ``limit``; ``groups``: inside a replica."""
    if not sized:
        return StrategyRow(prediction)
    optimizer, communicator = (None, 0) if limit is None else (limit.optimizer, limit.communicator)
    workload = prediction.bound.question.workload
    step = (*shorter(prediction), workers, optimizer, communicator)
    peak = peak_of(workload, *step)
    within = (groups.tensor, groups.context, groups.pipeline)
    setup = setup_of(workload.fixed_share is None, within, prediction.plan.strategy)
    reserved = reserved_of(peak.bytes, setup)
    if limit is None:
        return StrategyRow(prediction, peak, reserved=reserved)
    fits = chance_of_room(workload, peak.bytes, limit.bytes, setup, lambda other: peak_of(other, *step).bytes)
    return StrategyRow(prediction, peak, verdict_of(fits), fits, reserved, limit.bytes)


def _chance(workload: Workload, cluster: Cluster, workers: int, mine: Prediction, theirs: Prediction) -> Chance:
    """The chance that a step under ``mine`` is shorter than under ``theirs``."""
    stock = pricing_of(cluster, workers, workload)
    one, other = (
        plan_times(step_of(workload, each.plan.strategy)[1], stock, each.plan, named_plan(each.name))
        for each in (mine, theirs)
    )
    return chance(one, other, max(gain_doubt(each.plan, stock) for each in (mine, theirs)))


def _settled(made: StrategyTuning, workload: Workload, limit: MemoryLimit | None) -> StrategyTuning:
    """The result with the settings of the strategy that is taken at the last worker count."""
    chosen, workers = made.last.chosen, made.last.workers
    if chosen is None:
        return made
    name = TARGETS.get(chosen.name, chosen.name)
    text, convert = CONFIG_TARGETS[name].text, CONFIG_TARGETS[name].convert
    limits = Limits(memory=_sure(limit, workload, chosen)) if MEMORY in CONFIG_TARGETS[name].limits else Limits()
    written = partial(text.written, workload=workload, micro_batches=made.what_if.accumulate)
    if chosen.name != KEPT or limit is not None:
        tuning = tune(workload, made.cluster, workers, name, limits).under(made.what_if)
        made = replace(made, tuning=tuning)
        (found,) = compare(workload, made.cluster, workers, [(chosen.name, tuned_rule(tuning))]).predictions
        row = strategy_row(found, workers, limit, chosen.peak is not None)
        if row.fits in (None, YES, chosen.fits) and row.time <= chosen.time * (1 - WORTHWHILE):
            lines = partial(_lines, written, tuning.knobs, tuning.form)
            return replace(made, tuned=row, written=lines, endings=text.endings)
    knobs = FsdpKnobs(reshard=False) if chosen.name == KEPT else convert.default_knobs()
    knobs = convert.complete(knobs, workload, (pricing_of(made.cluster, workers, workload),), limits)
    knobs, unsaid = text.offloading(knobs, workload)
    made = replace(made, warnings=(*made.warnings, *unsaid))
    return replace(made, written=partial(_lines, written, knobs, None), endings=text.endings)


def _sure(limit: MemoryLimit | None, workload: Workload, chosen: StrategyRow) -> MemoryLimit | None:
    """The limit on what a step holds, within which settings fit as surely as the chosen strategy."""
    if limit is None or chosen.fits != YES:
        return limit
    setup = setup_of(workload.fixed_share is None, strategy=chosen.prediction.plan.strategy)
    return replace(limit, bytes=safe_bytes(limit.bytes, setup))


def misfits(workload: Workload, cluster: Cluster, tuning: Tuning, limit: MemoryLimit) -> tuple[str, list[str]]:
    """A warning of tuned settings that do not fit into a GPU, "" where they do, and targets that do, the best first."""
    workers = tuning.outcomes[-1].workers
    (found,) = compare(workload, cluster, workers, [(tuning.target, tuned_rule(tuning))]).predictions
    row = strategy_row(found, workers, limit, sized=True)
    if row.peak is None or row.fits in (None, YES):
        return "", []
    choice = _choice(workload, cluster, workers, limit, sized=True)
    better = [
        one for one in possible(choice.rows) if one.name in CONFIG_TARGETS and (one.fits == YES or row.fits == NO)
    ]
    names = ", ".join(one.name for one in better)
    remedy = "no other framework's settings surely fit, and osf scale looks for changes that do"
    if better:
        remedy = f"{names} fit{'s' * (len(better) == 1)}" if better[0].fits == YES else f"{names} may, which is tight"
    said = "are tight in memory" if row.fits == TIGHT else "do not fit"
    taken, room = show_bytes(reserved_near(row, workers) or 0), show_bytes(limit.bytes)
    need = f"PyTorch reserves about {taken} of {room} on {how_many(workers, 'GPU')}"
    best = sorted(better, key=lambda one: one is not choice.chosen) if row.fits == NO else []
    return f"the settings of {tuning.target} {said}: {need}: {remedy}", [one.name for one in best]


def _lines(written: Callable[..., str], knobs: Any, form: Form | None, ending: str) -> str:
    """The lines of settings, as a file with this ending has them."""
    return written(knobs, ending=ending, form=form)
