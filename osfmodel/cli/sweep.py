"""The command ``osf sweep``."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from osfmodel.cli.app import drawn_form, emit, line, output_options, require_writable, warn, watched
from osfmodel.cli.groups import ARGUMENTS, READ, WRITTEN, GroupedCommand, OptionGroup, require_inputs_kept
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.lookup import require
from osfmodel.entities.version import __version__
from osfmodel.planning.sweep import GOALS, Record
from osfmodel.planning.sweep.grid import load_grid
from osfmodel.planning.sweep.influences import influences
from osfmodel.planning.sweep.results import Sweep, condition, frontier, load_sweep
from osfmodel.planning.sweep.running import sweep
from osfmodel.planning.sweep.stores import STORES
from osfmodel.show.picture import require_matplotlib
from osfmodel.show.sweep import Swept
from osfmodel.show.sweep.points import SweptPoints, plot_sweep, points_of, show_cloud

ENGINE = OptionGroup("Where points are computed")
QUESTIONS = OptionGroup("Questions about the points")
EVERY = 30.0
"""Seconds between lines of progress in a log."""
OFTEN = 0.2
"""Seconds between changes of the line of progress on a terminal."""


@click.command(name="sweep", cls=GroupedCommand)
@click.argument("grid", metavar="GRID.yaml|TABLE", type=READ)
@click.option(
    "--into",
    metavar="TABLE",
    type=WRITTEN,
    help=f"Append each point's record to this table ({', '.join(STORES)}) as it comes, and go on where it ends.",
)
@ENGINE.option("--jobs", type=click.IntRange(min=1), default=1, metavar="N", help="Processes of this machine.")
@ENGINE.option("--dask", metavar="ADDRESS|local", help="A Dask scheduler, such as tcp://host:8786, or one made here.")
@QUESTIONS.option("--best", metavar="GOAL[,GOAL]", help="Only points that no other beats in all of these columns.")
@QUESTIONS.option("--where", default="", metavar="CONDITION", help="Only points like these: 'fits and workers <= 256'.")
@QUESTIONS.option("--influence", metavar="GOAL", help="How much each list of the grid moves this column.")
@partial(output_options, notes=False)
def sweep_command(
    grid: str,
    into: str | None,
    jobs: int,
    dask: str | None,
    best: str | None,
    where: str,
    influence: str | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Predict every combination of a grid: workloads, clusters, worker counts, plans, batches, effects, prices.

    GRID.yaml has lists or single values of workloads, clusters, workers, plans, batch_sizes, global_batches, accumulate
    and effects. What-ifs are compression, compute, bandwidth and latency; groups are tp, pp, cp and ep. prices may be a
    list; memory, optimizer, tokens and samples have one value. A TABLE of an earlier sweep is asked again without
    computing anything.

    A point that cannot be predicted has a reason in its column `error`. A sweep that was interrupted goes on where it
    was if the same command is given again.

    \b
    Example:
      osf sweep grid.yaml
      osf sweep grid.yaml --into sweep.csv --jobs 2
      osf sweep sweep.csv --best samples_per_s,cost --where 'plan == "ddp"'
      osf sweep sweep.csv --influence samples_per_s
      osf sweep sweep.csv --best samples_per_s,cost -o sweep.html
      osf sweep grid.yaml --into sweep.parquet --dask tcp://scheduler:8786
    """
    holds, goals = condition(where), [] if best is None else [one.strip() for one in best.split(",")]
    for goal in (*goals, *([] if influence is None else [influence])):
        require(goal, GOALS, "goal")
    if output not in (None, "-"):
        if _is_table(str(output)) and not str(output).lower().endswith(".csv"):
            raise UsageError(f"-o {output}: the table of a sweep is written by --into {output}")
        require_writable(str(output))
    form = drawn_form(style, as_json, output)
    if form == "picture":
        if influence is not None:
            raise UsageError(f"-o {output}: a picture has no influences: leave --influence out, or write an .html page")
        require_matplotlib()
    if _is_table(grid):
        if into is not None or dask is not None or jobs != 1:
            raise UsageError(f"{grid} is the table of a sweep, not a grid: leave --into, --jobs and --dask out")
        found = load_sweep(grid)
    else:
        found = _computed(grid, into, jobs, dask)
    asked = {**({"where": where} if where else {}), **({"best": goals} if goals else {})}

    def points() -> Iterable[Record]:
        return frontier(found, goals, holds) if goals else filter(holds, found)

    shares = None if influence is None else influences(filter(holds, found), influence)

    def chart(console: Any) -> None:
        show_cloud(console, points_of(swept, holds))

    swept = Swept(found, asked, points, shares, chart if len(goals) > 1 else None)
    if form is None:
        emit(style, as_json, output, swept)
    else:
        _write(form, points_of(swept, holds), str(output))


def _write(form: str, shown: SweptPoints, output: str) -> None:
    """Write a page or a picture."""
    if form == "page":
        from osfmodel.show.sweep.page import sweep_page

        command = shlex.join(["osf", "sweep", *click.get_current_context().meta[ARGUMENTS]])
        profiles.write_text(output, sweep_page(shown, command, __version__))
    else:
        plot_sweep(shown, output)
    line(f"wrote {output} ({form})")
    if shown.left_out:
        warn(shown.left_out)


def _is_table(name: str) -> bool:
    return Path(name).suffix.lower() in STORES


def _computed(name: str, into: str | None, jobs: int, dask: str | None) -> Sweep:
    grid = load_grid(name)
    require_inputs_kept(also=[word for words in grid.values.values() for word in words])
    for remark in grid.remarks:
        warn(remark)
    found = sweep(grid, into, jobs=jobs, dask=dask, progress=_progress())
    if into is not None:
        line(f"wrote {into}")
    return found


def _progress() -> Callable[[int, int, int], None]:
    """A function that says how far a sweep is: often on a terminal, in one line; seldom in a log."""
    start, on_terminal = time.monotonic(), watched()
    said = 0.0 if on_terminal else start
    told = False

    def tell(there: int, before: int, whole: int) -> None:
        nonlocal said, told
        if before and not told:
            told = True
            line(f"{before:,} of {whole:,} points are there already")
        now, last = time.monotonic(), there >= whole
        if there == before or (now - said < (OFTEN if on_terminal else EVERY) and not (last and on_terminal)):
            return
        said = now
        rate = (there - before) / max(now - start, 1e-9)
        text = f"osf: {there:,} of {whole:,} points, {rate:,.0f}/s, {(whole - there) / rate:,.0f} s left"
        click.echo(f"\r{text:<70}" if on_terminal else text, err=True, nl=last or not on_terminal)
        sys.stderr.flush()

    return tell
