"""The command group, and the code that its commands share: options, worker counts, output, errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from osfmodel.cli.groups import OUTPUT, WRITTEN, FileType, with_remedy
from osfmodel.counting import workload_names
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError, ForeignFileError, OsfError, UsageError
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.lookup import LateTable, all_names, suggestion
from osfmodel.entities.units import parse_time
from osfmodel.entities.version import __version__
from osfmodel.entities.workload import Workload
from osfmodel.show.document import FORMATS, Result, choose_format, ending_of, render

COMMANDS: Mapping[str, str] = {
    "predict": "predict the iteration time under each way of fusing gradients",
    "tune": "find the best settings for your framework (osf list targets)",
    "scale": "show what more GPUs give: strategy, rate, memory, cost",
    "sweep": "predict every combination of a grid, and show the best of them",
    "memory": "predict the peak memory of a step under each plan, and who owns it",
    "run": "train for real under each plan, and measure it (needs PyTorch)",
    "explain": "explain from profiler traces why a job is slow, and what would help",
    "doctor": "check a network: price, percentile, likely fault, and its experiment",
    "compare": "compare two runs, traces or predictions: slower, faster, or noise",
    "check": "compare predictions with measured runs",
    "report": "draw the iteration: terminal, HTML page, PNG, SVG, Chrome trace",
    "bench": "measure collectives, or a GPU's kernels, and write a file (needs PyTorch)",
    "import": "convert files of benchmarks, profilers and frameworks",
    "profile": "measure your own PyTorch model, and write a workload file",
    "list": "list bundled workloads, clusters, plans, targets, formats ...",
    "mcp": "serve predict, tune, scale, memory and explain to agents",
}
"""The commands, in the order in which ``osf --help`` lists them, each with its line there.

The command NAME is ``NAME_command`` in the module of that name, loaded only when it is used.
"""
NAMED_OTHERWISE = {"import": "importing", "list": "listing"}
"""Modules of commands whose names mean something in Python."""


class CommandLine(click.Group):
    """Commands out of COMMANDS. Every error is one line on stderr: exit 1 for bad data, 2 for bad usage."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, a line each."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"osfmodel.cli.{NAMED_OTHERWISE.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; for an unknown command, suggest the one that may have been meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}: {suggestion(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, turning errors into one line and an exit code."""
        try:
            result = self._run(*args, **kwargs)
        except OsfError as error:
            self._fail(_advised(error), error.exit_code)
        except click.ClickException as error:
            self._fail(with_remedy(error), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            self._fail("interrupted", 130)
        except BrokenPipeError:
            sys.stderr.close()  # the reader went away: not our error
            sys.exit(0)
        except OSError as error:
            place = "" if error.filename is None else f"{error.filename}: "
            self._fail(f"cannot write the result: {place}{error.strerror or error}", 1)
        sys.exit(result if isinstance(result, int) else 0)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            print_text(error.ctx.get_help() + "\n")  # a bare `osf` asks what there is
            return 0

    @staticmethod
    def _fail(message: str, code: int) -> None:
        click.echo(f"osf: {' '.join(message.split())}", err=True)
        sys.exit(code)


def _advised(error: OsfError) -> str:
    """The error's message; for another tool's file, with the command that converts it."""
    if not isinstance(error, ForeignFileError):
        return str(error)
    from osfmodel.formats.reading import import_advice

    return import_advice(error)


class NameOrFile(FileType):
    """A parameter that takes a name out of ``known(begun)`` or a path; shell completion offers both."""

    def __init__(self, name: str, known: Callable[[str], Iterable[str]], folders: bool = False) -> None:
        self.name, self.known, self.folders = name, known, folders

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Known names that begin with ``incomplete``; files if there are none."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name) for name in self.known(incomplete) if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


class OneOf(click.Choice):  # type: ignore[type-arg]
    """One of a few names, in either case; the error for any other name suggests near ones.

    Of a table, also the name of an entry that another package provides: these are looked up only when they are needed.
    """

    def __init__(self, names: Iterable[str], *also: str) -> None:
        super().__init__([*names, *also], case_sensitive=False)
        self._names, self._also = names, also

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name that is meant. Raises click.BadParameter for other names."""
        if str(value).lower() not in self.choices:
            self._widen()
        return super().convert(value, param, ctx)

    def _widen(self) -> None:
        if isinstance(self._names, LateTable):
            self.choices = (*all_names(self._names), *self._also)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The names that begin with ``incomplete``."""
        self._widen()
        return super().shell_complete(ctx, param, incomplete)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Say that a value is not known and suggest near names, or list all."""
        meant = suggestion(str(value).lower(), self.choices, "", most=3)
        return f"{value!r} is not known: {meant}" if meant else super().get_invalid_choice_message(value, ctx)


WORKLOAD = NameOrFile("workload", workload_names)
CLUSTER = NameOrFile("cluster", lambda _begun: profiles.names("cluster"))


def _plans(_begun: str) -> Iterable[str]:
    from osfmodel.targets.named_plans import NAMED_PLANS

    return NAMED_PLANS


PLAN = NameOrFile("plan", _plans)
ALL_NOTES = "osfmodel.all_notes"
"""Key, in a context's ``meta``, of whether --notes was given."""


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="osf", message="%(prog)s %(version)s")
@click.option(
    "--no-config",
    is_flag=True,
    envvar="OSFMODEL_NO_CONFIG",
    help="Leave out the defaults of osf.toml and pyproject.toml ('osf list config').",
)
def main(no_config: bool) -> None:
    """Predict and plan the communication of synchronous data-parallel training.

    \b
    Shell completion (or zsh_source, fish_source):
      eval "$(_OSF_COMPLETE=bash_source osf)"
    """


def output_options(command: Callable[..., Any], more: Sequence[str] = (), notes: bool = True) -> Callable[..., Any]:
    """--format, -o and, for a table with ``notes``, --notes, for any command; ``more`` formats are of a single one."""
    command = OUTPUT.option("-o", "--output", metavar="FILE", type=WRITTEN, help="Write to FILE, atomically.")(command)
    if notes:
        said = "Show all notes under the table, not four."
        command = OUTPUT.option("--notes", is_flag=True, expose_value=False, callback=_keep_notes, help=said)(command)
    command = OUTPUT.option("--json", "as_json", is_flag=True, help="Short for --format json.")(command)
    return OUTPUT.option(
        "-f",
        "--format",
        "style",
        type=OneOf([*FORMATS, *more]),
        help="Output format. Default: as FILE is named, else table.",
    )(command)


def _keep_notes(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    ctx.meta[ALL_NOTES] = asked


def parse_limit(text: str) -> float:
    """``--timeout`` in seconds. Raises UsageError below 1 s."""
    seconds = parse_time(text)
    if not seconds >= 1:
        raise UsageError(f"--timeout {text}: give a second or more")
    return seconds


def warn(message: str) -> None:
    """Print a warning on stderr."""
    line(f"warning: {message}")


def watched() -> bool:
    """Whether stderr is a terminal, so that progress is worth printing."""
    return sys.stderr is not None and sys.stderr.isatty()


def teller(speaks: bool = True) -> Callable[[str], None]:
    """A function that prints lines of progress on a terminal; it prints nothing on a pipe or without ``speaks``."""
    return line if speaks and watched() else lambda text: None


def line(text: str) -> None:
    """Print a line on stderr, terminal or not."""
    click.echo(f"osf: {text}", err=True)


def emit(style: str | None, as_json: bool, output: str | None, result: Result) -> None:
    """Write the result to stdout or, atomically, to a file; then warnings to stderr."""
    if as_json and style not in (None, "json"):
        raise UsageError(f"--json contradicts --format {style}: leave --json out")
    to_stdout = output in (None, "-")
    if str(output).lower().endswith(".gz"):
        raise UsageError(f"-o {output}: this result is not packed: leave .gz out")
    if not to_stdout:
        require_writable(str(output))
    asked = "json" if as_json else style
    chosen = choose_format(asked, output, result)
    on_terminal = to_stdout and sys.stdout is not None and sys.stdout.isatty()
    few = not click.get_current_context().meta.get(ALL_NOTES)
    text = render(chosen, result, on_terminal, ending_of(output), few)
    if to_stdout:
        print_text(text)
    else:
        profiles.write_text(str(output), text)
        held = result.other(chosen) if asked is None and hasattr(result, "other") else chosen
        line(f"wrote {output} ({held})")
        if hasattr(result, "verdict"):
            line(result.verdict)
    for warning in result.warnings():
        warn(warning)


DRAWN: Mapping[str, str] = {".html": "page", ".png": "picture", ".svg": "picture"}
"""Files that are no text, by the ending of their names."""


def drawn_form(style: str | None, as_json: bool, output: str | None) -> str | None:
    """``page`` or ``picture`` if the name of the output asks for it and no format is given; else None."""
    return DRAWN.get(Path(output or "").suffix.lower()) if style is None and not as_json else None


def require_writable(output: str | os.PathLike[str]) -> None:
    """Raise UsageError if ``output`` cannot be written; called before long work begins."""
    target = Path(os.path.realpath(output))
    if target.exists() and not target.is_file() and not target.is_dir():
        return  # a pipe or a device is written to as it is
    if target.is_dir():
        raise UsageError(f"-o {output}: that is a folder: name a file in it")
    if not target.parent.is_dir():
        raise UsageError(
            f"-o {output}: there is no folder {Path(output).parent}: make it first, or write {target.name}"
        )
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"-o {output}: nothing can be written to {Path(output).parent}")


def save_or_print(profile: Cluster | Workload, path: str | os.PathLike[str]) -> None:
    """Save a measured profile; if that fails, print it on stdout and raise DataError."""
    try:
        profiles.save(profile, path)
    except DataError as error:
        print_text(documents.encode(documents.document_of(profile)))
        raise DataError(f"{error}: it is on standard output instead") from None


def print_text(text: str) -> None:
    """Print ``text`` on stdout. Raises OSError if stdout is closed or full."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    click.echo(text, nl=False)
    sys.stdout.flush()
