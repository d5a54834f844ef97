"""The command ``osf check``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from osfmodel.cli.app import NameOrFile, emit, output_options, warn
from osfmodel.cli.groups import READ, WRITTEN, GroupedCommand, require_inputs_kept
from osfmodel.cli.options import parse_tolerance
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger import LEDGER
from osfmodel.ledger.check import check, check_logs, coverage, overall, used_overall
from osfmodel.ledger.results import Checked
from osfmodel.show.checks import Judged

LAYOUTS = "layouts"
ELSEWHERE = (
    "layouts: the runs by which layouts are judged (docs/ledger/layouts.md) are not bundled: in a checkout, "
    "OSFMODEL_DATA=FOLDER python benchmarks/layouts.py judges them again"
)
SOURCE = NameOrFile("source", lambda _begun: LEDGER)


@click.command(name="check", cls=GroupedCommand)
@click.argument("sources", metavar="[SOURCE|FILE]...", nargs=-1, type=SOURCE)
@click.option("--rows", is_flag=True, help="Show every run, not only the sources (CSV always has every run).")
@click.option(
    "--prediction",
    metavar="FILE",
    type=READ,
    help="Hold this result (osf predict, osf scale, with -o FILE.json) against the logs or step times in each FILE.",
)
@click.option("--tolerance", metavar="PART", help="Fail above this median error, for example 5%.")
@click.option("--plot", metavar="FILE", type=WRITTEN, help="Draw predicted against measured (.png, .svg; matplotlib).")
@partial(output_options, notes=False)
def check_command(
    sources: tuple[str, ...],
    rows: bool,
    prediction: str | None,
    tolerance: str | None,
    plot: str | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Compare predictions with measured runs: the bundled ones by SOURCE, all without one, or those in a FILE.

    With --prediction each FILE holds measured steps: a trainer's log that osf import reads, step times, a run. Their
    median is compared. Errors are predicted / measured - 1, over runs on which nothing was fitted. Exits
    with 1 if the median error of a source exceeds the tolerance recorded for it.

    \b
    Example:
      osf check
      osf check bcaffe ddl-benchmarks --rows
      osf check --format json
      osf check train.log --prediction predicted.json
    """
    allowed = None if tolerance is None else parse_tolerance(tolerance)
    if prediction is not None:
        if not sources:
            raise UsageError("--prediction needs what it predicts: osf check LOG --prediction FILE")
        for name in sources:
            if name in LEDGER:
                raise UsageError(
                    f"--prediction goes with logs and files of steps, not with the source {name}: leave it out"
                )
        checked = check_logs(sources, prediction, allowed, warn)
    else:
        checked = _from_sources(sources, allowed)
    if plot is not None:
        from osfmodel.show.checks.scatter import plot_check

        plot_check(checked, plot, coverage(checked))
    with_rows = rows or prediction is not None
    emit(style, as_json, output, Judged(checked, overall(checked), with_rows, used_overall(checked)))
    return 0 if all(one.passed for one in checked) else 1


def _from_sources(sources: Sequence[str], allowed: float | None) -> tuple[Checked, ...]:
    """The bundled sources and files of runs by what they name; outputs may be none of these."""
    for name in sources:
        if name == LAYOUTS and not Path(name).exists():
            raise UsageError(ELSEWHERE)
        if name not in LEDGER:
            profiles.require_file(Path(name), "measurements")
            if Path(name).is_file():
                runs = load_measurements(Path(name))
                words = {word for run in runs for word in (run.workload, run.cluster, run.plan)}
                require_inputs_kept(also=[*words, *(Path(name).parent / word for word in words)])
    return check(sources, allowed)
