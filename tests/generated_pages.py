"""The pages of the docs that are made from the code: one a command, the errors of the ledger, and JSON Schemas.

The site's build makes those of commands (docs/hooks.py). ``python -m tests.refresh_docs`` writes the others;
tests/repository/test_site.py says when they are stale.
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import click

from osfmodel.cli import main
from osfmodel.cli.app import COMMANDS
from osfmodel.cli.groups import GENERAL, grouped
from osfmodel.ledger import LEDGER
from osfmodel.ledger.check import overall, used_overall
from osfmodel.ledger.results import TIME, Checked
from osfmodel.show.schemas import ENDING, SCHEMAS, schema_text
from tests.conftest import ROOT

DOCS = ROOT / "docs"
ACCURACY = DOCS / "accuracy.md"
HOW_TO = {
    "predict": ("../tutorial.md", "../how-to/ask-what-if.md"),
    "tune": ("../tutorial.md", "../how-to/run-a-plan.md", "../how-to/fit-into-memory.md"),
    "scale": ("../how-to/scale-from-a-name.md", "../how-to/audit-a-job.md"),
    "sweep": ("../how-to/sweep.md",),
    "memory": ("../how-to/fit-into-memory.md",),
    "run": ("../how-to/run-a-plan.md", "../how-to/train-under-a-plan.md", "../how-to/check-horovod.md"),
    "check": ("../accuracy.md", "../ledger.md", "../how-to/run-a-plan.md"),
    "explain": ("../how-to/why-is-it-slow.md",),
    "doctor": ("../how-to/is-my-network-healthy.md",),
    "compare": ("../how-to/compare-two-runs.md",),
    "report": ("../how-to/show-it.md",),
    "bench": ("../how-to/measure-a-cluster.md",),
    "import": ("../reference/formats.md",),
    "profile": ("../how-to/profile-a-model.md",),
    "list": ("../how-to/use-in-notebooks.md",),
    "mcp": ("../how-to/use-from-an-agent.md",),
}
"""Pages that show a command at work; those that are not there are left out."""


def schema_pages() -> dict[Path, str]:
    """The JSON Schema of each kind of file, which the site publishes."""
    return {DOCS / f"reference/schemas/{kind}{ENDING}": schema_text(kind) for kind in SCHEMAS}


def command_pages() -> dict[Path, str]:
    """A page for each of COMMANDS, which the site's build makes."""
    return {DOCS / f"commands/{name}.md": _command(name) for name in COMMANDS}


def index_page() -> dict[Path, str]:
    """The list of the commands, which is kept."""
    return {DOCS / "commands/index.md": _commands()}


def command_called(name: str) -> tuple[click.Command, click.Context]:
    """A command as ``osf`` runs it; in another context click would keep another help option of it."""
    group = click.Context(main, info_name="osf", **main.context_settings)
    command = main.get_command(group, name)
    assert command is not None
    return command, click.Context(command, group, info_name=name)


def _command(name: str) -> str:
    command, context = command_called(name)
    said, literal = _help_of(command)
    usage = " ".join(["osf", name, *command.collect_usage_pieces(context)])
    parts = [f"# osf {name}", *said, f"```text\n{usage}\n```"]
    for heading, lines in literal:
        parts.append(f"## {heading}\n\n```sh\n{lines}\n```")
    for heading, options in _groups(name).items():
        title = "## Options" if heading == GENERAL.heading else f"### {heading}"
        parts.append(f"{title}\n\n" + "\n".join(_described(name, options)))
    there = [page for page in HOW_TO.get(name, ()) if (DOCS / "commands" / page).exists()]
    if there:
        parts.append("## At work\n\n" + "\n".join(f"* [{_title(DOCS / 'commands' / page)}]({page})" for page in there))
    return "\n\n".join(parts) + "\n"


def _described(name: str, options: Mapping[str, str]) -> Iterable[str]:
    """A line for each option that no command before has with the same words, and one for those that some have."""
    before = {other: _groups(other) for other in list(COMMANDS)[: list(COMMANDS).index(name)]}
    same: dict[str, list[str]] = {}
    for option, meaning in options.items():
        first = next(
            (c for c, groups in before.items() if any(g.get(option) == meaning for g in groups.values())), None
        )
        if first is None:
            yield f"* {option}: {meaning}"
        else:
            same.setdefault(first, []).append(option)
    for first, those in same.items():
        yield f"* {', '.join(those)}: as of [osf {first}]({first}.md#options)."


@cache
def _groups(name: str) -> dict[str, dict[str, str]]:
    """The options of each group of a command; --help and --json are on the page that lists the commands."""
    command, context = command_called(name)
    groups = grouped(command.get_params(context))
    described = {heading: dict(_options(options, context)) for heading, options in groups.items()}
    return {heading: options for heading, options in described.items() if options}


def _help_of(command: click.Command) -> tuple[list[str], list[tuple[str, str]]]:
    """Paragraphs of the help text, and its literal blocks, each with its heading."""
    said, literal = [], []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "").replace("\b\n", "\b")):
        if not paragraph.startswith("\b"):
            said.append(_cell(" ".join(paragraph.split())))
            continue
        heading, _, lines = paragraph.removeprefix("\b").partition("\n")
        literal.append((heading.rstrip(":") + "s", inspect.cleandoc("\n" + lines)))
    return said, literal


def _options(options: Iterable[click.Option], context: click.Context) -> Iterable[tuple[str, str]]:
    """As the command's own help has them, with defaults and ranges."""
    for option in options:
        record = option.get_help_record(context)
        if record is None or {"--help", "--json"} & set(option.opts):
            continue
        names, value = re.fullmatch(r"((?:-\w, )?\S+)(.*)", record[0], re.DOTALL).groups()
        yield f"`{names.strip()} {value.strip()}".rstrip() + "`", _cell(" ".join(record[1].split()))


def _cell(text: str) -> str:
    """A sentence for a table: commands and options as code, and no sign that Markdown takes for its own."""
    marked = re.sub(r"'(osf [^']+)'", r"`\1`", text)
    pieces = [
        re.sub(r"(?<![\w-])(--[a-z][a-z-]*(?: [A-Z]{2,}\b)?)", r"`\1`", _escaped(piece))
        if number % 2 == 0
        else f"`{piece}`"
        for number, piece in enumerate(marked.split("`"))
    ]
    return "".join(pieces)


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("| --- ", "|---").replace("|--- |", "|---|") for cells in lines)


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _commands() -> str:
    """The list of commands, each with its line of ``osf --help``."""
    rows = [(f"`osf {name}`", _cell(summary)) for name, summary in COMMANDS.items()]
    return f"# Commands\n\n{_table(('command', 'what it does'), rows)}\n\n{SHARED}"


SHARED = """\
`osf COMMAND --help` has the options; the site has a page of each, made from it.

## Common to all

* **Data go to stdout**, warnings, errors and progress to stderr, each on one line.
* **`--format`** is `table`, `json`, `yaml` or `csv`; `--json` is short for `--format json`. Keys name their units
  (`iteration_time_s`, `gradient_bytes`). [What is in them](../reference/files.md#what-the-commands-print).
* **Notes** under a table are four at most, those to act on first; `--notes` shows all, as JSON and pages do.
* **`-o FILE`** writes a file atomically; its suffix gives the format where `--format` does not.
* **Exit status**: 0 fine. 2: the command line is wrong (unknown option, name or unit, options that contradict each
  other or the workload or cluster, a place that `-o` cannot write to). 130: interrupted. 1: all else, such as a file
  that is missing or wrong, or a check or a job that failed.
* **A WORKLOAD and a CLUSTER** are a bundled name (`osf list`), a file, or the name of a file in `workloads/` and
  `clusters/` of the folder in the environment variable `OSFMODEL_PROFILES`. A cluster may also be given in words, such
  as `ring:50us,10Gbps`.
* **Sizes and times** have units: `25MiB`, `25MB`, `50us`, `10Gbps`. MiB are 2^20 bytes, MB are 10^6, Gbps are 10^9
  bits per second.
* **Defaults of your own** for a few options: [`osf.toml`](../how-to/set-defaults.md).
* **Shell completion**: `eval "$(_OSF_COMPLETE=bash_source osf)"`, or `zsh_source`, `fish_source`.
"""


def accuracy_page(checked: Sequence[Checked]) -> dict[Path, str]:
    """Errors of each source of the ledger, as ``osf check`` finds them."""
    middle, high = overall(checked)
    times = [one for one in checked if LEDGER[one.source].compares == TIME]
    head = ("source", "runs", "median", "p90", "worst", "bias", "as used", "in band")
    used = used_overall(checked)
    assert used is not None
    right = "|---" + "|---:" * (len(head) - 1)
    table = _table(head, [_errors(one) for one in checked]).replace("|---" * len(head), right)
    text = TEMPLATE.format(
        table=table,
        runs=f"{sum(one.n for one in checked):,}",
        middle=_percent(middle),
        high=_percent(high),
        sources_used=used.sources,
        used=_percent(used.median_abs_error),
        used_bias=f"{used.bias:+.1%}",
        covered=f"{used.coverage:.0%}",
        low=_percent(min(one.median_abs_error or 0 for one in times)),
        top=_percent(max(one.median_abs_error or 0 for one in times)),
    )
    return {ACCURACY: text}


def _errors(one: Checked) -> Sequence[str]:
    absolute = [_percent(error) for error in (one.median_abs_error, one.p90_abs_error, one.worst_abs_error)]
    bias = "" if one.bias is None else f"{one.bias:+.1%}"
    used = one.as_used
    as_used = ("", "") if used is None else (f"{used.median_abs_error:.1%}", f"{used.coverage or 0:.0%}")
    return f"[`{one.source}`]({_page(one.source)})", f"{one.n:,}", *absolute, bias, *as_used


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:.1%}"


def _page(source: str) -> str:
    """The page of a source: its own, or that of its family."""
    return next(
        f"ledger/{name}.md" for name in (source, source.partition("-")[0]) if (DOCS / f"ledger/{name}.md").exists()
    )


TEMPLATE = """\
# How far to trust it

Predictions are compared with {runs} measured figures: iteration times, published speed-ups (`papers`) and peaks of
memory (`memory`). `osf check` prints these errors. For times and speed-ups, the median error of a source lies between
{low} and {top}; the median over the sources is **{middle}**, and **{high}** for the 90th percentile.

{table}

An error is predicted / measured - 1; *bias* is the median with its sign, above 0 where predictions are too slow.
**Only runs on which nothing was fitted count.** The tests fail when a source gets worse.

*As used* is what you get: {sources_used} sources of real machines predicted from the time on one GPU and a network in
words, with defaults only; sharded training, which nobody published for one GPU, from the run on the fewest GPUs.
There the median error is **{used}** (median over the sources), the bias {used_bias}, and {covered} of a source's runs
lie inside the 90 % error band, learned without it.

[![predicted against measured iteration times, and the coverage of error bands](ledger.png)](ledger.png)

`osf check --plot ledger.png` draws this picture: on the left measured times across and predicted times, as used, up; on
the right the part of runs inside error bands. In a file of yours, hollow points are runs compared with the workload and
cluster of their own trace: self-consistency, no predictions.

Most predictions for several workers carry an [error band](reference/bands.md). It is as good as the cluster file:
beyond the measured sizes and worker counts it carries a warning. Your own runs are the best test: `osf run` measures
plans and `osf check FILE` compares them with predictions ([how](how-to/run-a-plan.md)).
"""
