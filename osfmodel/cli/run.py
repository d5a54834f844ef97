"""``osf run``"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from osfmodel.cli.app import CLUSTER, PLAN, WORKLOAD, OneOf, parse_limit, print_text, require_writable, teller, warn
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.pricing import Pricing, pricing_of
from osfmodel.cost.shapes import FREE
from osfmodel.engine.simulator import without_priority
from osfmodel.entities.batches import Variation
from osfmodel.entities.compression import FP16, NONE, compressed
from osfmodel.entities.effects import EXECUTED, HOROVOD, REPLAYED_ON_CPU, RUNTIME
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement, save_measurements
from osfmodel.entities.plan import Plan
from osfmodel.entities.units import show_time
from osfmodel.entities.workload import Workload
from osfmodel.runtime.job.ranks import Place, Watchdog, place_of, require_agreement, require_torch, together
from osfmodel.runtime.training import summary
from osfmodel.runtime.training.factories import is_factory
from osfmodel.targets.named_plans import make_plan, named_plan

if TYPE_CHECKING:
    from osfmodel.runtime.training import TrainingSettings
    from osfmodel.runtime.training.ddp_buckets import Carried
    from osfmodel.runtime.training.trainees import Trainee

UNMEASURED = Pricing.of(FREE, workers=2)
"""For plans that can be carried out without knowing what a message costs."""
PREFIX = f"{RUNTIME}:"
"""What a plan begins with that the executor is to carry out, and its label in the file."""
FIXED = " (fixed order)"
"""How the label of a plan ends that would send by priority, and has its predicted order instead."""


class RunRequest(NamedTuple):
    """What the command line asks for."""

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

    @property
    def real(self) -> bool:
        """Whether the subject is a user's model."""
        return is_factory(self.subject)


@click.command(name="run")
@click.argument("subject", metavar="WORKLOAD|PACKAGE.MODULE:FACTORY", type=WORKLOAD)
@click.option(
    "--plan", "plans", multiple=True, required=True, metavar="NAME|FILE", type=PLAN,
    help="Plan to run, repeatable: a name, cap:25MiB for one limit, cap:best, a plan file; runtime:PLAN: by executor.",
)  # fmt: skip
@click.option(
    "--executor", type=OneOf(["ddp", RUNTIME, HOROVOD]), default="ddp", show_default=True,
    help="What carries the plans out: PyTorch DDP; runtime, which carries out any plan; Horovod, over gloo.",
)  # fmt: skip
@click.option("--compression", type=OneOf([NONE, FP16]), help="Of gradients, by Horovod.")
@click.option("--timeline", metavar="FOLDER", help="Keep Horovod's timeline of each plan, from a turn of its own.")
@click.option("--cluster", metavar="FILE", type=CLUSTER, help="Prices for the plans that need some (osf bench).")
@click.option("--workload", metavar="FILE", help="The profile of the model of FACTORY (osf profile).")
@click.option("--scale", type=float, default=1.0, metavar="X", help="Replay computation X times as slow.")
@click.option("--batch-size", type=click.IntRange(1), metavar="B", help="Replay B samples per worker, in proportion.")
@click.option("--iterations", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Measured.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, metavar="R", help="Turns per plan.")
@click.option("--warm-up", type=click.IntRange(3), default=3, show_default=True, metavar="W", help="Not measured.")
@click.option("--backend", type=OneOf(["gloo", "nccl"]), help="Default: nccl where there is a GPU, else gloo.")
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="For meeting and each collective.")
@click.option("--verify", is_flag=True, help="Also compare the losses of each plan with the default's (FACTORY).")
@click.option("--find-unused-parameters", is_flag=True, help="As DDP's argument.")
@click.option("--static-graph", is_flag=True, help="As DDP's argument.")
@click.option("--gradient-as-bucket-view", is_flag=True, help="As DDP's argument.")
@click.option("--comm-hook", is_flag=True, help="Carry plans out by a communication hook, as on an older torch.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Measurements; whole or not at all.")
def run_command(
    subject: str,
    plans: tuple[str, ...],
    executor: str,
    compression: str | None,
    timeline: str | None,
    cluster: str | None,
    workload: str | None,
    scale: float,
    batch_size: int | None,
    iterations: int,
    repeat: int,
    warm_up: int,
    backend: str | None,
    timeout: str,
    verify: bool,
    find_unused_parameters: bool,
    static_graph: bool,
    gradient_as_bucket_view: bool,
    comm_hook: bool,
    output: str,
) -> int:
    """Train for real under each plan, with PyTorch DDP, Horovod or our executor, started by torchrun, and measure it.

    WORKLOAD is replayed: sleeping (spinning, on a GPU) stands in for computation, while gradients, hooks, buckets and
    collectives are real. FACTORY returns (model, batch, loss), as for osf profile. Plans take turns. What is finished
    is in FILE after every turn; `osf check FILE` holds it against the prediction. `--plan ddp --plan runtime:PLAN`
    measures DDP and the executor side by side; with --executor runtime it carries out all plans.

    \b
    Example:
      torchrun --nproc-per-node 4 -m osfmodel run resnet50-v100 --plan ddp --plan optimal --cluster c.json -o r.json
    """
    if executor != HOROVOD and (timeline is not None or compression == FP16):
        raise UsageError("--timeline and --compression are Horovod's: give --executor horovod")
    named = [PREFIX + plan.removeprefix(PREFIX) if executor == RUNTIME else plan for plan in plans]
    variation = Variation(scale, batch_size)
    asked = RunRequest(
        subject, tuple(dict.fromkeys(named)), cluster, workload, variation, output, True if comm_hook else None, verify,
        timeline, compression,
    )  # fmt: skip
    _require_sensible(asked)
    if executor == HOROVOD:
        _refuse_for_horovod(
            asked, backend, find_unused_parameters or static_graph or gradient_as_bucket_view or comm_hook
        )
    options = {
        "find_unused_parameters": find_unused_parameters,
        "static_graph": static_graph,
        "gradient_as_bucket_view": gradient_as_bucket_view,
    }
    if all(map(_executed, asked.plans)) and (comm_hook or any(options.values())):
        raise UsageError("options of DDP are given, and every plan is for the executor: leave them out")
    limit = parse_limit(timeout)
    place = place_of(os.environ, "run")
    if place.rank == 0:
        require_writable(output)
    require_torch("osf run")
    from osfmodel.runtime.training import TrainingSettings

    settings = TrainingSettings(iterations, repeat, warm_up, options, limit)
    if executor == HOROVOD:
        from osfmodel.runtime.horovod import require_horovod

        require_horovod("osf run")
        work = partial(_under_horovod, asked, settings, place.on("gloo"))
        runs = together(place.on("gloo"), limit, work)
    else:
        place = place.on(backend)
        runs = together(place, limit, partial(_measured, asked, settings, place))
    return 0 if place.rank else _shown(runs)


def _shown(runs: Sequence[Measurement]) -> int:
    """What came of it, and the exit code."""
    print_text(summary.summary(runs))
    for note in dict.fromkeys(summary.notes(runs)):
        warn(note)
    return 1 if any(summary.apart_from_default(run) for run in runs) else 0


def _require_sensible(asked: RunRequest) -> None:
    """Everything that can be said before anyone meets."""
    if not 0 < asked.variation.scale < 1e6:
        raise UsageError(f"--scale {asked.variation.scale}: write a factor above 0, such as 8 or 0.5")
    if asked.real and asked.variation.batch_size is not None:
        raise UsageError("--batch-size is for replays: a model has the batch that its factory returns")
    if asked.real and asked.variation.scale != 1:
        raise UsageError("--scale is for replays: a model takes the time that it takes")
    if asked.verify and not asked.real:
        raise UsageError("--verify compares losses, which only a model has: give PACKAGE.MODULE:FACTORY")
    if asked.workload and not asked.real:
        raise UsageError("--workload is the profile of a model: a replay has its WORKLOAD already")
    if Path(asked.output).suffix != ".json":
        raise UsageError(f"-o {asked.output}: measurements are JSON, so its name must end in .json")
    for name in (plan.removeprefix(PREFIX) for plan in asked.plans):
        if not _is_file(name):
            unpriced = named_plan(name).unpriced
            if asked.cluster is None and not unpriced:
                raise UsageError(f"plan {name!r} needs prices: give --cluster FILE, as osf bench writes it")
            if asked.real and asked.workload is None and not unpriced:
                raise UsageError(f"plan {name!r} needs gradient times: give --workload FILE, as osf profile writes it")


def _executed(plan: str) -> bool:
    return plan.startswith(PREFIX)


def _is_file(plan: str) -> bool:
    return plan.endswith(".json")


def _measured(asked: RunRequest, settings: TrainingSettings, place: Place, watch: Watchdog) -> list[Measurement]:
    """Run everything; rank 0 keeps a file of what is finished."""
    from osfmodel.runtime import training

    require_agreement(repr((asked, settings)))
    tell = watch.telling = teller(place.rank == 0)
    trainee = _trainee(asked, place)
    watch.patience += 2 * trainee.workload.compute_time
    cluster = None if asked.cluster is None else load_cluster(asked.cluster)
    stated = training.conditions_of(trainee, settings, place)
    pricing = UNMEASURED if cluster is None else pricing_of(cluster, place.world)
    plans = []
    for name in asked.plans:
        watch.beat(f"while plan {name!r} was made")
        plans.append(_carried(name, asked, trainee, pricing, stated))
    losses: dict[str, float] = {}
    if asked.verify:
        losses = training.loss_difference(trainee, _default_first(plans, trainee.workload), settings, place, watch)
    first = _first(asked, settings, place, trainee)
    runs: list[Measurement] = []
    for ran in training.run_all(trainee, plans, settings, place, watch):
        run = training.measurement_of(ran, first, losses)
        runs.append(replace(run, plan=_beside(run.plan, asked.output)))
        if place.rank == 0:
            save_measurements(Path(asked.output).stem, runs, asked.output)
            watch.kept = f"; {len(runs)} finished turns are in {asked.output}"
            done = f"{len(runs)} of {settings.repeats * len(plans)}"
            tell(f"{done}: {run.plan} {show_time(run.iteration_time)} per iteration")
    return runs


def _refuse_for_horovod(asked: RunRequest, backend: str | None, of_ddp: bool) -> None:
    if any(map(_executed, asked.plans)):
        raise UsageError(
            "plans for our executor are given, and Horovod carries the plans out: drop the prefix runtime:"
        )
    if of_ddp:
        raise UsageError("options of DDP are given, and Horovod carries the plans out: leave them out")
    if backend == "nccl":
        raise UsageError("--executor horovod runs over gloo here: leave --backend out")
    if asked.real and asked.workload is None:
        raise UsageError("--executor horovod needs the model's profile: give --workload FILE, as osf profile writes it")


def _under_horovod(asked: RunRequest, settings: TrainingSettings, place: Place, watch: Watchdog) -> list[Measurement]:
    """Run everything in turns under Horovod."""
    from osfmodel.runtime.horovod import HorovodTurns
    from osfmodel.runtime.horovod.run import Series, loop_of, run_all

    require_agreement(repr((asked, settings)))
    workload = asked.variation.of(profiles.load_workload(asked.workload or asked.subject))
    workload = compressed(workload, asked.compression or NONE)
    watch.patience += 2 * workload.compute_time
    pricing = UNMEASURED
    if asked.cluster is not None:
        pricing = pricing_of(load_cluster(asked.cluster), place.world)
    pricing = pricing.under({"executor": HOROVOD} | ({} if asked.real else REPLAYED_ON_CPU))
    loops = {
        _beside(name, asked.output): loop_of(name, lambda name: _plan(name, workload, pricing), workload, pricing)
        for name in asked.plans
    }
    series = Series(
        {
            "name": asked.subject,
            "variation": None if asked.real else tuple(asked.variation),
            "workload": asked.workload,
            "device": "cpu",
            "compression": asked.compression,
        },
        workload,
        (_beside(asked.workload or asked.subject, asked.output), _beside(asked.cluster or "unmeasured", asked.output)),
        loops,
        settings.iterations,
        settings.repeats,
        settings.warm_ups,
        asked.verify,
        asked.timeline,
    )
    return run_all(series, HorovodTurns(place, settings.limit, watch), asked.output, teller(place.rank == 0))


def _trainee(asked: RunRequest, place: Place) -> Trainee:
    from osfmodel.runtime.profiler.conditions import other_threads
    from osfmodel.runtime.training.trainees import agreed, replayed, trained

    if not asked.real:
        return replayed(asked.variation.of(profiles.load_workload(asked.subject)), place.device)
    known = None if asked.workload is None else profiles.load_workload(asked.workload)
    note = "" if known is None or place.rank else other_threads(known, place.device)
    if note:
        warn(note)
    return agreed(trained(asked.subject, place.device, known))


def _carried(label: str, asked: RunRequest, trainee: Trainee, pricing: Pricing, stated: dict[str, str]) -> Carried:
    from osfmodel.runtime.training import executed
    from osfmodel.runtime.training.ddp_buckets import carried

    if not _executed(label):
        return carried(label, _plan(label, trainee.workload, pricing.under(stated)), trainee.workload, asked.hook)
    name, pricing = label.removeprefix(PREFIX), pricing.under(stated | EXECUTED)
    plan = _plan(name, trainee.workload, pricing)
    if plan.credit is not None and not _is_file(name):
        label, plan = label + FIXED, without_priority(trainee.workload, plan, pricing)
    return executed(label, plan, trainee)


def _plan(name: str, workload: Workload, pricing: Pricing) -> Plan:
    return profiles.load_plan(name) if _is_file(name) else make_plan(name, workload, pricing)


def _default_first(plans: Sequence[Carried], workload: Workload) -> list[Carried]:
    """The plans, with DDP's default in front, whose losses the others are compared with."""
    from osfmodel.runtime.training.ddp_buckets import carried

    default = carried("ddp", make_plan("ddp", workload, UNMEASURED), workload)
    return [default, *(planned for planned in plans if planned.label != "ddp" or planned.hook)]


def _first(asked: RunRequest, settings: TrainingSettings, place: Place, trainee: Trainee) -> Measurement:
    """What all runs share; files are named from where the measurement file will lie."""
    from osfmodel.runtime.training import first_of

    named = asked.workload or (asked.subject if not asked.real else trainee.workload.name)
    wires = asked.cluster or "unmeasured"
    names = _beside(named, asked.output), _beside(wires, asked.output)
    return first_of(trainee, settings, place, names, None if asked.real else asked.variation)


def _beside(name: str, output: str) -> str:
    """A file as it is found from where ``output`` lies; a name as it is."""
    if _executed(name):
        return PREFIX + _beside(name.removeprefix(PREFIX), output)
    return os.path.relpath(name, Path(output).resolve().parent) if name.endswith(".json") else name
