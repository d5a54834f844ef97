"""The command ``osf check``."""

from __future__ import annotations

from pathlib import Path

import click

from osfmodel.cli.app import NameOrFile, emit, output_options
from osfmodel.cli.groups import WRITTEN, GroupedCommand, require_inputs_kept
from osfmodel.cli.options import parse_tolerance
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger import LEDGER
from osfmodel.ledger.check import check, coverage, overall, used_overall
from osfmodel.show.checks.result import Judged

SOURCE = NameOrFile("source", lambda _begun: LEDGER)


@click.command(name="check", cls=GroupedCommand)
@click.argument("sources", metavar="[SOURCE|FILE]...", nargs=-1, type=SOURCE)
@click.option("--rows", is_flag=True, help="Show every run, not only the sources (CSV always has every run).")
@click.option("--tolerance", metavar="PART", help="Fail above this median error, for example 5%.")
@click.option("--plot", metavar="FILE", type=WRITTEN, help="Draw predicted against measured (.png, .svg; matplotlib).")
@output_options
def check_command(
    sources: tuple[str, ...],
    rows: bool,
    tolerance: str | None,
    plot: str | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Compare predictions with measured runs: the bundled ones by SOURCE, all without one, or those in a FILE.

    Errors are predicted / measured - 1, over runs on which nothing was fitted. Exits with 1 if the median error of a
    source exceeds the tolerance recorded for it.

    \b
    Example:
      osf check
      osf check bcaffe ddl-benchmarks --rows
      osf check --format json
    """
    allowed = None if tolerance is None else parse_tolerance(tolerance)
    for name in sources:
        if name not in LEDGER:
            profiles.require_file(Path(name), "measurements")
            if Path(name).is_file():
                runs = load_measurements(Path(name))
                words = {word for run in runs for word in (run.workload, run.cluster, run.plan)}
                require_inputs_kept(also=[*words, *(Path(name).parent / word for word in words)])
    checked = check(sources, allowed)
    if plot is not None:
        from osfmodel.show.checks.scatter import plot_check

        plot_check(checked, plot, coverage(checked))
    emit(style, as_json, output, Judged(checked, overall(checked), rows, used_overall(checked)))
    return 0 if all(one.passed for one in checked) else 1
