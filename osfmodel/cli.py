"""The ``osf`` command: one command per verb, thin. Data on stdout; progress, warnings and errors on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from osfmodel import __version__, catalogue, profiles
from osfmodel.cluster import Cluster
from osfmodel.cost import COST_MODELS
from osfmodel.economics import Economics, economics
from osfmodel.errors import OsfError, UsageError
from osfmodel.output import FORMATS, Listed, Predicted, Result, Tuned, render
from osfmodel.plan import Plan
from osfmodel.predict import NAMED_PLANS, Comparison, compare
from osfmodel.solve import Limits
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.tune import tune
from osfmodel.units import parse_bytes
from osfmodel.workload import Workload

LARGEST_WORKER_COUNT = 10**7


class OneLineErrors(click.Group):
    """A group whose every error is one line on stderr: exit 1 for bad data, 2 for bad usage."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, turning errors into one line and an exit code."""
        try:
            result = super().main(*args, **{**kwargs, "standalone_mode": False})
        except OsfError as error:
            self._fail(str(error), error.exit_code)
        except click.ClickException as error:
            self._fail(error.format_message(), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            self._fail("interrupted", 130)
        except BrokenPipeError:
            sys.stderr.close()  # the reader went away: not our error
            sys.exit(0)
        sys.exit(result if isinstance(result, int) else 0)

    @staticmethod
    def _fail(message: str, code: int) -> None:
        click.echo(f"osf: {' '.join(message.split())}", err=True)
        sys.exit(code)


class ProfileName(click.ParamType):  # type: ignore[type-arg]
    """A bundled name or a path; completes to both."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Names that begin like that, and files."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name) for name in profiles.names(self.name) if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="osf", message="%(prog)s %(version)s")
def main() -> None:
    """Predict and plan the communication of synchronous data-parallel training.

    \b
    osf predict   how long an iteration takes under each way of fusing gradients
    osf tune      the settings that make PyTorch DDP or Horovod do it best
    osf list      the workloads, clusters, plans and targets that come with osfmodel

    Shell completion:  eval "$(_OSF_COMPLETE=bash_source osf)"   (zsh_source, fish_source)
    """


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--format and -o, the same on every command."""
    command = click.option("-o", "--output", metavar="FILE", help="Write to FILE, whole or not at all.")(command)
    command = click.option("--json", "as_json", is_flag=True, help="Short for --format json.")(command)
    return click.option(
        "-f", "--format", "style", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format."
    )(command)


def subject_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """WORKLOAD, --cluster and their variations, the same for predict and tune."""
    command = click.option(
        "--cost-model", type=click.Choice(list(COST_MODELS)), help="Price collectives with this model instead."
    )(command)
    command = click.option(
        "--cluster", "cluster_name", required=True, metavar="CLUSTER", type=ProfileName("cluster"),
        help="Bundled name, JSON file, or words such as ring:50us,10Gbps.",
    )(command)  # fmt: skip
    return click.argument("workload_name", metavar="WORKLOAD", type=ProfileName("workload"))(command)


@main.command(name="predict")
@subject_options
@click.option("--workers", required=True, metavar="N[,N...|A..B]", help="Worker counts; A..B doubles from A to B.")
@click.option(
    "--plan",
    "plan_names",
    multiple=True,
    metavar="NAME|FILE",
    help="Named plan or plan file; repeatable. Default: all.",
)
@click.option("--samples", type=float, metavar="N", help="Also say how long training on N samples takes.")
@click.option("--price-per-gpu-hour", type=float, metavar="PRICE", help="Also say what that costs.")
@click.option("--batch-size", type=int, metavar="B", help="Samples per worker and iteration, if the workload lacks it.")
@output_options
def predict_command(
    workload_name: str,
    cluster_name: str,
    cost_model: str | None,
    workers: str,
    plan_names: tuple[str, ...],
    samples: float | None,
    price_per_gpu_hour: float | None,
    batch_size: int | None,
    style: str,
    as_json: bool,
    output: str | None,
) -> None:
    """Predict the iteration time of WORKLOAD on CLUSTER under each plan.

    \b
    Example:
      osf predict resnet50-v100 --cluster v100-10gbe --workers 16
      osf predict resnet50-v100 --cluster v100-10gbe --workers 4..64 --plan ddp --plan optimal
      osf predict resnet50-v100 --cluster ring:50us,10Gbps --workers 8,32 --samples 115e6 --price-per-gpu-hour 2.5
    """
    workload, cluster = _subject(workload_name, cluster_name, cost_model, batch_size)
    counts = parse_workers(workers, cluster)
    plans = [_plan(name) for name in plan_names or NAMED_PLANS]
    comparisons = [compare(workload, cluster, count, plans) for count in counts]
    money = _economics(comparisons, samples, price_per_gpu_hour)
    _emit("json" if as_json else style, output, Predicted(comparisons, money))


@main.command(name="tune")
@subject_options
@click.option(
    "--workers", required=True, metavar="N[,N...|A..B]", help="Several counts: one plan good for all of them."
)
@click.option(
    "--for", "target", type=click.Choice(list(CONFIG_TARGETS)), default="ddp", show_default=True, help="Framework."
)
@click.option("--max-bucket", metavar="SIZE", help="Largest bucket, for example 64MiB.")
@click.option("--max-buckets", type=int, metavar="K", help="Most buckets.")
@output_options
def tune_command(
    workload_name: str,
    cluster_name: str,
    cost_model: str | None,
    workers: str,
    target: str,
    max_bucket: str | None,
    max_buckets: int | None,
    style: str,
    as_json: bool,
    output: str | None,
) -> None:
    """Find the settings that make a framework carry out the best plan, and print the lines to paste.

    \b
    Example:
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --for ddp
      osf tune resnet50-v100 --cluster v100-10gbe --workers 8..64 --for horovod
      osf tune resnet50-v100 --cluster v100-10gbe --workers 16 --format json -o plan.json
    """
    workload, cluster = _subject(workload_name, cluster_name, cost_model, None)
    limits = Limits(None if max_bucket is None else parse_bytes(max_bucket), max_buckets)
    tuning = tune(workload, cluster, parse_workers(workers, cluster), target, limits)
    _emit("json" if as_json else style, output, Tuned(tuning))


@main.command(name="list")
@click.argument("kind", type=click.Choice(["workloads", "clusters", "plans", "targets", "cost-models"]), required=False)
@output_options
def list_command(kind: str | None, style: str, as_json: bool, output: str | None) -> None:
    """List what comes with osfmodel, and where each figure is from.

    \b
    Example:
      osf list
      osf list clusters --format json
    """
    kinds = [kind] if kind else list(catalogue.LISTINGS)
    _emit("json" if as_json else style, output, Listed({name: catalogue.LISTINGS[name]() for name in kinds}))


def parse_workers(text: str, cluster: Cluster) -> list[int]:
    """``"16"``, ``"4,8"`` or ``"4..64"`` as worker counts.

    A range holds the counts that ``cluster`` was measured with; where it serves any count, the doublings of its start,
    and its end. Raises UsageError.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part)
        if match is None:
            raise UsageError(f"--workers {text!r}: write counts such as 16, 4,8,16 or 4..64")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= LARGEST_WORKER_COUNT:
            raise UsageError(f"--workers {text!r}: counts go from 1 to {LARGEST_WORKER_COUNT}, the smaller one first")
        counts += [first] if match[2] is None else _range(first, last, cluster)
    return list(dict.fromkeys(counts))


def _range(first: int, last: int, cluster: Cluster) -> list[int]:
    if cluster.measured_workers:
        inside = [count for count in cluster.measured_workers if first <= count <= last]
        if not inside:
            have = ", ".join(map(str, cluster.measured_workers))
            raise UsageError(f"--workers {first}..{last}: cluster {cluster.name!r} was measured with {have}")
        return inside
    doublings = []
    while first < last:
        doublings.append(first)
        first *= 2
    return [*doublings, last]


def _subject(workload: str, cluster: str, cost_model: str | None, batch_size: int | None) -> tuple[Workload, Cluster]:
    from dataclasses import replace

    loaded, wires = profiles.load_workload(workload), profiles.load_cluster(cluster)
    if batch_size is not None:
        if batch_size < 1:
            raise UsageError(f"--batch-size {batch_size}: it must be 1 or more")
        loaded = replace(loaded, batch_size=batch_size)
    return loaded, wires if cost_model is None else replace(wires, cost_model=cost_model)


def _plan(name: str) -> str | tuple[str, Plan]:
    if name in NAMED_PLANS:
        return name
    path = Path(name)
    if not path.is_file() and path.name == name and path.suffix != ".json":
        raise UsageError(f"unknown plan {name!r}: known are {', '.join(NAMED_PLANS)}, or give a plan file")
    return name, profiles.load_plan(path)


def _economics(
    comparisons: Sequence[Comparison], samples: float | None, price: float | None
) -> dict[str, list[Economics]]:
    """Rows per plan; empty without --samples."""
    if samples is None:
        if price is not None:
            raise UsageError("--price-per-gpu-hour needs --samples: how much training is to be paid?")
        return {}
    for name, value in (("--samples", samples), ("--price-per-gpu-hour", price)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} {value}: it must be a finite number above 0")
    rows: dict[str, list[Economics]] = {}
    for comparison in comparisons:
        for prediction in comparison.predictions:
            row = economics(comparison.workload, comparison.workers, prediction.iteration_time, samples, price)
            rows.setdefault(prediction.name, []).append(row)
    return rows


def _emit(style: str, output: str | None, result: Result) -> None:
    """Warnings to stderr, the result to stdout or, whole or not at all, to a file."""
    to_stdout = output in (None, "-")
    text = render(style, result, for_terminal=to_stdout and sys.stdout.isatty())
    for warning in result.warnings():
        click.echo(f"osf: warning: {warning}", err=True)
    if to_stdout:
        click.echo(text, nl=False)
    else:
        profiles.write_text(str(output), text)


if __name__ == "__main__":
    main()
