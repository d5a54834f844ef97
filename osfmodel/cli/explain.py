"""The command ``osf explain``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from osfmodel.cli.app import CLUSTER, PLAN, WORKLOAD, emit, line, output_options, require_writable
from osfmodel.cli.groups import READ, TRACES, GroupedCommand, OptionGroup, group_of, is_given
from osfmodel.cli.options import load_job, trace_options
from osfmodel.cost.clusters import load_cluster
from osfmodel.entities.display import listed
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.version import __version__
from osfmodel.formats import format_of
from osfmodel.formats.source_text import Hints
from osfmodel.planning.explaining import explain
from osfmodel.show.document import Result
from osfmodel.show.explained import Explained

SNAPSHOTS = OptionGroup("Memory snapshots")
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
@SNAPSHOTS.option("--device", type=click.IntRange(0), metavar="N", help="Only this GPU of a snapshot.")
@SNAPSHOTS.option(
    "--expected",
    metavar="WORKLOAD",
    type=WORKLOAD,
    help="Show the memory predicted for it beside that of a snapshot.",
)
@SNAPSHOTS.option("--workers", metavar="N", help="Worker count of --expected, with --cluster. Default: one.")
@SNAPSHOTS.option("--plan", metavar="NAME|FILE", type=PLAN, help="Plan of --expected. Default: ddp.")
@output_options
def explain_command(
    traces: tuple[str, ...],
    cluster_name: str | None,
    hints: Hints,
    device: int | None,
    expected: str | None,
    workers: str | None,
    plan: str | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Explain why a job is slow, and what would help, from the profiler's traces of its ranks.

    TRACE is a file of torch.profiler, or of Nsight Systems exported to SQLite. Give that of each rank, or a folder or
    tar of them. First comes the limit of the job, in a sentence. Then come the parts of a step's time, the
    cost of each cause, collectives, buckets, and the gain of each remedy. Only traces of all ranks tell a slow rank
    from a slow network. If FILE ends in .html it is a page with all of that, to open in a browser, send or print.

    TRACE may also be a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot): who owns its peak, by stacks and
    by lines of your code, what is reserved and free, and why memory ran out.

    \b
    Example:
      osf explain rank0.json.gz rank1.json.gz
      osf explain traces/ --cluster v100-10gbe
      osf explain traces/ --format json -o why.json
      osf explain traces/ -o why.html
      osf explain snapshot.pickle
      osf explain snapshot.pickle --expected gpt2:h100,batch8 --cluster nccl:h100x8,400Gbps --workers 16 --plan fsdp2
    """
    if are_snapshots(traces):
        require_ungrouped(TRACES, "a memory snapshot has no steps")
        if cluster_name is not None and expected is None:
            raise UsageError("--cluster is for the prediction beside a snapshot: give --expected, or leave it out")
        if Path(output or "").suffix.lower() == PAGE:
            raise UsageError(f"-o {output}: a memory snapshot is written as text, .json, .yaml or .csv")
        emit(style, as_json, output, explained_snapshots(traces, device, (expected, cluster_name, workers, plan)))
        return
    require_ungrouped(SNAPSHOTS, "these are traces")
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


def are_snapshots(files: Sequence[str]) -> bool:
    """Whether files are memory snapshots, or pickles of an unknown format, which only their reader can refuse."""
    known = format_of(Path(files[0]))
    if known is None and Path(files[0]).is_file():
        from osfmodel.formats.streams import head_of
        from osfmodel.formats.streams.pickles import is_pickle

        return is_pickle(head_of(Path(files[0]))[:2].decode("utf-8", "replace"))
    return known == "memory-snapshot"


def require_ungrouped(group: OptionGroup, reason: str) -> None:
    """Raise UsageError if an option of a group is given."""
    ctx = click.get_current_context()
    given = [param.opts[0] for param in ctx.command.params if group_of(param) is group and is_given(ctx, param.name)]
    if given:
        raise UsageError(f"{listed(given)}: {reason}: leave {'it' if len(given) == 1 else 'them'} out")


def explained_snapshots(
    files: Sequence[str], device: int | None, asked: tuple[str | None, str | None, str | None, str | None]
) -> Result:
    """The memory snapshots, with what is expected by ``asked``: workload, cluster, workers and plan."""
    from osfmodel.cli.memory import expected_memory
    from osfmodel.diagnosis.snapshots import explain_snapshot
    from osfmodel.formats.memory_snapshot import load_snapshots
    from osfmodel.show.explained.snapshot import SnapshotsExplained

    workload, *others = asked
    if workload is None and any(others):
        raise UsageError("--workers and --plan are for a prediction: give --expected WORKLOAD, or leave them out")
    expected = None if workload is None else expected_memory(workload, *others)
    there, found = dict[str, None](), []
    for one in load_snapshots([Path(file) for file in files]):
        there[str(one.device)] = None
        found += [explain_snapshot(one)] if device in (None, one.device) else []
    if not found:
        asked_for = "" if device is None else f" of GPU {device}"
        raise DataError(f"{files[0]}: has no memory{asked_for}; GPUs with memory: {listed([*there] or ['none'])}")
    return SnapshotsExplained(found, expected)
