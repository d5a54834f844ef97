"""The command ``osf compare``."""

from __future__ import annotations

from functools import partial

import click

from osfmodel.cli.app import emit, line, output_options, warn
from osfmodel.cli.groups import READ, GroupedCommand
from osfmodel.cli.options import load_job, parse_tolerance, trace_options
from osfmodel.diagnosis.comparing import compare_readings, reading_of
from osfmodel.entities.display import show_share
from osfmodel.formats.source_text import Hints, require_different
from osfmodel.show.compared import Compared
from osfmodel.show.document import MARKDOWN


@click.command(name="compare", cls=GroupedCommand)
@click.argument("baseline", type=READ)
@click.argument("candidate", type=READ)
@click.option(
    "--baseline",
    "more",
    multiple=True,
    metavar="FILE",
    type=READ,
    help="Another run of the baseline, repeatable: how far they differ is the noise between two starts of a job.",
)
@click.option("--candidate", "again", multiple=True, metavar="FILE", type=READ, help="Another candidate, repeatable.")
@click.option(
    "--tolerance",
    default="2%",
    show_default=True,
    metavar="PART",
    help="Change that does not matter. A slowdown beyond it ends with exit code 1.",
)
@trace_options
@partial(output_options, more=(MARKDOWN,))
def compare_command(
    baseline: str,
    candidate: str,
    more: tuple[str, ...],
    again: tuple[str, ...],
    tolerance: str,
    hints: Hints,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Compare two runs of a job: is the step slower, faster, or is that noise, and what changed?

    BASELINE and CANDIDATE hold the same kind of data: profiler traces of all ranks (a file, folder or tar), runs of osf
    run, or step times. They may also be predictions as JSON, clusters, or whatever osf import reads. Step times, a
    trainer's log, a run and a prediction also go together, with one step each. The verdict is slower, faster,
    no-difference or cannot-tell, with an interval, and with the smallest change that these steps could have shown. Then
    come causes, collectives and modules, as far as both files have them, largest change first.

    \b
    Exit code:
      0  not slower, or by no more than the tolerance, or no verdict is possible
      1  slower beyond the tolerance, or a file is wrong
      2  the command line is wrong, or the files hold different things

    \b
    Example:
      osf compare traces/ traces.tar.gz
      osf compare runs.json run.json --tolerance 3%
      osf compare before.csv after.csv --baseline before-2.csv --candidate after-2.csv
      osf compare traces/ traces.tar.gz -o comment.md
    """
    sides = ((baseline, *more), (candidate, *again))
    require_different([file for side in sides for file in side])
    allowed = parse_tolerance(tolerance)
    load = partial(load_job, hints=hints)
    baselines, candidates = ([reading_of(file, load, warn) for file in side] for side in sides)
    comparison = compare_readings(baselines, candidates, allowed)
    emit(style, as_json, output, Compared(comparison))
    if comparison.regression:
        line(f"slower by more than the tolerance of {show_share(allowed)}: exit code 1")
    return 1 if comparison.regression else 0
