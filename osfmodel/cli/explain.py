"""``osf explain``"""

from __future__ import annotations

from pathlib import Path

import click

from osfmodel import profiles
from osfmodel.cli.app import CLUSTER, WORKLOAD, emit, output_options, warn
from osfmodel.errors import UsageError
from osfmodel.explain import explain
from osfmodel.explain_output import Explained
from osfmodel.formats import load_trace
from osfmodel.formats.source_text import Hints, Text
from osfmodel.progress import progress_bar
from osfmodel.trace import Trace
from osfmodel.workload import Workload


@click.command(name="explain")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "--cluster",
    "cluster_name",
    metavar="CLUSTER",
    type=CLUSTER,
    help="What the network could do: bundled name, JSON file, or words. Default: the best that the trace shows.",
)
@click.option(
    "--workload",
    "--model",
    "workload_name",
    metavar="WORKLOAD",
    type=WORKLOAD,
    help="The model's profile, where the trace lacks sizes.",
)
@click.option(
    "--ddp-logging", "logging", metavar="FILE", help="DDP's log of the same job, where the trace lacks sizes."
)
@click.option("--step", "steps", type=int, multiple=True, metavar="N", help="Only this step; may be repeated.")
@output_options
def explain_command(
    traces: tuple[str, ...],
    cluster_name: str | None,
    workload_name: str | None,
    logging: str | None,
    steps: tuple[int, ...],
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Say why a job is slow, and what would help, from the profiler's traces of its ranks.

    TRACE is what torch.profiler exports: a file for each rank, all of one job, or a folder or tar of them. First comes
    what limits the job, in a sentence; then where the time of a step went, what each cause costs, the buckets that were
    sent, and what each remedy would bring. A slow rank is told from a slow network where all ranks were traced.

    \b
    Example:
      osf explain rank0.json.gz rank1.json.gz
      osf explain traces/ --cluster v100-10gbe
      osf explain traces/ --format json -o why.json
    """
    cluster = None if cluster_name is None else profiles.load_cluster(cluster_name)
    workload = None if workload_name is None else profiles.load_workload(workload_name)
    trace = load(traces, workload, logging)
    emit(style, as_json, output, Explained(explain(trace, cluster, steps=steps)))


def load(traces: tuple[str, ...], workload: Workload | None, logging: str | None) -> Trace:
    """The job, with sizes from a log or a profile where it lacks them; a bar on a terminal while that takes long."""
    log = None if logging is None else Text(logging, text_of(Path(logging)))
    with progress_bar("reading") as progress:
        return load_trace([Path(trace) for trace in traces], Hints("", ddp_logging=log, model=workload), warn, progress)


def text_of(path: Path) -> str:
    """What is in a file. Raises UsageError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--ddp-logging {path}: cannot be read: {error}") from None
