"""The command ``osf explain``."""

from __future__ import annotations

from pathlib import Path

import click

from osfmodel.cli.app import CLUSTER, emit, line, output_options, require_writable
from osfmodel.cli.groups import READ, GroupedCommand
from osfmodel.cli.traces import load_job, trace_options
from osfmodel.cost.clusters import load_cluster
from osfmodel.entities.files import profiles
from osfmodel.entities.version import __version__
from osfmodel.formats.source_text import Hints
from osfmodel.planning.explaining import explain
from osfmodel.show.explained.result import Explained

PAGE = ".html"
"""Ending of file names that are written as an HTML page."""


@click.command(name="explain", cls=GroupedCommand)
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=READ)
@click.option(
    "--cluster",
    "cluster_name",
    metavar="CLUSTER",
    type=CLUSTER,
    help="Network to compare with: bundled name, JSON file, or words. Default: the best that the trace shows.",
)
@trace_options
@output_options
def explain_command(
    traces: tuple[str, ...],
    cluster_name: str | None,
    hints: Hints,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Explain why a job is slow, and what would help, from the profiler's traces of its ranks.

    TRACE is a file of torch.profiler, or of Nsight Systems exported to SQLite, one for each rank of the job, or a
    folder or tar of them. First comes the limit of the job, in a sentence; then where the time of a step went, the cost
    of each cause, the collectives of each process group, the buckets that were sent, and the gain of each remedy. Only
    traces of all ranks tell a slow rank from a slow network. If FILE ends in .html it is a page with all of that, to
    open in a browser, send or print.

    \b
    Example:
      osf explain rank0.json.gz rank1.json.gz
      osf explain traces/ --cluster v100-10gbe
      osf explain traces/ --format json -o why.json
      osf explain traces/ -o why.html
    """
    as_page = Path(output or "").suffix.lower() == PAGE and style is None and not as_json
    if as_page:
        require_writable(str(output))
    cluster = None if cluster_name is None else load_cluster(cluster_name)
    trace = load_job(traces, hints)
    found = explain(trace, cluster)
    if not as_page:
        emit(style, as_json, output, Explained(found))
        return
    from osfmodel.show.explained.page import explanation_page

    profiles.write_text(str(output), explanation_page(found, __version__))
    line(f"wrote {output}")
