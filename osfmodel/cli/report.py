"""The command ``osf report``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import click

from osfmodel.cli.app import line, print_text, require_writable, warn
from osfmodel.cli.groups import OUTPUT, READ, TRACES, WRITTEN, GroupedCommand
from osfmodel.cli.options import (
    Subject,
    load_job,
    load_subject,
    parse_workers,
    plan_files,
    plan_option,
    subject_options,
    target_option,
    trace_options,
    warn_of_batches,
)
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.trace import Trace
from osfmodel.entities.version import __version__
from osfmodel.entities.workload import Workload
from osfmodel.formats.source_text import Hints
from osfmodel.formats.traces import workload_of
from osfmodel.ledger.check import check
from osfmodel.planning.gathering import ReportRequest, gather
from osfmodel.show.report import Pictures, pictures
from osfmodel.targets.named_plans import STOCK_PLANS


def _page(drawn: Pictures, path: str) -> None:
    from osfmodel.show.report.page import page

    profiles.write_text(path, page(drawn, __version__))


def _plot(drawn: Pictures, path: str) -> None:
    from osfmodel.show.report.files import plot_pictures

    plot_pictures(drawn, path)


def _trace(drawn: Pictures, path: str) -> None:
    from osfmodel.show.report.files import encoded

    profiles.write_bytes(path, encoded(drawn, path.endswith(".gz"), __version__))


ANOTHER_JOB = 0.05
"""Relative difference of gradient bytes above which a trace and a workload are taken for different jobs."""
FORMS: Mapping[str, Callable[[Pictures, str], None]] = {
    ".html": _page,
    ".png": _plot,
    ".svg": _plot,
    ".json": _trace,
    ".json.gz": _trace,
}
"""Writers of report files, by the ending of the file's name."""


@click.command(name="report", cls=GroupedCommand)
@subject_options()
@click.option(
    "--workers", required=True, metavar="N[,N...|A..B]", help="Worker counts; the iteration is drawn for the last."
)
@plan_option(
    "Named plan or plan file to compare with the default and the tuned one; repeatable. Default: the stock plans."
)
@target_option("Framework whose default and tuned plans are compared.")
@TRACES.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="FILE",
    type=READ,
    help="torch.profiler trace of the job, measured beside predicted; repeatable: the files of its ranks.",
)
@trace_options
@click.option(
    "--evidence", is_flag=True, help="Also show the measured runs of the sources of the error band, all of them."
)
@click.option("--batch-size", type=int, metavar="B", help="Samples per worker and iteration, if not the profile's.")
@OUTPUT.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    type=WRITTEN,
    help="Write .html, .png, .svg or .json[.gz]; repeatable. Default: draw on the terminal.",
)
def report_command(
    subject: Subject,
    workers: str,
    plan_names: tuple[str, ...],
    target: str,
    traces: tuple[str, ...],
    hints: Hints,
    evidence: bool,
    batch_size: int | None,
    outputs: tuple[str, ...],
) -> None:
    """Show the iteration of WORKLOAD on CLUSTER: as it is, and as it would be tuned.

    The ending of FILE decides its form: .html, a page with all of it; .png or .svg, a picture (needs matplotlib);
    .json or .json.gz, a Chrome trace for ui.perfetto.dev. Without -o the pictures are drawn on the terminal.

    \b
    Example:
      osf report resnet50-v100 --cluster v100-10gbe --workers 64
      osf report resnet50-v100 --cluster v100-10gbe --workers 64 -o report.html -o iteration.trace.json
      osf report resnet50-v100 --cluster v100-10gbe --workers 4..256 --plan wfbp -o report.png
      osf report model.json --cluster cluster.json --workers 8 --trace rank0.json.gz -o report.html
    """
    writers = {output: _form(output) for output in dict.fromkeys(outputs)}
    shown = dict.fromkeys(plan_names or STOCK_PLANS)
    files = plan_files(shown)
    subject, own = subject.as_tuned(files, {"batch_size": batch_size})
    what_if = replace(subject.what_if, batch_size=own["batch_size"])
    if not traces and hints != Hints(""):
        given = {"--ddp-logging": hints.ddp_logging, "--model": hints.model, "--steps": hints.steps}
        told = " and ".join(name for name, value in given.items() if value is not None)
        raise UsageError(f"{told}: there is no trace: leave {told} out, or give --trace FILE")
    workload, cluster = load_subject(subject)
    counts = parse_workers(workers, cluster)
    warn_of_batches(workload, what_if, counts[-1:])
    request = ReportRequest(
        workload,
        cluster,
        workers=counts[-1],
        counts=tuple(counts),
        target=target,
        plans=tuple((name, files[name].at(counts[-1])) if name in files else name for name in shown),
        traces=(load_job(traces, hints),) if traces else (),
        inputs=_inputs(click.get_current_context()),
        what_if=what_if,
    )
    for trace in request.traces:
        _warn_of_another_job(trace, request.changed(request.workers), request.workers)
    report = gather(request)
    drawn = pictures(report, check(report.sources) if evidence and report.sources else ())
    for output, write in writers.items():
        write(drawn, output)
        line(f"wrote {output}")
    if not writers:
        _show(drawn)
    for note in (*report.tuning.warnings, *(report.doubts if writers else ())):
        warn(note)


def _warn_of_another_job(trace: Trace, workload: Workload, workers: int) -> None:
    """Warn if the trace is of another job: its times are then not comparable with the prediction."""
    if trace.workers not in (None, workers):
        warn(f"the trace {trace.name} is of {trace.workers} workers, the prediction of {workers}")
    try:
        sent = workload_of(trace).gradient_bytes
    except DataError:  # it does not say
        return
    if sent and abs(sent / max(1, workload.gradient_bytes) - 1) > ANOTHER_JOB:
        ours = show_bytes(workload.gradient_bytes)
        warn(
            f"the trace {trace.name} has gradients of {show_bytes(sent)}, the workload of {ours}: check that both are "
            "of one job"
        )


def _form(output: str) -> Callable[[Pictures, str], None]:
    """The writer for that file. Raises UsageError for an unknown ending, or if the file cannot be written."""
    name = Path(output).name.lower()
    for suffix, write in FORMS.items():
        if name.endswith(suffix):
            require_writable(output)
            if write is _plot:
                from osfmodel.show.picture import require_matplotlib

                require_matplotlib()  # before the other files are written
            return write
    raise UsageError(f"-o {output}: the name must end in {', '.join(FORMS)}; without -o the pictures are drawn here")


def _inputs(ctx: click.Context) -> tuple[tuple[str, str], ...]:
    """The options that the user gave, with their values."""
    given = []
    for name, value in ctx.params.items():
        if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE and name != "outputs":
            words = " ".join(map(str, value)) if isinstance(value, tuple) else "yes" if value is True else str(value)
            given.append((name.removesuffix("_name").removesuffix("_names").replace("_", " "), words))
    return tuple(given)


def _show(drawn: Pictures) -> None:
    """Draw the pictures on stdout: as wide as the terminal and in colour, or 100 plain columns on a pipe."""
    import io
    import sys

    from rich.console import Console

    from osfmodel.show.report.screen import show_pictures

    terminal = sys.stdout is not None and sys.stdout.isatty()
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=None if terminal else 100, highlight=False)
    show_pictures(console, drawn)
    print_text("\n".join(text.rstrip() for text in buffer.getvalue().splitlines()) + "\n")
