"""The command ``osf scale``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import click

from osfmodel.cli.app import OneOf, drawn_form, emit, line, output_options, require_writable, warn
from osfmodel.cli.groups import ARGUMENTS, READ, Decorator, GroupedCommand, OptionGroup
from osfmodel.cli.options import (
    Subject,
    TargetName,
    load_subject,
    parse_workers,
    plan_option,
    subject_options,
    warn_of_batches,
)
from osfmodel.cli.scaling import goals_of, options_of, require_of_workloads
from osfmodel.cli.tune import tuned_lines
from osfmodel.cost.nccl_words import gpu_in_words
from osfmodel.counting.groups import DEGREES, Parallelism
from osfmodel.engine.optimizers import OPTIMIZERS
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import OsfError, PlanError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.version import __version__
from osfmodel.entities.workload import Workload
from osfmodel.planning.scaling.curve import Rescue, ScaleCurve, combined
from osfmodel.planning.scaling.goals import UNPRICED, Answer, Goals
from osfmodel.planning.scaling.inverse import answers, cheapest
from osfmodel.planning.scaling.layouts import scale_layouts
from osfmodel.planning.scaling.replicas import on_gpu_of, replica_workload
from osfmodel.planning.scaling.rescues import Rescuer
from osfmodel.planning.scaling.scale import ScaleOptions, scale
from osfmodel.planning.scaling.settings import says_groups, settings
from osfmodel.planning.scaling.spaces import of_one_gpu
from osfmodel.show.document import CODE
from osfmodel.show.scale import Scaled, ScaledMachines
from osfmodel.show.terminal import progress_bar
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.targets.named_plans import NAMED_PLANS

TRAINING = OptionGroup("Training as a whole")
MEMORY = OptionGroup("Memory")
GOALS = OptionGroup("Goals")
GROUPS = OptionGroup("Parallelism inside a replica, each repeatable: all combinations")
LISTED = (*DEGREES.values(), "batch_size")
"""Parameters of which all combinations are predicted."""


def _group(name: str, said: str) -> Decorator:
    """An option of GROUPS."""
    return GROUPS.option(name, type=int, multiple=True, metavar="N", help=said)


@click.command(name="scale", cls=GroupedCommand)
@subject_options(cluster_required=False, several=True)
@click.option("--workers", metavar="N[,N...|A..B]", help="Numbers of GPUs; A..B doubles from A to B.")
@click.option(
    "--model", metavar="MODEL[,PART...]",
    help="Model of a job's file that names none, and parts of words that go before the file's: llama3-8b,seq4096.",
)  # fmt: skip
@plan_option("Named plan; repeatable: each of these, and the best. Default: DDP, ZeRO-1 and 2, FSDP2 and HSDP.", "NAME")
@click.option(
    "--for",
    "target",
    type=TargetName(CONFIG_TARGETS),
    metavar="TARGET",
    help="Also print a framework's settings for the largest number of GPUs; 'osf list targets' shows all.",
)
@click.option(
    "--batch-size", type=int, multiple=True, metavar="B",
    help="Samples of a GPU's micro-batch, if not the workload's. Repeatable.",
)  # fmt: skip
@click.option(
    "--global-batch", type=int, metavar="B",
    help="Samples of all GPUs in a step: in micro-batches of the words' batch, as many as it takes.",
)  # fmt: skip
@click.option(
    "--layout", metavar="any|LIMITS",
    help="Search TP, PP, CP, EP, strategy, micro-batch and checkpointing: any, or limits such as 'tp<=8,pp=1,ac=full'.",
)  # fmt: skip
@_group("--tp", "Tensor parallelism: GPUs that share each matrix.")
@_group("--cp", "Context parallelism: GPUs that share each sample.")
@_group("--pp", "Pipeline stages; --accumulate says how many micro-batches go through.")
@_group("--vpp", "Chunks of each stage of an interleaved pipeline.")
@_group("--ep", "Expert parallelism: data-parallel ranks that share the experts.")
@GOALS.option("--target-scaling", metavar="F", help="Ask what reaches a scaling factor (0.9 or 90%).")
@GOALS.option(
    "--target-time",
    metavar="TIME",
    help="Ask what reaches a step as short as this (800ms); from 1h on, with --tokens or --samples, a training (10d).",
)
@GOALS.option("--target-tokens-per-s", metavar="N", help="Ask what reaches this rate (1.5M).")
@GOALS.option("--budget", metavar="PRICE", help="Ask what keeps the training within this price (5M).")
@click.option(
    "--anchor",
    "anchors",
    type=READ,
    multiple=True,
    metavar="N=STEP|FILE",
    help="A measured step with N GPUs: 64=0.61s, 64=5762tok/s/gpu, 64=210samples/s, or 64=FILE, a trainer's log; or a "
    "CSV of runs. One replaces computed times; several also teach the network.",
)
@MEMORY.option("--memory", metavar="SIZE", help="Of a GPU (76GiB). Default: what CUDA and NCCL leave of it.")
@MEMORY.option("--optimizer", type=OneOf(OPTIMIZERS), help="Optimizer; default: the workload's.")
@TRAINING.option("--tokens", metavar="N", help="Also show the hours for training on N tokens (300B, 15T).")
@TRAINING.option("--samples", metavar="N", help="Also show the hours for training on N samples (1.28M).")
@TRAINING.option(
    "--price",
    "prices",
    type=float,
    multiple=True,
    metavar="PRICE",
    help="Price of a GPU for an hour: also show what it costs. Repeatable: one for each --cluster.",
)
@partial(output_options, more=(CODE,))
def scale_command(
    subject: Subject,
    machines: tuple[str, ...],
    prices: tuple[float, ...],
    style: str | None,
    as_json: bool,
    output: str | None,
    **asked: Any,
) -> None:
    """Show what more GPUs give: the best strategy, rate, memory and cost of WORKLOAD at each number of them.

    WORKLOAD needs no profile: llama3-8b:h100,seq8192,batch2,bf16 is counted from the model's dimensions and the GPU's
    data sheet. With --anchor measured steps replace what was learned. The file of a job of torchtitan, Megatron-LM,
    DeepSpeed, Accelerate or Axolotl is audited: its step, the best layout, and the changes that gain most.

    \b
    Example:
      osf scale llama3-8b:h100,seq8192,batch1,bf16,ac=full --cluster nccl:h100x8,400Gbps --workers 8..1024
      osf scale llama3-8b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 64..512 --tokens 1T --price 2.5
      osf scale llama3-8b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 8..256 --anchor 8=7800tok/s/gpu
      osf scale llama3-8b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 8..512 --target-scaling 0.95
      osf scale llama3-8b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 8..512 --for torchtitan
      osf scale llama3-8b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 8..512 -o proposal.html
      osf scale llama3-8b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --cluster nccl:a100x8,200Gbps \\
        --price 2.5 --price 1.3 --workers 8..256 --target-tokens-per-s 1M
      osf scale llama3-70b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 64..1024 --tp 8 --accumulate 8
      osf scale llama3-70b:h100,batch1,bf16 --cluster nccl:h100x8,400Gbps --workers 256 --global-batch 512 --layout any
      osf scale train.toml --cluster nccl:h100x8,400Gbps,ib --workers 64
      osf scale resnet50-v100 --cluster nccl:v100x8,100Gbps/node --workers 1..64 --plan ddp
    """
    form = drawn_form(style, as_json, output)
    if form is not None:
        require_writable(str(output))
    if form is not None and asked["target"] is not None:
        raise UsageError(f"-o {output}: settings go to a file of their own: leave --for out, or give -o another name")
    job = None
    if os.path.isfile(subject.workload_name):
        from osfmodel.formats.jobs import job_at  # with every format

        job = job_at(subject.workload_name)
    if job is not None:
        from osfmodel.cli.audit import audit_asked, write_page
        from osfmodel.planning.scaling.audit import audit
        from osfmodel.show.scale.audit import Audited

        audited = Audited(audit(*audit_asked(job, subject, machines, prices, asked)), subject.workload_name)
        if form is not None:
            write_page(audited, form, str(output))
        else:
            emit(style, as_json, output, audited)
        return
    require_of_workloads(asked)
    if not machines:
        if len(prices) > 1:
            raise UsageError("--price is given several times: give one for each --cluster")
        _require_same_gpu(subject)
        made, _ = _scaled(subject, prices[0] if prices else None, asked)
        if form is None:
            emit(style, as_json, output, made)
        else:
            _write(form, made, str(output))
        return
    if form is not None or asked["target"] is not None or asked["anchors"]:
        raise UsageError("settings, pages, pictures and anchors are of one machine: give --cluster once")
    if len(prices) > 1 and len(prices) != 1 + len(machines):
        raise UsageError(
            f"{len(prices)} prices for {1 + len(machines)} clusters: give --price once, or for each of them"
        )
    goals = goals_of(asked)
    if goals != Goals() and not prices:
        raise UsageError(UNPRICED)
    subjects = [  # on a cluster that names another GPU, the words have that one
        replace(subject, cluster_name=name, workload_name=on_gpu_of(subject.workload_name, name))
        for name in (str(subject.cluster_name), *machines)
    ]
    each = [
        _scaled(one, prices[min(place, len(prices) - 1)] if prices else None, asked)
        for place, one in enumerate(subjects)
    ]
    found = cheapest([curve for _, curves in each for curve in curves], goals) if goals != Goals() else []
    emit(style, as_json, output, ScaledMachines([one for one, _ in each], found))


def _require_same_gpu(subject: Subject) -> None:
    """Raise UsageError for a workload and a cluster in words that name different GPUs."""
    there = on_gpu_of(subject.workload_name, cluster := str(subject.cluster_name), chip=True)
    if there != subject.workload_name:
        gpu = gpu_in_words(cluster)
        raise UsageError(f"{subject.workload_name!r} is not for {gpu}, the GPU of {cluster}: write {there}")


def _scaled(subject: Subject, price: float | None, asked: Mapping[str, Any]) -> tuple[Scaled, list[ScaleCurve]]:
    """The best curve on one cluster, answers, and settings if asked for; and the curves of all combinations."""
    if asked["layout"] is not None:
        return _laid_out(subject, price, asked)
    values = [tuple(dict.fromkeys(asked[name])) or (None,) for name in LISTED]
    if (several := prod(map(len, values)) > 1) and asked["anchors"]:
        raise UsageError("--anchor is a step measured with one value of each option: give none of them several times")
    loaded = load_subject(subject)
    counts = sorted(parse_workers(asked["workers"], loaded[1]))
    curves, named, said, errors = [], [], [], []
    for chosen in product(*values):
        pairs = [(name, one) for name, one, found in zip(LISTED, chosen, values, strict=True) if len(found) > 1]
        words = " with" * several + "".join(f" --{name.replace('_', '-')} {one}" for name, one in pairs)
        try:
            curve, options, found = _curve(
                subject, loaded, counts, price, {**asked, **dict(zip(LISTED, chosen, strict=True))}
            )
        except OsfError as error:
            errors.append(error)
            continue
        curves.append(curve)
        named.append(replace(curve, cluster=replace(curve.cluster, name=f"{curve.cluster.name}{words}")))
        said += [replace(one, goal=f"{one.goal}{words}") for one in found]
    if not curves:
        raise errors[0]
    listed = len({*asked["plan_names"]}) > 1
    curve = combined(curves, listed) if several or listed else curves[0]
    curve = replace(curve, warnings=(*(f"left out: {error}" for error in errors), *curve.warnings))
    tuning, unmet = None, ""
    try:
        tuning = None if asked["target"] is None else settings(curve, asked["target"])
    except PlanError as error:
        unmet = str(error)
    arguments = click.get_current_context().meta[ARGUMENTS]
    options = replace(options, what_if=curve.what_if, groups=curve.groups)
    rescues = Rescuer(curve, options, (str(subject.cluster_name), price, arguments)).rescues()
    if unmet:
        raise PlanError("; this fits: ".join([unmet, *_fitting(rescues, curve, asked["target"])[:1]]))
    return Scaled(curve, said, tuning, None if tuning is None else tuned_lines(tuning), rescues), named


def _fitting(rescues: Sequence[Rescue], curve: ScaleCurve, target: str) -> list[str]:
    """The commands of changes with which a framework's settings for the largest number of workers fit."""
    strategy, last = CONFIG_TARGETS[target].objective.strategy, curve.points[-1]
    there = (one for one in rescues if one.workers == last.workers)
    those = (one for one in there if one.point.best.prediction.plan.strategy == strategy)
    return [one.command for one in those if {target, f"--for={target}"} & {*shlex.split(one.command)}]


def _laid_out(subject: Subject, price: float | None, asked: Mapping[str, Any]) -> tuple[Scaled, list[ScaleCurve]]:
    """The curve of the best layouts, and settings if asked for."""
    given = [name for name in (*LISTED, "anchors") if asked[name]] + ["accumulate"] * (subject.what_if.accumulate > 1)
    if given or goals_of(asked) != Goals():
        option = f"--{given[0].removesuffix('s').replace('_', '-')}" if given else "a goal"
        raise UsageError(f"--layout searches by itself: leave {option} out, or leave --layout out")
    workload, cluster = load_subject(subject)
    options = options_of(subject.what_if, workload, price, asked, Parallelism())
    if asked["target"] in NAMED_PLANS and not asked["plan_names"]:
        options = replace(options, plans=(asked["target"],))
    counts, space = sorted(parse_workers(asked["workers"], cluster)), asked["layout"]
    if asked["target"] is not None and not says_groups(asked["target"]):
        space = of_one_gpu(space)
    with progress_bar("searching", "layouts") as hear:
        curve = scale_layouts(subject.workload_name, cluster, counts, options, space, hear)
    tuning = None if asked["target"] is None else settings(curve, asked["target"])
    return Scaled(curve, (), tuning, None if tuning is None else tuned_lines(tuning)), [curve]


def _curve(
    subject: Subject, loaded: tuple[Workload, Cluster], counts: list[int], price: float | None, asked: Mapping[str, Any]
) -> tuple[ScaleCurve, ScaleOptions, list[Answer]]:
    """The curve of one combination at the counts that are whole replicas, its options and its answers."""
    workload, cluster = loaded
    what_if = replace(subject.what_if, batch_size=asked["batch_size"], global_batch=asked["global_batch"])
    given = {kind: asked[option] for kind, option in DEGREES.items() if asked[option] is not None}
    groups = Parallelism(**given)
    whole = [count for count in counts if count % groups.gpus == 0] or counts
    left = [f"left out: {count} GPUs with {groups.words}: no whole replicas" for count in counts if count not in whole]
    if groups != Parallelism():
        if what_if.compute != 1:
            raise UsageError(f"--compute would change the collectives of {groups.words} too: leave one of them out")
        workload = replica_workload(subject.workload_name, cluster, groups)
    warn_of_batches(workload, what_if, [groups.replicas(count) for count in whole])
    options = options_of(what_if, workload, price, asked, groups)
    goals = goals_of(asked)
    if goals.budget is not None and (price is None or options.training.samples is None):
        length = "--samples" if workload.sample_tokens is None else "--tokens"
        raise UsageError(f"--budget: give --price and {length}, or leave --budget out")
    curve = scale(workload, cluster, whole, options)
    curve = replace(curve, warnings=(*left, *curve.warnings))
    return curve, options, answers(curve, options, goals)


def _write(form: str, made: Scaled, output: str) -> None:
    """Write a page or a picture."""
    command = shlex.join(["osf", "scale", *click.get_current_context().meta[ARGUMENTS]])
    if form == "page":
        from osfmodel.show.scale.page import proposal

        profiles.write_text(output, proposal(made.curve, made.answers, command, __version__))
    else:
        from osfmodel.show.scale.page import plot_scale

        plot_scale(made.curve, output)
    line(f"wrote {output} ({form})")
    for warning in made.warnings():
        warn(warning)
