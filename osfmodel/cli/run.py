"""The command ``osf run``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import click

from osfmodel.cli.app import (
    CLUSTER,
    PLAN,
    WORKLOAD,
    OneOf,
    line,
    parse_limit,
    print_text,
    require_writable,
    teller,
    warn,
)
from osfmodel.cli.groups import READ, WRITTEN, GroupedCommand, OptionGroup, require_inputs_kept
from osfmodel.entities.batches import Variation
from osfmodel.entities.compression import FP16, NONE
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import DDP, EXECUTORS, RUNTIME, ExecutorRow, RunSupport
from osfmodel.entities.measurement import Measurement
from osfmodel.runtime.job import Voice, place_of, require_torch, together
from osfmodel.runtime.training import TrainingSettings
from osfmodel.runtime.training.run import RunRequest, apart_from_default, is_executed, is_file, notes, summary
from osfmodel.targets.named_plans import named_plan

RUNNING: dict[str, RunSupport] = {name: row.run for name, row in EXECUTORS.items() if row.run is not None}
"""Executors that train under torchrun."""
UNDER_HOROVOD = OptionGroup("With --executor horovod")
UNDER_FSDP = OptionGroup("With --executor fsdp2")
MODEL = OptionGroup("Model")
MEASURED = OptionGroup("Measurement")
OF_DDP = OptionGroup("With --executor ddp")


@click.command(name="run", cls=GroupedCommand)
@click.argument("subject", metavar="WORKLOAD|PACKAGE.MODULE:FACTORY", type=WORKLOAD)
@click.option(
    "--plan", "plans", multiple=True, required=True, metavar="NAME|FILE", type=PLAN,
    help="Plan to run, repeatable: a name, cap:25MiB for one limit, cap:best, a plan file; runtime:PLAN: by executor.",
)  # fmt: skip
@click.option(
    "--executor", type=OneOf(RUNNING), default=DDP.name, show_default=True,
    help="Executor that runs the plans: PyTorch DDP; runtime, which runs any plan; Horovod or FSDP2, over gloo.",
)  # fmt: skip
@UNDER_HOROVOD.option("--compression", type=OneOf([NONE, FP16]), help="Gradient compression.")
@UNDER_HOROVOD.option("--timeline", metavar="FOLDER", type=WRITTEN, help="Record a Horovod timeline of each plan.")
@UNDER_FSDP.option(
    "--asynchronous",
    is_flag=True,
    help="Run collectives in the background; without it, each one over gloo blocks the host.",
)
@click.option("--cluster", metavar="FILE", type=CLUSTER, help="Prices for the plans that need some (osf bench).")
@MODEL.option("--workload", metavar="FILE", type=READ, help="The profile of the model of FACTORY (osf profile).")
@MODEL.option("--scale", type=float, default=1.0, metavar="X", help="Replay computation X times as slow.")
@MODEL.option("--batch-size", type=click.IntRange(1), metavar="B", help="Replay B samples per worker, in proportion.")
@MEASURED.option(
    "--iterations", type=click.IntRange(1), default=20, show_default=True, metavar="N",
    help="Measured iterations per turn.",
)  # fmt: skip
@MEASURED.option("--repeat", type=click.IntRange(1), default=3, show_default=True, metavar="R", help="Turns per plan.")
@MEASURED.option(
    "--warm-up", type=click.IntRange(3), default=3, show_default=True, metavar="W",
    help="Warm-up iterations per turn, not measured.",
)  # fmt: skip
@click.option("--backend", type=OneOf(["gloo", "nccl"]), help="Backend; default: nccl with a GPU, else gloo.")
@click.option(
    "--timeout", default="60s", show_default=True, metavar="TIME",
    help="Time limit for start-up and for each collective.",
)  # fmt: skip
@MEASURED.option("--verify", is_flag=True, help="Also compare the losses of each plan with the default's (FACTORY).")
@OF_DDP.option("--find-unused-parameters", is_flag=True, help="Set find_unused_parameters of DDP.")
@OF_DDP.option("--static-graph", is_flag=True, help="Set static_graph of DDP.")
@OF_DDP.option("--gradient-as-bucket-view", is_flag=True, help="Set gradient_as_bucket_view of DDP.")
@OF_DDP.option("--comm-hook", is_flag=True, help="Run plans through a communication hook, as on older PyTorch.")
@click.option("-o", "--output", required=True, metavar="FILE", type=WRITTEN, help="Write the measurements to FILE.")
def run_command(
    subject: str,
    plans: tuple[str, ...],
    executor: str,
    compression: str | None,
    timeline: str | None,
    asynchronous: bool,
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
    """Train for real under each plan, with DDP, FSDP2, Horovod or our executor, started by torchrun, and measure it.

    WORKLOAD is replayed: sleeping (spinning, on a GPU) replaces computation, while gradients, hooks, buckets and
    collectives are real. FACTORY returns (model, batch, loss), as for osf profile. Plans take turns. FILE is
    written after every turn; `osf check FILE` compares it with the prediction. `--plan ddp --plan runtime:PLAN`
    measures DDP and the executor side by side; with --executor runtime the executor runs all plans.

    \b
    Example:
      torchrun --nproc-per-node 4 -m osfmodel run resnet50-v100 --plan ddp --plan optimal --cluster c.json -o r.json
    """
    options = {
        "find_unused_parameters": find_unused_parameters,
        "static_graph": static_graph,
        "gradient_as_bucket_view": gradient_as_bucket_view,
    }
    row, support = EXECUTORS[executor], RUNNING[executor]
    others = {
        "comm_hook": comm_hook,
        "timeline": timeline is not None,
        "compression": compression == FP16,
        "asynchronous": asynchronous,
    }
    variation, named = Variation(scale, batch_size), [row.prefix + plan.removeprefix(row.prefix) for plan in plans]
    asked = RunRequest(
        subject, tuple(dict.fromkeys(named)), cluster, workload, variation, output, True if comm_hook else None, verify,
        timeline, compression, asynchronous,
    )  # fmt: skip
    _require_sensible(asked)
    _require_possible(row, asked, backend, {name for name, given in (options | others).items() if given})
    if all(map(is_executed, asked.plans)) and (comm_hook or any(options.values())):
        raise UsageError("options of DDP are given, and every plan is for the executor: leave them out")
    limit = parse_limit(timeout)
    place = place_of(os.environ, "run")
    if place.rank == 0:
        require_writable(output)
        require_inputs_kept(Path(timeline or os.devnull).glob("[0-9]*-*.json"))
    require_torch("osf run")
    module = import_module(support.module)
    module.require_installed("osf run")
    settings = TrainingSettings(iterations, repeat, warm_up, options, limit)
    place = place.on(support.backend or backend)
    voice = Voice(teller(place.rank == 0), line)
    runs = together(place, limit, partial(module.run, asked, settings, place, voice))
    return 0 if place.rank else _shown(runs)


def _shown(runs: Sequence[Measurement]) -> int:
    """Print the summary and the notes of the runs; return the exit code."""
    print_text(summary(runs))
    for note in dict.fromkeys(notes(runs)):
        warn(note)
    return 1 if any(apart_from_default(run) for run in runs) else 0


def _require_possible(row: ExecutorRow, asked: RunRequest, backend: str | None, given: set[str]) -> None:
    """Raise UsageError for settings or ``given`` options that the executor does not support, and for missing ones."""
    support = RUNNING[row.name]
    if any(map(is_executed, asked.plans)) and not support.in_turn:
        raise UsageError(
            f"plans for our executor are given, and {row.called} runs the plans: drop the prefix {RUNTIME.prefix}"
        )
    for other in RUNNING.values():
        if given & other.options - support.options:
            raise UsageError(other.refusal.format(executor=row.called))
    if support.backend and backend not in (None, support.backend):
        raise UsageError(f"--executor {row.name} runs over {support.backend} here: leave --backend out")
    if support.profiled and asked.real and asked.workload is None:
        raise UsageError(
            f"--executor {row.name} needs the model's profile: give --workload FILE, as osf profile writes it"
        )


def _require_sensible(asked: RunRequest) -> None:
    """Raise UsageError for contradictory settings, before any rank waits for another."""
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
    for name in (plan.removeprefix(RUNTIME.prefix) for plan in asked.plans):
        if not is_file(name):
            unpriced = named_plan(name).unpriced
            if asked.cluster is None and not unpriced:
                raise UsageError(f"plan {name!r} needs prices: give --cluster FILE, as osf bench writes it")
            if asked.real and asked.workload is None and not unpriced:
                raise UsageError(f"plan {name!r} needs gradient times: give --workload FILE, as osf profile writes it")
