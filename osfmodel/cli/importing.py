"""The command ``osf import``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from osfmodel.cli.app import OneOf, line, print_text, require_writable, warn
from osfmodel.cli.groups import OUTPUT, READ, WRITTEN, GroupedCommand, OptionGroup, require_inputs_kept
from osfmodel.cli.options import load_job, trace_options
from osfmodel.cost import COST_MODELS
from osfmodel.cost.fitting import jumps_in_words, samples_of
from osfmodel.cost.per_count import cautions
from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.measurements import measurements_document
from osfmodel.entities.files.profiles import LARGEST_FILE
from osfmodel.entities.gpus import gpu_name
from osfmodel.entities.measurement import UNKNOWN, Measurement, Source
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.formats import (
    IMPORT_FORMATS,
    Hints,
    Noun,
    as_one_cluster,
    holds_traces,
    import_content,
    import_file,
    import_job,
    is_job,
    nouns_of,
)
from osfmodel.formats.reading import known_of
from osfmodel.formats.source_text import require_different, shared_stem, stem
from osfmodel.formats.traces.cautions import found_in
from osfmodel.show.profiles import summary
from osfmodel.show.terminal import progress_bar

LONGEST_NAME = 200
"""Maximum bytes of a noun's name: its file name stays below 255 with ending and the suffix of a temporary file."""
TYPES: dict[str, type[Noun]] = {
    "workload": Workload,
    "plan": Plan,
    "cluster": Cluster,
    "measurements": Measurement,
}

UNSAID = OptionGroup("If the file does not say it")


@click.command(name="import", cls=GroupedCommand)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=READ)
@OUTPUT.option(
    "-o",
    "--output",
    metavar="FILE",
    type=WRITTEN,
    help="Output file (.json); a folder such as job/ for several: workload, plan, cluster and measurements.",
)
@click.option("--as", "form", type=OneOf(IMPORT_FORMATS), metavar="FORMAT", help="Do not guess the format.")
@click.option(
    "--fit",
    "cost_model",
    type=OneOf(COST_MODELS),
    metavar="MODEL",
    help="Fit this cost model to the tables instead of storing them ('osf list cost-models').",
)
@OUTPUT.option("--kind", type=OneOf(TYPES), help="Import only this if a file holds several.")
@OUTPUT.option("--name", help="Name of what is read; default: the file's.")
@UNSAID.option("--workers", type=click.IntRange(2), metavar="N", help="Workers, where the file does not say.")
@UNSAID.option("--gpus-per-node", type=click.IntRange(1), metavar="G", help="GPUs in a node, where hosts do not say.")
@UNSAID.option("--batch-size", type=click.IntRange(1), metavar="B", help="Samples per worker and iteration.")
@UNSAID.option(
    "--gpu",
    metavar="NAME",
    help="GPU that was measured or is shown, such as A100: its usual effects are charged.",
)
@UNSAID.option("--collective", type=OneOf(COLLECTIVES), help="Collective that nccl-tests ran, if in doubt.")
@trace_options
def import_command(
    files: tuple[str, ...],
    output: str | None,
    form: str | None,
    cost_model: str | None,
    kind: str | None,
    name: str | None,
    workers: int | None,
    gpus_per_node: int | None,
    batch_size: int | None,
    gpu: str | None,
    collective: str | None,
    hints: Hints,
) -> None:
    """Read files of other tools: nccl-tests, OSU, CSV, PipeDream, DDP's log, Horovod's timeline, traces, trainer logs.

    The result is a workload, a cluster or a measurements file; a Horovod timeline and a profiler's trace hold all
    three, a trace of FSDP also a plan. 'osf list formats' shows the formats. FILE may be packed with gzip, or - for
    standard input. Several files become the tables of one cluster. Of torch.profiler, Nsight Systems, NCCL Inspector,
    the flight recorder and Chakra they are the ranks of one job, also in a tar or a folder. Without -o a summary of the
    content is printed. Stderr reports failed tests, what a trace lacks, jumps that no fit follows, and with --fit the
    errors of the fit.

    \b
    Example:
      osf import nccl-tests.log
      osf import nccl-tests.log -o my-cluster.json
      osf import nccl-tests.log --fit piecewise -o my-cluster.json
      osf import n8.log n16.log -o all.json
      osf import timeline.json --kind workload -o model.json
      osf import rank0.json rank1.json --kind workload -o traced.json
    """
    check_output(output)
    if name is not None and output is not None and names_folder(output):
        require_file_name(name)
    hints = replace(
        hints, workers=workers, gpus_per_node=gpus_per_node, batch_size=batch_size, collective=collective, gpu=gpu
    )
    paths = [Path(file) for file in files]
    with format_in_doubt(files, form):
        if "-" in files or not is_job(paths, form):
            title = name or "-".join(stem(file) for file in files)
            nouns = import_each(files, title, replace(hints, name=name or ""), form, kind)
        elif not holds_traces(paths, form):
            title = name or shared_stem(files)
            with progress_bar("reading") as progress:
                nouns = of_kind(import_job(paths, replace(hints, name=title), warn, progress, form), kind, files[0])
        else:
            trace = load_job(files, replace(hints, name=name or ""), form)
            title = trace.name
            line(found_in(trace))
            nouns = of_kind(nouns_of(trace, hints, warn), kind, files[0])
    if kind == "measurements":  # what it names is not written beside it
        nouns = [replace(run, workload=UNKNOWN, cluster=UNKNOWN) for run in nouns if isinstance(run, Measurement)]
    if gpu is not None:
        nouns = [of_gpu(noun, gpu) for noun in nouns]
    if cost_model is not None:
        nouns = [fitted(noun, cost_model) for noun in clusters_in(nouns)]
    else:
        tell_jumps(nouns)
    write(nouns, output, files, title)


@contextmanager
def format_in_doubt(files: Sequence[str], form: str | None) -> Iterator[None]:
    """Say in an error of reading with ``--as`` which other format the first file seems to have."""
    try:
        yield
    except DataError as error:
        known = None
        if form is not None and files[0] != "-":
            with suppress(DataError):
                known = known_of(Path(files[0]), IMPORT_FORMATS, lambda entry: True)
        if known in (None, form):
            raise
        raise DataError(f"{error}; leave --as out: it looks like {known}") from None


def import_each(files: Sequence[str], title: str, hints: Hints, form: str | None, kind: str | None) -> Sequence[Noun]:
    """The nouns in one file; several files become one cluster named ``title``, with all their tables."""
    found = [(file, import_one(file, replace(hints, name=hints.name or stem(file)), form)) for file in files]
    found = [(file, of_kind(nouns, kind, file)) for file, nouns in found]
    if len(found) == 1:
        return found[0][1]
    require_different(files)
    return [as_one_cluster([(file, clusters_in(nouns)) for file, nouns in found], title)]


def of_gpu(noun: Noun, gpu: str) -> Noun:
    """``noun`` as measured on ``gpu``. Raises UsageError for a noun whose file names another GPU."""
    if not gpu.strip() or not isinstance(noun, (Workload, Cluster)):
        return noun
    told = noun.source.gpu
    same = gpu.lower() in told.lower() or (gpu_name(gpu) and gpu_name(gpu) == gpu_name(told))
    if told != Source().gpu and not same:
        raise UsageError(f"--gpu {gpu}: {label(noun)!r} says that it was measured on {told!r}: leave --gpu out")
    return noun if told != Source().gpu else replace(noun, source=replace(noun.source, gpu=gpu))


def of_kind(nouns: Sequence[Noun], kind: str | None, file: str) -> Sequence[Noun]:
    """The nouns of ``kind``, or all without one. Raises DataError if there are none."""
    chosen = [noun for noun in nouns if kind in (None, kind_of(noun))]
    if not chosen:
        held = " and ".join(dict.fromkeys(map(kind_of, nouns)))
        read = "standard input" if file == "-" else file
        raise DataError(f"--kind {kind}: {read} holds none, only {held}: leave --kind out")
    return chosen


def clusters_in(nouns: Sequence[Noun]) -> Sequence[Noun]:
    """The clusters among the nouns; all nouns if there is none, so that the caller can refuse them by name."""
    return [noun for noun in nouns if isinstance(noun, Cluster)] or nouns


def kind_of(noun: Noun) -> str:
    """The noun's key in TYPES."""
    return next(kind for kind, type_ in TYPES.items() if isinstance(noun, type_))


def label(noun: Noun) -> str:
    """The noun's name; for a measurement and a plan, its workload's."""
    return noun.workload if isinstance(noun, Measurement | Plan) else noun.name


def check_output(output: str | None) -> None:
    """Raise UsageError if ``output`` cannot be written, or is not named .json."""
    if output in (None, "-"):
        return
    target = Path(str(output))
    if names_folder(str(output)) and not target.exists() and target.parent.is_dir():
        return
    if str(output).endswith(("/", os.sep)) and target.is_file():
        raise UsageError(f"-o {output}: {target} is a file: give another name, or that one without a / at its end")
    if target.suffix != ".json" and (target.is_file() or not target.exists()):
        raise UsageError(f"-o {output}: osf import writes JSON: name it .json, or give a folder such as job/")
    if not target.is_dir():
        require_writable(target)


def names_folder(output: str) -> bool:
    """Whether ``output`` is a folder, or ends in a slash and so names one to create."""
    return Path(output).is_dir() or output.endswith(("/", os.sep))


def require_file_name(name: str) -> None:
    """Raise UsageError for a name that would put a file outside its folder."""
    if name in (".", "..") or any(sign in name for sign in ("/", "\\", "\0")):
        raise UsageError(
            f"--name {name!r:.200}: it makes the name of a file there: give one without / or \\, or -o FILE.json"
        )
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise UsageError(
            f"--name {name!r:.60} ...: it makes the name of a file there: give a shorter one, or -o FILE.json"
        )


def import_one(file: str, hints: Hints, form: str | None) -> Sequence[Noun]:
    """The nouns in one file or on standard input; warnings go to stderr."""

    def tell(message: str) -> None:
        warn(f"{file}: {message}")

    if file != "-":
        return import_file(Path(file), hints, form, tell)
    content = sys.stdin.buffer.read(LARGEST_FILE + 1) if sys.stdin is not None else b""
    try:
        if len(content) > LARGEST_FILE:
            raise DataError(f"is larger than {LARGEST_FILE >> 20} MiB, the maximum for a log or a profile")
        return import_content(content, "standard input", hints, form, tell)
    except OsfError as error:
        raise DataError(f"standard input: {error}") from None


def write(nouns: Sequence[Noun], output: str | None, files: Sequence[str], title: str) -> None:
    """Write nouns to a file or a folder and report each on stderr; without ``output``, print summaries on stdout."""
    if output is None:
        for noun in nouns:
            print_text(summary(noun) + "\n")
    elif output == "-":
        for noun in nouns:
            print_text(documents.encode(document(noun, title)))
    elif len(nouns) > 1 and not names_folder(output):
        kinds = list(dict.fromkeys(map(kind_of, nouns)))
        several = f"{len(nouns)} clusters:" if len(kinds) == 1 else f"{', '.join(kinds)}: choose with --kind, or"
        raise UsageError(f"{files[0]} holds {several} give -o a folder such as job/")
    else:
        targets = [(Path(output), noun) for noun in nouns]
        if names_folder(output):
            names = named(nouns, title)
            for name, _ in names:
                require_file_name(name)
            targets = [(Path(output) / f"{name}.json", noun) for name, noun in names]
        texts = [documents.encode(document(noun, title)) for _, noun in targets]  # all of it, before any is written
        if names_folder(output):
            Path(output).mkdir(exist_ok=True)
        require_inputs_kept([target for target, _ in targets])
        for target, _ in targets:
            check_output(str(target))
        for (target, noun), text in zip(targets, texts, strict=True):
            profiles.write_text(target, text)
            click.echo(f"osf: wrote {target}: {summary(noun)}", err=True)


def document(noun: Noun, title: str) -> dict[str, Any]:
    """The noun's JSON; a measurement becomes a file of one run under ``title``."""
    if isinstance(noun, Measurement):
        return measurements_document(title, [noun])
    return documents.document_of(noun)


def named(nouns: Sequence[Noun], title: str) -> list[tuple[str, Noun]]:
    """Nouns by file name in a folder; nouns of several kinds get names with the kind, and the run refers to them.

    If the workload or the cluster gets no file, the run has UNKNOWN in its place.
    """
    if len({kind_of(noun) for noun in nouns}) == 1:
        return [(label(noun), noun) for noun in nouns]
    beside = {kind_of(noun): f"{title}-{kind_of(noun)}" for noun in nouns}
    workload, cluster, plan = (
        f"{beside[kind]}.json" if kind in beside else UNKNOWN for kind in ("workload", "cluster", "plan")
    )
    found: list[tuple[str, Noun]] = []
    for noun in nouns:
        run = noun
        if isinstance(noun, Measurement):
            sent = noun.plan if plan == UNKNOWN else plan
            run = replace(noun, workload=workload, cluster=cluster, plan=sent)
        found.append((beside[kind_of(noun)], run))
    return found


def tell_jumps(nouns: Sequence[Noun]) -> None:
    """Warn of each jump in a cluster's tables, and of sizes that are cheaper per byte than large ones."""
    for noun in nouns:
        for table in noun.tables if isinstance(noun, Cluster) else ():
            for sentence in jumps_in_words(table.workers, table.sizes, table.times):
                warn(f"{label(noun)}: {sentence}")
        for sentence in cautions(noun) if isinstance(noun, Cluster) else ():
            warn(f"{label(noun)}: {sentence}")


def fitted(noun: Noun, model: str) -> Cluster:
    """The cluster with ``model`` fitted in place of its all-reduce tables; the fit is reported on stderr.

    Raises UsageError for a noun without such tables, CostError if the model cannot be fitted to them.
    """
    tables = [table for table in noun.tables if table.collective == "all_reduce"] if isinstance(noun, Cluster) else []
    if not isinstance(noun, Cluster) or not tables:
        raise UsageError(f"--fit {model}: {label(noun)!r} has no all-reduce table to fit: leave --fit out")
    try:
        found = COST_MODELS[model].fit(samples_of(tables), noun.gpus_per_node)
    except OsfError as error:
        raise type(error)(f"--fit {model}: {noun.name!r}: {error}") from None
    click.echo(f"osf: {noun.name}: {model} fitted: {found.summary}", err=True)
    for sentence in found.jumps:
        warn(f"{noun.name}: {sentence}")
    conditions = f"{noun.source.conditions}; {model} fitted: {found.summary}"
    source = replace(noun.source, conditions=conditions)
    cluster = replace(noun, cost_model=model, source=source, **{"tables": (), **found.parameters})
    # A model for any worker count is not limited to the node counts that were measured.
    return cluster if COST_MODELS[model].counts(cluster) else replace(cluster, nodes=None)
