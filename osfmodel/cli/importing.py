"""``osf import``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from osfmodel import profiles
from osfmodel.cli.app import print_text, warn
from osfmodel.cluster import Cluster
from osfmodel.cost import COST_MODELS
from osfmodel.cost.fitting import samples_of
from osfmodel.cost.jumps import in_words
from osfmodel.errors import OsfError, UsageError
from osfmodel.formats import IMPORT_FORMATS, Hints, import_file
from osfmodel.output import summary
from osfmodel.workload import Workload


@click.command(name="import")
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", metavar="FILE", help="Where to write it; a folder for several clusters.")
@click.option(
    "--as", "form", type=click.Choice(list(IMPORT_FORMATS)), metavar="FORMAT", help="Do not guess the format."
)
@click.option(
    "--fit",
    "model",
    type=click.Choice(list(COST_MODELS)),
    metavar="MODEL",
    help="Fit this cost model to the tables instead of storing them ('osf list cost-models').",
)
@click.option("--name", help="Name of what is read; default: the file's.")
@click.option("--workers", type=click.IntRange(2), metavar="N", help="Workers, where the file does not say.")
@click.option("--gpus-per-node", type=click.IntRange(1), metavar="G", help="GPUs in a node, where it does not say.")
@click.option("--batch-size", type=click.IntRange(1), metavar="B", help="Samples per worker and iteration.")
def import_command(
    file: str,
    output: str | None,
    form: str | None,
    model: str | None,
    name: str | None,
    workers: int | None,
    gpus_per_node: int | None,
    batch_size: int | None,
) -> None:
    """Read what other tools wrote, nccl-tests, OSU, CSV, PipeDream, DDP's log, as a workload or cluster file.

    'osf list formats' shows the formats. Without -o it says what is in the file. Jumps that no fit follows, and with
    --fit how well it fits which sizes, are told on stderr.

    \b
    Example:
      osf import nccl-tests.log
      osf import nccl-tests.log -o my-cluster.json
      osf import nccl-tests.log --fit piecewise -o my-cluster.json
    """
    path = Path(file)
    hints = Hints(name or path.name.partition(".")[0] or "imported", workers, gpus_per_node, batch_size)
    nouns = import_file(path, hints, form)
    if model is not None:
        nouns = [fitted(noun, model) for noun in nouns]
    else:
        tell_jumps(nouns)
    if output is None:
        for noun in nouns:
            print_text(summary(noun) + "\n")
    elif len(nouns) == 1 and not Path(output).is_dir():
        profiles.save(nouns[0], output)
    elif Path(output).is_dir():
        for noun in nouns:
            profiles.save(noun, Path(output) / f"{noun.name}.json")
    else:
        raise UsageError(f"{file} holds {len(nouns)} clusters: give -o a folder that exists")


def tell_jumps(nouns: Sequence[Workload | Cluster]) -> None:
    """A line on stderr for each jump in a table."""
    for noun in nouns:
        for table in noun.tables if isinstance(noun, Cluster) else ():
            for sentence in in_words(table.workers, table.sizes, table.times):
                warn(f"{noun.name}: {sentence}")


def fitted(noun: Workload | Cluster, model: str) -> Cluster:
    """The cluster with ``model`` fitted to its all-reduce tables in their place; what was found, on stderr.

    Raises UsageError for what has no such table, CostError where the model cannot be fitted to them.
    """
    tables = [table for table in noun.tables if table.collective == "all_reduce"] if isinstance(noun, Cluster) else []
    if isinstance(noun, Workload) or not tables:
        raise UsageError(f"--fit {model}: {noun.name!r} has no all-reduce table to fit")
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
    # What serves any worker count is not held to the nodes that were measured.
    return cluster if COST_MODELS[model].counts(cluster) else replace(cluster, nodes=None)
