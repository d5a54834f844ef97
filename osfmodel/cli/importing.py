"""``osf import``"""

from __future__ import annotations

from pathlib import Path

import click

from osfmodel import profiles
from osfmodel.cli.app import print_text
from osfmodel.errors import UsageError
from osfmodel.formats import IMPORT_FORMATS, Hints, import_file
from osfmodel.output import summary


@click.command(name="import")
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", metavar="FILE", help="Where to write it; a folder for several clusters.")
@click.option(
    "--as", "form", type=click.Choice(list(IMPORT_FORMATS)), metavar="FORMAT", help="Do not guess the format."
)
@click.option("--name", help="Name of what is read; default: the file's.")
@click.option("--workers", type=click.IntRange(2), metavar="N", help="Workers, where the file does not say.")
@click.option("--gpus-per-node", type=click.IntRange(1), metavar="G", help="GPUs in a node, where it does not say.")
@click.option("--batch-size", type=click.IntRange(1), metavar="B", help="Samples per worker and iteration.")
def import_command(
    file: str,
    output: str | None,
    form: str | None,
    name: str | None,
    workers: int | None,
    gpus_per_node: int | None,
    batch_size: int | None,
) -> None:
    """Read what other tools wrote, nccl-tests, OSU, CSV, PipeDream, DDP's log, as a workload or cluster file.

    'osf list formats' shows the formats. Without -o it says what is in the file.

    \b
    Example:
      osf import nccl-tests.log
      osf import nccl-tests.log -o my-cluster.json
    """
    path = Path(file)
    hints = Hints(name or path.name.partition(".")[0] or "imported", workers, gpus_per_node, batch_size)
    nouns = import_file(path, hints, form)
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
