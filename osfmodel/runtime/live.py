"""From nothing to a plan that was measured: profile, measure the wires, solve, run the default and the tuned plan.

What is found is in a folder as soon as it is known, each file whole. Files and decisions are rank 0's; what the others
need of them is sent to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from osfmodel import profiles
from osfmodel.cluster import Cluster
from osfmodel.cost import AffineCost
from osfmodel.effects import REPLAYED_ON_CPU
from osfmodel.errors import DataError, UsageError
from osfmodel.measurement import Measurement
from osfmodel.measurements import save_measurements
from osfmodel.plan import Plan
from osfmodel.runtime import bench, training
from osfmodel.runtime.buckets import Carried, has_list
from osfmodel.runtime.choice import Choice
from osfmodel.runtime.conditions import other_threads
from osfmodel.runtime.driving import Driving, measure
from osfmodel.runtime.findings import Findings, cluster_of, unfinished
from osfmodel.runtime.job import job_of
from osfmodel.runtime.ranks import Place, Watch, group, nothing, require_agreement
from osfmodel.runtime.session import PLANNING, Asked, Session, Voice
from osfmodel.runtime.sizes import sizes_for
from osfmodel.runtime.subjects import from_factory
from osfmodel.runtime.surroundings import setting_of, unmet
from osfmodel.runtime.trainees import Subject, replayed, trained
from osfmodel.runtime.training import Ran, Settings
from osfmodel.targets.ddp import DdpKnobs, realise
from osfmodel.tune import Tuning, tune
from osfmodel.units import show_time
from osfmodel.workload import Workload

WORKLOAD, CLUSTER, TUNED, RUNS, PLAN, CONFIG = (
    "workload.json", "cluster.json", "tuned.json", "runs.json", "plan.json", "config.py",
)  # fmt: skip
PARTIAL = "cluster.partial.json"
LITTLE = 0.01
"""A predicted gain below this part of the default's time is called little before anything runs."""
KEPT = """\
# {verdict}
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model)  # the default buckets; add device_ids=[...] as usual
"""


class Live(NamedTuple):
    """What came of it: predicted, measured, and the lines to paste for what is recommended."""

    tuning: Tuning
    choice: Choice
    lines: str


def tune_live(asked: Asked, settings: Settings, place: Place, voice: Voice, watch: Watch) -> Live | None:
    """All steps, on every rank of a job that has met; what came of it on rank 0, None on the others.

    Raises OsfError, on every rank.
    """
    require_agreement(repr((asked, settings)))
    here = Session(asked, place, watch, voice, group(asked.limit), group(PLANNING))
    _require_usable(here)
    workload = _workload(here)
    cluster = _cluster(here, workload)
    tuning, carried = _planned(here, workload.scaled(asked.scale), cluster)
    runs = _runs(here, settings, workload.scaled(asked.scale), carried)
    return _kept(here, tuning, runs) if here.first and tuning is not None else None


def _require_usable(here: Session) -> None:
    """Everything that can be said before something is measured; rank 0 makes the folder."""

    def make() -> None:
        try:
            Path(here.asked.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"--live {here.asked.folder}: {error.strerror or error}") from None

    if not has_list():
        raise UsageError(
            "osf tune --live needs DDP's bucket_cap_mb_list (torch 2.13): osf run --comm-hook does without"
        )
    here.decided(make, "while the folder was made")


def _workload(here: Session) -> Workload:
    """The workload before it is scaled: the one given, or rank 0's of a model that all ranks profile at once."""
    asked = here.asked
    given = asked.workload or (None if asked.real else asked.subject)
    if given is None:
        workload = here.decided(_profiled(here), "while profiles were compared")
    else:
        workload = here.decided(lambda: profiles.load_workload(given), "while the workload was read")
        note = other_threads(workload, here.place.device) if asked.real else ""
        if note and here.first:
            here.voice.line(f"warning: {note}")
    here.decided(lambda: _start_over(here, workload), f"while {WORKLOAD} was written")
    return workload


def _start_over(here: Session, workload: Workload) -> None:
    """What an earlier session found does not go with what this one finds."""
    if not workload.gradients:
        raise UsageError(f"{workload.name!r} has no gradients: there is nothing to tune")
    clusters = () if here.asked.cluster else (CLUSTER, PARTIAL)
    try:
        for name in (*clusters, TUNED, RUNS, PLAN, CONFIG):
            here.path(name).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"--live {here.asked.folder}: {error.strerror or error}") from None
    here.keep(WORKLOAD, lambda path: profiles.save(workload, path))


def _profiled(here: Session) -> Callable[[], Workload]:
    """Profile the model on this rank, while the others do the same."""
    import torch.distributed as dist

    doing = "while the model was profiled"

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
        cluster = here.decided(lambda: profiles.load_cluster(given), "while the cluster was read")
    else:
        cluster = here.decided(_benched(here, workload), "while the cluster was put together")
    here.decided(lambda: here.keep(CLUSTER, lambda path: profiles.save(cluster, path)), f"while {CLUSTER} was written")
    return cluster


def _benched(here: Session, workload: Workload) -> Callable[[], Cluster]:
    """Measure the wires between the ranks, at the sizes that plans of ``workload`` send."""
    compute = "sleep" if not here.asked.real and here.place.device == "cpu" else "busy"
    beat = partial(here.watch.beat, "while the cluster was measured")
    job = job_of(here.place, here.asked.limit, here.control, beat)
    found, setting = Findings(), setting_of(job, unmet(None))

    def save() -> None:
        if here.first and found.usable:
            here.keep(PARTIAL, lambda path: profiles.save(unfinished(found, setting, "live"), path))

    here.watch.saving = save
    bench.measure(job, bench.Request(sizes_for(workload), compute=compute), found, here.voice.progress)
    here.watch.saving = nothing
    for doubt in found.doubts if here.first else ():
        here.voice.line(f"warning: {doubt}")
    return lambda: cluster_of(found, setting, "live")


def _planned(here: Session, workload: Workload, cluster: Cluster) -> tuple[Tuning | None, list[Carried]]:
    """What rank 0 recommends from prices alone, and what is to be run for it: the tuned plan between two defaults."""
    tunings: list[Tuning] = []

    def make() -> tuple[Plan, list[float]]:
        stated = {} if here.asked.real or here.place.device != "cpu" else REPLAYED_ON_CPU
        seen = replace(cluster, effects=cluster.effects.under(stated))
        tunings.append(tune(workload, seen, here.place.world, "ddp", here.asked.limits))
        plan = tunings[0].plan
        here.keep(TUNED, lambda path: profiles.save(plan, path))
        return plan, tunings[0].config["bucket_cap_mb_list"]

    plan, caps = here.decided(make, "while the plan was made", planning=True)
    default = Carried("ddp", realise(DdpKnobs(), workload, AffineCost(((0.0, 0.0),))))
    for tuning in tunings:
        _announce(here, tuning)
    return tunings[0] if tunings else None, [default, Carried(TUNED, plan, {"bucket_cap_mb_list": caps}), default]


def _announce(here: Session, tuning: Tuning) -> None:
    """What is predicted, before anything runs."""
    (outcome,) = tuning.outcomes
    for note in tuning.warnings:
        here.voice.line(f"warning: {note}")
    if outcome.gain < LITTLE:
        here.voice.line(
            f"little to gain: {max(outcome.gain, 0):.1%} less time than the default is predicted, "
            f"and no schedule saves more than {max(1 - outcome.lower_bound / outcome.default_time, 0):.1%} of it"
        )
    else:
        here.voice.progress(f"predicted: {outcome.gain:.1%} less time than the default")


def _runs(here: Session, settings: Settings, workload: Workload, plans: Sequence[Carried]) -> list[Ran]:
    """Train under the plans in turn; rank 0 keeps a file of what is finished."""
    place, asked = here.place, here.asked
    here.watch.beat("while the model was made")
    subject = _subject(here, workload)
    here.watch.patience += 2 * workload.compute_time
    first = training.first_of(subject, settings, place, (WORKLOAD, CLUSTER), None if asked.real else asked.scale)
    found: list[Ran] = []
    kept: list[Measurement] = []
    for ran in training.run_all(subject, plans, settings, place, here.watch):
        found.append(ran)
        if here.first:
            run = training.measurement_of(ran, first, {})
            kept.append(_second(run) if len(found) % len(plans) == 0 else run)
            here.keep(RUNS, lambda path: save_measurements("runs", kept, path))
            turn = f"{len(kept)} of {settings.repeats * len(plans)}: {run.plan}"
            here.voice.progress(f"{turn} {show_time(run.iteration_time)} per iteration")
    return found


def _subject(here: Session, workload: Workload) -> Subject:
    device = here.place.device
    return trained(here.asked.subject, device, workload) if here.asked.real else replayed(workload, device)


def _second(run: Measurement) -> Measurement:
    """The default's second turn of a repeat, told apart from its first."""
    stated = dict(run.conditions)
    return replace(run, conditions=tuple({**stated, "repeat": f"{stated['repeat']} again"}.items()))


def _kept(here: Session, tuning: Tuning, runs: Sequence[Ran]) -> Live:
    """Choose, and write down the choice."""
    choice = choice_of(runs)
    default = runs[0].planned.plan
    lines = f"# {choice.verdict}\n{tuning.rendered}" if choice.take_tuned else KEPT.format(verdict=choice.verdict)
    here.keep(PLAN, lambda path: profiles.save(tuning.plan if choice.take_tuned else default, path))
    here.keep(CONFIG, lambda path: profiles.write_text(path, lines))
    return Live(tuning, choice, lines)


def choice_of(runs: Sequence[Ran]) -> Choice:
    """What the turns say: of each repeat the default, the tuned plan, and the default again."""
    from statistics import median

    times = [median(ran.samples) for ran in runs]
    deviation = next((ran.deviation for ran in runs[1::3] if ran.deviation), "")
    return Choice(times[0::3], times[1::3], times[2::3], deviation)
