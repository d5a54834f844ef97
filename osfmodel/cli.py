"""The ``osf`` command: one command per verb, thin. Data on stdout; progress, warnings and errors on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from osfmodel import __version__, catalogue, profiles
from osfmodel.cluster import Cluster
from osfmodel.cost import COST_MODELS, worker_counts
from osfmodel.economics import Economics, economics
from osfmodel.errors import OsfError, UsageError
from osfmodel.output import Listed, Predicted, Tuned
from osfmodel.plan import Plan
from osfmodel.plans import NAMED_PLANS, named_plan
from osfmodel.predict import Comparison, compare
from osfmodel.render import FORMATS, Result, choose_format, render
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
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help())  # a bare `osf` asks what there is
            sys.exit(0)
        except OsfError as error:
            self._fail(str(error), error.exit_code)
        except click.ClickException as error:
            self._fail(error.format_message(), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            self._fail("interrupted", 130)
        except BrokenPipeError:
            sys.stderr.close()  # the reader went away: not our error
            sys.exit(0)
        except OSError as error:
            self._fail(f"cannot write the result: {error.strerror or error}", 1)
        sys.exit(result if isinstance(result, int) else 0)

    @staticmethod
    def _fail(message: str, code: int) -> None:
        click.echo(f"osf: {' '.join(message.split())}", err=True)
        sys.exit(code)


class NameOrFile(click.ParamType):  # type: ignore[type-arg]
    """A name out of those that ``known`` gives, or a path; completes to both."""

    def __init__(self, name: str, known: Callable[[], Iterable[str]]) -> None:
        self.name, self.known = name, known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Names that begin like that, or files."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name) for name in self.known() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


WORKLOAD = NameOrFile("workload", lambda: profiles.names("workload"))
CLUSTER = NameOrFile("cluster", lambda: profiles.names("cluster"))
PLAN = NameOrFile("plan", lambda: NAMED_PLANS)


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
        "-f",
        "--format",
        "style",
        type=click.Choice(FORMATS),
        help="Output format. Default: as FILE is named, else table.",
    )(command)


def subject_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """WORKLOAD, --cluster and their variations, the same for predict and tune."""
    command = click.option(
        "--cost-model",
        type=click.Choice(list(COST_MODELS)),
        metavar="MODEL",
        help="Price collectives with this model instead ('osf list cost-models').",
    )(command)
    command = click.option(
        "--cluster", "cluster_name", required=True, metavar="CLUSTER", type=CLUSTER,
        help="Bundled name, JSON file, or words such as ring:50us,10Gbps or hierarchical:8,5us,200GB/s,50us,25Gbps.",
    )(command)  # fmt: skip
    return click.argument("workload_name", metavar="WORKLOAD", type=WORKLOAD)(command)


@main.command(name="predict")
@subject_options
@click.option("--workers", required=True, metavar="N[,N...|A..B]", help="Worker counts; A..B: see below.")
@click.option(
    "--plan",
    "plan_names",
    multiple=True,
    metavar="NAME|FILE",
    type=PLAN,
    help="Named plan or plan file; repeatable. Default: all named ones.",
)
@click.option("--channels", type=click.IntRange(1, 64), metavar="K", help="Collectives in flight at once.")
@click.option("--forward-overlap", is_flag=True, help="Let the next forward start before all communication has ended.")
@click.option("--split", is_flag=True, help="Reduce-scatter in backward, all-gather in the next forward.")
@click.option("--samples", metavar="N", help="Also say how long training on N samples takes (115e6, 1.28M).")
@click.option("--price-per-gpu-hour", type=float, metavar="PRICE", help="Also say what that costs.")
@click.option("--batch-size", type=int, metavar="B", help="Samples per worker and iteration, if the workload lacks it.")
@output_options
def predict_command(
    workload_name: str,
    cluster_name: str,
    cost_model: str | None,
    workers: str,
    plan_names: tuple[str, ...],
    channels: int | None,
    forward_overlap: bool,
    split: bool,
    samples: str | None,
    price_per_gpu_hour: float | None,
    batch_size: int | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Predict the iteration time of WORKLOAD on CLUSTER under each plan.

    A range of worker counts, A..B, is A, 2A, 4A ... and B, or those of the counts between A and B that the cluster was
    measured with. Training on --samples keeps the batch per worker, so more workers mean fewer iterations.

    \b
    Example:
      osf predict resnet50-v100 --cluster v100-10gbe --workers 16
      osf predict resnet50-v100 --cluster v100-10gbe --workers 4..64 --plan ddp --plan optimal
      osf predict resnet50-v100 --cluster ring:50us,10Gbps --workers 8,32 --samples 115e6 --price-per-gpu-hour 2.5
    """
    workload, cluster = _subject(workload_name, cluster_name, cost_model, batch_size)
    counts = parse_workers(workers, cluster)
    plans = [_plan(name) for name in dict.fromkeys(plan_names or NAMED_PLANS)]
    schedule = {"channels": channels, "forward_overlap": forward_overlap or None, "split": split or None}
    changes = {field: value for field, value in schedule.items() if value is not None}
    comparisons = [compare(workload, cluster, count, plans, changes) for count in counts]
    money = _economics(comparisons, samples, price_per_gpu_hour)
    _emit(style, as_json, output, Predicted(comparisons, money))


@main.command(name="tune")
@subject_options
@click.option(
    "--workers", required=True, metavar="N[,N...|A..B]", help="Several counts: one configuration for all of them."
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
    style: str | None,
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
    _emit(style, as_json, output, Tuned(tuning))


@main.command(name="list")
@click.argument("kind", type=click.Choice(list(catalogue.KINDS)), metavar="[KIND]", required=False)
@click.argument("name", required=False)
@output_options
def list_command(kind: str | None, name: str | None, style: str | None, as_json: bool, output: str | None) -> None:
    """List what comes with osfmodel, or show all that is known of one entry and where its figures are from.

    KIND is workloads, clusters, plans, targets or cost-models.

    \b
    Example:
      osf list
      osf list clusters azure-a100-hdr
      osf list workloads --format json
    """
    found = {key: catalogue.listing(key) for key in ([kind] if kind else catalogue.KINDS)}
    rows = {key: entry.rows for key, entry in found.items()}
    if kind is not None and name is not None:
        rows = {kind: [row for row in rows[kind] if row["name"] == name]}
        if not rows[kind]:
            raise UsageError(f"there is no {name!r} in 'osf list {kind}'")
    problems = [problem for entry in found.values() for problem in entry.problems]
    _emit(style, as_json, output, Listed(rows, list(dict.fromkeys(problems)), whole=name is not None))


def parse_workers(text: str, cluster: Cluster) -> list[int]:
    """``"16"``, ``"4,8"`` or ``"4..64"`` as worker counts.

    A range holds the counts that ``cluster`` was measured with; where it serves any count, the doublings of its start,
    and its end. Raises UsageError.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise UsageError(f"--workers {text!r}: write counts such as 16, 4,8,16 or 4..64")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= LARGEST_WORKER_COUNT:
            raise UsageError(f"--workers {text!r}: counts go from 1 to {LARGEST_WORKER_COUNT}, the smaller one first")
        counts += [first] if match[2] is None else _range(first, last, cluster)
    return list(dict.fromkeys(counts))


def _range(first: int, last: int, cluster: Cluster) -> list[int]:
    doublings = []
    count = first
    while count < last:
        doublings.append(count)
        count *= 2
    doublings.append(last)
    measured = worker_counts(cluster)
    if not measured:
        return doublings
    inside = [count for count in measured if first <= count <= last]
    have = ", ".join(map(str, measured))
    if not inside:
        raise UsageError(f"--workers {first}..{last}: cluster {cluster.name!r} was measured with {have}")
    left_out = [count for count in doublings if count not in measured]
    if left_out:
        missing = ", ".join(map(str, left_out))
        _warn(f"--workers {first}..{last}: cluster {cluster.name!r} was measured with {have}; left out: {missing}")
    return inside


def _subject(workload: str, cluster: str, cost_model: str | None, batch_size: int | None) -> tuple[Workload, Cluster]:
    loaded, wires = profiles.load_workload(workload), profiles.load_cluster(cluster)
    if batch_size is not None:
        if batch_size < 1:
            raise UsageError(f"--batch-size {batch_size}: it must be 1 or more")
        if loaded.batch_size is not None:
            raise UsageError(
                f"--batch-size {batch_size}: {loaded.name!r} was profiled with {loaded.batch_size} and times go with it"
            )
        loaded = replace(loaded, batch_size=batch_size)
    return loaded, wires if cost_model is None else replace(wires, cost_model=cost_model)


def _plan(name: str) -> str | tuple[str, Plan]:
    path = Path(name)
    if name not in NAMED_PLANS and (path.is_file() or path.name != name or path.suffix == ".json"):
        return name, profiles.load_plan(path)
    named_plan(name)
    return name


def _economics(comparisons: Sequence[Comparison], samples: str | None, price: float | None) -> list[list[Economics]]:
    """A row for every prediction of every comparison; empty without --samples."""
    if samples is None:
        if price is not None:
            raise UsageError("--price-per-gpu-hour needs --samples: how much training is to be paid?")
        return []
    if price is not None and not 0 < price < 1e9:
        raise UsageError(f"--price-per-gpu-hour {price}: it must be above 0 and below a billion")
    total = _samples(samples)
    return [
        [
            economics(comparison.workload, comparison.workers, prediction.iteration_time, total, price)
            for prediction in comparison.predictions
        ]
        for comparison in comparisons
    ]


def _samples(text: str) -> float:
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE]\+?[0-9]{1,2})?)\s*([kMG]?)\s*", text)
    total = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[match[2]] if match else 0.0
    if not total > 0:
        raise UsageError(f"--samples {text!r}: write a number above 0, such as 1281167, 115e6 or 1.28M")
    return total


def _warn(message: str) -> None:
    click.echo(f"osf: warning: {message}", err=True)


def _emit(style: str | None, as_json: bool, output: str | None, result: Result) -> None:
    """The result to stdout or, whole or not at all, to a file; then warnings to stderr."""
    if as_json and style not in (None, "json"):
        raise UsageError(f"--json contradicts --format {style}")
    to_stdout = output in (None, "-")
    chosen = choose_format("json" if as_json else style, output)
    text = render(chosen, result, for_terminal=to_stdout and sys.stdout.isatty())
    if to_stdout:
        click.echo(text, nl=False)
        sys.stdout.flush()
    else:
        profiles.write_text(str(output), text)
    for warning in result.warnings():
        _warn(warning)


if __name__ == "__main__":
    main()
