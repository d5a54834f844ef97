"""Options that several commands share, and the values that they accept: WORKLOAD, --cluster, what-ifs, plans, hints."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osfmodel.cli import groups
from osfmodel.cli.app import CLUSTER, PLAN, WORKLOAD, OneOf, line, warn
from osfmodel.cli.groups import READ, TRACES, Decorator
from osfmodel.cost import COST_MODELS
from osfmodel.cost.clusters import counts_in_words, load_cluster
from osfmodel.cost.faster_network import SAME, Change, faster_network
from osfmodel.counting import load_workload
from osfmodel.entities.batches import FIXED_SHARE, scaling_uncertainty
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.executors import DDP, EXECUTORS
from osfmodel.entities.files import profiles
from osfmodel.entities.files.documents import PlanFile
from osfmodel.entities.files.profiles import plain_text
from osfmodel.entities.lookup import require
from osfmodel.entities.units import parse_bandwidth, parse_part, parse_time
from osfmodel.entities.workload import Workload
from osfmodel.planning.what_if import WhatIf, parse_change, parse_effects, parse_factor
from osfmodel.targets import CONFIG_TARGETS, target_name

if TYPE_CHECKING:
    from osfmodel.entities.trace import Trace
    from osfmodel.formats.source_text import Hints, Text

ANY = "any"
"""The value of --for that compares DDP, ZeRO, FSDP2 and HSDP."""


def plan_option(said: str, metavar: str = "NAME|FILE") -> Decorator:
    """--plan, repeatable: a command is handed ``plan_names``, for :func:`plan_files`."""
    return click.option(
        "--plan", "plan_names", multiple=True, metavar=metavar, type=PLAN, help=said, callback=_distinct
    )


def _distinct(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The plans, of several spellings of one the first."""
    if len(names) < 2:
        return names
    from osfmodel.targets.named_plans import called

    return tuple({called(name): name for name in reversed(names)}.values())[::-1]


class TargetName(OneOf):
    """A key of CONFIG_TARGETS or another name of one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The key that is meant. Raises click.BadParameter for other names."""
        meant = target_name(str(value))
        return super().convert(meant if meant in CONFIG_TARGETS else value, param, ctx)


def target_option(said: str, *also: str) -> Decorator:
    """--for: a command is handed ``target``, a key of CONFIG_TARGETS, or one of ``also``."""
    said = f"{said} 'osf list targets' shows all."
    names = TargetName(CONFIG_TARGETS, *also)
    return click.option("--for", "target", type=names, metavar="TARGET", default="ddp", show_default=True, help=said)


def plan_files(names: Iterable[str], workload: Workload | None = None) -> dict[str, PlanFile]:
    """The content of those of ``names`` that are files; others name plans. Raises UsageError, DataError."""
    from osfmodel.targets.named_plans import NAMED_PLANS, called, named_plan

    files = {}
    for name in names:
        path = Path(name)
        if called(name) in NAMED_PLANS or not (os.path.isfile(path) or path.name != name or path.suffix == ".json"):
            named_plan(name)
        else:
            files[name] = profiles.load_plan_file(path, workload)
            for plan in (files[name].plan, *files[name].others.values()):
                from osfmodel.engine.strategies import STRATEGIES  # not loaded without a plan from a file

                require(plan.strategy, STRATEGIES, f"strategy in {name}:")
                require(plan.executor or DDP.name, EXECUTORS, f"executor in {name}:")
    return files


def remedies_command(subject: Subject, workers: int, options: Mapping[str, int | str | None], groups: str = "") -> str:
    """The command that compares what fits and costs remedies, for the same question."""
    from osfmodel.planning.scaling.replicas import on_gpu_of  # not loaded unless the command is printed

    cluster, changes = subject.cluster_name, subject.options
    changed = {f"--{name}": changes[name] for name in WHAT_IF if changes.get(name, 1) != 1}
    given = {"--workers": workers, **changed, **options}
    said = [part for option, value in given.items() if value is not None for part in (option, str(value))]
    words = subject.workload_name if cluster is None else on_gpu_of(subject.workload_name, cluster)
    where = [] if cluster is None else ["--cluster", cluster]
    return shlex.join(["osf", "scale", words, *where, *said, *groups.split()])


def parse_workers(text: str, cluster: Cluster) -> list[int]:
    """:func:`osfmodel.cost.clusters.counts_in_words`, with its remark as a warning."""
    counts, left_out = counts_in_words(text, cluster)
    if left_out:
        warn(left_out)
    return counts


def parse_tolerance(text: str) -> float:
    """``2%`` or ``0.02`` as 0.02. Raises UsageError."""
    try:
        found = parse_part(text)
    except ValueError:
        raise UsageError(f"--tolerance {text!r:.40}: write a part, such as 2% or 0.02") from None
    if not 0 <= found < 1:
        raise UsageError(f"a tolerance of {found:g}: give a fraction from 0 to below 1, such as 0.02 or 2%")
    return found


SUBJECT = ("workload_name", "cluster_name", "cost_model", "effects")
WHAT_IF = ("bandwidth", "latency", "compute", "compression", "accumulate")
"""Options that change the workload or the cluster for a what-if."""
CHANGES = ("cost_model", "effects", *WHAT_IF)
"""Options on which the workload and the cluster depend, beside their names."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The workload and the cluster as a command line names them, with the changes to apply.

    options: of CHANGES that were given, as they were typed
    """

    workload_name: str
    cluster_name: str | None
    cost_model: str | None = None
    effects: tuple[str, ...] = ()
    what_if: WhatIf = WhatIf()
    options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(params: Mapping[str, Any]) -> Subject:
        """The subject from the parameters of a command with :func:`subject_options`. Raises UsageError."""
        said = {name: params[name] for name in WHAT_IF if params.get(name) is not None}
        for name, parse in (("bandwidth", parse_bandwidth), ("latency", parse_time)):
            if name in said:
                said[name] = parse_change(f"--{name}", said[name], parse)
        if "compression" in said:
            said["compression"] = said["compression"].lower()
        if "compute" in said:
            said["compute"] = parse_factor("--compute", said["compute"])
        found = {name: params[name] for name in SUBJECT}
        if isinstance(found["cluster_name"], tuple):
            found["cluster_name"] = next(iter(found["cluster_name"]), None)
        options = {name: params[name] for name in CHANGES if params.get(name)}
        return Subject(**found, what_if=WhatIf(**said), options=options)

    def as_tuned(self, files: Mapping[str, PlanFile], own: Mapping[str, Any]) -> tuple[Subject, dict[str, Any]]:
        """The subject, and a command's ``own`` options, with those for which plan files were tuned.

        What the command line gives is taken instead, with a warning. Raises UsageError where files contradict.
        """
        given = {**self.options, **{name: value for name, value in own.items() if value}}
        found, told = dict[str, Any](), dict[str, str]()
        for name, options in ((name, file.options) for name, file in files.items() if file.options is not None):
            for option in (*CHANGES, *own):
                word, value = f"--{option.replace('effects', 'effect').replace('_', '-')}", options.get(option)
                typed = f"{word} " + (f" {word} ".join(value) if isinstance(value, tuple) else str(value))
                if option in given:
                    if value not in (None, given[option]):
                        warn(f"{name} was tuned with {typed}, and is predicted with what is given here")
                elif found.setdefault(option, value) != value:
                    raise UsageError(
                        f"{name} was tuned with another {word} than the file before: give {word}, or one file"
                    )
                elif value:
                    told.setdefault(typed, name)
        for typed, name in told.items():
            line(f"{typed}, as {name} was tuned")
        taken = {**{name: getattr(self, name) for name in SUBJECT}, **own, **given, **found}
        return Subject.of(taken), {name: taken[name] for name in own}


def subject_options(
    cluster_required: bool = True, several: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add WORKLOAD, --cluster and the what-if options; the command receives them as its ``subject``.

    several: whether there may be more clusters, of which the command receives all but the first as ``machines``
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(**params: Any) -> Any:
            others = {name: value for name, value in params.items() if name not in (*SUBJECT, *WHAT_IF)}
            if several:
                others["machines"] = params["cluster_name"][1:]
            return command(subject=Subject.of(params), **others)

        return _subject_options(gathered, cluster_required, several)

    return decorated


def _subject_options(command: Callable[..., Any], cluster_required: bool, several: bool) -> Callable[..., Any]:
    for option in (
        groups.WHAT_IF.option("--accumulate", type=int, metavar="K", help="Gradients of K micro-batches added up."),
        groups.WHAT_IF.option("--compression", metavar="HOW", help="Gradients sent as fp16, bf16 or powersgd:RANK."),
        groups.WHAT_IF.option("--compute", metavar="xF", help="Devices F times as fast (x1.5)."),
        groups.WHAT_IF.option("--latency", metavar="xF|TIME", help="Latency F times as long (x0.5), or 10us."),
        groups.WHAT_IF.option(
            "--bandwidth", metavar="xF|RATE",
            help="A network F times as fast (x2), or of 25Gbps per GPU (per NIC, where GPUs share NICs), 200Gbps/node.",
        ),
        groups.PRICES.option(
            "--cost-model",
            type=OneOf(COST_MODELS),
            metavar="MODEL",
            help="Price collectives with this model instead ('osf list cost-models').",
        ),
        groups.PRICES.option(
            "--effect", "effects", multiple=True, metavar="NAME[=VALUE]",
            help="Set an effect to its published value or yours; 'none' leaves all others out ('osf list effects').",
        ),
        click.option(
            "--cluster", "cluster_name", required=cluster_required, metavar="CLUSTER", type=CLUSTER, multiple=several,
            help="Bundled name, JSON file, or words such as ring:50us,10Gbps, nccl:h100x8,400Gbps or "
            "hierarchical:8,5us,200GB/s,50us,25Gbps. Rates are per GPU, or 3200Gbps/node."
            + " Repeatable, to compare machines." * several,
        ),
        click.argument("workload_name", metavar="WORKLOAD", type=WORKLOAD),
    ):  # fmt: skip
        command = option(command)
    return command


def load_subject(subject: Subject) -> tuple[Workload, Cluster]:
    """The workload as profiled, and the cluster with its effects and the changes of ``subject.what_if``."""
    workload, cluster = load_workload(subject.workload_name), load_cluster(str(subject.cluster_name))
    if subject.cost_model is not None:
        cluster = replace(cluster, cost_model=subject.cost_model)
    if subject.effects:
        cluster = replace(cluster, effects=parse_effects(subject.effects, workload, cluster), usual_effects=False)
    _warn_of_no_change(cluster, subject.what_if)
    return workload, subject.what_if.of_cluster(cluster)


def _warn_of_no_change(cluster: Cluster, what_if: WhatIf) -> None:
    """Warn of a factor that changes nothing: the cluster's times are all start-up, or have none."""
    for name in ("bandwidth", "latency"):
        change: Change = getattr(what_if, name)
        if change.value is None and change != SAME and faster_network(cluster, **{name: change}) == cluster:
            warn(f"--{name} x{change.factor:g} changes nothing: cluster {cluster.name!r} has no {name} in its figures")


def warn_of_batches(workload: Workload, what_if: WhatIf, counts: Sequence[int], other: Workload | None = None) -> None:
    """Warn if times are scaled in proportion from another batch size."""
    sizes = dict.fromkeys([what_if.share(count) for count in reversed(counts)][::-1])
    others = [str(size) for size in sizes if size not in (None, workload.batch_size)]
    if workload.batch_size is None and what_if.global_batch is not None:
        return  # which is refused
    if workload.batch_size is None and others:
        warn(
            f"workload {workload.name!r} does not say at which batch size it was profiled: its times are taken for "
            f'--batch-size {others[0]} as they are; add "batch_size" to its file for times of another'
        )
    elif other is None and workload.fixed_share is None and others:
        factors = [int(size) / (workload.batch_size or 1) for size in others]
        warn(
            f"no profile at batch {', '.join(others)}: scaled from batch {workload.batch_size}, with {FIXED_SHARE:.0%} "
            "of the smaller batch's time as fixed. That was within "
            f"{max(map(scaling_uncertainty, factors)):.0%} on measured models; a job whose GPU waits for its host "
            "hardly changes. A second profile is better: --also FILE"
        )


STEPS = re.compile(r"(\d{1,12})(?:\.\.(\d{1,12}))?")
TRACE_OPTIONS = (
    TRACES.option("--steps", metavar="N[..M]", help="Only these steps of a trace."),
    TRACES.option(
        "--model", metavar="WORKLOAD", type=WORKLOAD, help="Its workload, for a trace without sizes of gradients."
    ),
    TRACES.option("--ddp-logging", metavar="FILE", type=READ, help="DDP's log, for a trace without bucket sizes."),
)


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for reading traces; the command receives them as its ``hints``, without a name."""

    @functools.wraps(command)
    def gathered(ddp_logging: str | None, model: str | None, steps: str | None, **others: Any) -> Any:
        from osfmodel.formats.source_text import Hints

        hints = Hints(
            "",
            ddp_logging=None if ddp_logging is None else read_log(ddp_logging),
            model=None if model is None else load_workload(model),
            steps=None if steps is None else parse_steps(steps),
        )
        return command(hints=hints, **others)

    wrapped: Callable[..., Any] = gathered
    for option in TRACE_OPTIONS:
        wrapped = option(wrapped)
    return wrapped


def parse_steps(text: str) -> tuple[int, int]:
    """Parse ``5..7`` or ``5`` into the first and the last step. Raises UsageError."""
    found = STEPS.fullmatch(text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise UsageError(f"--steps {text}: give the first and the last, such as 5..7")
    return int(found[1]), int(found[2] or found[1])


def read_log(file: str) -> Text:
    """DDP's log, packed with gzip or not. Raises DataError if it cannot be read."""
    from osfmodel.formats.layers import sniff_ddp
    from osfmodel.formats.source_text import Text
    from osfmodel.formats.streams.archives import unpacked

    text = profiles.read(Path(file), lambda content: Text(file, plain_text(unpacked(content), "replace")))
    if not sniff_ddp("".join(line for _, line in text.lines())):
        raise DataError(f"--ddp-logging {file}: is not DDP's log (_get_ddp_logging_data() as JSON): leave it out")
    return text


def load_job(files: Sequence[str], hints: Hints, form: str | None = None) -> Trace:
    """Load a job's traces as :func:`load_trace` does; warnings on stderr, and on a terminal a progress bar."""
    from osfmodel.formats import load_trace
    from osfmodel.show.terminal import progress_bar

    with progress_bar("reading") as progress:
        return load_trace([Path(file) for file in files], hints, warn, progress, form)
