"""Tune live: profile, measure the network, solve, run the default and the tuned plan.

Results are in a folder as soon as they are known, each file whole. Files and decisions are rank 0's; what the others
need of them is sent to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload
from osfmodel.entities.batches import Variation
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_time
from osfmodel.entities.effects import REPLAYED_ON_CPU
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.executors import RUNTIME, effects_under
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import save_measurements
from osfmodel.entities.measurement import PROMISED_GAIN, Measurement
from osfmodel.entities.plan import Objective
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import Tuning
from osfmodel.planning.tuning import tune
from osfmodel.runtime import bench, training
from osfmodel.runtime.bench import sizes_for, surroundings_of, unmet
from osfmodel.runtime.bench.measured_cluster import Findings, cluster_of, unfinished
from osfmodel.runtime.job import Place, Voice, Watchdog, group, no_save, require_agreement
from osfmodel.runtime.job.measuring import job_of
from osfmodel.runtime.live.session import PLANNING, Choice, Session, TuneRequest
from osfmodel.runtime.profiler.conditions import other_threads
from osfmodel.runtime.profiler.driving import Driving, measure
from osfmodel.runtime.training import Ran, TrainingSettings
from osfmodel.runtime.training.ddp_buckets import Carried, has_list
from osfmodel.runtime.training.factories import from_factory
from osfmodel.runtime.training.subjects import TrainingSubject, replayed, trained
from osfmodel.solve.solution import Limits
from osfmodel.targets.ddp import DdpKnobs, to_plan

WORKLOAD, CLUSTER, TUNED, EXECUTED_PLAN, RUNS, PLAN, CONFIG = (
    "workload.json", "cluster.json", "tuned.json", "executed.json", "runs.json", "plan.json", "config.py",
)  # fmt: skip
PARTIAL = "cluster.partial.json"
LITTLE = 0.01
"""Predicted gain, as a fraction of the default's time, below which a note says that there is little to gain."""
KEPT = """\
# {verdict}
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model)  # the default buckets; add device_ids=[...] as usual
"""
EXECUTING = """\
# {verdict}
import osfmodel as osf

executor = osf.execute(model, optimizer, osf.load_plan("plan.json"))  # the model itself, without DDP
"""
RULES = (Objective(2), Objective(1, forward_overlap=True), Objective(2, forward_overlap=True))
"""Rules that the executor keeps and DDP cannot; the fastest of their plans, as predicted, is measured."""


class Live(NamedTuple):
    """The result: predicted and measured times, and the lines to paste for the recommended plan.

    ``executed`` is the prediction for the executor's plan, if one was measured.
    """

    tuning: Tuning
    executed: Tuning | None
    choice: Choice
    lines: str


def tune_live(
    asked: TuneRequest, settings: TrainingSettings, place: Place, voice: Voice, watch: Watchdog
) -> Live | None:
    """Take all steps, on every rank of a job that has met; the result is on rank 0, None on the others.

    Raises OsfError, on every rank.
    """
    require_agreement(repr((asked, settings)))
    here = Session(asked, place, watch, voice, group(asked.limit), group(PLANNING))
    _require_usable(here)
    workload = _workload(here)
    cluster = _cluster(here, workload)
    scaled = workload.scaled(asked.scale)
    subject = _subject(here, scaled)
    planned = _planned(here, scaled, cluster)
    turns = _turns(here, scaled, subject, planned)
    runs = _runs(here, settings, subject, turns, planned.tuning)
    return _kept(here, planned, runs) if here.first else None


def _require_usable(here: Session) -> None:
    """Check everything that can be checked before a measurement; rank 0 makes the folder."""

    def make() -> None:
        try:
            Path(here.asked.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"--live {here.asked.folder}: {error.strerror or error}") from None

    if not has_list():
        raise UsageError(
            "osf tune --live needs DDP's bucket_cap_mb_list (torch 2.13): osf run --comm-hook does without"
        )
    here.decided(make, "making the folder")


def _workload(here: Session) -> Workload:
    """The workload before scaling: the one given, or rank 0's of a model that all ranks profile at once."""
    asked = here.asked
    given = asked.workload or (None if asked.real else asked.subject)
    if given is None:
        workload = here.decided(_profiled(here), "comparing profiles")
    else:
        workload = here.decided(lambda: load_workload(given), "reading the workload")
        note = other_threads(workload, here.place.device) if asked.real else ""
        if note and here.first:
            here.voice.line(f"warning: {note}")
    here.decided(lambda: _start_over(here, workload), f"writing {WORKLOAD}")
    return workload


def _start_over(here: Session, workload: Workload) -> None:
    """Remove files of an earlier session, which do not fit the results of this one."""
    if not workload.gradients:
        raise UsageError(f"{workload.name!r} has no gradients: there is nothing to tune")
    clusters = () if here.asked.cluster else (CLUSTER, PARTIAL)
    try:
        for name in (*clusters, TUNED, EXECUTED_PLAN, RUNS, PLAN, CONFIG):
            here.path(name).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"--live {here.asked.folder}: {error.strerror or error}") from None
    here.keep(WORKLOAD, lambda path: profiles.save(workload, path))


def _profiled(here: Session) -> Callable[[], Workload]:
    """Profile the model on this rank, while the others do the same."""
    import torch.distributed as dist

    doing = "profiling the model"

    def tell(number: int, count: int) -> None:
        here.watch.beat(doing)
        if number == count:
            here.voice.progress(f"profiled {count} steps of the model")

    here.watch.beat(doing)
    dist.barrier(group=here.control)
    maker, name = from_factory(here.asked.subject), here.asked.subject.partition(":")[2]
    measured = measure(name, maker, None, Driving(device=here.place.device), tell)
    for warning in measured.warnings if here.first else ():
        here.voice.line(f"warning: {name}: {warning}")
    return lambda: measured.workload


def _cluster(here: Session, workload: Workload) -> Cluster:
    given = here.asked.cluster
    if given is not None:
        cluster = here.decided(lambda: load_cluster(given), "reading the cluster")
    else:
        cluster = here.decided(_benched(here, workload), "putting the cluster together")
    here.decided(lambda: here.keep(CLUSTER, lambda path: profiles.save(cluster, path)), f"writing {CLUSTER}")
    return cluster


def _benched(here: Session, workload: Workload) -> Callable[[], Cluster]:
    """Measure the network between the ranks, at the sizes that plans of ``workload`` send."""
    compute = "sleep" if not here.asked.real and here.place.device == "cpu" else "busy"
    beat = partial(here.watch.beat, "measuring the cluster")
    job = job_of(here.place, here.asked.limit, here.control, beat)
    found, surroundings = Findings(), surroundings_of(job, unmet(None))

    def save() -> None:
        if here.first and found.usable:
            here.keep(PARTIAL, lambda path: profiles.save(unfinished(found, surroundings, "live"), path))

    here.watch.saving = save
    bench.measure(job, bench.MeasurementRequest(sizes_for(workload), compute=compute), found, here.voice.progress)
    here.watch.saving = no_save
    for doubt in found.doubts if here.first else ():
        here.voice.line(f"warning: {doubt}")
    return lambda: cluster_of(found, surroundings, "live")


class Planned(NamedTuple):
    """Recommendations of rank 0 from prices alone: DDP's plan, and the executor's if it seems worth it."""

    tuning: Tuning
    executed: Tuning | None


def _planned(here: Session, workload: Workload, cluster: Cluster) -> Planned:
    """Rank 0's plans, on every rank."""

    def make() -> Planned:
        conditions = {} if here.asked.real or here.place.device != "cpu" else REPLAYED_ON_CPU
        seen = replace(cluster, effects=effects_under(cluster.effects, conditions))
        tuning = tune(workload, seen, here.place.world, "ddp", here.asked.limits)
        here.keep(TUNED, lambda path: profiles.save(tuning.plan, path))
        if not here.asked.executor or here.asked.limits != Limits():
            return Planned(tuning, None)
        tries = [tune(workload, seen, here.place.world, "runtime", objective=rules) for rules in RULES]
        best = min(tries, key=lambda found: found.outcomes[0].tuned_time)
        promised = 1 - best.outcomes[0].tuned_time / tuning.outcomes[0].tuned_time
        return Planned(tuning, best if promised >= LITTLE else None)

    planned = here.decided(make, "making the plan", planning=True)
    if here.first:
        _announce(here, planned.tuning)
    return planned


def _turns(here: Session, workload: Workload, subject: TrainingSubject, planned: Planned) -> list[Carried]:
    """The plans of each repeat: the default, DDP's tuned plan, the executor's if there is one, the default again."""
    default = Carried("ddp", to_plan(DdpKnobs(), workload))
    tuned = Carried(TUNED, planned.tuning.plan, {"bucket_cap_mb_list": planned.tuning.config["bucket_cap_mb_list"]})
    turns = [default, tuned]
    if planned.executed is not None:
        try:
            turns.append(training.executed(RUNTIME.prefix + EXECUTED_PLAN, planned.executed.plan, subject))
        except OsfError as error:  # the same on every rank: they have the same model
            if here.first:
                here.voice.line(f"the executor is left out: {error}")
        else:
            save = partial(profiles.save, planned.executed.plan)
            here.decided(partial(here.keep, EXECUTED_PLAN, save), f"writing {EXECUTED_PLAN}")
    return [*turns, default]


def _announce(here: Session, tuning: Tuning) -> None:
    """Announce the prediction, before anything runs."""
    (outcome,) = tuning.outcomes
    for note in tuning.warnings:
        here.voice.line(f"warning: {note}")
    if outcome.gain < LITTLE:
        most = max(1 - outcome.lower_bound / outcome.default_time, 0)
        here.voice.line(
            f"little to gain: {max(outcome.gain, 0):.1%} less time than the default is predicted, "
            f"and at these prices no schedule saves more than {most:.1%} of it"
        )
    else:
        here.voice.progress(f"predicted: {outcome.gain:.1%} less time than the default")


def _runs(
    here: Session, settings: TrainingSettings, subject: TrainingSubject, plans: Sequence[Carried], tuning: Tuning
) -> list[Ran]:
    """Train under the plans in turn; rank 0 keeps a file of finished turns, with the gain that was promised."""
    place, asked = here.place, here.asked
    here.watch.patience += 2 * subject.workload.compute_time
    first = training.first_of(
        subject, settings, place, (WORKLOAD, CLUSTER), None if asked.real else Variation(asked.scale)
    )
    found: list[Ran] = []
    kept: list[Measurement] = []
    for ran in training.run_all(subject, plans, settings, place, here.watch):
        found.append(ran)
        if here.first:
            run = training.measurement_of(ran, first, {})
            if run.plan == TUNED:
                run = replace(run, conditions=(*run.conditions, (PROMISED_GAIN, _promised(tuning))))
            kept.append(_second(run) if len(found) % len(plans) == 0 else run)
            here.keep(RUNS, lambda path: save_measurements("runs", kept, path))
            turn = f"{len(kept)} of {settings.repeats * len(plans)}: {run.plan}"
            here.voice.progress(f"{turn} {show_time(run.iteration_time)} per iteration")
    return found


def _promised(tuning: Tuning) -> str:
    (outcome,) = tuning.outcomes
    low, high = (outcome.chance.low, outcome.chance.high) if outcome.chance else (outcome.gain, outcome.gain)
    return f"{outcome.gain:.4f} {low:.4f} {high:.4f}"


def _subject(here: Session, workload: Workload) -> TrainingSubject:
    here.watch.beat("making the model")
    device = here.place.device
    return trained(here.asked.subject, device, workload) if here.asked.real else replayed(workload, device)


def _second(run: Measurement) -> Measurement:
    """The default's second turn of a repeat, marked to tell it from the first."""
    conditions = dict(run.conditions)
    return replace(run, conditions=tuple({**conditions, "repeat": f"{conditions['repeat']} again"}.items()))


def _kept(here: Session, planned: Planned, runs: Sequence[Ran]) -> Live:
    """Choose, and write down the choice."""
    choice = choice_of(runs)
    tuning, executed = planned.tuning, planned.executed if choice.executed else None
    if executed is not None and choice.take_executor:
        plan, lines = executed.plan, EXECUTING.format(verdict=choice.verdict)
    elif choice.take_tuned:
        plan, lines = tuning.plan, f"# {choice.verdict}\n{tuning.rendered}"
    else:
        plan, lines = runs[0].planned.plan, KEPT.format(verdict=choice.verdict)
    here.keep(PLAN, lambda path: profiles.save(plan, path))
    here.keep(CONFIG, lambda path: profiles.write_text(path, lines))
    return Live(tuning, executed, choice, lines)


def choice_of(runs: Sequence[Ran]) -> Choice:
    """The choice among the turns: in each repeat default, tuned plan, perhaps the executor's, and default again."""
    from statistics import median

    def times(chosen: Iterable[Ran]) -> list[float]:
        return [median(ran.samples) for ran in chosen]

    default, tuned, executed = (
        [ran for ran in runs if kind(ran.planned)]
        for kind in (
            lambda planned: planned.by_default,
            lambda planned: planned.label == TUNED,
            lambda planned: bool(planned.sent),
        )
    )
    deviation = next((ran.deviation for ran in tuned if ran.deviation), "")
    return Choice(times(default[::2]), times(tuned), times(default[1::2]), deviation, times(executed))
